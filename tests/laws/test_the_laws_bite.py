"""Pieces broken on purpose, each in one place: a law or a reference that would not notice is no claims."""

from dataclasses import dataclass, field

import pytest
import torch

from fedstrata.core.chain import Method
from fedstrata.core.params import Params, tmap
from fedstrata.core.piece import Piece
from fedstrata.methods import Limit, NoLimit, Row, rows
from fedstrata.methods.fedprox import FedProx
from fedstrata.methods.personal import FedPer
from fedstrata.methods.scaffold import Scaffold
from fedstrata.methods.serveropt import FedAvgM
from fedstrata.testing import laws, toys
from fedstrata.testing.laws import (
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
        lambda self, g, v: lambda p, b: tmap(lambda s, x, a: s + (self.mu + 1e-6) * (x - a), g(p, b), p, v.anchor),
    )
    bites(limit_is_exact, limit_of(FedProx))


def test_a_doubled_factor_in_fedprox_breaks_its_reference(monkeypatch):
    """mu = 0 hides a factor of two; the written-out rule does not."""
    monkeypatch.setattr(
        FedProx,
        "gradient",
        lambda self, g, v: lambda p, b: tmap(lambda s, x, a: s + 2 * self.mu * (x - a), g(p, b), p, v.anchor),
    )
    limit_is_exact(limit_of(FedProx))
    bites(rules.against, "fedprox(mu=0.5)", lambda w: rules.fedprox(w, 0.5))


def test_a_wrong_beta_in_fedavgm_breaks_its_limit(monkeypatch):
    """Velocity 0.9 v + step, whatever beta is."""

    def merge(self, step, slot, v):
        velocity = 0.9 * slot["velocity"].pick(step) + step
        return self.lr * velocity, {"velocity": slot["velocity"] | velocity}

    limit_is_exact(limit_of(FedAvgM))
    monkeypatch.setattr(FedAvgM, "merge", merge)
    bites(limit_is_exact, limit_of(FedAvgM))


def test_a_wrong_sign_in_scaffold_breaks_its_reference(monkeypatch):
    """g + c_i - c in place of g - c_i + c."""
    rules.against("scaffold", rules.scaffold)
    monkeypatch.setattr(
        Scaffold, "gradient", lambda self, g, v: lambda p, b: g(p, b) + (v.own["control"] - v.extras["control"])
    )
    bites(rules.against, "scaffold", rules.scaffold)


def test_a_head_that_is_averaged_after_all_breaks_the_limit_of_fedper(monkeypatch):
    limit_is_exact(limit_of(FedPer))
    monkeypatch.setattr(FedPer, "plan", lambda self, plan, *_: plan)
    bites(limit_is_exact, limit_of(FedPer))


@dataclass(frozen=True)
class Forgetful(Piece):
    """Keeps what must survive in the piece instead of in its slot."""

    memory: list = field(default_factory=list)

    def merge(self, step, slot, v):
        self.memory.append((v.setup, step))
        return step + 0.1 * next(first for setup, first in self.memory if setup is v.setup), slot


@dataclass(frozen=True)
class Impatient(Piece):
    """Whoever uploads first in a round counts most."""

    turns: list = field(default_factory=list)

    def upload(self, delta, own, v):
        before = sum(setup is v.setup and t == v.round for setup, t in self.turns)
        self.turns.append((v.setup, v.round))
        return delta * (1 - 0.01 * before), {}, own


@dataclass(frozen=True)
class Restless(Piece):
    """Moves on the server what no client sends."""

    def plan(self, plan, slot, answers, round, setup):  # noqa: A002
        return plan.without(setup.layout.select("role:head"))

    def merge(self, step, slot, v):
        head = v.params.pick(v.layout.select("role:head"))
        return Params.of(dict(step) | {n: torch.full_like(t, 0.01) for n, t in head.items()}), slot


@dataclass(frozen=True)
class Hoarding(Piece):
    """Puts something beside its settings, past the freezing."""

    def merge(self, step, slot, v):
        object.__setattr__(self, "last", float(step.flat.sum()))
        return step, slot


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


def test_a_piece_that_prints_other_settings_breaks_its_law(monkeypatch):
    monkeypatch.setitem(toys._known, "lying", Lying)
    bites(text_comes_back, "lying")


def test_a_law_bites_in_words():
    with pytest.raises(
        AssertionError, match=r"fedprox\(mu=0.5\) is fedavg: server models differ by .*, not a bit is allowed"
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
