"""Estimate the costs of a run: measured on one client, multiplied, with the arithmetic shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedstrata.client.step_cost import cost
from fedstrata.client.update import ClientUpdate
from fedstrata.common.units import size, work
from fedstrata.core.network import Batch
from fedstrata.data.statistics.survey import Survey
from fedstrata.doctor.diagnosis import CostEstimate
from fedstrata.engine.assembly import RunComponents
from fedstrata.engine.describe import CostProbe
from fedstrata.engine.evaluation import Evaluator

PROBE = 1.0  # seconds of local steps that are timed
TIMES = 4  # measurements, of which the fastest counts
STEPS = 200  # at most
SAMPLES = 256  # of the timed evaluation pass
TRAINING, EVALUATION = "training time on this machine", "evaluation time on this machine"
LARGE_BYTES, LARGE_SECONDS = 10e9, 3600.0
BUSY = 0.5  # share of the memory from which an amount deserves attention


@dataclass(frozen=True)
class Sizes:
    """Holds means over the clients that may train.

    Attributes:
        samples: trained on in a round, passes counted; steps: local steps.
        low, high: local steps of clients with samples: the tenth from below and from above of a hundred; equal: all
            take the same.
    """

    samples: float
    steps: float
    low: int
    high: int
    equal: bool


def sizes(parts: RunComponents, seen: Survey) -> Sizes:
    """Compute the local steps and samples of a round from the sizes of clients."""
    setup, held = parts.setup, set(parts.federation.heldout)
    counted = [
        int(n) for client, n in zip(seen.ids.tolist(), seen.training.tolist(), strict=True) if client not in held
    ]
    steps = [setup.local_steps(n) if n else 0 for n in counted]
    samples = [
        n * (setup.local.epochs or 0) if setup.local.steps is None else setup.local.steps * min(n, setup.local.batch)
        for n in counted
    ]
    busy = [s for s in steps if s]
    low, high = (int(q) for q in np.quantile(busy, (0.1, 0.9), method="nearest")) if busy else (0, 0)
    return Sizes(float(np.mean(samples)), float(np.mean(steps)), low, high, len(set(busy)) == 1)


def costs(
    parts: RunComponents, seen: Survey, probe: CostProbe, memory: int, *, quick: bool
) -> tuple[CostEstimate, ...]:
    """Estimate bytes, FLOPs, seconds and memory of the run as configured.

    Args:
        parts: of the run.
        seen: its clients.
        probe: one client's round, weighed.
        memory: of this machine, in bytes.
        quick: leave out what has to be timed.
    """
    each = sizes(parts, seen)
    result = [*_traffic(parts, probe), *_work(parts, probe, each)]
    if not quick:
        with threads(parts.config.local.threads):
            result += _times(parts, probe, each)
    return (*result, *_memory(parts, probe, memory))


def _traffic(parts: RunComponents, probe: CostProbe) -> Iterator[CostEstimate]:
    setup, one = parts.setup, probe.down.payload + probe.up.payload
    how = f"{setup.cohort} clients x ({size(probe.down.payload)} down + {size(probe.up.payload)} up)"
    yield CostEstimate("sent in a round", setup.cohort * one, "bytes", how)
    total = setup.rounds * setup.cohort * one
    yield CostEstimate(
        "sent in all", total, "bytes", f"{setup.rounds} rounds x {size(setup.cohort * one)}", large=total > LARGE_BYTES
    )


def _work(parts: RunComponents, probe: CostProbe, each: Sizes) -> Iterator[CostEstimate]:
    setup, one = parts.setup, sum(probe.flops.values())
    total = setup.rounds * setup.cohort * each.samples * one
    how = f"{setup.rounds} rounds x {setup.cohort} clients x {each.samples:,.0f} samples (passes counted) x {work(one)}"
    yield CostEstimate("clients' training in all", total, "flops", how)


def _times(parts: RunComponents, probe: CostProbe, each: Sizes) -> Iterator[CostEstimate]:
    setup = parts.setup
    step, start = _timed(probe)
    one = start + each.steps * step
    total = setup.rounds * setup.cohort * one
    used = _workers(parts)
    how = f"{setup.rounds} rounds x {setup.cohort} clients x {each.steps:.3g} steps x {1000 * step:.3g} ms, on one core"
    how += f"; {used} workers at best divide it by {used}" if used > 1 else ""
    yield CostEstimate(TRAINING, total / used, "seconds", how, total, large=total / used > LARGE_SECONDS)
    passes, (seconds, how) = -(-setup.rounds // parts.config.eval.every), _evaluated(parts, probe)
    if seconds:
        spent = passes * seconds
        how = f"{passes} evaluations x ({how}), on one core"
        how += f"; eval.every={parts.config.eval.every * 10} makes it a tenth" if spent > total / 2 else ""
        yield CostEstimate(EVALUATION, spent / used, "seconds", how, spent, large=spent > total)


def _timed(probe: CostProbe) -> tuple[float, float]:
    """Time one local step, and the rest of a client's update, by about PROBE seconds of real steps."""
    first = _clocked(lambda: _turn(probe, 1))
    count = min(STEPS, max(2, 1 + int(PROBE / TIMES / max(first, 1e-4))))
    many = _clocked(lambda: _turn(probe, count))
    step = max((many - first) / (count - 1), 1e-9)
    return step, max(first - step, 0.0)


def _turn(probe: CostProbe, steps: int) -> None:
    setup = probe.worker.setup
    timed = replace(setup, local=replace(setup.local, epochs=None, steps=steps))
    update = ClientUpdate(replace(probe.worker, setup=timed, costs={}), probe.task)
    update.reply(update.train(update.begin()))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Set the intra-op threads of a run while timing."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _evaluated(parts: RunComponents, probe: CostProbe) -> tuple[float, str]:
    """Time one evaluation on one core, and show the arithmetic."""
    federation, params = parts.federation, parts.setup.model
    evaluator = Evaluator([probe.worker], federation, parts.config.bn == "batch", parts.config.local.threads)
    seconds, how = 0.0, []
    if federation.test is not None:
        test = federation.test
        rows = torch.arange(min(SAMPLES, len(test)))
        one = _clocked(
            lambda: federation.task.metrics(evaluator.predict(probe.worker, params, test, rows), test.y[rows])
        ) / len(rows)
        seconds += one * len(test)
        how.append(f"{len(test):,} test samples x {1000 * one:.2g} ms")
    if federation.own_test is not None:
        one = _clocked(lambda: evaluator.client(probe.worker, probe.task, params))
        seconds += one * federation.clients
        how.append(f"{federation.clients:,} clients' own tests x {1000 * one:.2g} ms")
    return seconds, " + ".join(how)


def _clocked(function: Callable[[], object]) -> float:
    """Time the fastest of TIMES calls (fewer where they are slow): other load on the machine only adds."""
    spent: list[float] = []
    while len(spent) < TIMES and sum(spent) < 2 * PROBE:
        before = time.perf_counter()
        function()
        spent.append(time.perf_counter() - before)
    return min(spent)


def _memory(parts: RunComponents, probe: CostProbe, memory: int) -> Iterator[CostEstimate]:
    setup, federation = parts.setup, parts.federation
    held = [s for s in (federation.train, federation.official or federation.test) if s is not None]
    data = sum(_held(samples) for samples in held)
    if data:
        how = f"{sum(len(s) for s in held):,} samples, " + (
            "labels only: the rest is read from files" if held[0].lazy else "as they are kept"
        )
        yield CostEstimate("data in memory", data, "bytes", how, large=data > BUSY * memory)
    most = min(len(setup.eligible), setup.cohort * setup.rounds)
    if probe.client_state:
        on = "memory" if parts.config.client_state == "memory" else "a file"
        how = f"{most:,} clients that can take part x {size(probe.client_state)} that a client keeps, in {on}"
        yield CostEstimate(
            "state of clients",
            most * probe.client_state,
            "bytes",
            how,
            large=parts.config.client_state == "memory" and most * probe.client_state > BUSY * memory,
        )
    reply = probe.up.payload + 4 * parts.parameters
    yield CostEstimate(
        "replies of a round",
        setup.cohort * reply,
        "bytes",
        f"{setup.cohort} clients x {size(reply)}",
        large=setup.cohort * reply > BUSY * memory,
    )
    batch = next(probe.update.tools.batches("doctor"))
    step = cost(probe.worker, Batch(batch.x[:8], batch.y[:8]), setup.layout.parameters)[1]
    workers = _workers(parts)
    how = f"{workers} worker{'' if workers == 1 else 's'} x {size(step)} for a batch of {setup.local.batch}"
    yield CostEstimate("local steps", workers * step, "bytes", how, large=workers * step > BUSY * memory)


def _workers(parts: RunComponents) -> int:
    """Return the number of clients that can be trained at a time."""
    return 1 if parts.config.executor == "loop" else min(parts.config.worker_count(), parts.setup.cohort)


def _held(samples: Any) -> int:
    """Count the bytes of tensors that samples keep in memory; 0 for samples that are read from files."""
    tensors = [value for value in vars(samples).values() if isinstance(value, torch.Tensor)]
    inner = [getattr(samples, name) for name in ("first", "second") if hasattr(samples, name)]
    return sum(t.numel() * t.element_size() for t in tensors) + sum(_held(part) for part in inner)
