"""Time the library's max-pool over torch's, for images in the default format and with channels last.

Run: python bench/pools.py.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from fedstrata.bench.timing import hardware
from fedstrata.models.blocks import max_pool

SHAPE, PAIRS = (32, 64, 16, 16), 15  # after the stem of ResNet-8 on 32x32 images


def milliseconds(call: Callable[[], Tensor]) -> float:
    """Time one forward call."""
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def main() -> None:
    """Print a line for each format."""
    torch.set_num_threads(1)
    print(f"{hardware()}; {SHAPE}, 3x3 windows, stride 2, forward, one thread; medians of {PAIRS} pairs")
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)).relu()
    for name, last in (("default", False), ("channels last", True)):
        image = x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
        ways = (partial(max_pool2d, image, 3, 2, 1), partial(max_pool, image, 3, 2, 1, channels_last=last))
        pairs = [[milliseconds(way) for way in ways] for _ in range(PAIRS + 2)][2:]  # the first two warm up
        torchs, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(
            f"  {name:14} torch {torchs:6.2f} ms, ours {ours:6.2f} ms, ratio"
            f" {statistics.median(b / a for a, b in pairs):.3f}"
        )


if __name__ == "__main__":
    main()
