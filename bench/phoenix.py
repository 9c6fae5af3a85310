"""What FedPhoenix costs the server, on ResNet-18: reset copies over plain copies, and all its work over the round.

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
from fedstrata.core.params import Params
from fedstrata.data.federation import Federation
from fedstrata.data.types import Task
from fedstrata.engine.assembly import assemble
from fedstrata.engine.server import Server, finish_round, plan_round
from fedstrata.methods.fedphoenix import FedPhoenix
from fedstrata.methods.parts.resets import seeded
from fedstrata.models import build

COHORT, PAIRS = 10, 7
IMAGES, EPOCHS, BATCH, STEPS = 500, 5, 50, 6  # of a client; steps that are timed


def seconds(work: Callable[[], object]) -> float:
    """Of one call; what it made is freed afterwards, outside the clock."""
    start = time.perf_counter()
    made = work()
    taken = time.perf_counter() - start
    del made
    return taken


def clones(p: Params) -> list[Params]:
    """A plain copy for each client of a cohort."""
    return [p.clone() for _ in range(COHORT)]


def main() -> None:
    """Print one line a law."""
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
            fresh = Params(flat, layout.spec)  # a new value every round: its moments are not known yet
            plain = seconds(partial(clones, fresh))

            def cohort(p: Params = fresh, t: int = pair, piece: FedPhoenix = piece) -> list[Params]:
                return [
                    piece.reset(p, layout, 0, seeded(random_streams.stream(0, "send.fedphoenix", t, place)))
                    for place in range(COHORT)
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
    """Everything that the server does in a round, over the round: ten clients of 500 images, 5 epochs of batches of 50,
    shared by all cores.

    Local training is one client's first steps, timed, times all steps: whole rounds take minutes.
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
    turn = plan_round(server, parts.method, parts.setup, config.bn, parts.lr(0), lambda *_: None, lambda _: None)
    planned = time.perf_counter() - start
    work = turn.works[0]
    session = ClientUpdate(
        parts.make(),
        replace(
            work, plan=replace(work.plan, phases=tuple(replace(p, epochs=None, steps=STEPS) for p in work.plan.phases))
        ),
    )
    start = time.perf_counter()
    loss, steps = session.train(session.begin())
    step = (time.perf_counter() - start) / STEPS
    reply = session.reply(session.end(), loss, steps)
    start = time.perf_counter()
    finish_round(
        server,
        parts.method,
        parts.setup,
        turn,
        [replace(reply, place=w.place, client=w.client) for w in turn.works],
        COHORT,
    )
    own = planned + time.perf_counter() - start
    clients = COHORT * EPOCHS * (IMAGES // BATCH) * step / cores
    print(f"server's work {own:.2f} s a round (resets and plan {planned:.2f} s)")
    print(f"clients' training {clients:.0f} s a round on {cores} cores ({step:.2f} s a step of one thread)")
    print(f"the server's share of the round: {own / (own + clients):.2%}")


if __name__ == "__main__":
    main()
