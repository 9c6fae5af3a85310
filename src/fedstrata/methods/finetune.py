"""Fine-tuning: each client adapts a private copy of the model that its method gives it."""

from __future__ import annotations

from dataclasses import dataclass

from fedstrata.core.params import Model
from fedstrata.core.piece import ClientContext, Piece, require, setting
from fedstrata.core.plan import Setup
from fedstrata.methods.parts import advice
from fedstrata.methods.parts.advice import Rule
from fedstrata.methods.parts.rows import Limit, Row


@dataclass(frozen=True)
class FineTune(Piece):
    """Fit each client's model for ``epochs`` (or ``steps``) more on its samples after training; nothing of it is sent.

    ``lr`` None is ``local.lr``, without its schedule; ``groups`` selects the layers that move. FineTune(steps=0) is the
    chain without it.

    Source: the FT rows of FedFN and FedDr+ (there 5 epochs at a tenth of the learning rate).
    """

    epochs: int | None = setting(None, "a number of epochs, at least 0", least=0)
    steps: int | None = setting(None, "a number of steps, at least 0", least=0)
    lr: float | None = setting(None, "a learning rate, above 0", above=0)
    groups: str = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        require((self.epochs is None) != (self.steps is None), "finetune", str(self), "given epochs or steps, not both")

    def check(self, setup: Setup) -> None:
        setup.layout.select(self.groups)

    def refine(self, model: Model, ctx: ClientContext) -> Model:
        moves, lr = ctx.layout.select(self.groups), self.lr or ctx.setup.local.lr
        length = {"epochs": self.epochs, "steps": self.steps}
        return ctx.fit(model, "finetune", train=moves, lr=lr, **length) if any(length.values()) else model


ROW = Row(
    FineTune,
    "each client adapts a private copy",
    ("finetune(steps=3)",),
    Limit("finetune(steps=0)", "fedavg"),
    uncited="fine-tuning is common practice, without one first paper",
    source="practice",
    family="private-models",
    advice=(
        Rule(
            "for",
            advice.personal(advice.label_skew, advice.feature_skew),
            advice.SKEW + ": the cheapest personal model, FedAvg and then one private pass",
        ),
        advice.UNTESTED,
    ),
    advised_as="finetune(epochs=1)",
    rank=70,
)
