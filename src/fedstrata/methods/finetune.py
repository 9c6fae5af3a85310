"""Fine-tuning: each client adapts a private copy of the model that its method gives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstrata.core.params import Params
from fedstrata.core.piece import ClientContext, Piece, require
from fedstrata.core.plan import Setup
from fedstrata.core.state import State


@dataclass(frozen=True)
class FineTune(Piece):
    """After training, a client's own model is fitted for ``epochs`` (or ``steps``) more on its own samples; nothing of
    it is sent.

    ``lr`` None is ``local.lr``, without its schedule; ``groups`` selects the layers that move. FineTune(steps=0) is the
    chain without it.

    Source: the FT rows of FedFN and FedDr+ (there 5 epochs at a tenth of the learning rate).
    """

    source: ClassVar[str] = "practice"
    epochs: int | None = None
    steps: int | None = None
    lr: float | None = None
    groups: str = "all"

    def __post_init__(self) -> None:
        require(
            (self.epochs is None) != (self.steps is None),
            "finetune",
            f"epochs={self.epochs}, steps={self.steps}",
            "given either epochs or steps",
        )
        require((self.epochs or 0) >= 0, "finetune.epochs", self.epochs, "a number of epochs, at least 0")
        require((self.steps or 0) >= 0, "finetune.steps", self.steps, "a number of steps, at least 0")
        require(self.lr is None or self.lr > 0, "finetune.lr", self.lr, "a learning rate, above 0")

    def check(self, setup: Setup) -> None:
        setup.layout.select(self.groups)

    def personalise(self, p: Params, own: State, v: ClientContext) -> Params:
        if not (self.epochs or self.steps):
            return p
        return v.fit(
            p,
            "finetune",
            epochs=self.epochs,
            steps=self.steps,
            lr=self.lr or v.setup.lr,
            train=v.layout.select(self.groups),
        )
