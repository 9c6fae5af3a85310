"""Measure how diverse a model's features are: their effective rank, and the similarity of its kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedstrata.core.layout import Layout
from fedstrata.diagnostics.base import ALL, PanelText, RoundSnapshot
from fedstrata.diagnostics.several import MultiMeasure, at_least

_KINDS = ("conv", "linear", "attention", "recurrent")
_BLOCK = 1024  # kernels whose cosines to all others are in memory at once


@dataclass(frozen=True)
class FeatureDiversity(MultiMeasure):
    """Measure the effective rank of the head's inputs and, by layer group, the mean cosine between kernels.

    Both are of the server's model. Effective rank is exp(-sum p log p) of the singular values of the centred features
    [N, d], divided by their sum, p; from 1 to min(N - 1, d). The features are those of up to ``samples`` test samples.
    Undefined where all samples have equal features.

    A kernel is an output filter of a convolution, with all its input channels and taps, or a row of a linear weight (of
    projections of attention and recurrent layers, too). The mean goes over the pairs of different kernels in one
    weight; a layer of several weights over all their pairs, and all layers over the layers, each counted once.
    ``cosine`` absolute, the default, takes |cos|, by which a kernel and its negative are as redundant as two equal
    ones: the inter-filter orthogonality of RePr, which re-draws filters as well (it divides by n where we divide by
    the n - 1 other kernels). ``cosine`` signed takes cos itself, which is near 0 also for kernels in opposite pairs.
    Kernels that are all zero have no cosine and are left out.

    Source: Roy and Vetterli 2007, "The effective rank: a measure of effective dimensionality"; Prakash et al. 2019,
    "RePr: Improved Training of Convolutional Filters".
    """

    title: ClassVar[str] = "Effective rank of the features"
    text: ClassVar[str] = (
        "Effective rank (Roy and Vetterli 2007) of the centred inputs of the head, on test samples: in how"
        " many directions they spread. Low: features have collapsed into few directions. At most the number of"
        " features."
    )
    unit: ClassVar[str] = "directions"
    quantities: ClassVar[Mapping[str, PanelText]] = {
        "kernels": PanelText(
            "Similarity of kernels",
            "Mean cosine between the kernels of a layer (size of the cosine, unless cosine=signed), as in RePr (Prakash"
            " et al. 2019). 0: kernels are orthogonal; 1: all are multiples of one. Random kernels of n numbers have a"
            " mean of about 0.8 / sqrt(n).",
            "mean cosine",
        )
    }
    samples: int = 1000
    cosine: Literal["absolute", "signed"] = "absolute"

    def __post_init__(self) -> None:
        at_least(
            2, "feature_diversity.samples", self.samples, "the largest number of test samples whose features are used"
        )

    def measure(self, snapshot: RoundSnapshot) -> Mapping[str, float | None]:
        """Compute the effective rank as "all", and mean cosines by layer group and over all layers as "kernels/..."."""
        features, _ = snapshot.features(snapshot.served, self.samples)
        values: dict[str, float | None] = {ALL: effective_rank(features)}
        sums: dict[str, tuple[float, int]] = {}
        for group, name in _weights(snapshot.layout):
            total, pairs = cosines(snapshot.served[name], signed=self.cosine == "signed")
            sum_before, pairs_before = sums.get(group, (0.0, 0))
            sums[group] = sum_before + total, pairs_before + pairs
        means = {group: total / pairs for group, (total, pairs) in sums.items() if pairs}
        if means:
            values[f"kernels/{ALL}"] = sum(means.values()) / len(means)
        return values | {f"kernels/{group}": mean for group, mean in means.items()}


def _weights(layout: Layout) -> Iterator[tuple[str, str]]:
    """Yield (layer group, name) of the weights that hold kernels, shallow to deep."""
    for name in layout.spec.names:
        entry = layout.entries[name]
        if entry.kind in _KINDS and len(entry.shape) >= 2:
            yield entry.group, name


def effective_rank(features: Tensor) -> float | None:
    """Compute the exponential of the entropy of the normalised singular values of centred features.

    Args:
        features: [N, d].
    Returns:
        in [1, min(N - 1, d)]; None where all rows are equal or a value is not finite.

    Source: Roy and Vetterli 2007, here of centred features.

    >>> round(effective_rank(torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])), 12)
    2.0
    """
    z = features.double()
    if not bool(z.isfinite().all()):
        return None
    mean = z.mean(0)
    values: Tensor = torch.linalg.svdvals(z - mean)
    # Equal rows leave only the rounding error of their mean.
    if float(values.sum()) <= 1e-12 * float(mean.norm()) * len(z) ** 0.5:
        return None
    p = values / values.sum()
    return float(torch.exp(-torch.special.xlogy(p, p).sum()))


def cosines(weight: Tensor, *, signed: bool) -> tuple[float, int]:
    """Compute (sum of the cosines, or of their absolute values, over pairs of different kernels, number of pairs).

    Args:
        weight: [n, ...], one kernel in each row.
        signed: keep the signs of cosines.

    >>> cosines(torch.tensor([[1.0, 0.0], [-2.0, 0.0], [0.0, 1.0]]), signed=False)
    (1.0, 3)
    """
    rows = weight.detach().reshape(len(weight), -1).double()
    lengths = rows.norm(dim=1)
    rows = (rows / lengths[:, None])[lengths > 0]
    n = len(rows)
    total = 0.0
    for at in range(0, n, _BLOCK):
        block = rows[at : at + _BLOCK] @ rows[at:].T  # [block, kernels from the block's first on]
        upper = block.triu(1)
        total += float((upper if signed else upper.abs()).sum())
    return total, n * (n - 1) // 2
