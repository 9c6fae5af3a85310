"""Every executor gives the loop's answers: replies field by field, failures by name, also where workers die.

A new executor is a new line.
"""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from fedstrata.backends.selection import EXECUTORS, build
from fedstrata.client.update import ClientFailure
from fedstrata.common.errors import ConfigError, MethodError
from fedstrata.core.params import Params
from fedstrata.core.piece import Piece, Reply
from fedstrata.core.plan import Phase
from fedstrata.core.state import ClientState
from fedstrata.engine.server import plan_round
from helpers import lab
from helpers.tiers import tiered

EXACT = [("threads", 1), ("threads", 3), ("processes", 1), ("processes", 3), ("auto", 2)]
CLOSE = [("batched", 1), ("batched", 3)]
exact = pytest.mark.parametrize(("executor", "workers"), EXACT)
every = pytest.mark.parametrize(("executor", "workers"), [*EXACT, *CLOSE])


@dataclass(frozen=True)
class Everything(Piece):
    """Uses each way across the boundary: models by cohort index, payloads both ways, states with statistics, phases."""

    def init_client(self, setup):
        return {"model": setup.model, "count": torch.zeros((), dtype=torch.int64)}

    def plan(self, plan, ctx):
        head = ctx.layout.select("role:head")
        phases = (Phase("head", train=head, epochs=1), Phase("local", lr=0.5))
        private = plan.private(ctx.layout.select("name:second.bias"))
        return replace(private, phases=phases, per_client={1: {"phases": (Phase(steps=3),)}})

    def send(self, model, ctx):
        drawn = torch.tensor(ctx.rng.normal(size=3), dtype=torch.float32)
        return (model * 1.01 if ctx.slot.cohort_index == 2 else model), {"drawn": drawn, "model": model * 2}

    def objective(self, loss, ctx):
        return lambda p, b: (
            loss(p, b)
            + 0.01 * ctx.down_payload["drawn"].sum() * p["head.bias"].sum()
            + 0.001 * ((p.flat - ctx.down_payload["model"].flat) ** 2).sum()
        )

    def upload(self, delta, ctx):
        return delta, {"twice": delta * 2, "count": ctx.state["count"]}, self._new(ctx)

    def _new(self, ctx):
        return {"model": ctx.trained.model, "count": ctx.state["count"] + 1}


def answers(executor, workers, method, toy="batch", rounds=2, **settings):
    """Return all answers of two rounds, in cohort order, the second with client states of the first."""
    made = lab.parts(method, toy, cohort=6, **settings)
    run = lab.engine(made)
    runner = build(executor, made.make_worker, workers, 1, lambda *_: None)
    results, states = [], {}
    try:
        for t in range(rounds):
            turn = plan_round(replace(run.server, round=t), made.rules, 0.1, lambda *_: None, states.get)
            results.append(sorted(runner.train(turn.tasks), key=lambda a: a.cohort_index))
            states |= {a.client: a.client_state for a in results[-1] if isinstance(a, Reply) and a.client_state}
    finally:
        runner.close()
        run.close()
    return [a for part in results for a in part]


def plain(answer):
    """A reply as comparable values; parameters as names and bytes."""
    if isinstance(answer, ClientFailure):
        return answer
    return {name: _plain(getattr(answer, name)) for name in answer.__dataclass_fields__}


def _plain(value):
    if isinstance(value, Params):
        return (value.spec.names, value.spec.shapes, lab.bits(value))
    if isinstance(value, ClientState):
        return _plain(value.flat())
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.shape, lab.bits(value))
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, Mapping) else value


@exact
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "everything"])
@pytest.mark.parametrize("toy", tiered(["batch", "dropout"], ["batch"]))
def test_replies_are_the_loop_s_in_every_field(executor, workers, method, toy):
    method = Everything() if method == "everything" else method
    assert [plain(a) for a in answers(executor, workers, method, toy)] == [
        plain(a) for a in answers("loop", 1, method, toy)
    ]


@pytest.mark.parametrize(("executor", "workers"), CLOSE)
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "everything"])
def test_stacked_replies_are_the_loop_s_to_rounding(executor, workers, method):
    method = Everything() if method == "everything" else method
    for a, b in zip(answers(executor, workers, method, "layer"), answers("loop", 1, method, "layer"), strict=True):
        assert exact_fields(a) == exact_fields(b)
        assert a.loss == pytest.approx(b.loss, rel=1e-5)
        assert torch.allclose(a.delta.flat, b.delta.flat, rtol=1e-5, atol=2e-6)
        stored = b.client_state.flat()
        for name, tensor in a.client_state.flat().items():
            assert torch.allclose(tensor, stored[name], rtol=1e-5, atol=2e-6)


def exact_fields(reply):
    """Return what no rounding may change."""
    names = sorted(reply.client_state.flat()), sorted(reply.up_payload)
    return reply.cohort_index, reply.client, reply.samples, reply.steps, dict(reply.cost_by_phase), *names


@dataclass(frozen=True)
class Breaks(Piece):
    """Fails on clients of 17 and of 5 samples, each with another error."""

    def upload(self, delta, ctx):
        if ctx.samples == 17:
            raise RuntimeError("too much")
        if ctx.samples == 5:
            raise KeyError("nothing there")
        return delta, {}, ctx.state


@every
def test_clients_that_fail_are_named_and_the_others_answer(executor, workers):
    results = answers(executor, workers, Breaks(), "layer", rounds=1)
    failures = {a.client: (a.code, a.message) for a in results if isinstance(a, ClientFailure)}
    assert failures == {0: ("raised", "RuntimeError: too much"), 2: ("raised", "KeyError: 'nothing there'")}
    assert len(results) == 6


@dataclass(frozen=True)
class Refuses(Piece):
    def upload(self, delta, ctx):
        raise MethodError("this is invalid")


@every
def test_a_refusal_by_a_piece_ends_the_run_everywhere(executor, workers):
    with pytest.raises(Exception, match="this is invalid") as caught:
        lab.play(Refuses(), executor=executor, workers=workers)
    assert isinstance(caught.value, ValueError), "a FedstrataError, which the command turns into one line"


@every
def test_closing_twice_and_closing_unused_do_nothing(executor, workers):
    runner = build(executor, lab.parts().make_worker, workers, 1, lambda *_: None)
    runner.close()
    runner.close()


@every
def test_an_empty_cohort_is_answered_by_nothing(executor, workers):
    runner = build(executor, lab.parts().make_worker, workers, 1, lambda *_: None)
    assert list(runner.train(())) == []
    runner.close()


PARENT = os.getpid()


@dataclass(frozen=True)
class Dies(Piece):
    """Kills its worker process: once (the file marks the first time), or always."""

    marker: str = ""

    def upload(self, delta, ctx):
        again = bool(self.marker) and Path(self.marker).exists()
        if ctx.samples == 17 and os.getpid() != PARENT and not again:
            if self.marker:
                Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return delta, {}, ctx.state


@pytest.mark.parametrize("workers", tiered([1, 2], [2]))
def test_a_worker_that_dies_is_replaced_and_its_client_tried_again(tmp_path, workers):
    dead = lab.play(Dies(str(tmp_path / "died")), executor="processes", workers=workers, cohort=6)
    assert (tmp_path / "died").exists()
    assert lab.bits(dead.model) == lab.bits(lab.play(cohort=6).model)
    assert all(row["refused"] == [] for row in dead.rows)


@pytest.mark.parametrize("workers", tiered([1, 2], [2]))
def test_a_client_that_kills_its_worker_twice_is_left_out_and_named(workers):
    found = lab.play(Dies(), executor="processes", workers=workers, cohort=6)
    assert all([r[:2] for r in row["refused"]] == [[0, "lost"]] for row in found.rows)
    assert all(row["updated"] for row in found.rows)


def test_processes_refuse_more_than_one_intra_op_thread():
    with pytest.raises(ConfigError, match=r"local\.threads=1"):
        build("processes", lab.parts().make_worker, 2, 2, lambda *_: None)


def test_two_runs_at_once_do_not_meet():
    runs = [
        lab.engine(lab.parts(m), e, 2)
        for m, e in (("scaffold", "processes"), ("fedprox(mu=1)", "processes"), ("ditto", "threads"))
    ]
    for _ in range(3):
        for run in runs:
            run.round()
    for run, method in zip(runs, ("scaffold", "fedprox(mu=1)", "ditto"), strict=True):
        assert lab.bits(run.server.model) == lab.bits(lab.play(method).model)
        run.close()


def test_executors_are_described():
    assert set(EXECUTORS.names()) == {"loop", "threads", "processes", "batched", "auto"}
    assert all(settings.summary for settings in EXECUTORS.items().values())
