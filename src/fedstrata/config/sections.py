"""Define groups of settings, validated by pydantic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedstrata.common.errors import ConfigError

Positive: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count: TypeAlias = Annotated[int, Field(ge=1)]
Parallel: TypeAlias = Annotated[int, Field(ge=1, le=1024)]  # threads or processes; more would block a machine
Auto: TypeAlias = Literal["auto"]


class Section(BaseModel):
    """A strict, closed and frozen group: no value is converted, no name is added, nothing changes."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)


def _one_length(given: Any, other: str = "epochs") -> Any:
    """Drop the default number of epochs if ``steps`` is given alone."""
    if isinstance(given, Mapping) and given.get("steps") is not None and other not in given:
        return {**given, other: None}
    return given


class LocalSettings(Section):
    """Training on a client."""

    epochs: Count | None = Field(default=5, description="epochs of a client in a round; or local.steps")
    steps: Count | None = Field(default=None, description="mini-batches a round, instead of local.epochs")
    draw: Literal["cycle", "fresh", "replace"] = Field(
        default="cycle",
        description="mini-batches: from a new shuffled order each epoch, drawn anew each step, or with replacement",
    )
    batch: Count = Field(default=16, description="samples in a mini-batch")
    lr: Positive = Field(default=0.1, description="learning rate")
    optimizer: Literal["sgd", "adam", "adamw"] = Field(
        default="sgd", description="local optimizer; its state is reset each round"
    )
    momentum: float = Field(default=0.0, ge=0, lt=1, description="momentum of sgd")
    weight_decay: float = Field(default=0.0, ge=0, description="L2 term (sgd, adam) or decoupled (adamw)")
    clip: Positive | None = Field(default=None, description="largest norm of a gradient, by clipping; none is off")
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32", description="precision of forward and backward passes; parameters stay float32"
    )
    activation_cache_mb: Annotated[int, Field(ge=0)] = Field(
        default=256, description="activation cache for frozen layers, in MB per client; 0 disables it"
    )
    threads: Parallel = Field(
        default=1, description="intra-op threads of one client; they change float sums, so they decide the result"
    )

    _steps = model_validator(mode="before")(_one_length)

    @model_validator(mode="after")
    def _meant(self) -> Self:
        _one_of(self.epochs, self.steps, "local", needed=True)
        if self.momentum and self.optimizer != "sgd":
            raise ConfigError(
                f"local.momentum is {self.momentum}, but {self.optimizer} has separate moments; leave it out, or set"
                " local.optimizer=sgd."
            )
        return self


class Finetune(Section):
    """Fine-tuning of the final model by each client, for the personal accuracy.

    Off unless epochs or steps are given.
    """

    epochs: Count | None = Field(
        default=None,
        description="fine-tuning epochs of each client before its personal accuracy is measured; none is off",
    )
    steps: Count | None = Field(default=None, description="mini-batches, instead of finetune.epochs")
    lr: Positive | None = Field(default=None, description="learning rate; none is local.lr")
    groups: str = Field(default="all", description="layers that are fine-tuned: a selector such as role:head")

    @model_validator(mode="after")
    def _meant(self) -> Self:
        _one_of(self.epochs, self.steps, "finetune", needed=False)
        if not self.on and (self.lr is not None or self.groups != "all"):
            raise ConfigError(
                "finetune.lr and finetune.groups have no effect without finetune.epochs or finetune.steps; give one of"
                " these too."
            )
        return self

    @property
    def on(self) -> bool:
        """Whether clients fine-tune."""
        return self.epochs is not None or self.steps is not None


def _one_of(epochs: int | None, steps: int | None, section: str, *, needed: bool) -> None:
    if epochs is not None and steps is not None:
        raise ConfigError(
            f"{section}.epochs is {epochs} and {section}.steps is {steps}; they exclude each other: give one of the"
            " two."
        )
    if needed and epochs is None and steps is None:
        raise ConfigError(
            f"{section}.epochs and {section}.steps are both none; give one of the two, for example {section}.epochs=1."
        )


class NewClients(Section):
    """Adaptation of held-out clients, before they are scored a second time."""

    steps: Count = Field(
        default=10,
        description="local steps of a held-out client from the model it receives, before its second score",
    )
    lr: Positive | None = Field(default=None, description="learning rate of these steps; none is local.lr")
    groups: str = Field(default="all", description="layers that these steps train: a selector such as role:head")


class StopSettings(Section):
    """End a run early, with the first round that reaches an amount."""

    bytes: Count | None = Field(
        default=None, description="payload in bytes, up and down, after which the run ends; none is off"
    )
    flops: Positive | None = Field(default=None, description="training FLOPs after which the run ends; none is off")
    seconds: Positive | None = Field(
        default=None, description="seconds of training after which the run ends (not repeatable); none is off"
    )
    accuracy: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None,
        description=(
            "accuracy at which the run ends: on validation data if there are any, otherwise on test data; none is off"
        ),
    )


class Eval(Section):
    """Evaluation."""

    every: Count = Field(default=1, description="rounds between evaluations; the last round is always evaluated")


class Checkpoint(Section):
    """Checkpoints."""

    every: Count = Field(default=1, description="rounds between checkpoints; the last round always has one")
