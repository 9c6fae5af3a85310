"""Several methods on the same federation: which runs, side by side, cached; screening; sweeps."""
