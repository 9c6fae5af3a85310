"""Compute extreme eigenvalues of a symmetric map that is given by its products with vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Eigen:
    """An eigenvalue from power iteration.

    Attributes:
        value: the last Rayleigh quotient.
        converged: whether the iteration converged; see :func:`power`.
        iterations: computed products.
        change: of the Rayleigh quotient in the last iteration, relative to the spectral radius; None after a single
            product.
        residual: length of H v - value v at the last unit vector v, relative to the spectral radius; it bounds the
            distance of ``value`` to an eigenvalue.
    """

    value: float
    converged: bool
    iterations: int
    change: float | None
    residual: float


def power(product: Map, start: Tensor, tolerance: float, iterations: int, radius: float = 0.0) -> Eigen:
    """Compute the eigenvalue of largest magnitude of H; with a radius, the algebraically largest one from H + radius.

    It has converged when the Rayleigh quotient changes by at most ``tolerance`` and the residual is at most its square
    root: the quotient's error grows with the square of the residual, and the quotient alone does not change between two
    eigenvalues of equal size and opposite sign.

    Args:
        product: v -> H v, H symmetric.
        start: [Q] a vector that is not zero.
        tolerance: relative to the spectral radius.
        iterations: most products.
        radius: 0, or the magnitude of the negative eigenvalue of largest magnitude.
    Source: von Mises and Pollaczek-Geiringer 1929; for Hessians of networks with products as in Pearlmutter 1994, Yao
        et al. 2020 (PyHessian).

    >>> import torch
    >>> eigen = power(lambda v: torch.tensor([3.0, -1.0]) * v, torch.ones(2), 1e-6, 50)
    >>> round(eigen.value, 4), eigen.converged
    (3.0, True)
    """
    v = start / start.norm()
    before: float | None = None
    eigen = Eigen(0.0, converged=False, iterations=0, change=None, residual=math.inf)
    for done in range(1, iterations + 1):
        w = product(v) + radius * v
        quotient = float((v.double() * w.double()).sum())
        length = float(w.double().norm())
        size = radius or abs(quotient)
        if not math.isfinite(length) or length == 0:
            return Eigen(
                quotient - radius,
                converged=length == 0,
                iterations=done,
                change=None,
                residual=0.0 if length == 0 else math.inf,
            )
        error = float((w.double() - quotient * v.double()).norm())
        residual = error / size if size else math.inf
        change = None if before is None else abs(quotient - before) / size if size else math.inf
        converged = change is not None and change <= tolerance and residual <= math.sqrt(tolerance)
        eigen = Eigen(quotient - radius, converged, done, change, residual)
        if converged:
            return eigen
        v, before = (w / length).to(start.dtype), quotient
    return eigen


def extremes(product: Map, start: Tensor, tolerance: float, iterations: int) -> tuple[Eigen, Eigen]:
    """Compute the (largest by magnitude, algebraically largest) eigenvalues.

    The second takes further products only where the first is negative.

    Args:
        product: as in :func:`power`, like the others.
        start: of both iterations.
        tolerance: of both.
        iterations: of each.
    """
    dominant = power(product, start, tolerance, iterations)
    if not math.isfinite(dominant.value) or dominant.value >= 0:
        return dominant, dominant
    return dominant, power(product, start, tolerance, iterations, radius=-dominant.value)
