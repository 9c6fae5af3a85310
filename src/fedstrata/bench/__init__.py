"""``fedstrata bench``: the engine's executors beside a bare PyTorch loop, interleaved in one process, as ratios with
their spread.
"""

from fedstrata.bench.timing import Row, main, measure

__all__ = ["Row", "main", "measure"]
