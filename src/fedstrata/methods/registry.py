"""Every registered method: one row each. A row without examples, limit (or reason and reference test) fails the laws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedstrata import compose
from fedstrata.compose import Method
from fedstrata.errors import ConfigError
from fedstrata.methods.ditto import Ditto
from fedstrata.methods.fedbabu import FedBABU
from fedstrata.methods.feddyn import FedDyn
from fedstrata.methods.fednova import FedNova
from fedstrata.methods.fedprox import FedProx
from fedstrata.methods.finetune import FineTune
from fedstrata.methods.moon import Moon
from fedstrata.methods.perfedavg import PerFedAvg
from fedstrata.methods.personal import FedBN, FedPer, FedRep, LGFedAvg, Local
from fedstrata.methods.pfedme import PFedMe
from fedstrata.methods.scaffold import Scaffold
from fedstrata.methods.serveropt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from fedstrata.piece import Piece


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
    """Why a method has no limit law, and the test against an independent reference instead ("file::test", below tests/)."""

    why: str
    reference: str


@dataclass(frozen=True)
class Row:
    """One registered method."""

    piece: type[Piece]
    summary: str
    examples: tuple[str, ...]
    limit: Limit | NoLimit

    @property
    def name(self) -> str:
        """What users write."""
        return self.piece.__name__.lower()


_REFERENCE = "methods/test_reference.py::test_{}_equals_the_written_out_rule"


def _without(why: str, name: str) -> NoLimit:
    return NoLimit(why, _REFERENCE.format(name))


_ROWS: list[Row] = [
    Row(FedProx, "proximal term towards the received weights", ("fedprox(mu=0.1)",), Limit("fedprox(mu=0)", "fedavg")),
    Row(Scaffold, "control variates against client drift", ("scaffold",), _without("controls are never zero after the first round", "scaffold")),
    Row(FedAvgM, "momentum on the server", ("fedavgm(beta=0.9)",), Limit("fedavgm(beta=0, lr=1)", "fedavg")),
    Row(FedAdagrad, "Adagrad on the server", ("fedadagrad(lr=0.05)",), _without("the step is always divided by its own size", "fedadagrad")),
    Row(FedYogi, "Yogi on the server", ("fedyogi(lr=0.05)",), _without("the step is always divided by its own size", "fedyogi")),
    Row(FedAdam, "Adam on the server", ("fedadam(lr=0.05)",), _without("the step is always divided by its own size", "fedadam")),
    Row(
        FedNova,
        "normalised averaging for unequal local steps",
        ("fednova", "fednova(mu=0.1) + fedprox(mu=0.1)"),
        Limit("fednova", "fedavg", uniform=True),
    ),
    Row(FedDyn, "dynamic regularisation", ("feddyn(alpha=0.1)",), _without("the server divides by alpha, so alpha=0 has no meaning", "feddyn")),
    Row(
        Moon, "contrast against the global and the client's previous features", ("moon(mu=1)", "moon(references=eval)"), Limit("moon(mu=0)", "fedavg")
    ),
    Row(FedPer, "private head", ("fedper",), Limit("fedper(personal='all')", "local")),
    Row(LGFedAvg, "private body, shared head", ("lgfedavg",), Limit("lgfedavg(personal='role:head')", "fedper")),
    Row(FedRep, "private head, trained in a phase of its own", ("fedrep(head_epochs=2)",), Limit("fedrep(head_epochs=0)", "fedbabu(epochs=0)")),
    Row(
        FedBABU,
        "body trained in federation, head random; fine-tuned by each client",
        ("fedbabu(epochs=2)",),
        Limit("fedbabu(epochs=0)", "fedrep(head_epochs=0)"),
    ),
    Row(FedBN, "private norm layers", ("fedbn",), Limit("fedbn", "fedper(personal='kind:norm')")),
    Row(Ditto, "private model pulled towards the global one", ("ditto(mu=0.5)",), Limit("ditto(mu=0.5)", "fedavg", shared_only=True)),
    Row(
        PerFedAvg,
        "meta-learning: good after one local step",
        ("perfedavg", "perfedavg(variant=hessian_free, delta=0.1)"),
        _without("each step reads half of its batch", "perfedavg"),
    ),
    Row(
        PFedMe, "personal models by Moreau envelopes", ("pfedme(lam=5, inner=3)",), _without("w moves only through th, lam=0 stands still", "pfedme")
    ),
    Row(Local, "no communication", ("local",), Limit("local", "fedper(personal='all')")),
    Row(FineTune, "each client adapts a private copy", ("finetune(steps=3)",), Limit("finetune(steps=0)", "fedavg")),
]


def rows() -> tuple[Row, ...]:
    """All registered methods."""
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


def method(text: str) -> Method:
    """A method from call syntax; see :func:`fedstrata.compose.parse`."""
    return compose.parse(text, table())
