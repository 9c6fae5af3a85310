"""Train chains of linear layers and ReLU for many clients at once.

Products are batched, and plain SGD takes its steps without a gradient in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor


class LinearChain:
    """Linear, ReLU, ..., linear, for C clients with stacked parameters.

    Samples are the last axis inside, so that gradients of weights come out in the layout of the weights.

    Args:
        layers: (weight, bias) names, input to output.
    """

    def __init__(self, layers: Sequence[tuple[str, str]]) -> None:
        self.layers = tuple(layers)

    def output(self, p: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return [C, B, classes] from parameters [C, *shape] and samples [C, B, ...]; autograd may follow."""
        z = x.flatten(2).transpose(1, 2)  # [C, D, B]
        for weight, bias in self.layers[:-1]:
            z = torch.baddbmm(p[bias].unsqueeze(2), p[weight], z).relu()  # [C, H, B]
        weight, bias = self.layers[-1]
        return torch.baddbmm(p[bias].unsqueeze(2), p[weight], z).transpose(1, 2)

    @torch.no_grad()
    def sgd(
        self,
        p: Mapping[str, Tensor],
        x: Tensor,
        losses: Callable[[Tensor], Tensor],
        lr: float,
        trained: Collection[str],
    ) -> Tensor:
        """Take one step of plain SGD, in place: each weight takes its gradient as it is computed; none is stored.

        Args:
            p: parameters [C, *shape], moved in place.
            x: samples [C, B, ...].
            losses: output [C, B, classes] -> mean loss of each client [C].
            lr: learning rate.
            trained: names that move.
        Returns:
            the losses [C].
        """
        inputs = [x.flatten(2).transpose(1, 2)]  # [C, D, B], then what enters each further layer
        for weight, bias in self.layers[:-1]:
            inputs.append(torch.baddbmm(p[bias].unsqueeze(2), p[weight], inputs[-1]).relu_())
        weight, bias = self.layers[-1]
        output = torch.baddbmm(p[bias].unsqueeze(2), p[weight], inputs[-1])
        with torch.enable_grad():
            loss = losses(output.requires_grad_().transpose(1, 2))
            (grad,) = torch.autograd.grad(loss.sum(), output)  # [C, classes, B]
        for depth in reversed(range(len(self.layers))):
            weight, bias = self.layers[depth]
            # with the weight before its step
            before = torch.bmm(p[weight].transpose(1, 2), grad).mul_(inputs[depth] > 0) if depth else None
            if weight in trained:
                p[weight].baddbmm_(grad, inputs[depth].transpose(1, 2), alpha=-lr)
            if bias in trained:
                p[bias].sub_(grad.sum(2), alpha=lr)
            if before is not None:
                grad = before
        return loss.detach()
