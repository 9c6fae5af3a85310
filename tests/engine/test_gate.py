"""A bad reply is left out, counted and named, and the run goes on as if that client had not been there, bit for bit."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from core.test_vocabulary import Median
from fedstrata.core.params import Params
from fedstrata.core.piece import Piece, Reply
from fedstrata.core.plan import Phase
from fedstrata.core.state import State
from fedstrata.methods import rows
from helpers import lab
from helpers.examples import FIRST, every_example, finite, in_folder, lines
from helpers.tiers import tiered

METHODS = ("fedavg", *(example for row in rows() for example in row.examples))
SENDING = tuple(m for m in METHODS if m != "local")  # whose clients send nothing that could be wrong


def spoil(change):
    """Change the reply at cohort index 1."""
    return lambda replies: [change(r) if isinstance(r, Reply) and r.cohort_index == 1 else r for r in replies]


def without(replies):
    return [r for r in replies if r.cohort_index != 1]


def with_delta(reply, flat):
    return replace(reply, delta=Params(flat, reply.delta.spec))


def one_entry(value):
    def change(reply):
        flat = reply.delta.flat.clone()
        flat[5] = value
        return with_delta(reply, flat)

    return change


def run_with(method, change, rounds=3, **settings):
    return lab.play(method, wrap={"change": change}, rounds=rounds, **settings)


@pytest.mark.parametrize("method", [*tiered(SENDING, FIRST), Median()], ids=str)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_client_that_sends_nan_is_a_client_that_was_not_there(method, value):
    bad, twin = run_with(method, spoil(one_entry(value))), run_with(method, without)
    assert lab.differences(bad, twin) == []
    assert all(row["refused"][0][:2] == [row["cohort"][1], "nonfinite"] for row in bad.rows)
    assert all("not finite" in row["refused"][0][2] for row in bad.rows)


WRONG = {
    "one sample too many": (lambda r: replace(r, samples=r.samples + 1), "samples"),
    "no sample": (lambda r: replace(r, samples=0), "empty"),
    "fewer than none": (lambda r: replace(r, samples=-3), "samples"),
    "a number that is no count": (lambda r: replace(r, samples=float(r.samples)), "samples"),
    "a truth value": (lambda r: replace(r, samples=True), "samples"),
    "a missing tensor": (lambda r: replace(r, delta=r.delta.pick(list(r.delta)[1:])), "missing"),
    "a tensor that was not asked for": (
        lambda r: replace(r, delta=Params.of(dict(r.delta) | {"extra": torch.zeros(1)})),
        "extra",
    ),
    "another shape": (lambda r: replace(r, delta=Params.of({n: t.reshape(-1) for n, t in r.delta.items()})), "shape"),
    "another type": (lambda r: with_delta(r, r.delta.flat.double()), "dtype"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_malformed_reply_is_named_and_left_out(wrong):
    change, code = WRONG[wrong]
    bad, twin = run_with("fedavg", spoil(change)), run_with("fedavg", without)
    assert lab.differences(bad, twin) == []
    assert [row["refused"][0][1] for row in bad.rows] == [code] * 3
    assert all(row["replies"] == 2 for row in bad.rows)


def test_a_poisoned_payload_does_not_reach_the_server_s_state():
    def change(reply):
        control = reply.up_payload["scaffold"]["control"]
        return replace(reply, up_payload={"scaffold": State(control=control * float("nan"))})

    assert lab.differences(run_with("scaffold", spoil(change)), run_with("scaffold", without)) == []


def test_poisoned_statistics_are_refused():
    def change(reply):
        return replace(reply, statistics=reply.statistics * float("inf"))

    bad, twin = (lab.play("fedavg", "batch", wrap={"change": c}) for c in (spoil(change), without))
    assert lab.differences(bad, twin) == []


def test_an_update_above_the_norm_limit_is_refused():
    bad = run_with("fedavg", spoil(lambda r: with_delta(r, r.delta.flat * 1e6)), max_update_norm=50.0)
    assert lab.differences(bad, run_with("fedavg", without)) == []
    assert [row["refused"][0][1] for row in bad.rows] == ["norm"] * 3


def broken_data():
    """Client 1's features are finite and so large that its training is not."""
    data = lab.federation()
    x = data.train.x.clone()
    x[17:25] *= 1e30
    return replace(data, train=replace_x(data.train, x))


def replace_x(samples, x):
    return type(samples)(x, samples.y)


def test_a_client_with_broken_data_is_refused_every_round_and_the_others_train():
    toy = broken_data(), lab.filled(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)))
    found = lab.play(toy=toy, cohort=6)
    twin = lab.play(toy=toy, cohort=6, wrap={"change": lambda replies: [r for r in replies if r.client != 1]})
    assert lab.bits(found.model) == lab.bits(twin.model)
    assert all([r[:2] for r in row["refused"]] == [[1, "nonfinite"]] for row in found.rows)
    assert np.isfinite(found.model.flat.numpy()).all()


@pytest.mark.parametrize("method", tiered(METHODS, FIRST))
def test_a_learning_rate_of_a_million_ends_with_a_finite_model(method):
    found = lab.play(method, local_lr=1e6)
    assert np.isfinite(found.model.flat.numpy()).all()
    assert all(row["updated"] is (row["replies"] > 0) for row in found.rows)


def test_with_every_reply_refused_the_model_is_the_initial_one():
    found = run_with("scaffold", lambda replies: [replace(r, samples=0) for r in replies])
    assert lab.bits(found.model) == lab.bits(lab.parts("scaffold").setup.model)
    assert [(row["updated"], row["replies"], row["loss"]) for row in found.rows] == [(False, 0, None)] * 3
    assert all(len(row["refused"]) == 3 and {r[1] for r in row["refused"]} == {"empty"} for row in found.rows)
    assert found.clients == [None] * 6


def test_a_failure_of_a_worker_is_named_like_a_bad_reply():
    toy = lab.federation((9, 0, 8)), lab.small()
    found = lab.play(toy=toy, cohort=3)
    assert all([r[:2] for r in row["refused"]] == [[1, "empty"]] for row in found.rows)


def test_refused_clients_cost_what_travelled():
    good, bad = lab.play(rounds=1), run_with("fedavg", spoil(one_entry(float("nan"))), rounds=1)
    for key in ("bytes_up", "bytes_down", "flops"):
        assert good.rows[0][key] == bad.rows[0][key]


@dataclass(frozen=True)
class Wild(Piece):
    """Client 1 trains with a rate a million times (or more) that of the others."""

    factor: float = 1e7

    def plan(self, plan, ctx):
        return replace(
            plan,
            per_client={
                index: {"phases": (Phase(lr=self.factor),)} for index, client in enumerate(plan.cohort) if client == 1
            },
        )


def test_t17_one_client_with_a_learning_rate_of_a_million_is_left_out_and_counted(tmp_path, monkeypatch):
    module = lab.filled(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)))
    monkeypatch.setattr("fedstrata.engine.assembly.parse_method", lambda text: lab.parse("fedavg") + Wild())
    found = in_folder(tmp_path, (lab.federation(lab.EQUAL), module), cohort=6, max_update_norm=100.0)
    written = lines(found.folder)
    assert finite(found.params)
    assert all([r[:2] for r in row["refused"]] in ([[1, "nonfinite"]], [[1, "norm"]]) for row in written)
    assert sum(found.summary["refused"].values()) == 3
    assert found.summary["rounds_without_update"] == 0
    twin = lab.play(
        toy=(lab.federation(lab.EQUAL), module),
        cohort=6,
        wrap={"change": lambda replies: [r for r in replies if r.client != 1]},
    )
    assert lab.bits(found.params) == lab.bits(twin.model)


@every_example
def test_t17_nan_in_one_client_s_data_never_reaches_the_model(example):
    """The data check refuses such a federation; here it is made behind its back."""
    data, module = lab.federation(), lab.filled(lab.Small("layer"))
    x = data.train.x.clone()
    x[18, 2] = math.nan
    bad = replace(data, train=type(data.train)(x, data.train.y))
    found = lab.play(example, (bad, module), cohort=6, rounds=2)
    assert finite(found.model)
    if example != "local":  # which sends nothing that could be refused
        assert all([r[:2] for r in row["refused"]] == [[1, "nonfinite"]] for row in found.rows)
    assert all(finite(m) for i, m in enumerate(found.models) if i != 1)
