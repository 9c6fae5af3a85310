"""Time FedPart's partial rounds over whole-model rounds by layer group, beside the ratio of FLOPs.

Run: python bench/fedpart.py [MODEL].

One client of the published setting trains batches of 32 with Adam, without an activation cache (``bench/prefix.py``
times the cache). Each pair times the whole model, every group in turn, and the whole model again;
ratios are taken within the pair. FLOPs are counted by torch.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch

from fedstrata.bench.timing import hardware
from fedstrata.client.task import ClientTask
from fedstrata.client.update import ClientUpdate
from fedstrata.client.worker import Worker
from fedstrata.config.config import Config
from fedstrata.core.layout import Names
from fedstrata.data.federation import Federation
from fedstrata.engine.assembly import RunComponents, assemble
from fedstrata.engine.server import Server, plan_round

STEPS, BATCH, PAIRS = 6, 32, 7
Seconds: TypeAlias = "tuple[float, float]"


def connected(model: str) -> RunComponents:
    """Assemble FedAvg on one client with random images; its plan is restricted to layer groups."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((STEPS * BATCH, 3, 32, 32), dtype=np.float32), np.arange(STEPS * BATCH) % 10
    federation = Federation.of(x, y, client=np.zeros(len(y), dtype=np.int64), testing="server", test=(x[:10], y[:10]))
    local = {"epochs": 1, "batch": BATCH, "optimizer": "adam", "lr": 1e-3, "activation_cache_mb": 0}
    return assemble(Config(model=model, bn="local", executor="loop", local=local), federation)


def tasks_of(parts: RunComponents) -> tuple[ClientTask, list[tuple[str, Names, ClientTask]]]:
    """Return a task that trains the whole model, and one for every layer group."""
    server, layout = Server.start(parts.method, parts.setup), parts.setup.layout
    turn = plan_round(server, parts.rules, parts.lr(0), lambda *_: None, lambda _: None)
    whole = turn.tasks[0]
    cut = [(name, frozenset(group.names)) for name, group in layout.groups.items()]
    return whole, [(name, names, replace(whole, plan=whole.plan.only(names, layout))) for name, names in cut]


def seconds(update: ClientUpdate) -> Seconds:
    """Time local training without sending and receiving: (wall, processor)."""
    start = update.begin()
    began = time.perf_counter(), time.process_time()
    update.train(start)
    return time.perf_counter() - began[0], time.process_time() - began[1]


def paired(
    worker: Worker, whole: ClientTask, groups: Sequence[tuple[str, Names, ClientTask]]
) -> tuple[Seconds, dict[str, Seconds]]:
    """Time the whole model (mean of before and after), and each group over it; both kinds of seconds."""
    before = seconds(ClientUpdate(worker, whole))
    by_group = {name: seconds(ClientUpdate(worker, task)) for name, _, task in groups}
    after = seconds(ClientUpdate(worker, whole))
    base = (before[0] + after[0]) / 2, (before[1] + after[1]) / 2
    return base, {name: (wall / base[0], processor / base[1]) for name, (wall, processor) in by_group.items()}


def main(model: str = "resnet8") -> None:
    """Print a line for each group, and for a cycle's partial rounds."""
    torch.set_num_threads(1)
    parts = connected(model)
    worker, (whole, groups) = parts.make_worker(), tasks_of(parts)
    full = parts.setup.load(parts.setup.layout.parameters).flops
    exact = {name: parts.setup.load(names).flops / full for name, names, _ in groups}
    seconds(ClientUpdate(worker, whole))  # warms up
    pairs = [paired(worker, whole, groups) for _ in range(PAIRS)]
    step = [statistics.median(base[kind] for base, _ in pairs) / STEPS * 1e3 for kind in (0, 1)]
    print(hardware())
    print(
        f"{model}, 32 x 32, batch {BATCH}, Adam, one thread, {STEPS} steps a round; whole model: {step[0]:.0f} ms for"
        f" a step, {step[1]:.0f} of CPU"
    )
    print(
        f"over the whole model: seconds, seconds of the processor (median of {PAIRS} pairs, lowest, highest), FLOPs;"
        " both times over FLOPs"
    )
    for name, flops in exact.items():
        row([[ratios[name][kind] for _, ratios in pairs] for kind in (0, 1)], name, flops)
    means = [[statistics.fmean(r[kind] for r in ratios.values()) for _, ratios in pairs] for kind in (0, 1)]
    row(means, "a cycle, partial", statistics.fmean(exact.values()))


def row(ratios: Sequence[Sequence[float]], name: str, exact: float) -> None:
    """Print one line."""
    middle = [statistics.median(kind) for kind in ratios]
    shown = "   ".join(f"{m:.2f} ({min(kind):.2f}, {max(kind):.2f})" for m, kind in zip(middle, ratios, strict=True))
    print(f"  {name:18} {shown}   {exact:.3f}   {middle[0] / exact:.2f}   {middle[1] / exact:.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
