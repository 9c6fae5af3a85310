"""Replies are folded as they arrive, bit for bit as in a sum over all of them, and a cohort costs no memory."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from fedstrata.client.task import ClientFailure
from fedstrata.core.piece import Reply
from fedstrata.engine import aggregation
from fedstrata.testing import toys
from fedstrata.testing.toy_runs import differences, engine, finish, play

SUMS = ("fedavg", "fedprox(mu=0.1)", "scaffold", "feddyn(alpha=0.1)", "fednova", "fedavgm(beta=0.9)", "fedper")


@pytest.mark.parametrize("method", SUMS)
@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("held", [0, 2_000])
def test_folded_replies_give_the_model_of_all_replies_bit_for_bit(method, norm, held, monkeypatch):
    whole = play(method, norm)
    monkeypatch.setattr(aggregation, "HELD", held)
    assert not differences(whole, play(method, norm))


def test_replies_are_really_folded_before_the_last_one_came(monkeypatch):
    monkeypatch.setattr(aggregation, "HELD", 0)
    kept = []
    add = aggregation.Collector.accept

    def accept(self, reply):
        add(self, reply)
        kept.append(len(self.kept))

    monkeypatch.setattr(aggregation.Collector, "accept", accept)
    play("fedavg")
    assert max(kept) == 0


@pytest.mark.parametrize("order", [reversed, lambda tasks: tasks[2:] + tasks[:2]], ids=["backwards", "rotated"])
def test_the_order_of_arrival_is_irrelevant_to_a_fold(order, monkeypatch):
    whole = play("scaffold")
    monkeypatch.setattr(aggregation, "HELD", 0)
    assert not differences(whole, play("scaffold", wrap={"order": lambda tasks: list(order(list(tasks)))}))


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_a_client_that_fails_after_others_were_folded_makes_the_fold_anew(method, monkeypatch):
    """Weights depend on who replies: the folded clients train again and give the same replies."""

    def fails(replies):
        return [ClientFailure(r.cohort_index, r.client, "lost", "gone") if r.cohort_index == 3 else r for r in replies]

    whole = play(method, wrap={"change": fails})
    monkeypatch.setattr(aggregation, "HELD", 0)
    again = play(method, wrap={"change": fails})
    assert not differences(whole, again)
    drop = ("seconds", "eval_seconds")
    assert [{k: v for k, v in row.items() if k not in drop} for row in again.rows] == [
        {k: v for k, v in row.items() if k not in drop} for row in whole.rows
    ]


def test_a_reply_that_the_gate_refuses_makes_the_fold_anew(monkeypatch):
    def poisoned(replies):
        return [
            replace(r, delta=r.delta * float("nan")) if isinstance(r, Reply) and r.cohort_index == 4 else r
            for r in replies
        ]

    whole = play("fedavg", wrap={"change": poisoned})
    monkeypatch.setattr(aggregation, "HELD", 0)
    assert not differences(whole, play("fedavg", wrap={"change": poisoned}))


@pytest.mark.parametrize("method", ["fedgen(latent=4, hidden=8, batch=8, steps=3, lr=0.01)", "fedcross(alpha=0.8)"])
def test_methods_that_read_single_replies_get_all_of_them(method, monkeypatch):
    whole = play(method)
    monkeypatch.setattr(aggregation, "HELD", 0)
    assert not differences(whole, play(method))


def test_measures_see_all_replies(monkeypatch):
    monkeypatch.setattr(aggregation, "HELD", 0)
    run = engine(toys.parts("fedavg", measures="drift", eval_every=1))
    assert all(row["measures"]["drift"] for row in finish(run).rows)


MEMORY = """
import json, resource, sys
import numpy as np
from fedstrata.config.config import Config
from fedstrata.data.federation import Federation
from fedstrata.engine.assembly import assemble
from fedstrata.engine.rounds import Engine

method, cohort = sys.argv[1], int(sys.argv[2])
rng = np.random.default_rng(0)
x, y = rng.normal(size=(8000, 64)).astype(np.float32), rng.integers(10, size=8000)
data = Federation.of(x, y, client=np.repeat(np.arange(1000), 8), testing="server", test=(x[:100], y[:100]))
config = Config(**{"method": method, "model": "mlp(hidden=[200, 200])", "rounds": 2, "cohort": cohort,
                   "client_state": "mapped", "local.epochs": 1, "local.batch": 8, "eval.every": 2})
engine = Engine(assemble(config, data), "loop", 1)
for row in engine.rounds():
    pass
print(json.dumps({"rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, "numbers": engine.parts.parameters}))
"""


@pytest.mark.full
@pytest.mark.parametrize("method", ["fedavg", "fedprox(mu=0.1)"])
def test_a_cohort_of_a_thousand_costs_the_memory_of_ten(method):
    peaks = {}
    for cohort in (10, 1000):
        command = [sys.executable, "-c", MEMORY, method, str(cohort)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks[cohort] = json.loads(done.stdout)["rss"]
    assert peaks[1000] <= 1.2 * peaks[10], peaks
