"""What FedPhoenix costs the server: time of a cohort's reset copies over that of plain copies, on ResNet-18. Run: python bench/phoenix.py."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from fedstrata import streams
from fedstrata.bench.timing import hardware
from fedstrata.data.task import Task
from fedstrata.layout import Layout, entries_of
from fedstrata.methods.fedphoenix import FedPhoenix
from fedstrata.methods.resets import seeded
from fedstrata.models import build
from fedstrata.params import Params

COHORT, PAIRS = 10, 7


def seconds(work: Callable[[], object]) -> float:
    """Of one call; what it made is freed afterwards, outside the clock."""
    start = time.perf_counter()
    made = work()
    taken = time.perf_counter() - start
    del made
    return taken


def main() -> None:
    """Print one line a law."""
    torch.set_num_threads(1)
    print(hardware())
    model = build("resnet18(stem=3)", Task("classification", (3, 32, 32), 10), None, streams.torch_stream(0, "model"))
    layout = Layout(entries_of(model, "head"))
    flat = Params.of({n: model.get_parameter(n) for n in layout.spec.names}).flat
    print(f"resnet18(stem=3), {len(flat):,} parameters, cohort {COHORT}, one thread, all layers active; median of {PAIRS} pairs (lowest, highest)")
    for piece in (FedPhoenix(), FedPhoenix(law="orthogonal"), FedPhoenix(share=1 / 3, budget="matched")):
        copies, resets, ratios = [], [], []
        for pair in range(PAIRS + 2):
            fresh = Params(flat, layout.spec)  # a new value every round: its moments are not known yet
            plain = seconds(lambda p=fresh: [p.clone() for _ in range(COHORT)])  # type: ignore[misc]

            def cohort(p: Params = fresh, t: int = pair, piece: FedPhoenix = piece) -> list[Params]:
                return [piece.reset(p, layout, 0, seeded(streams.stream(0, "send.fedphoenix", t, place))) for place in range(COHORT)]

            reset = seconds(cohort)
            if pair >= 2:  # the first two warm up
                copies.append(plain), resets.append(reset), ratios.append(reset / plain)
        shown = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})"
        print(
            f"  {piece!s:45} copies {1e3 * statistics.median(copies):6.1f} ms, resets {1e3 * statistics.median(resets):6.1f} ms, ratio {shown}",
            flush=True,
        )


if __name__ == "__main__":
    main()
