"""Layers that stay with the client: FedPer, LG-FedAvg, FedRep, FedBN, and training without communication."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedstrata.core.piece import Piece, ServerContext, setting
from fedstrata.core.plan import Phase, Plan, Setup
from fedstrata.methods.parts import advice
from fedstrata.methods.parts.advice import Rule
from fedstrata.methods.parts.rows import Limit, Row


@dataclass(frozen=True)
class FedPer(Piece):
    """Keep the selected layers (the head) private: trained with the rest, stored by the client, never sent.

    ``personal`` is any selector.

    Source: Arivazhagan et al. 2019, "Federated Learning with Personalization Layers".
    """

    personal: str = "role:head"

    def check(self, setup: Setup) -> None:
        setup.layout.select(self.personal)

    def plan(self, plan: Plan, ctx: ServerContext) -> Plan:
        return plan.private(ctx.layout.select(self.personal))


@dataclass(frozen=True)
class LGFedAvg(FedPer):
    """Share the head and keep the body private, the mirror image of FedPer.

    Source: Liang et al. 2020, "Think Locally, Act Globally".
    """

    personal: str = "role:body"


@dataclass(frozen=True)
class FedBN(FedPer):
    """Keep norm layers (affine parameters and statistics) with the client; everything else is FedAvg.

    Source: Li et al. 2021, "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization".
    """

    personal: str = "kind:norm"


@dataclass(frozen=True)
class FedRep(FedPer):
    """Keep the head private, and train it first with the body frozen, then the body with the head frozen.

    The body trains for the run's length. ``head_epochs`` is 1 as in the public library; the paper also uses ten, with
    one body epoch (set ``local.epochs=1``).

    Source: Collins et al. 2021, "Exploiting Shared Representations for Personalized Federated Learning", Alg. 1.
    """

    head_epochs: int = setting(1, "a number of epochs, at least 0", least=0)

    def plan(self, plan: Plan, ctx: ServerContext) -> Plan:
        head, plan = ctx.layout.select(self.personal), super().plan(plan, ctx)
        first = (Phase("head", train=head, epochs=self.head_epochs),) if self.head_epochs else ()
        return replace(plan, phases=(*first, Phase("local", train=plan.train - head)))


@dataclass(frozen=True)
class Local(Piece):
    """Send nothing: every client trains its model from the common start.

    Source: the control of every personalised method.
    """

    def plan(self, plan: Plan, ctx: ServerContext) -> Plan:
        return plan.private(ctx.layout.all)


ROWS = (
    Row(
        FedPer,
        "private head",
        ("fedper",),
        Limit("fedper(personal='all')", "local"),
        cite=("arivazhagan2019federated",),
        source="Arivazhagan et al., 2019",
        family="private-layers",
        advice=(
            Rule(
                "for",
                advice.personal(advice.strong_label_skew),
                advice.LABELS + ", and clients test themselves: a private head knows a client's classes",
            ),
            advice.NOTHING_SHARED,
            advice.RARELY_SEEN,
            advice.UNTESTED,
        ),
        rank=50,
    ),
    Row(
        LGFedAvg,
        "private body, shared head",
        ("lgfedavg",),
        Limit("lgfedavg(personal='role:head')", "fedper"),
        cite=("liang2020think",),
        source="Liang et al., 2020",
        family="private-layers",
        advice=(
            Rule(
                "later",
                lambda s: s.own_tests and s.features == "strong" and not advice.label_skew(s),
                advice.FEATURES + " while labels are alike: private bodies under one head",
            ),
            Rule("against", advice.tiny, advice.THIN, "arithmetic"),
            advice.RARELY_SEEN,
            advice.UNTESTED,
        ),
        rank=100,
    ),
    Row(
        FedRep,
        "private head, trained in a separate phase",
        ("fedrep(head_epochs=2)",),
        Limit("fedrep(head_epochs=0)", "fedbabu(epochs=0)"),
        cite=("collins2021exploiting",),
        source="Collins et al., ICML 2021",
        family="private-layers",
        advice=(
            advice.relative("fedper", advice.personal(advice.strong_label_skew)),
            advice.NOTHING_SHARED,
            advice.RARELY_SEEN,
            advice.UNTESTED,
        ),
        rank=90,
    ),
    Row(
        FedBN,
        "private norm layers",
        ("fedbn",),
        Limit("fedbn", "fedper(personal='kind:norm')"),
        cite=("li2021fedbn",),
        source="Li et al., ICLR 2021",
        family="private-layers",
        advice=(
            Rule(
                "for",
                lambda s: s.own_tests and s.norms and advice.feature_skew(s),
                advice.FEATURES + ", and the model has norm layers: they stay with each client",
            ),
            Rule("against", lambda s: not s.norms, "{s.model} has no norm layer, which is all that it keeps private"),
            advice.RARELY_SEEN,
            advice.UNTESTED,
        ),
        rank=40,
    ),
    Row(
        Local,
        "no communication",
        ("local",),
        Limit("local", "fedper(personal='all')"),
        uncited="training alone is the absence of a method",
        source="control",
        family="private-models",
        advice=(
            Rule(
                "control",
                lambda s: s.own_tests,
                "what clients reach alone: a federation that does not beat it is not worth its bytes",
            ),
            advice.RARELY_SEEN,
            advice.UNTESTED,
        ),
        rank=140,
    ),
)
