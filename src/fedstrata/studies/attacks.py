"""Reconstruct a client's images from the gradient of one step: DLG and inverting gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedstrata.studies.pixels import Pixels

SCALE = 1e3  # of DLG's distance: torch's L-BFGS drops curvature below absolute limits, and a distance near 0 is below
SIGNED_STEP = 0.1  # of inverting gradients, in inputs


@dataclass(frozen=True, eq=False)
class Target:
    """The knowledge of an attacker.

    Attributes:
        model: [B, C, H, W] -> [B, classes], in evaluation mode.
        parameters: whose gradients were sent.
        observed: what was sent for them, as gradients (an update with the opposite sign).
        direction: whether only its direction counts, as after a codec that loses lengths.
        pixels: how images are normalised.
        shape: [B, C, H, W] of the images.
        classes: of the task.
        labels: [B] int64, or None where the attacker must find them.
    """

    model: nn.Module
    parameters: Sequence[Tensor]
    observed: Sequence[Tensor]
    direction: bool
    pixels: Pixels
    shape: torch.Size
    classes: int
    labels: Tensor | None

    def gradients(self, x: Tensor, labels: Tensor) -> Sequence[Tensor]:
        """Compute gradients of the mean cross-entropy for labels [B], or for logits of soft ones [B, classes].

        They can be differentiated again.
        """
        soft = labels if labels.dim() == 1 else labels.softmax(1)
        return torch.autograd.grad(cross_entropy(self.model(x), soft), list(self.parameters), create_graph=True)

    def distance(self, grads: Sequence[Tensor]) -> Tensor:
        """Compute the squared distance to the observed gradients over their squared length, or that of directions."""
        whole, size = squares(self.observed), squares(grads)
        if not self.direction:
            return squares([a - b for a, b in zip(grads, self.observed, strict=True)]) / whole
        return 2 * (1 - inner(grads, self.observed) / (whole * size).sqrt())

    def cosine_distance(self, grads: Sequence[Tensor]) -> Tensor:
        """Compute 1 - cosine to the observed gradients."""
        return 1 - inner(grads, self.observed) / (squares(self.observed) * squares(grads)).sqrt()


@dataclass
class Guess:
    """The state of an attack.

    Attributes:
        loss: of the last iterate, as the attack measures it; infinite before the first.
        x: the last iterate, clipped to pixels in [0, 1]; inputs [B, C, H, W].
        labels: [B] reconstructed or given ones.
        callback: called with every iterate, clipped likewise.
    """

    callback: Callable[[Tensor], None]
    loss: float = float("inf")
    x: Tensor = field(default_factory=lambda: torch.zeros(0))
    labels: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))

    def update(self, x: Tensor, labels: Tensor, loss: float, pixels: Pixels) -> None:
        """Record an iterate."""
        self.x, self.loss = pixels.inside(x.detach()), loss
        self.labels = labels if labels.dim() == 1 else labels.detach().argmax(1)
        self.callback(self.x)


def inner(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """Compute the inner product over tensors."""
    return torch.stack([(x * y).sum() for x, y in zip(a, b, strict=True)]).sum()


def squares(a: Sequence[Tensor]) -> Tensor:
    """Compute the squared length over tensors, at least the smallest normal number, as it is a divisor."""
    return inner(a, a).clamp_min(torch.finfo(torch.float32).tiny)


def dlg(target: Target, generator: torch.Generator, steps: int, guess: Guess) -> None:
    """Run deep leakage from gradients: L-BFGS on the squared distance of gradients, from pixels U[0, 1).

    Soft labels are optimised too where labels are unknown. Recorded iterates are clipped to pixels in [0, 1]; L-BFGS
    continues from the unclipped ones, as clipping would invalidate its curvature.

    Source: Zhu, Liu, Han 2019, "Deep Leakage from Gradients".
    """
    x = target.pixels.normal(torch.rand(target.shape, generator=generator)).requires_grad_()
    labels = initial_labels(target, generator)
    parts = [x, labels] if labels.requires_grad else [x]
    optimizer: torch.optim.Optimizer = torch.optim.LBFGS(parts, lr=1.0)
    for _ in range(steps):

        def closure() -> float:
            loss = SCALE * target.distance(target.gradients(x, labels))
            for part, grad in zip(parts, torch.autograd.grad(loss, parts), strict=True):
                part.grad = grad
            return float(loss.detach())

        optimizer.step(closure)
        with torch.enable_grad():
            loss = float(target.distance(target.gradients(x, labels)).detach())
        if not bool(x.isfinite().all()):
            return  # L-BFGS without a line search may diverge; the last finite iterate counts
        guess.update(x, labels, loss, target.pixels)


def inverting(target: Target, generator: torch.Generator, steps: int, guess: Guess, tv: float) -> None:
    """Run inverting gradients: Adam on the sign of the gradient of 1 - cosine + tv * total variation, from N(0, 1).

    Each step clips to pixels in [0, 1]. The step size is 0.1, divided by 10 at 3/8, 5/8 and 7/8 of the steps.

    Source: Geiping et al. 2020, "Inverting Gradients", with the settings of the authors' code.
    """
    x = torch.randn(target.shape, generator=generator).requires_grad_()
    labels = initial_labels(target, generator)
    parts = [x, labels] if labels.requires_grad else [x]
    optimizer = torch.optim.Adam(parts, lr=SIGNED_STEP)
    milestones = [int(steps * share) for share in (3 / 8, 5 / 8, 7 / 8)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
    for _ in range(steps):
        loss = target.cosine_distance(target.gradients(x, labels)) + tv * variation(x)
        for part, grad in zip(parts, torch.autograd.grad(loss, parts), strict=True):
            part.grad = grad.sign() if part is x else grad
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            x.copy_(target.pixels.inside(x))
        guess.update(x, labels, float(loss.detach()), target.pixels)


def variation(x: Tensor) -> Tensor:
    """Compute the anisotropic total variation of images [..., H, W]: mean absolute differences, down plus across."""
    return (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()


def initial_labels(target: Target, generator: torch.Generator) -> Tensor:
    """Return the labels if they are known, otherwise logits N(0, 1) [B, classes] to optimise."""
    if target.labels is not None:
        return target.labels
    return torch.randn((target.shape[0], target.classes), generator=generator).requires_grad_()


def label_of(weight: Tensor, bias: Tensor | None) -> Tensor:
    """Infer the label of a single sample from the gradient of a linear head under cross-entropy: [1] int64.

    The bias' gradient is below 0 at the label only. Without a bias, the label's row of the weight's gradient has
    negative inner products with all others.

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
