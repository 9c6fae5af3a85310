"""Time FedPhoenix on the server, on ResNet-18: reset copies over plain copies, and its share of a round.

Run: python bench/phoenix.py.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from fedstrata.bench.timing import hardware
from fedstrata.client.update import ClientUpdate
from fedstrata.common import random_streams
from fedstrata.config.config import Config
from fedstrata.core.layout import Layout, entries_of
from fedstrata.core.params import Model, Params
from fedstrata.data.federation import Federation
from fedstrata.data.types import Task
from fedstrata.engine.assembly import assemble
from fedstrata.engine.server import Server, finish_round, plan_round
from fedstrata.methods.fedphoenix import FedPhoenix
from fedstrata.methods.parts.resets import seeded
from fedstrata.models import build

COHORT, PAIRS = 10, 7
IMAGES, EPOCHS, BATCH, STEPS = 500, 5, 50, 6  # of a client; steps that are timed


def seconds(call: Callable[[], object]) -> float:
    """Time one call; its result is freed afterwards, untimed."""
    start = time.perf_counter()
    result = call()
    elapsed = time.perf_counter() - start
    del result
    return elapsed


def clones(p: Model) -> list[Model]:
    """Copy the parameters for each client of a cohort."""
    return [p.clone() for _ in range(COHORT)]


def main() -> None:
    """Print one line for each law."""
    torch.set_num_threads(1)
    print(hardware())
    model = build(
        "resnet18(stem=3)", Task("classification", (3, 32, 32), 10), None, random_streams.torch_stream(0, "model")
    )
    layout = Layout(entries_of(model, "head"))
    flat = Params.of({n: model.get_parameter(n) for n in layout.spec.names}).flat
    print(
        f"resnet18(stem=3), {len(flat):,} parameters, cohort {COHORT}, one thread, all layers active; median of {PAIRS}"
        " pairs (lowest, highest)"
    )
    for piece in (FedPhoenix(), FedPhoenix(law="orthogonal"), FedPhoenix(share=1 / 3, budget="matched")):
        copies, resets, ratios = [], [], []
        for pair in range(PAIRS + 2):
            fresh = Model(Params(flat, layout.spec), Params.of({}))  # new each round: its moments are unknown
            plain = seconds(partial(clones, fresh))

            def cohort(p: Model = fresh, t: int = pair, piece: FedPhoenix = piece) -> list[Model]:
                return [
                    piece.reset(p, layout, 0, seeded(random_streams.stream(0, "send.fedphoenix", t, i)))
                    for i in range(COHORT)
                ]

            reset = seconds(cohort)
            if pair >= 2:  # the first two warm up
                copies.append(plain), resets.append(reset), ratios.append(reset / plain)
        shown = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})"
        print(
            f"  {piece!s:45} copies {1e3 * statistics.median(copies):6.1f} ms, resets"
            f" {1e3 * statistics.median(resets):6.1f} ms, ratio {shown}",
            flush=True,
        )
    round_share()


def round_share() -> None:
    """Time the server's share of a round: ten clients of 500 images, 5 epochs of batches of 50, on all cores.

    Local training is extrapolated from one client's first steps, as whole rounds take minutes.
    """
    cores = os.cpu_count() or 1
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((COHORT * IMAGES, 3, 32, 32), dtype=np.float32), np.arange(COHORT * IMAGES) % 10
    federation = Federation.of(
        x, y, client=np.arange(COHORT * IMAGES) // IMAGES, testing="server", test=(x[:10], y[:10])
    )
    local = {"epochs": EPOCHS, "batch": BATCH, "lr": 0.01, "momentum": 0.5}
    config = Config(
        method="fedphoenix", model="resnet18(stem=3)", clients=COHORT, cohort=COHORT, executor="loop", local=local
    )
    parts = assemble(config, federation)
    server = Server.start(parts.method, parts.setup)
    start = time.perf_counter()
    turn = plan_round(server, parts.rules, parts.lr(0), lambda *_: None, lambda _: None)
    planned = time.perf_counter() - start
    task = turn.tasks[0]
    short = tuple(replace(p, epochs=None, steps=STEPS) for p in task.plan.phases)
    update = ClientUpdate(parts.make_worker(), replace(task, plan=replace(task.plan, phases=short)))
    start = time.perf_counter()
    outcome = update.train(update.begin())
    step = (time.perf_counter() - start) / STEPS
    reply = update.reply(outcome)
    replies = [replace(reply, cohort_index=t.cohort_index, client=t.client) for t in turn.tasks]
    start = time.perf_counter()
    finish_round(server, parts.rules, turn, replies, replies)
    server_time = planned + time.perf_counter() - start
    clients = COHORT * EPOCHS * (IMAGES // BATCH) * step / cores
    print(f"the server takes {server_time:.2f} s in a round (resets and plan {planned:.2f} s)")
    print(f"clients train {clients:.0f} s in a round on {cores} cores ({step:.2f} s for a step of one thread)")
    print(f"the server's share of the round: {server_time / (server_time + clients):.2%}")


if __name__ == "__main__":
    main()
