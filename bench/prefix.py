"""Time partial rounds over full rounds by layer group, without and with the activation cache.

Run: python bench/prefix.py [pairs].

ResNet-8 with group norm, one client of 500 random images 3x32x32, 8 local epochs, batch 32, Adam, one thread, executor
loop; a round is one client's update. Each pair times all arms in turn, in CPU seconds of the process (a busy
machine lengthens wall time, not these) and in wall seconds.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedstrata.bench.timing import hardware
from fedstrata.client.task import ClientTask
from fedstrata.client.update import train_client
from fedstrata.client.worker import Worker
from fedstrata.common.allocator import keep_freed_blocks
from fedstrata.config.config import Config
from fedstrata.core.chain import Method
from fedstrata.core.piece import Piece, Reply, ServerContext
from fedstrata.core.plan import Plan
from fedstrata.data.federation import Federation
from fedstrata.engine.assembly import assemble
from fedstrata.engine.rounds import Engine
from fedstrata.engine.server import plan_round

SETTINGS = {
    "clients": 1,
    "cohort": 1,
    "rounds": 1,
    "model": "resnet8",
    "norm": "group",
    "executor": "loop",
    "test": "server",
}
LOCAL = {"local.epochs": 8, "local.batch": 32, "local.lr": 1e-3, "local.optimizer": "adam"}
SAMPLES = 500


@dataclass(frozen=True)
class OneGroup(Piece):
    """Train one layer group; "" trains all."""

    group: str = ""

    def plan(self, plan: Plan, ctx: ServerContext) -> Plan:
        """Train the tensors of the group, or all."""
        return replace(plan, train=ctx.layout.group(self.group) & ctx.layout.trainable) if self.group else plan


def federation(samples: int) -> Federation:
    """Create random images of one client."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(samples, 3, 32, 32)).astype(np.float32), rng.integers(0, 10, samples)
    return Federation.of(x, y, client=np.zeros(samples, int), test=(x[:10], y[:10]), labels=tuple("0123456789"))


class Arm:
    """One way to train: a group (or all), with or without an activation cache."""

    def __init__(self, group: str, cache_mb: int, samples: int) -> None:
        config = Config().replace(**SETTINGS, **LOCAL, **{"local.activation_cache_mb": cache_mb})
        parts = assemble(config, federation(samples), None, Method((OneGroup(group),)))
        engine = Engine(parts, "loop", 1)
        turn = plan_round(engine.server, parts.rules, parts.lr(0), lambda *_: None, lambda _: None)
        engine.close()
        self.worker: Worker = parts.make_worker()
        self.task: ClientTask = turn.tasks[0]
        self.cpu: list[float] = []
        self.wall: list[float] = []
        self.flops = engine.ledger.flops(self.task, self.turn().cost_by_phase)  # also warms up
        self.groups = parts.setup.layout.names()

    def turn(self) -> Reply:
        """Run the client's update."""
        reply = train_client(self.worker, self.task)
        assert isinstance(reply, Reply), reply
        return reply

    def time(self) -> Reply:
        """Run the client's update and record its time."""
        cpu, wall = time.process_time(), time.perf_counter()
        reply = self.turn()
        self.cpu.append(time.process_time() - cpu)
        self.wall.append(time.perf_counter() - wall)
        return reply


def main(pairs: int, samples: int) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    keeps = keep_freed_blocks()
    print(
        f"{hardware()}, one thread, freed memory {'kept' if keeps else 'returned'} by the allocator; {samples} samples,"
        f" {pairs} pairs"
    )
    full = Arm("", 0, samples)
    arms = {name: (Arm(name, 0, samples), Arm(name, 256, samples)) for name in full.groups}
    worst = dict.fromkeys(arms, 0.0)
    for _ in range(pairs):
        full.time()
        for name, (without, with_it) in arms.items():
            a, b = without.time(), with_it.time()
            worst[name] = max(worst[name], float((a.delta.flat - b.delta.flat).abs().max() / a.delta.flat.abs().max()))
    print("share of a full round, CPU seconds (median over pairs) / exact FLOPs; weights with and without differ by")
    print(
        "| group | without | FLOPs | time over FLOPs | cached | FLOPs | wall, without / cached | differ by"
        f" |\n|{'---|' * 8}"
    )
    for name, (without, with_it) in arms.items():
        a, b, c, d = (_ratio(arm, full, which) for which in ("cpu", "wall") for arm in (without, with_it))
        flops, cached_flops = without.flops / full.flops, with_it.flops / full.flops
        print(
            f"| {name} | {a:.2f} | {flops:.2f} | {a / flops:.2f} | {b:.2f} | {cached_flops:.2f} | {c:.2f} / {d:.2f} |"
            f" {worst[name]:.0e} |"
        )
    for label, chosen in (
        ("without", [pair[0] for pair in arms.values()]),
        ("cached", [pair[1] for pair in arms.values()]),
    ):
        cpu, wall = (_cycle(chosen, full, which) for which in ("cpu", "wall"))
        flops = sum(arm.flops for arm in chosen) / (len(chosen) * full.flops)
        print(
            f"a cycle's partial rounds over full rounds, {label}: {cpu:.3f} (CPU), {wall:.3f} (wall), {flops:.3f}"
            " (FLOPs)"
        )


def _ratio(arm: Arm, full: Arm, which: str) -> float:
    return statistics.median(a / b for a, b in zip(getattr(arm, which), getattr(full, which), strict=True))


def _cycle(arms: list[Arm], full: Arm, which: str) -> float:
    """Return the mean of all groups over a full round, as a median over pairs."""
    sums = [sum(one) for one in zip(*(getattr(arm, which) for arm in arms), strict=True)]
    return statistics.median(s / (len(arms) * f) for s, f in zip(sums, getattr(full, which), strict=True))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5, int(sys.argv[2]) if len(sys.argv) > 2 else SAMPLES)
