"""Evaluation: the server's model on its test set, clients' models on their splits, and the pieces' queries."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from fedstrata.client.task import ClientTask
from fedstrata.client.update import ClientUpdate
from fedstrata.client.worker import Worker
from fedstrata.core.params import Model
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
    """Scores models, on as many workers as there are workers; a sample's output does not depend on which.

    Attributes:
        workers: workers' workers.
        federation: whose splits.
        batch_statistics: norms look at the batch also here (``bn=batch``); at running statistics where it is one
            sample.
        threads: intra-op threads of each worker.
    """

    workers: Sequence[Worker]
    federation: Federation
    batch_statistics: bool
    threads: int

    def spread(self, function: Callable[[Worker, T], U], items: Iterable[T]) -> list[U]:
        """Return ``function(worker, item)`` for all items, results in order."""
        work = list(items)
        if len(self.workers) == 1 or len(work) <= 1:
            return [function(self.workers[0], item) for item in work]
        share = [work[i :: len(self.workers)] for i in range(len(self.workers))]

        def run(worker: Worker, part: list[T]) -> list[U]:
            torch.set_num_threads(self.threads)
            return [function(worker, item) for item in part]

        with ThreadPoolExecutor(len(self.workers)) as pool:
            parts = list(pool.map(run, self.workers, share))
        result: list[U] = [None] * len(work)  # type: ignore[list-item]
        for i, part in enumerate(parts):
            result[i :: len(self.workers)] = part
        return result

    def predict(self, worker: Worker, model: Model, samples: Samples, index: Tensor) -> Tensor:
        """Return [N, classes] outputs of a model in evaluation mode."""
        return (
            torch.cat([self._pass(worker, model, samples.take(part)) for part in passes(index)])
            if len(index)
            else torch.zeros(0)
        )

    def _pass(self, worker: Worker, model: Model, x: Tensor) -> Tensor:
        worker.bound.load(model)
        worker.bound.mode(
            training=False, batch_statistics=(self.batch_statistics or model.eval_mode == "batch_stats") and len(x) > 1
        )
        worker.features.clear()
        with torch.no_grad(), worker.autocast():
            return worker.net(worker.bound.model, x).float()

    def server(self, model: Model) -> Scores:
        """Return the server's model on its test set."""
        test = self.federation.test
        assert test is not None, "asked only where the server has a test set"
        parts = passes(torch.arange(len(test)))
        outputs = self.spread(lambda worker, part: self._pass(worker, model, test.take(part)), parts)
        return self.federation.task.metrics(torch.cat(outputs), test.y)

    def model(self, worker: Worker, task: ClientTask) -> Model:
        """Return the model that a client uses itself."""
        return ClientUpdate(worker, task).personal()

    def client(self, worker: Worker, task: ClientTask, model: Model) -> tuple[float | None, float | None, int]:
        """Return (own model, server's model, samples) of one client on its own test split; None without samples."""
        held = self.federation.testing(task.client)
        if held is None or not len(held[1]):
            return None, None, 0
        samples, index = held
        personal, shared = self.model(worker, task), model
        score = self.federation.task.score(self.predict(worker, personal, samples, index), samples.y[index])
        same = personal.flat is shared.flat
        return (
            score,
            score
            if same
            else self.federation.task.score(self.predict(worker, shared, samples, index), samples.y[index]),
            len(index),
        )

    def new_client(self, worker: Worker, task: ClientTask, adapt: Adapt | None) -> tuple[float | None, float | None]:
        """Score a client that never took part on its test split: as received, and after a few private steps.

        None where there is no score.

        Args:
            worker: the worker.
            task: what the client receives.
            adapt: the private steps, on the plain loss whatever the method; None takes none.
        """
        held = self.federation.testing(task.client)
        if held is None or not len(held[1]):
            return None, None
        samples, index = held
        update = ClientUpdate(worker, task)
        start = update.context.received
        before = self.federation.task.score(self.predict(worker, start, samples, index), samples.y[index])
        if adapt is None:
            return before, None
        moved = update.tools.fit(
            start, "unseen", steps=adapt.steps, lr=adapt.lr, train=worker.setup.layout.select(adapt.groups)
        )
        return before, self.federation.task.score(self.predict(worker, moved, samples, index), samples.y[index])

    def features(self, model: Model, most: int) -> tuple[Tensor, Tensor]:
        """Return [N, d] features that enter the head and [N] targets of up to ``most`` evenly spaced samples.

        The samples are the server's test set, or without one the training samples.
        """
        samples = self.federation.train if self.federation.test is None else self.federation.test
        index = torch.linspace(0, len(samples) - 1, min(most, len(samples))).round().long()
        worker = self.workers[0]
        result = []
        for part in passes(index):
            worker.bound.load(model)
            worker.bound.mode(training=False, batch_statistics=self.batch_statistics and len(part) > 1)
            worker.features.clear()
            with torch.no_grad(), worker.autocast():
                result.append(worker.net.features(worker.bound.model, samples.take(part)).float())
        return torch.cat(result), samples.y[index]

    def loss(self, client: int, model: Model, most: int) -> float:
        """Return the mean plain loss of a model on up to ``most`` evenly spaced training samples of a client.

        NaN where it has none.

        In evaluation mode. Norms look at the batch under ``bn=batch`` and for ``model.frozen("batch_stats")``.
        """
        index = self.federation.training(client)
        if not len(index):
            return math.nan
        index = index[torch.linspace(0, len(index) - 1, min(most, len(index))).round().long()]
        output = self.predict(self.workers[0], model, self.federation.train, index)
        return float(self.workers[0].net.loss(output, self.federation.train.y[index]).double().mean())

    def validation(self, worker: Worker, task: ClientTask, *, personal: bool, model: Model) -> tuple[float, int]:
        """Return (score, samples) of one client's validation split."""
        index = self.federation.validating(task.client)
        if not len(index):
            return 0.0, 0
        scored = self.model(worker, task) if personal else model
        return self.federation.task.score(
            self.predict(worker, scored, self.federation.train, index), self.federation.train.y[index]
        ), len(index)

    def answer(self, query: ClientQuery, eligible: Sequence[int]) -> QueryResult:
        """Return what clients say to a piece's question."""
        clients = tuple(sorted(eligible if query.clients is None else query.clients))
        rows = self.spread(lambda worker, client: self._scores(worker, query, client), clients)
        return QueryResult(clients, torch.tensor(rows, dtype=torch.float64).reshape(len(clients), len(query.models)))

    def _scores(self, worker: Worker, query: ClientQuery, client: int) -> list[float]:
        held = self._held(query.split, client)
        if held is None or not len(held[1]):
            return [float("nan")] * len(query.models)
        samples, index = held
        result = []
        for model in query.models:
            assert isinstance(model, Model), "the engine puts the current model and statistics in place"
            output = self.predict(worker, model, samples, index)
            y = samples.y[index]
            result.append(
                self.federation.task.score(output, y)
                if query.metric == "accuracy"
                else float(worker.net.loss(output, y).double().mean())
            )
        return result

    def _held(self, split: Split, client: int) -> tuple[Samples, Tensor] | None:
        if split == "test":
            return self.federation.testing(client)
        index = self.federation.training(client) if split == "train" else self.federation.validating(client)
        return self.federation.train, index


def passes(index: Tensor) -> list[Tensor]:
    """Return positions cut into passes.

    A single one left over joins the pass before, as in training: a norm cannot look at one sample.
    """
    parts = list(torch.split(index, BATCH))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def spread_of(values: Sequence[float], sizes: Sequence[int]) -> dict[str, Any]:
    """Return unweighted mean, size-weighted mean, standard deviation and mean of the lowest tenth over clients."""
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
