"""Local optimisers over stretches of a flat vector, in place. State is made anew for every client, round and phase.

Each stretch is [..., n]; a leading axis counts clients, so that the same code serves one client and a stack of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedstrata.common.errors import ConfigError

NAMES = ("sgd", "adam", "adamw")


@dataclass
class Optimizer:
    """SGD with momentum, Adam or AdamW, with torch's own conventions.

    Attributes:
        name: one of NAMES.
        momentum: of SGD, without dampening or Nesterov's term.
        weight_decay: L2 term added to the gradient (SGD, Adam) or decoupled (AdamW).
        clip: largest global norm of the gradient, before weight decay; None is no clipping.
        betas, eps: of Adam and AdamW.
    """

    name: str
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    count: int = 0
    state: list[list[Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ConfigError(f"local.optimizer is {self.name!r}; it is one of {', '.join(NAMES)}.")
        if self.momentum and self.name != "sgd":
            raise ConfigError(
                f"local.momentum is {self.momentum}, but {self.name} has its own moments; set local.momentum=0 or"
                " local.optimizer=sgd."
            )

    @torch.no_grad()
    def step(self, values: Sequence[Tensor], gradients: Sequence[Tensor], lr: float) -> None:
        """Move ``values`` in place; gradients may be overwritten."""
        if self.clip is not None:
            _clip(gradients, self.clip)
        if not self.state:
            self.state = [[torch.zeros_like(v) for _ in range(self.slots())] for v in values]
        self.count += 1
        if self.name == "sgd" and not (self.momentum or self.weight_decay):
            torch._foreach_add_(list(values), list(gradients), alpha=-lr)
            return
        move = self._sgd if self.name == "sgd" else self._adam
        for value, gradient, slots in zip(values, gradients, self.state, strict=True):
            kept = (
                [s[: value.shape[0]] for s in slots] if value.dim() > 1 else slots
            )  # a stack shrinks as its clients finish
            move(value, gradient, kept, lr)

    def slots(self) -> int:
        """Return vectors of state for each parameter vector."""
        return (1 if self.momentum else 0) if self.name == "sgd" else 2

    def working(self) -> int:
        """Return vectors that a step makes on the way for each parameter vector: the scale of Adam."""
        return 0 if self.name == "sgd" else 1

    def _sgd(self, value: Tensor, gradient: Tensor, slots: list[Tensor], lr: float) -> None:
        if self.weight_decay:
            gradient.add_(value, alpha=self.weight_decay)
        if self.momentum:
            gradient = slots[0].mul_(self.momentum).add_(gradient)
        value.add_(gradient, alpha=-lr)

    def _adam(self, value: Tensor, gradient: Tensor, slots: list[Tensor], lr: float) -> None:
        if self.weight_decay and self.name == "adamw":
            value.mul_(1 - lr * self.weight_decay)
        elif self.weight_decay:
            gradient.add_(value, alpha=self.weight_decay)
        first, second = slots
        first.lerp_(gradient, 1 - self.betas[0])
        second.mul_(self.betas[1]).addcmul_(gradient, gradient, value=1 - self.betas[1])
        scale = (second / (1 - self.betas[1] ** self.count)).sqrt_().add_(self.eps)
        value.addcdiv_(first, scale, value=-lr / (1 - self.betas[0] ** self.count))


def _clip(gradients: Sequence[Tensor], limit: float) -> None:
    norm = torch.stack([g.square().sum(-1) for g in gradients]).sum(0).sqrt()
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)  # torch.nn.utils.clip_grad_norm_'s own guard
    for gradient in gradients:
        gradient.mul_(factor.unsqueeze(-1) if gradient.dim() > 1 else factor)
