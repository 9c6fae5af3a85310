"""Evaluation: the server's model on the server's test set, every client's own model on its own split, questions of
pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from fedstrata.client.update import ClientTask, ClientUpdate
from fedstrata.client.worker import Worker
from fedstrata.core.params import Params
from fedstrata.core.plan import ClientQuery, QueryResult, Split
from fedstrata.data.metrics import Scores

if TYPE_CHECKING:
    from fedstrata.data.federation import Federation
    from fedstrata.data.io.samples import Samples

BATCH = 500  # samples of one evaluation pass; part of the result where norms look at the batch
T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Adapt:
    """The private steps of a held-out client.

    Attributes:
        steps: mini-batches.
        lr: learning rate.
        groups: selector of the parameters that move.
    """

    steps: int
    lr: float
    groups: str


@dataclass
class Evaluator:
    """Scores models, on as many kits as there are workers; a sample's output does not depend on which.

    Attributes:
        kits: workers' kits.
        federation: whose splits.
        batch_statistics: norms look at the batch also here (``bn=batch``); at running statistics where it is one
            sample.
        threads: intra-op threads of each worker.
    """

    kits: Sequence[Worker]
    federation: Federation
    batch_statistics: bool
    threads: int

    def spread(self, function: Callable[[Worker, T], U], items: Iterable[T]) -> list[U]:
        """``function(kit, item)`` for all items, results in order."""
        work = list(items)
        if len(self.kits) == 1 or len(work) <= 1:
            return [function(self.kits[0], item) for item in work]
        share = [work[i :: len(self.kits)] for i in range(len(self.kits))]

        def run(kit: Worker, part: list[T]) -> list[U]:
            torch.set_num_threads(self.threads)
            return [function(kit, item) for item in part]

        with ThreadPoolExecutor(len(self.kits)) as pool:
            parts = list(pool.map(run, self.kits, share))
        found: list[U] = [None] * len(work)  # type: ignore[list-item]
        for i, part in enumerate(parts):
            found[i :: len(self.kits)] = part
        return found

    def predict(self, kit: Worker, params: Params, samples: Samples, index: Tensor) -> Tensor:
        """[N, classes] outputs of a model in evaluation mode."""
        return (
            torch.cat([self._pass(kit, params, samples.take(part)) for part in passes(index)])
            if len(index)
            else torch.zeros(0)
        )

    def _pass(self, kit: Worker, params: Params, x: Tensor) -> Tensor:
        kit.bound.load(params)
        kit.bound.mode(
            training=False, batch_statistics=(self.batch_statistics or params.still == "batch") and len(x) > 1
        )
        kit.memo.clear()
        with torch.no_grad(), kit.autocast():
            return kit.net(kit.bound.params, x).float()

    def server(self, params: Params) -> Scores:
        """The server's model on its test set."""
        test = self.federation.test
        assert test is not None, "asked only where the server has a test set"
        parts = passes(torch.arange(len(test)))
        outputs = self.spread(lambda kit, part: self._pass(kit, params, test.take(part)), parts)
        return self.federation.task.metrics(torch.cat(outputs), test.y)

    def model(self, kit: Worker, work: ClientTask) -> Params:
        """The model that a client uses itself."""
        return ClientUpdate(kit, work).personal()

    def client(self, kit: Worker, work: ClientTask, params: Params) -> tuple[float | None, float | None, int]:
        """(own model, server's model, samples) of one client on its own test split; None without samples."""
        held = self.federation.testing(work.client)
        if held is None or not len(held[1]):
            return None, None, 0
        samples, index = held
        own, shared = self.model(kit, work), params
        mine = mean_score(self.predict(kit, own, samples, index), samples.y[index])
        same = own.flat is shared.flat
        return (
            mine,
            mine if same else mean_score(self.predict(kit, shared, samples, index), samples.y[index]),
            len(index),
        )

    def unseen(self, kit: Worker, work: ClientTask, adapt: Adapt | None) -> tuple[float | None, float | None]:
        """(as received, after a few private steps) of a client that never took part, on its own test split; None where
        there is nothing to say.

        Args:
            kit: the worker.
            work: what the client receives.
            adapt: the private steps, on the plain loss whatever the method; None takes none.
        """
        held = self.federation.testing(work.client)
        if held is None or not len(held[1]):
            return None, None
        samples, index = held
        session = ClientUpdate(kit, work)
        start = session.view.anchor
        before = mean_score(self.predict(kit, start, samples, index), samples.y[index])
        if adapt is None:
            return before, None
        moved = session.fit(
            start, "unseen", steps=adapt.steps, lr=adapt.lr, train=kit.setup.layout.select(adapt.groups)
        )
        return before, mean_score(self.predict(kit, moved, samples, index), samples.y[index])

    def features(self, params: Params, most: int) -> tuple[Tensor, Tensor]:
        """([N, d] features in front of the head, [N] targets) of up to ``most`` evenly spaced samples of the server's
        test set.

        Without a server test set: of the training samples.
        """
        samples = self.federation.train if self.federation.test is None else self.federation.test
        index = torch.linspace(0, len(samples) - 1, min(most, len(samples))).round().long()
        kit = self.kits[0]
        found = []
        for part in passes(index):
            kit.bound.load(params)
            kit.bound.mode(training=False, batch_statistics=self.batch_statistics and len(part) > 1)
            kit.memo.clear()
            with torch.no_grad(), kit.autocast():
                found.append(kit.net.features(kit.bound.params, samples.take(part)).float())
        return torch.cat(found), samples.y[index]

    def loss(self, client: int, params: Params, most: int) -> float:
        """Mean plain loss of a model on up to ``most`` evenly spaced training samples of a client; NaN where it has
        none.

        In evaluation mode. Norms look at the batch under ``bn=batch`` and for ``params.frozen("batch")``.
        """
        index = self.federation.training(client)
        if not len(index):
            return math.nan
        index = index[torch.linspace(0, len(index) - 1, min(most, len(index))).round().long()]
        output = self.predict(self.kits[0], params, self.federation.train, index)
        return float(self.kits[0].net.loss(output, self.federation.train.y[index]).double().mean())

    def validation(self, kit: Worker, work: ClientTask, *, personal: bool, params: Params) -> tuple[float, int]:
        """(score, samples) of one client's validation split."""
        index = self.federation.validating(work.client)
        if not len(index):
            return 0.0, 0
        model = self.model(kit, work) if personal else params
        return mean_score(self.predict(kit, model, self.federation.train, index), self.federation.train.y[index]), len(
            index
        )

    def answer(self, ask: ClientQuery, eligible: Sequence[int]) -> QueryResult:
        """What clients say to a piece's question."""
        clients = tuple(sorted(eligible if ask.clients is None else ask.clients))
        rows = self.spread(lambda kit, client: self._scores(kit, ask, client), clients)
        return QueryResult(clients, torch.tensor(rows, dtype=torch.float64).reshape(len(clients), len(ask.models)))

    def _scores(self, kit: Worker, ask: ClientQuery, client: int) -> list[float]:
        held = self._held(ask.split, client)
        if held is None or not len(held[1]):
            return [float("nan")] * len(ask.models)
        samples, index = held
        found = []
        for model in ask.models:
            assert model is not None, "the engine puts the current model in place"
            output = self.predict(kit, model, samples, index)
            y = samples.y[index]
            found.append(
                mean_score(output, y) if ask.what == "accuracy" else float(kit.net.loss(output, y).double().mean())
            )
        return found

    def _held(self, split: Split, client: int) -> tuple[Samples, Tensor] | None:
        if split == "test":
            return self.federation.testing(client)
        index = self.federation.training(client) if split == "train" else self.federation.validating(client)
        return self.federation.train, index


def passes(index: Tensor) -> list[Tensor]:
    """Positions cut into passes.

    A single one left over joins the pass before, as in training: a norm cannot look at one sample.
    """
    parts = list(torch.split(index, BATCH))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def mean_score(output: Tensor, y: Tensor) -> float:
    """Accuracy, or, for a regression, minus the root of the mean squared error: larger is better.

    A row of outputs that is not finite is wrong; the error of a regression that has one is not finite.
    """
    if y.is_floating_point():
        return -float((output.squeeze(-1) - y).double().square().mean().sqrt())
    return float(((output.argmax(-1) == y) & output.isfinite().all(-1)).double().mean())


def spread_of(values: Sequence[float], sizes: Sequence[int]) -> dict[str, Any]:
    """Unweighted mean, size-weighted mean, standard deviation and mean of the lowest tenth over clients."""
    if not values:
        return dict.fromkeys(("personal", "personal_weighted", "personal_std", "personal_worst10"))
    t, w = torch.tensor(values, dtype=torch.float64), torch.tensor(sizes, dtype=torch.float64)
    lowest = t.sort().values[: max(1, len(values) // 10)]
    return {
        "personal": float(t.mean()),
        "personal_weighted": float((t * w).sum() / w.sum()),
        "personal_std": float(t.std(unbiased=False)),
        "personal_worst10": float(lowest.mean()),
    }
