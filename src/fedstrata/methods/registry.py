"""Every registered method: one row each.

A row without examples, limit (or reason and reference test) fails the laws.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedstrata.common import plugins
from fedstrata.common.call_syntax import parse_calls
from fedstrata.common.errors import ConfigError, nearest
from fedstrata.core import chain
from fedstrata.core.chain import Method
from fedstrata.core.piece import Piece
from fedstrata.methods.budgets import Budgets
from fedstrata.methods.clusteredsampling import ClusteredSampling
from fedstrata.methods.ditto import Ditto
from fedstrata.methods.fedbabu import FedBABU
from fedstrata.methods.fedcross import FedCross
from fedstrata.methods.feddyn import FedDyn
from fedstrata.methods.fedgen import FedGen
from fedstrata.methods.fedmut import FedMut
from fedstrata.methods.fednova import FedNova
from fedstrata.methods.fedpart import FedPart
from fedstrata.methods.fedphoenix import FedPhoenix
from fedstrata.methods.fedphoenixblend import FedPhoenixBlend
from fedstrata.methods.fedprox import FedProx
from fedstrata.methods.finetune import FineTune
from fedstrata.methods.moon import Moon
from fedstrata.methods.perfedavg import PerFedAvg
from fedstrata.methods.personal import FedBN, FedPer, FedRep, LGFedAvg, Local
from fedstrata.methods.pfedme import PFedMe
from fedstrata.methods.progfed import ProgFed
from fedstrata.methods.returning import Returning
from fedstrata.methods.scaffold import Scaffold
from fedstrata.methods.serveropt import FedAdagrad, FedAdam, FedAvgM, FedYogi


@dataclass(frozen=True)
class Limit:
    """Two chains that agree bit for bit, on the server's model and on every client's own.

    Attributes:
        method, of: in call syntax.
        shared_only: only the server's model agrees (the method adds private models).
        uniform: needs equal numbers of local steps on all clients.
    """

    method: str
    of: str
    shared_only: bool = False
    uniform: bool = False

    def __str__(self) -> str:
        return f"{self.method} is {self.of}"


@dataclass(frozen=True)
class NoLimit:
    """Why a method has no limit law, and the test against an independent reference instead ("file::test", below
    tests/).
    """

    why: str
    reference: str


@dataclass(frozen=True)
class Row:
    """One registered method.

    Attributes:
        piece: the class; its name in lower case is the method's.
        summary: one line.
        examples: in call syntax, settings with which the laws hold it.
        limit: the law, or why there is none.
        cite: keys of ``fedstrata.citations``, or BibTeX entries of your own.
        uncited: why there is nothing to cite.
    """

    piece: type[Piece]
    summary: str
    examples: tuple[str, ...]
    limit: Limit | NoLimit
    cite: tuple[str, ...] = ()
    uncited: str = ""

    @property
    def name(self) -> str:
        """What users write."""
        return self.piece.__name__.lower()


_REFERENCE = "methods/test_reference.py::test_{}_equals_the_written_out_rule"


def _without(why: str, name: str) -> NoLimit:
    return NoLimit(why, _REFERENCE.format(name))


_ROWS: list[Row] = [
    Row(
        FedProx,
        "proximal term towards the received weights",
        ("fedprox(mu=0.1)", "fedprox(mu=0.1, distance=plain)"),
        Limit("fedprox(mu=0)", "fedavg"),
        cite=("li2020federated",),
    ),
    Row(
        Scaffold,
        "control variates against client drift",
        ("scaffold",),
        _without("controls are never zero after the first round", "scaffold"),
        cite=("karimireddy2020scaffold",),
    ),
    Row(
        FedAvgM,
        "momentum on the server",
        ("fedavgm(beta=0.9)",),
        Limit("fedavgm(beta=0, lr=1)", "fedavg"),
        cite=("hsu2019measuring",),
    ),
    Row(
        FedAdagrad,
        "Adagrad on the server",
        ("fedadagrad(lr=0.05)",),
        _without("the step is always divided by its own size", "fedadagrad"),
        cite=("reddi2021adaptive",),
    ),
    Row(
        FedYogi,
        "Yogi on the server",
        ("fedyogi(lr=0.05)",),
        _without("the step is always divided by its own size", "fedyogi"),
        cite=("reddi2021adaptive",),
    ),
    Row(
        FedAdam,
        "Adam on the server",
        ("fedadam(lr=0.05)",),
        _without("the step is always divided by its own size", "fedadam"),
        cite=("reddi2021adaptive",),
    ),
    Row(
        FedNova,
        "normalised averaging for unequal local steps",
        ("fednova", "fednova(mu=0.1) + fedprox(mu=0.1)"),
        Limit("fednova", "fedavg", uniform=True),
        cite=("wang2020tackling",),
    ),
    Row(
        FedDyn,
        "dynamic regularisation",
        ("feddyn(alpha=0.1)",),
        _without("the server divides by alpha, so alpha=0 has no meaning", "feddyn"),
        cite=("acar2021federated",),
    ),
    Row(
        Moon,
        "contrast against the global and the client's previous features",
        ("moon(mu=1)", "moon(references=eval)"),
        Limit("moon(mu=0)", "fedavg"),
        cite=("li2021model",),
    ),
    Row(
        FedPart,
        "one layer group a round is trained and sent",
        (
            "fedpart(warmup=1, repeat=1)",
            "fedpart(warmup=0, order=random)",
            "fedprox(mu=0.1) + fedpart(warmup=1, repeat=1, order=reverse)",
            "moon + fedpart(warmup=0, repeat=1, order=random_round)",
            "fedpart(warmup=1, order=random_client)",
        ),
        Limit("fedpart(warmup=0, together=1000)", "fedavg"),
        cite=("wang2024why",),
    ),
    Row(
        Budgets,
        "each client trains what its memory and time allow",
        ("budgets(memory=[1.0, 0.8])", "fedpart(warmup=1, repeat=1) + budgets(time=[0.7, 1.0])"),
        Limit("budgets(memory=1, time=1)", "fedavg"),
        cite=("wang2024why",),
    ),
    Row(
        Returning,
        "clients keep the model and are sent what moved since",
        ("returning", "fedpart(warmup=1, repeat=1) + returning"),
        Limit("fedpart(warmup=1, repeat=1) + returning", "fedpart(warmup=1, repeat=1)"),
        cite=("wang2024why",),
    ),
    Row(
        ProgFed,
        "the network grows stage by stage, each with a head of its own",
        ("progfed(each=1)", "progfed(each=1, warmup=1)", "progfed(each=1) + fedprox(mu=0.1) + fedavgm(beta=0.9)"),
        Limit("progfed(stages=1)", "fedavg"),
        cite=("wang2022progfed",),
    ),
    Row(
        FedPhoenix,
        "some kernels of each layer are drawn anew for every client",
        (
            "fedphoenix(theta=0.5, stop=2, layers=both)",
            "fedphoenix(theta=0.5, layers=both, law=orthogonal, share=0.5, side=client)",
        ),
        Limit("fedphoenix(theta=0, layers=both)", "fedavg"),
        cite=("fedphoenix2025",),
    ),
    Row(
        FedPhoenixBlend,
        "rows or columns of projections are blended with new values for every client",
        ("fedphoenixblend(rho=0.5, stop=2, blocks=shift)",),
        Limit("fedphoenixblend(alpha=0, rho=0.5)", "fedavg"),
        cite=("fedphoenix2025",),
    ),
    Row(
        FedMut,
        "each place starts from a mutant along the last step",
        ("fedmut(alpha=0.5)",),
        Limit("fedmut(alpha=0)", "fedavg", uniform=True),
        cite=("hu2024fedmut",),
    ),
    Row(
        FedCross,
        "one model a place, crossed after each round",
        ("fedcross(alpha=0.8)", "fedcross(alpha=0.8, partner=unlike)"),
        _without("each place goes on from a model of its own", "fedcross"),
        cite=("hu2024fedcross",),
    ),
    Row(
        FedGen,
        "a generator of features, taught by the clients' heads, teaches the clients",
        (
            "fedgen(latent=4, hidden=8, batch=8, steps=3, lr=0.01)",
            "fedgen(alpha=0.5, beta=1, latent=4, hidden=8, batch=8, steps=3, lr=0.01, shares=mean)",
        ),
        Limit("fedgen(alpha=0, beta=0, latent=4, hidden=8, batch=8, steps=3)", "fedavg"),
        cite=("zhu2021datafree",),
    ),
    Row(
        ClusteredSampling,
        "one client from each of K clusters of similar updates",
        ("clusteredsampling(heavy=own)", "clusteredsampling(tree=condensed, heavy=own)"),
        _without("who takes part follows from clusters, whatever is set", "clusteredsampling"),
        cite=("fraboni2021clustered",),
    ),
    Row(
        FedPer,
        "private head",
        ("fedper",),
        Limit("fedper(personal='all')", "local"),
        cite=("arivazhagan2019federated",),
    ),
    Row(
        LGFedAvg,
        "private body, shared head",
        ("lgfedavg",),
        Limit("lgfedavg(personal='role:head')", "fedper"),
        cite=("liang2020think",),
    ),
    Row(
        FedRep,
        "private head, trained in a phase of its own",
        ("fedrep(head_epochs=2)",),
        Limit("fedrep(head_epochs=0)", "fedbabu(epochs=0)"),
        cite=("collins2021exploiting",),
    ),
    Row(
        FedBABU,
        "body trained in federation, head random; fine-tuned by each client",
        ("fedbabu(epochs=2)",),
        Limit("fedbabu(epochs=0)", "fedrep(head_epochs=0)"),
        cite=("oh2022fedbabu",),
    ),
    Row(
        FedBN, "private norm layers", ("fedbn",), Limit("fedbn", "fedper(personal='kind:norm')"), cite=("li2021fedbn",)
    ),
    Row(
        Ditto,
        "private model pulled towards the global one",
        ("ditto(mu=0.5)",),
        Limit("ditto(mu=0.5)", "fedavg", shared_only=True),
        cite=("li2021ditto",),
    ),
    Row(
        PerFedAvg,
        "meta-learning: good after one local step",
        ("perfedavg", "perfedavg(variant=hessian_free, delta=0.1)"),
        _without("each step reads half of its batch", "perfedavg"),
        cite=("fallah2020personalized",),
    ),
    Row(
        PFedMe,
        "personal models by Moreau envelopes",
        ("pfedme(lam=5, inner=3)",),
        _without("w moves only through th, lam=0 stands still", "pfedme"),
        cite=("dinh2020personalized",),
    ),
    Row(
        Local,
        "no communication",
        ("local",),
        Limit("local", "fedper(personal='all')"),
        uncited="training alone is the absence of a method",
    ),
    Row(
        FineTune,
        "each client adapts a private copy",
        ("finetune(steps=3)",),
        Limit("finetune(steps=0)", "fedavg"),
        uncited="fine-tuning is common practice, without one first paper",
    ),
]


def rows() -> tuple[Row, ...]:
    """All registered methods; those of installed packages are in ``fedstrata.common.plugins``."""
    return tuple(_ROWS)


def table() -> Mapping[str, type[Piece]]:
    """Piece by name."""
    return {row.name: row.piece for row in _ROWS}


def register(row: Row) -> None:
    """Add a method of your own.

    Raises:
        ConfigError: the name is taken.
    """
    if row.name in table() or row.name == "fedavg":
        raise ConfigError(f"a method {row.name!r} is registered already; name your class differently.")
    _ROWS.append(row)


def find(name: str) -> Row:
    """The row of a method, ours or of an installed package, which is imported then.

    Raises:
        ConfigError: an unknown name, with the nearest ones; a plug-in that cannot be used.
    """
    known = {row.name: row for row in _ROWS}
    plugged = plugins.load("methods", name, ["fedavg", *known])
    if plugged is not None:
        return _row(*plugged)
    if name not in known:
        names = ["fedavg", *known, *plugins.installed("methods")]
        raise ConfigError(f"no method is called {name!r}.{nearest(name, names)} `fedstrata list methods` shows all.")
    return known[name]


def _row(plugin: plugins.Plugin, offered: object) -> Row:
    """A plug-in's row; a bare piece gets one without examples and law."""
    if isinstance(offered, type) and issubclass(offered, Piece):
        offered = Row(offered, plugin.about, (plugin.name,), NoLimit("its package gives the class alone", ""))
    if not isinstance(offered, Row) or not (isinstance(offered.piece, type) and issubclass(offered.piece, Piece)):
        plugins.wanted(plugin, offered, "a fedstrata.methods.Row, or a subclass of fedstrata.Piece")
    if "__dataclass_fields__" not in vars(offered.piece):
        plugins.refuse(
            plugin,
            f"{offered.piece.__name__} is no dataclass of settings; write @dataclass(frozen=True) above the class.",
        )
    if offered.name != plugin.name:
        plugins.refuse(
            plugin, f"its class is {offered.piece.__name__}, so the entry point must be called {offered.name!r}."
        )
    return offered


def method(text: str) -> Method:
    """A method from call syntax; see :func:`fedstrata.core.chain.parse`.

    Packages are imported for the names that they offer.
    """
    named = {call.name: find(call.name).piece for call in parse_calls(text) if call.name != "fedavg"}
    return chain.parse(text, named)
