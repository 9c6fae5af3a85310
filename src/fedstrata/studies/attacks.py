"""Gradient inversion: from what a client sent of one step back to its images. DLG and inverting gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedstrata.studies.pixels import Pixels

SCALE = 1e3
"""On DLG's distance: torch's L-BFGS drops curvature below absolute limits, which a distance near 0 falls under."""
SIGNED = 0.1  # step of inverting gradients, in inputs


@dataclass(frozen=True, eq=False)
class Target:
    """What an attacker knows.

    Attributes:
        model: [B, C, H, W] -> [B, classes], in evaluation mode.
        parameters: whose gradients were sent.
        seen: what was sent for them, as gradients (the direction of an update, reversed).
        direction: whether only its direction counts, as after a codec that loses sizes.
        pixels: how images are normalised.
        shape: [B, C, H, W] of what is sought.
        classes: of the task.
        labels: [B] int64, or None where they are sought too.
    """

    model: nn.Module
    parameters: Sequence[Tensor]
    seen: Sequence[Tensor]
    direction: bool
    pixels: Pixels
    shape: torch.Size
    classes: int
    labels: Tensor | None

    def slopes(self, x: Tensor, labels: Tensor) -> Sequence[Tensor]:
        """Gradients of the mean cross-entropy for labels [B], or for logits of soft ones [B, classes].

        They can be differentiated again.
        """
        soft = labels if labels.dim() == 1 else labels.softmax(1)
        return torch.autograd.grad(cross_entropy(self.model(x), soft), list(self.parameters), create_graph=True)

    def distance(self, found: Sequence[Tensor]) -> Tensor:
        """Squared distance to what was seen, over its squared length; of directions where only those count."""
        whole, size = squares(self.seen), squares(found)
        if not self.direction:
            return squares([a - b for a, b in zip(found, self.seen, strict=True)]) / whole
        return 2 * (1 - inner(found, self.seen) / (whole * size).sqrt())

    def cosine(self, found: Sequence[Tensor]) -> Tensor:
        """1 - cosine to what was seen."""
        return 1 - inner(found, self.seen) / (squares(self.seen) * squares(found)).sqrt()


@dataclass
class Guess:
    """Where an attack stands.

    Attributes:
        loss: of the last iterate, as the attack measures it; infinite before the first.
        x: the last iterate, cut to pixels in [0, 1]; inputs [B, C, H, W].
        labels: [B] found or given ones.
        seen: called with every iterate, cut likewise.
    """

    seen: Callable[[Tensor], None]
    loss: float = float("inf")
    x: Tensor = field(default_factory=lambda: torch.zeros(0))
    labels: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))

    def at(self, x: Tensor, labels: Tensor, loss: float, pixels: Pixels) -> None:
        """Note an iterate."""
        self.x, self.loss = pixels.inside(x.detach()), loss
        self.labels = labels if labels.dim() == 1 else labels.detach().argmax(1)
        self.seen(self.x)


def inner(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """Inner product over tensors."""
    return torch.stack([(x * y).sum() for x, y in zip(a, b, strict=True)]).sum()


def squares(a: Sequence[Tensor]) -> Tensor:
    """Squared length over tensors; not 0, so that it divides."""
    return inner(a, a).clamp_min(torch.finfo(torch.float32).tiny)


def dlg(target: Target, generator: torch.Generator, steps: int, guess: Guess) -> None:
    """Deep leakage from gradients: L-BFGS on the squared distance of gradients, from pixels U[0, 1); soft labels join
    where labels are unknown.

    Iterates are cut to pixels in [0, 1] for what is told of them; L-BFGS goes on from the uncut ones, as a cut would
    void its curvature.

    Source: Zhu, Liu, Han 2019, "Deep Leakage from Gradients".
    """
    x = target.pixels.normal(torch.rand(target.shape, generator=generator)).requires_grad_()
    labels = sought(target, generator)
    parts = [x, labels] if labels.requires_grad else [x]
    optimizer: torch.optim.Optimizer = torch.optim.LBFGS(parts, lr=1.0)
    for _ in range(steps):

        def closure() -> float:
            loss = SCALE * target.distance(target.slopes(x, labels))
            for part, slope in zip(parts, torch.autograd.grad(loss, parts), strict=True):
                part.grad = slope
            return float(loss.detach())

        optimizer.step(closure)
        with torch.enable_grad():
            loss = float(target.distance(target.slopes(x, labels)).detach())
        if not bool(x.isfinite().all()):
            return  # L-BFGS without a line search may leave; the last iterate before that stands
        guess.at(x, labels, loss, target.pixels)


def inverting(target: Target, generator: torch.Generator, steps: int, guess: Guess, tv: float) -> None:
    """Inverting gradients: Adam on the sign of the slope of 1 - cosine + tv * total variation, from N(0, 1), cut to
    pixels in [0, 1] in each step.

    The step is 0.1, a tenth of that from 3/8, 5/8 and 7/8 of the steps on.

    Source: Geiping et al. 2020, "Inverting Gradients", with the settings of the authors' code.
    """
    x = torch.randn(target.shape, generator=generator).requires_grad_()
    labels = sought(target, generator)
    parts = [x, labels] if labels.requires_grad else [x]
    optimizer = torch.optim.Adam(parts, lr=SIGNED)
    falls = [int(steps * share) for share in (3 / 8, 5 / 8, 7 / 8)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, falls, gamma=0.1)
    for _ in range(steps):
        loss = target.cosine(target.slopes(x, labels)) + tv * variation(x)
        for part, slope in zip(parts, torch.autograd.grad(loss, parts), strict=True):
            part.grad = slope.sign() if part is x else slope
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            x.copy_(target.pixels.inside(x))
        guess.at(x, labels, float(loss.detach()), target.pixels)


def variation(x: Tensor) -> Tensor:
    """Anisotropic total variation of images [..., H, W]: mean absolute difference of neighbours, down plus across."""
    return (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()


def sought(target: Target, generator: torch.Generator) -> Tensor:
    """The labels where they are known; logits N(0, 1) [B, classes] to find them with otherwise."""
    if target.labels is not None:
        return target.labels
    return torch.randn((target.shape[0], target.classes), generator=generator).requires_grad_()


def label_of(weight: Tensor, bias: Tensor | None) -> Tensor:
    """The label of a single sample, from the gradient of a linear head under cross-entropy: [1] int64.

    The bias' gradient is below 0 at the label alone. Without it, the label's row of the weight's gradient is the one
    that points against all others.

    Args:
        weight: [classes, d].
        bias: [classes] or None.

    Source: Zhao, Mopuri, Bilen 2020, "iDLG: Improved Deep Leakage from Gradients".

    >>> label_of(torch.tensor([[0.2], [-0.5], [0.3]]), None)
    tensor([1])
    """
    if bias is not None:
        return bias.argmin().reshape(1)
    products = weight @ weight.T
    return (products - products.diag().diag()).sum(1).argmin().reshape(1)
