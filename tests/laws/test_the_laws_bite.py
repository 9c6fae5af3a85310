"""Pieces broken on purpose, each in one place: a law or a reference that would not notice is no claims."""

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

from fedstrata.backends.batched_steps import Stack
from fedstrata.core.chain import Method
from fedstrata.core.params import Params
from fedstrata.core.piece import Piece
from fedstrata.methods import Limit, NoLimit, Row, rows
from fedstrata.methods.fedprox import FedProx
from fedstrata.methods.personal import FedPer
from fedstrata.methods.scaffold import Scaffold
from fedstrata.methods.serveropt import FedAvgM
from fedstrata.testing import laws, toys
from fedstrata.testing.laws import (
    batched_equals_looped,
    carried_over_state_is_all_state,
    limit_is_exact,
    no_limit_says_why,
    pieces_are_values,
    reply_order_is_irrelevant,
    text_comes_back,
    untouched_stays_untouched,
)
from helpers import lab, rules


@pytest.fixture(autouse=True)
def _nothing_remembered():
    lab.played.cache_clear()
    yield
    lab.played.cache_clear()


def limit_of(piece) -> Limit:
    return next(row.limit for row in rows() if row.piece is piece)


def bites(check, *arguments):
    with pytest.raises(AssertionError):
        check(*arguments)


def test_a_wrong_factor_in_fedprox_breaks_its_limit(monkeypatch):
    """mu + 1e-6 in place of mu."""
    limit_is_exact(limit_of(FedProx))
    monkeypatch.setattr(
        FedProx,
        "gradient",
        lambda self, g, ctx: lambda p, b: g(p, b) + (self.mu + 1e-6) * (p - ctx.received),
    )
    bites(limit_is_exact, limit_of(FedProx))


def test_a_doubled_factor_in_fedprox_breaks_its_reference(monkeypatch):
    """mu = 0 hides a factor of two; the written-out rule does not."""
    monkeypatch.setattr(
        FedProx,
        "gradient",
        lambda self, g, ctx: lambda p, b: g(p, b) + 2 * self.mu * (p - ctx.received),
    )
    limit_is_exact(limit_of(FedProx))
    bites(rules.against, "fedprox(mu=0.5)", lambda w: rules.fedprox(w, 0.5))


def test_a_wrong_beta_in_fedavgm_breaks_its_limit(monkeypatch):
    """Velocity 0.9 v + step at any beta."""

    def merge(self, step, ctx):
        old = ctx.state.params("velocity")
        velocity = 0.9 * old.pick(step) + step
        return self.lr * velocity, {"velocity": old | velocity}

    limit_is_exact(limit_of(FedAvgM))
    monkeypatch.setattr(FedAvgM, "merge", merge)
    bites(limit_is_exact, limit_of(FedAvgM))


def test_a_wrong_sign_in_scaffold_breaks_its_reference(monkeypatch):
    """g + c_i - c in place of g - c_i + c."""
    rules.against("scaffold", rules.scaffold)
    monkeypatch.setattr(
        Scaffold,
        "gradient",
        lambda self, g, ctx: lambda p, b: g(p, b) + (ctx.state["control"] - ctx.down_payload["control"]),
    )
    bites(rules.against, "scaffold", rules.scaffold)


def test_a_head_that_is_averaged_after_all_breaks_the_limit_of_fedper(monkeypatch):
    limit_is_exact(limit_of(FedPer))
    monkeypatch.setattr(FedPer, "plan", lambda self, plan, *_: plan)
    bites(limit_is_exact, limit_of(FedPer))


@dataclass(frozen=True)
class Forgetful(Piece):
    """Keeps what must survive in the piece instead of in its state."""

    memory: list = field(default_factory=list)

    def merge(self, step, ctx):
        self.memory.append((ctx.setup, step))
        return step + 0.1 * next(first for setup, first in self.memory if setup is ctx.setup), ctx.state


@dataclass(frozen=True)
class Impatient(Piece):
    """Counts the client that uploads first in a round most."""

    turns: list = field(default_factory=list)

    def upload(self, delta, ctx):
        before = sum(setup is ctx.setup and t == ctx.round for setup, t in self.turns)
        self.turns.append((ctx.setup, ctx.round))
        return delta * (1 - 0.01 * before), {}, ctx.state


@dataclass(frozen=True)
class Restless(Piece):
    """Moves on the server what no client sends."""

    def plan(self, plan, ctx):
        return plan.without(ctx.layout.select("role:head"))

    def merge(self, step, ctx):
        head = ctx.model.pick(ctx.layout.select("role:head"))
        return Params.of(dict(step) | {n: torch.full_like(t, 0.01) for n, t in head.items()}), ctx.state


@dataclass(frozen=True)
class Hoarding(Piece):
    """Sets an attribute on itself although it is frozen."""

    def merge(self, step, ctx):
        object.__setattr__(self, "last", float(step.flat.sum()))
        return step, ctx.state


@dataclass(frozen=True)
class Lying(Piece):
    """Prints other settings than it has."""

    def __str__(self):
        return "fedprox"


@pytest.mark.parametrize(
    ("piece", "check"),
    [
        (Forgetful, carried_over_state_is_all_state),
        (Impatient, reply_order_is_irrelevant),
        (Restless, untouched_stays_untouched),
        (Forgetful, pieces_are_values),
        (Hoarding, pieces_are_values),
    ],
)
def test_impure_pieces_break_their_law(piece, check, monkeypatch):
    method = Method((piece(),))
    monkeypatch.setattr(toys, "parse", lambda text: method)
    bites(check, "broken")


@dataclass(frozen=True)
class Mixing(Piece):
    """Declares element-wise middleware, and scales gradients by a mean over all entries."""

    batching: ClassVar[str] = "elementwise"

    def gradient(self, gradient, ctx):
        return lambda p, b: scaled(gradient(p, b))


def scaled(gradient):
    return gradient * (1 + 1e-3 * float(gradient.flat.abs().mean()))


@pytest.mark.parametrize("toy", ["layer", "images"])
def test_a_piece_that_mixes_stacked_clients_breaks_the_law_of_batched(toy, monkeypatch):
    method = Method((Mixing(),))
    monkeypatch.setattr(toys, "parse", lambda text: method)
    bites(batched_equals_looped, "broken", toy)


@pytest.mark.parametrize("toy", ["layer", "images"])
def test_an_executor_that_counts_padded_samples_breaks_the_law_of_batched(toy, monkeypatch):
    batched_equals_looped("fedavg", toy)
    batches = Stack.batches
    monkeypatch.setattr(
        Stack, "batches", lambda self, phase: (batch._replace(weight=None) for batch in batches(self, phase))
    )
    bites(batched_equals_looped, "fedavg", toy)


def test_a_piece_that_prints_other_settings_breaks_its_law(monkeypatch):
    monkeypatch.setitem(toys._known, "lying", Lying)
    bites(text_comes_back, "lying")


def test_a_law_bites_in_words():
    with pytest.raises(
        AssertionError, match=r"fedprox\(mu=0.5\) is fedavg: server models differ by .*; they must be equal bit for bit"
    ):
        limit_is_exact(Limit("fedprox(mu=0.5)", "fedavg"))


def test_the_laws_of_a_piece_that_is_not_registered_find_what_is_wrong_with_it():
    """As somebody outside this repository would see it: a piece that forgets, held to all laws."""
    row = Row(Forgetful, "forgets", ("forgetful",), NoLimit("it is broken on purpose", ""))
    broken = []
    for law in laws(row):
        try:
            law()
        except AssertionError:
            broken.append(str(law))
    assert "forgetful: resumed equals uninterrupted (layer)" in broken
    assert "forgetful: pieces are values" in broken
    assert "forgetful: counted bytes are real" not in broken


def test_a_reason_for_having_no_limit_that_says_nothing_is_found():
    bites(no_limit_says_why, NoLimit("none", ""))
