"""Define the timing jobs: S, many small clients; M, the classic CNN; L, ResNet-18.

They use synthetic data of fixed seeds, FedAvg and plain SGD, without evaluation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from fedstrata.config.config import Config
from fedstrata.data.federation import Federation
from fedstrata.engine.assembly import RunComponents, assemble

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Job:
    """A timing job.

    Attributes:
        name: a letter; title: what it represents.
        federation: creates the data.
        settings: of the run.
    """

    name: str
    title: str
    federation: Callable[[], Federation]
    settings: dict[str, object]

    def parts(self, threads: int = 1) -> RunComponents:
        """Assemble the run that its executors train."""
        config = Config(**{"method": "fedavg", "test": "server", "seed": 0, "local.threads": threads, **self.settings})
        return assemble(config, self.federation())


def small() -> Federation:
    """Create 784 features, class means and noise; 1,000 clients of 10 to 50 samples, log-normal, mean about 20."""
    rng = np.random.default_rng(0)
    sizes = np.clip(np.round(rng.lognormal(np.log(19), 0.4, 1000)), 10, 50).astype(np.int64)
    y = rng.integers(0, 10, int(sizes.sum()))
    x = (rng.normal(size=(10, 784))[y] + rng.normal(size=(len(y), 784))).astype(np.float32)
    return _federation(x, y, np.repeat(np.arange(1000), sizes))


def images(largest: int | None) -> Callable[[], Federation]:
    """Return a function that creates 20,000 images 3x32x32 of low-frequency class blobs and noise.

    100 clients by Dirichlet 0.3, at least 20 samples, at most ``largest``.
    """

    def make() -> Federation:
        rng = np.random.default_rng(0)
        y = rng.integers(0, 10, 20_000)
        blobs = interpolate(torch.from_numpy(rng.normal(size=(10, 3, 4, 4))), size=32, mode="bilinear").numpy()
        x = (blobs[y] + rng.normal(size=(len(y), 3, 32, 32))).astype(np.float32)
        owner = np.full(len(y), -1)
        for client, held in enumerate(_dirichlet(rng, y)):
            owner[held if largest is None else held[:largest]] = client
        kept = owner >= 0
        return _federation(x[kept], y[kept], owner[kept])

    return make


def _dirichlet(
    rng: np.random.Generator, y: NDArray[np.int64], clients: int = 100, alpha: float = 0.3, least: int = 20
) -> list[NDArray[np.int64]]:
    while True:
        parts: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
        for label in range(10):
            held = rng.permutation(np.flatnonzero(y == label))
            cuts = (np.cumsum(rng.dirichlet([alpha] * clients)) * len(held)).astype(int)[:-1]
            for part, piece in zip(parts, np.split(held, cuts), strict=True):
                part.append(piece)
        joined = [rng.permutation(np.concatenate(p)) for p in parts]
        if min(len(j) for j in joined) >= least:
            return joined


def _federation(x: Floats, y: NDArray[np.int64], client: NDArray[np.int64]) -> Federation:
    return Federation.of(x, y, client=client, test=(x[:10], y[:10]), name="bench", labels=tuple("0123456789"))


JOBS = {
    "S": Job(
        "S",
        "many small clients",
        small,
        {
            "clients": 1000,
            "cohort": 100,
            "model": "mlp(hidden=128)",
            "local.epochs": 5,
            "local.batch": 10,
            "local.lr": 0.05,
        },
    ),
    "M": Job(
        "M",
        "classic CNN",
        images(None),
        {"clients": 100, "cohort": 10, "model": "cnn", "local.epochs": 2, "local.batch": 50, "local.lr": 0.05},
    ),
    "L": Job(
        "L",
        "ResNet-18, group norm",
        images(40),
        {
            "clients": 100,
            "cohort": 10,
            "model": "resnet18(stem=3, groups=32)",
            "norm": "group",
            "local.epochs": 1,
            "local.batch": 20,
            "local.lr": 0.05,
        },
    ),
}
