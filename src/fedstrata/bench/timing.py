"""Time contenders interleaved: each trains the same cohort once in a pair; ratios are taken within the pair."""

from __future__ import annotations

import gc
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from fedstrata.backends.protocol import Executor
from fedstrata.backends.selection import build as build_executor
from fedstrata.bench.bare import CODE, Bare
from fedstrata.bench.jobs import JOBS
from fedstrata.client.task import ClientTask
from fedstrata.common.allocator import keep_freed_blocks
from fedstrata.common.errors import ConfigError
from fedstrata.core.piece import Reply
from fedstrata.engine.assembly import RunComponents
from fedstrata.engine.server import Server, plan_round

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Row:
    """The result of one contender in one job.

    Attributes:
        job, name: of the job and the contender.
        speed: local training samples in a second, median.
        same, same_low, same_high: ratio to the bare loop with one intra-op thread: median and its interval.
        best, best_low, best_high: ratio to the better bare loop of the same pair.
        difference: largest relative difference of a client's final weights from the bare loop's.
        pairs: number of pairs.
    """

    job: str
    name: str
    speed: float
    same: float
    same_low: float
    same_high: float
    best: float
    best_low: float
    best_high: float
    difference: float
    pairs: int


def measure(job: str, pairs: int, workers: int, report: Callable[[str], None] = lambda _: None) -> list[Row]:
    """Time one job.

    Args:
        job: a letter of JOBS.
        pairs: at least 5.
        workers: of threads, processes and batched.
        report: receives progress messages.
    """
    parts = JOBS[job].parts()
    bare = {f"bare, {n} thread{'s' if n > 1 else ''}": Bare(parts, n) for n in (1, 2)}
    executors = _executors(job, parts, workers)
    speeds: dict[str, list[float]] = {name: [] for name in (*bare, *executors)}
    worst = dict.fromkeys(executors, 0.0)
    try:
        for pair in range(-1, pairs):  # the first warms up and checks that all compute the same
            tasks = _tasks(parts, pair + 1)
            names = list(speeds)
            shift = pair % len(names)
            measured: dict[str, float] = {}
            replies: dict[str, list[Reply]] = {}
            for name in (*names[shift:], *names[:shift]):
                if name in bare:
                    measured[name] = _time_bare(bare[name], tasks, parts)
                else:
                    measured[name], replies[name] = _time_executor(executors[name], tasks, name)
            for name, trained in replies.items():
                worst[name] = max(worst[name], _difference(next(iter(bare.values())), trained))
            if pair >= 0:
                for name, speed in measured.items():
                    speeds[name].append(speed)
            report(f"{job} {pair + 1}/{pairs}: " + ", ".join(f"{n} {s:,.0f}/s" for n, s in measured.items()))
    finally:
        for executor in executors.values():
            executor.close()
    return [_row(job, name, speeds, list(bare), worst.get(name, 0.0)) for name in speeds]


def _executors(job: str, parts: RunComponents, workers: int) -> dict[str, Executor]:
    """Build the executors; processes first, as they are forked before this process starts threads."""
    kinds = [("processes", workers), ("threads", workers), ("loop", 1)] + ([("batched", workers)] if job == "S" else [])
    return {f"{n}, {w}" if w > 1 else n: build_executor(n, parts.make_worker, w, 1, lambda *_: None) for n, w in kinds}


def _tasks(parts: RunComponents, number: int) -> tuple[ClientTask, ...]:
    server = Server(number, parts.setup.model, {})
    return plan_round(server, parts.rules, parts.setup.local.lr, lambda *_: None, lambda _: None).tasks


def _time_bare(loop: Bare, tasks: Sequence[ClientTask], parts: RunComponents) -> float:
    """Return samples in a second of a bare loop."""
    orders = loop.orders(tasks)
    gc.collect()
    start = time.perf_counter()
    samples = loop.train(orders, parts.setup.local.lr)
    return samples / (time.perf_counter() - start)


def _time_executor(executor: Executor, tasks: Sequence[ClientTask], name: str) -> tuple[float, list[Reply]]:
    """Return samples in a second of an executor, and its replies."""
    torch.set_num_threads(1)
    gc.collect()
    start = time.perf_counter()
    results = sorted(executor.train(tasks), key=lambda result: result.cohort_index)
    seconds = time.perf_counter() - start
    replies = [result for result in results if isinstance(result, Reply)]
    if len(replies) != len(results):
        raise ConfigError(f"{name}: {next(r for r in results if not isinstance(r, Reply))}")
    return sum(sum(reply.cost_by_phase.values()) for reply in replies) / seconds, replies


def _difference(bare: Bare, replies: Sequence[Reply]) -> float:
    """Return the largest relative difference of a client's final weights from the bare loop's."""
    worst = 0.0
    for end, reply in zip(bare.ends, replies, strict=True):
        for name, delta in reply.delta.views.items():
            other: Tensor = end[name] - bare.start[name]
            scale = float(end[name].abs().max())
            worst = max(worst, float((other - delta).abs().max()) / max(scale, 1e-12))
    return worst


def _row(job: str, name: str, speeds: dict[str, list[float]], bare: Sequence[str], difference: float) -> Row:
    mine = speeds[name]
    same = interval([a / b for a, b in zip(mine, speeds[bare[0]], strict=True)])
    best = interval([a / max(speeds[b][i] for b in bare) for i, a in enumerate(mine)])
    return Row(job, name, statistics.median(mine), *same, *best, difference, len(mine))


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Compute the median and the narrowest pair of order statistics that holds the true median with 95 % confidence.

    Of few values, the pair is their range.
    """
    ordered, n = sorted(values), len(values)
    cut, tail = 0, 0.0
    while True:
        tail += math.comb(n, cut) / 2**n
        if 1 - 2 * tail < CONFIDENCE or cut >= (n - 1) // 2:
            break
        cut += 1
    k = max(cut - 1, 0)
    return statistics.median(ordered), ordered[k], ordered[n - 1 - k]


def main(*, jobs: str, pairs: int, workers: int, as_json: bool) -> None:
    """Run jobs and print the table; with ``as_json`` also one JSON object on stdout."""
    unknown = [j for j in jobs if j not in JOBS]
    if unknown or not jobs:
        raise ConfigError(f"jobs is {jobs!r}; its letters are {', '.join(JOBS)}.")
    console = Console(stderr=as_json, markup=False, highlight=False)
    if not console.is_terminal:
        console.width = 150  # a table in a file is not folded
    keeps = keep_freed_blocks()
    console.print(
        f"{hardware()}, freed memory {'kept' if keeps else 'returned'} by the allocator, for the baseline too"
    )
    console.print(f"baseline (float32, eager, torch.optim.SGD, best of 1 and 2 intra-op threads):\n{CODE}")
    threads, rows = torch.get_num_threads(), []
    try:
        for job in jobs:
            rows += measure(job, pairs, workers, lambda text: console.print(text, style="dim"))
    finally:
        torch.set_num_threads(threads)
    console.print(table(rows))
    if as_json:
        print(json.dumps({"hardware": hardware(), "baseline": CODE, "rows": [asdict(r) for r in rows]}))


def table(rows: Sequence[Row]) -> Table:
    """Build the table of ratios with intervals."""
    ratios = Table(
        title="local training samples a second; ratios within interleaved pairs: median [95 % interval of the median]"
    )
    for column in (
        "job",
        "how",
        "samples/s",
        "to bare, 1 thread",
        "to the better bare",
        "end weights differ by",
        "pairs",
    ):
        ratios.add_column(column, justify="left" if column in ("job", "how") else "right")
    for r in rows:
        same, best = (
            f"{a:.2f} [{b:.2f}, {c:.2f}]"
            for a, b, c in ((r.same, r.same_low, r.same_high), (r.best, r.best_low, r.best_high))
        )
        ratios.add_row(
            f"{r.job} {JOBS[r.job].title}",
            r.name,
            f"{r.speed:,.0f}",
            same,
            best,
            f"{r.difference:.1e}" if r.difference else "0",
            str(r.pairs),
        )
    return ratios


def hardware() -> str:
    """Describe the machine and the versions in one line."""
    cpu = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return (
        f"{cpu}, {len(os.sched_getaffinity(0))} cores, {platform.system()}, Python {platform.python_version()}, torch"
        f" {torch.__version__}, float32"
    )
