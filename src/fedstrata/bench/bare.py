"""The baseline: a bare PyTorch loop that takes exactly the engine's local steps on the same samples."""

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
    for index in order[client]:              # positions are given to it, they cost it nothing
        optimizer.zero_grad(); cross_entropy(model(x[index]), y[index]).backward(); optimizer.step()
    ends.append({name: tensor.clone() for name, tensor in model.state_dict().items()})"""


class Bare:
    """The loop over one federation.

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

    def orders(self, works: Sequence[ClientTask]) -> list[list[Tensor]]:
        """For every client the sample positions of each of its steps, as the engine draws them."""
        setup, found = self.parts.setup, []
        for work in works:
            index = self.parts.federation.training(work.client)
            order = Order(
                setup.seed,
                ("local", work.round, work.client, work.occurrence),
                len(index),
                setup.local.batch,
                "cycle",
                merge_single=False,
            )
            found.append(
                [index[positions] for _, positions in order.batches(epochs=setup.local.epochs, steps=setup.local.steps)]
            )
        return found

    def train(self, orders: Sequence[Sequence[Tensor]], lr: float) -> int:
        """Run the loop; returns samples trained on."""
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
