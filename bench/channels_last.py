"""Measure training on channels-last images: speed by model, and gradients of both formats against float64.

Run: python bench/channels_last.py.
"""

from __future__ import annotations

import copy
import statistics
import time

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedstrata.bench.timing import hardware
from fedstrata.common import random_streams
from fedstrata.data.types import Task
from fedstrata.models import build
from fedstrata.models.registry import CHANNELS_LAST

TASK = Task("classification", (3, 32, 32), 10)
BATCH, PAIRS, STEPS = 50, 5, 40


def batches(n: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Draw random images and labels."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (1.4 * torch.randn(BATCH, 3, 32, 32, generator=generator), torch.randint(0, 10, (BATCH,), generator=generator))
        for _ in range(n)
    ]


def loss_of(model: nn.Module, x: Tensor, y: Tensor, *, last: bool) -> Tensor:
    """Compute the mean loss of a batch in either format."""
    return cross_entropy(model(x.contiguous(memory_format=torch.channels_last) if last else x), y)


def speed(model: nn.Module, *, last: bool) -> float:
    """Time one step of SGD, in seconds."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    start = time.perf_counter()
    for x, y in batches(2, 0):
        optimizer.zero_grad()
        loss_of(model, x, y, last=last).backward()
        optimizer.step()
    return (time.perf_counter() - start) / 2


def error(model: nn.Module, x: Tensor, y: Tensor, *, last: bool) -> float:
    """Compute the largest relative error of a gradient tensor against float64 at the same weights."""
    exact = copy.deepcopy(model).double()
    model.zero_grad()
    loss_of(model, x, y, last=last).backward()
    loss_of(exact, x.double(), y, last=False).backward()
    pairs = zip(model.parameters(), exact.parameters(), strict=True)
    return max(float((a.grad.double() - b.grad).abs().max() / b.grad.abs().max()) for a, b in pairs)


def main() -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    print(hardware())
    print(
        f"one thread, batch {BATCH}, speed of channels-last over the default format, median of {PAIRS} pairs (lowest,"
        " highest)"
    )
    for name in (*sorted(CHANNELS_LAST), "vgg11", "resnet18(stem=3)"):
        model = build(name, TASK, None, random_streams.torch_stream(0, "model"))
        speed(model, last=False), speed(model, last=True)
        ratios = [speed(model, last=False) / speed(model, last=True) for _ in range(PAIRS)]
        print(f"  {name:18} {statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})", flush=True)
    model = build("cnn", TASK, None, random_streams.torch_stream(0, "model"))
    errors: dict[bool, list[float]] = {False: [], True: []}
    for x, y in batches(STEPS, 1):
        for last, found in errors.items():
            found.append(error(model, x, y, last=last))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.05)
    print(
        f"cnn, largest gradient error against float64 at the same weights, on each of {STEPS} batches of a training run"
    )
    for last, found in errors.items():
        jumps = [e for e in found if e > 1e-4]
        name = "channels last" if last else "default format"
        print(
            f"  {name:15} median {statistics.median(found):.0e}, largest {max(found):.0e}, above 1e-4 on {len(jumps)}"
            " batches"
        )


if __name__ == "__main__":
    main()
