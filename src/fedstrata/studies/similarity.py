"""Linear centred kernel alignment of what layer groups put out, on the same samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedstrata.client.step_cost import layers
from fedstrata.client.worker import Worker
from fedstrata.core.params import Params


def unit_gram(features: Tensor) -> Tensor | None:
    """Inner products of centred features, scaled to a Frobenius norm of 1; None where all samples have the same.

    Args:
        features: [N, ...] a row a sample.
    Returns:
        [N, N] float64.
    """
    rows = features.flatten(1).double()
    rows = rows - rows.mean(0)
    gram = rows @ rows.T
    norm = gram.norm()
    return gram / norm if float(norm) > 0 else None


def alignment(one: Tensor | None, two: Tensor | None) -> float | None:
    """Linear CKA of two kernels from :func:`unit_gram`, in [0, 1]: 1 where features agree up to rotation, shift and one
    scale.

    CKA(X, Y) = |Y'X|^2 / (|X'X| |Y'Y|), which is the inner product of the kernels XX' and YY' at norm 1. With fewer
    samples than features it lies above that of all data.

    Source: Kornblith et al. 2019, "Similarity of Neural Network Representations Revisited", section 3.

    >>> x = torch.tensor([[1.0, 2.0], [3.0, 5.0], [0.0, 1.0]])
    >>> round(alignment(unit_gram(x), unit_gram(x @ torch.tensor([[0.0, -2.0], [2.0, 0.0]]) + 7)), 12)
    1.0
    """
    return None if one is None or two is None else float((one * two).sum())


def kernels(kit: Worker, params: Params, x: Tensor, *, batch_statistics: bool) -> dict[str, Tensor | None]:
    """The kernel of each layer group's output in evaluation mode: of the last of its layers that is called, in front of
    any activation.

    Args:
        kit: a worker; its vector holds ``params`` afterwards.
        params: the model, with statistics.
        x: [N, *shape] samples, in one pass.
        batch_statistics: norms look at these samples also here (``bn=batch``).
    Returns:
        group -> :func:`unit_gram`; None for a group whose output has no row a sample, or that is no layer that is
        called.
    """
    found: dict[str, Tensor | None] = dict.fromkeys(kit.setup.layout.groups)

    def watch(group: str) -> Any:
        def keep(_module: nn.Module, _given: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            found[group] = (
                unit_gram(first) if isinstance(first, Tensor) and first.dim() > 1 and len(first) == len(x) else None
            )

        return keep

    handles = [module.register_forward_hook(watch(group)) for module, group in layers(kit)]
    try:
        kit.bound.load(params)
        kit.bound.mode(training=False, batch_statistics=batch_statistics)
        kit.features.clear()
        with torch.no_grad(), kit.autocast():
            kit.net(kit.bound.model, x)
    finally:
        for handle in handles:
            handle.remove()
    return found


def similarities(track: list[Mapping[str, Tensor | None]]) -> dict[str, list[float | None]]:
    """Group -> alignment of every moment's output with that of the last."""
    return {group: [alignment(moment[group], track[-1][group]) for moment in track] for group in track[-1]}
