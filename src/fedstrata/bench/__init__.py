"""Time the engine's executors against a bare PyTorch loop, interleaved in one process, as ratios with intervals."""

from fedstrata.bench.timing import Row, main, measure

__all__ = ["Row", "main", "measure"]
