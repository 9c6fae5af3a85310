"""Compute the linear centred kernel alignment of layer groups' outputs on the same samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedstrata.client.step_cost import layers
from fedstrata.client.worker import Worker
from fedstrata.core.params import Model


def unit_gram(features: Tensor) -> Tensor | None:
    """Compute inner products of centred features, scaled to a Frobenius norm of 1; None where all rows are equal.

    Args:
        features: [N, ...] one row for each sample.
    Returns:
        [N, N] float64.
    """
    rows = features.flatten(1).double()
    rows = rows - rows.mean(0)
    gram = rows @ rows.T
    norm = gram.norm()
    return gram / norm if float(norm) > 0 else None


def alignment(one: Tensor | None, two: Tensor | None) -> float | None:
    """Compute the linear CKA of two kernels from :func:`unit_gram`, in [0, 1].

    1 means that features agree up to rotation, shift and one scale. CKA(X, Y) = |Y'X|^2 / (|X'X| |Y'Y|), which is the
    inner product of the kernels XX' and YY' at norm 1. With fewer samples than features it exceeds that of all data.

    Source: Kornblith et al. 2019, "Similarity of Neural Network Representations Revisited", section 3.

    >>> x = torch.tensor([[1.0, 2.0], [3.0, 5.0], [0.0, 1.0]])
    >>> round(alignment(unit_gram(x), unit_gram(x @ torch.tensor([[0.0, -2.0], [2.0, 0.0]]) + 7)), 12)
    1.0
    """
    return None if one is None or two is None else float((one * two).sum())


def output_kernels(worker: Worker, model: Model, x: Tensor, *, batch_statistics: bool) -> dict[str, Tensor | None]:
    """Compute the kernel of each layer group's output, in evaluation mode.

    The output is that of the last layer of the group that is called, before any activation.

    Args:
        worker: its vector holds ``model`` afterwards.
        model: with statistics.
        x: [N, *shape] samples, in one pass.
        batch_statistics: norms use the statistics of these samples (``bn=batch``).
    Returns:
        group -> :func:`unit_gram`; None for a group whose output does not have one row for each sample, or whose layers
        are not called.
    """
    grams: dict[str, Tensor | None] = dict.fromkeys(worker.setup.layout.groups)

    def hook(group: str) -> Any:
        def record(_module: nn.Module, _inputs: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            grams[group] = (
                unit_gram(first) if isinstance(first, Tensor) and first.dim() > 1 and len(first) == len(x) else None
            )

        return record

    handles = [module.register_forward_hook(hook(group)) for module, group in layers(worker)]
    try:
        worker.bound.load(model)
        worker.bound.mode(training=False, batch_statistics=batch_statistics)
        worker.features.clear()
        with torch.no_grad(), worker.autocast():
            worker.net(worker.bound.model, x)
    finally:
        for handle in handles:
            handle.remove()
    return grams


def similarities(track: list[Mapping[str, Tensor | None]]) -> dict[str, list[float | None]]:
    """Compute group -> alignment of every moment's output with the last one."""
    return {group: [alignment(moment[group], track[-1][group]) for moment in track] for group in track[-1]}
