"""Chains of pieces: parse, chain, check; what is invalid is refused with the reason and the way out."""

from dataclasses import dataclass, replace
from functools import partial

import pytest

from fedstrata.common.errors import ConfigError, FedstrataError, LayoutError, MethodError
from fedstrata.core.chain import PLAIN, Method, chain, parse
from fedstrata.core.piece import Piece
from fedstrata.methods import Row, measures_of, method, register, row_of, rows, source_of, table
from fedstrata.methods.fedprox import FedProx
from fedstrata.methods.scaffold import Scaffold
from fedstrata.methods.serveropt import FedAvgM
from helpers import lab


@dataclass(frozen=True)
class Signs(Piece):
    def compress(self, delta, ctx):
        return delta


@dataclass(frozen=True)
class HeadA(Piece):
    def model(self, net):
        return replace(net, head=partial(net.head))


@dataclass(frozen=True)
class HeadB(HeadA):
    pass


def owner(verb):
    return dataclass(frozen=True)(type(f"Owns{verb}", (Piece,), {verb: lambda self, *a: None, "__annotations__": {}}))()


def test_the_empty_chain_is_fedavg():
    assert method("fedavg") == Method() == chain()
    assert str(Method()) == "fedavg"
    assert method("fedavg + fedprox(mu=0.5)") == chain(FedProx(0.5))


def test_chains_add_up_in_order():
    made = chain(FedProx(0.1), chain(FedAvgM()))
    assert [type(p) for p in made.pieces] == [FedProx, FedAvgM]
    assert made == method("fedprox(mu=0.1) + fedavgm")
    assert str(made) == "fedprox(mu=0.1) + fedavgm"


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("fedprocks", ConfigError, "Did you mean 'fedprox'"),
        ("fedprox(mux=1)", ConfigError, "mu"),
        ("fedprox(mu=-1)", ConfigError, "fedprox.mu is -1"),
        ("fedprox(mu='much')", ConfigError, "mu"),
        ("fedavg(lr=1)", ConfigError, "has no settings"),
        ("fedprox + fedprox(mu=1)", MethodError, "occurs 2 times"),
        ("scaffold + feddyn", MethodError, "both decide how clients are weighted"),
        ("fedprox +", FedstrataError, "."),
        ("fedprox(mu=nan)", FedstrataError, "."),
    ],
)
def test_bad_text_is_refused_with_the_remedy(text, error, message):
    with pytest.raises(error, match=message):
        method(text)


@pytest.mark.parametrize("verb", ["sample", "weigh", "reduce", "step", "compress", "personal_model"])
def test_two_owners_of_one_verb_are_refused(verb):
    second = dataclass(frozen=True)(type("Second", (type(owner(verb)),), {}))()
    with pytest.raises(MethodError, match=rf"both decide .*\({verb}\)"):
        chain(owner(verb), second)


def test_two_heads_are_refused():
    with pytest.raises(MethodError, match="heada and headb both replace the model's head"):
        lab.parts(chain(HeadA(), HeadB()))
    lab.parts(chain(HeadA()))


def test_replies_are_read_one_by_one_where_a_piece_looks_at_single_ones():
    assert not method("scaffold + fedavgm").sees_replies
    assert method("fedavgm + fedgen").sees_replies
    assert method("fedcross").sees_replies
    assert method("clusteredsampling").sees_replies


def test_owner_is_the_piece_that_overrides_a_verb():
    made = chain(FedProx(), Scaffold())
    assert made.owner("weigh") == Scaffold()
    assert made.owner("reduce") is PLAIN
    assert made.has("gradient")
    assert not made.has("settle")


@pytest.mark.parametrize(
    ("text", "settings", "error", "message"),
    [
        ("scaffold", {"local_optimizer": "adam"}, MethodError, "Set local.optimizer=sgd"),
        ("fednova", {"local_optimizer": "adamw"}, MethodError, "Set local.optimizer=sgd"),
        ("fednova(mu=0.1)", {"local_momentum": 0.9}, MethodError, "no closed form"),
        ("fedper(personal='kind:conv')", {}, LayoutError, "kind:conv"),
        ("finetune(steps=1, groups='role:heads')", {}, LayoutError, "head"),
    ],
)
def test_a_run_that_is_invalid_for_a_piece_is_refused_before_training(text, settings, error, message):
    with pytest.raises(error, match=message):
        lab.parts(text, **settings)


@pytest.mark.parametrize("text", ["scaffold + fedrep", "fednova + fedrep"])
def test_methods_that_divide_by_steps_refuse_phases(text):
    with pytest.raises(MethodError, match="trains in phases"):
        lab.play(text)


def test_merge_runs_right_to_left_and_client_verbs_left_to_right():
    seen = []

    def spy(name):
        def upload(self, delta, ctx):
            seen.append(("upload", name))
            return delta, {}, ctx.state

        def merge(self, step, ctx):
            seen.append(("merge", name))
            return step, ctx.state

        return dataclass(frozen=True)(type(name, (Piece,), {"upload": upload, "merge": merge}))()

    lab.play(chain(spy("A"), spy("B")), cohort=1, rounds=1)
    assert seen[:2] == [("upload", "A"), ("upload", "B")]  # the ledger's probe uploads once more
    assert [s for s in seen if s[0] == "merge"] == [("merge", "B"), ("merge", "A")]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_every_row_says_what_it_is_and_where_it_comes_from(row):
    assert row.summary
    assert row.source
    assert row.family
    assert "Source:" in (row.piece.__doc__ or "")
    assert row.piece.__dataclass_params__.frozen
    assert table()[row.name] is row.piece


def test_a_name_cannot_be_registered_twice():
    with pytest.raises(ConfigError, match="registered already"):
        register(Row(FedProx, "again", ("fedprox",), rows()[0].limit))


def test_parse_takes_any_look_up():
    assert parse("signs", {"signs": Signs}.__getitem__) == chain(Signs())


def test_a_piece_finds_its_row_again():
    assert row_of(FedProx(0.5)).source == source_of(FedProx()) == "Li et al., MLSys 2020"
    assert row_of(Signs()) is None
    assert source_of(Signs()) == ""
    assert measures_of(method("fedprox + scaffold")) == []
