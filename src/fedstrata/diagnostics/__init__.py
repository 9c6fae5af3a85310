"""Measures: numbers about predictions and models that never change a run."""
