"""Run the baseline: a bare PyTorch loop that takes exactly the engine's local steps on the same samples."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedstrata.client.batch_order import Order
from fedstrata.client.task import ClientTask
from fedstrata.common import random_streams
from fedstrata.engine.assembly import RunComponents
from fedstrata.models import build

CODE = """for client in cohort:
    model.load_state_dict(start); optimizer = torch.optim.SGD(model.parameters(), lr)
    for index in order[client]:              # positions are precomputed, at no cost to the loop
        optimizer.zero_grad(); cross_entropy(model(x[index]), y[index]).backward(); optimizer.step()
    ends.append({name: tensor.clone() for name, tensor in model.state_dict().items()})"""


class Bare:
    """A bare loop over one federation.

    Args:
        parts: of the job.
        threads: intra-op threads.
    """

    def __init__(self, parts: RunComponents, threads: int) -> None:
        self.parts, self.threads = parts, threads
        config = parts.config
        norm = None if config.norm == "auto" else config.norm
        self.model: nn.Module = build(
            config.model_for(parts.federation.task),
            parts.federation.task,
            norm,
            random_streams.torch_stream(config.seed, "model"),
        )
        self.start = copy.deepcopy(self.model.state_dict())
        data = parts.federation.train
        self.x, self.y = data.take(torch.arange(len(data))), data.y
        self.ends: list[dict[str, Tensor]] = []

    def orders(self, tasks: Sequence[ClientTask]) -> list[list[Tensor]]:
        """Return for every client the sample positions of each of its steps, as the engine draws them."""
        setup, local, orders = self.parts.setup, self.parts.setup.local, []
        for task in tasks:
            index = self.parts.federation.training(task.client)
            order = Order(
                setup.seed,
                ("local", task.round, task.client, task.occurrence),
                len(index),
                local.batch,
                "cycle",
                merge_single=False,
            )
            batches = order.batches(epochs=local.epochs, steps=local.steps)
            orders.append([index[positions] for _, positions in batches])
        return orders

    def train(self, orders: Sequence[Sequence[Tensor]], lr: float) -> int:
        """Run the loop and return the number of samples trained on."""
        torch.set_num_threads(self.threads)
        self.ends, samples = [], 0
        model, x, y = self.model.train(), self.x, self.y
        for order in orders:
            model.load_state_dict(self.start)
            optimizer = torch.optim.SGD(model.parameters(), lr)
            for index in order:
                optimizer.zero_grad()
                cross_entropy(model(x[index]), y[index]).backward()
                optimizer.step()
                samples += len(index)
            self.ends.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return samples
