"""Layers that stay with the client: FedPer, LG-FedAvg, FedRep, FedBN, and training without communication."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fedstrata.core.piece import Piece, require
from fedstrata.core.plan import Phase, Plan, QueryResult, Setup
from fedstrata.core.state import State


@dataclass(frozen=True)
class FedPer(Piece):
    """The selected layers (the head) are private: trained with the rest, stored by the client, never sent.

    Source: Arivazhagan et al. 2019, "Federated Learning with Personalization Layers". ``personal`` is any selector.
    """

    source: ClassVar[str] = "Arivazhagan et al., 2019"
    personal: str = "role:head"

    def check(self, setup: Setup) -> None:
        setup.layout.select(self.personal)

    # the field's word
    def plan(self, plan: Plan, slot: State, answers: QueryResult | None, round: int, setup: Setup) -> Plan:  # noqa: A002
        return plan.private(setup.layout.select(self.personal))


@dataclass(frozen=True)
class LGFedAvg(FedPer):
    """The mirror image of FedPer: the body is private, the head is shared.

    Source: Liang et al. 2020, "Think Locally, Act Globally".
    """

    source: ClassVar[str] = "Liang et al., 2020"
    personal: str = "role:body"


@dataclass(frozen=True)
class FedBN(FedPer):
    """Norm layers (affine parameters and statistics) stay with the client; everything else is FedAvg.

    Source: Li et al. 2021, "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization".
    """

    source: ClassVar[str] = "Li et al., ICLR 2021"
    personal: str = "kind:norm"


@dataclass(frozen=True)
class FedRep(FedPer):
    """Private head; local training is first head epochs with the body frozen, then the run's own length on the body
    with the head frozen.

    ``head_epochs`` is 1 as in the public library; the paper also uses ten, with one body epoch (set
    ``local.epochs=1``).

    Source: Collins et al. 2021, "Exploiting Shared Representations for Personalized Federated Learning", Alg. 1.
    """

    source: ClassVar[str] = "Collins et al., ICML 2021"
    head_epochs: int = 1

    def __post_init__(self) -> None:
        require(self.head_epochs >= 0, "fedrep.head_epochs", self.head_epochs, "a number of epochs, at least 0")

    def plan(self, plan: Plan, slot: State, answers: QueryResult | None, round: int, setup: Setup) -> Plan:  # noqa: A002
        head = setup.layout.select(self.personal)
        plan = super().plan(plan, slot, answers, round, setup)
        body = Phase("local", train=plan.train - head)
        first = (Phase("head", train=head, epochs=self.head_epochs),) if self.head_epochs else ()
        return replace(plan, phases=(*first, body))


@dataclass(frozen=True)
class Local(Piece):
    """No communication: every client trains its own model from the common start.

    Source: the control of every personalised method.
    """

    source: ClassVar[str] = "control"

    def plan(self, plan: Plan, slot: State, answers: QueryResult | None, round: int, setup: Setup) -> Plan:  # noqa: A002
        return plan.private(setup.layout.all)
