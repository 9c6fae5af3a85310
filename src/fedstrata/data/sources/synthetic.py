"""Generate the synthetic federation of FedProx: inputs and models that differ by client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import torch
from numpy.typing import NDArray

from fedstrata.common.errors import ConfigError, DataError
from fedstrata.common.random_streams import stream
from fedstrata.data.inputs import Numbers
from fedstrata.data.io.samples import Tensors
from fedstrata.data.location import Place
from fedstrata.data.source import Source
from fedstrata.data.types import Groups, Ints, Task

Floats = NDArray[np.float64]
FEATURES, CLASSES, CLIENTS, MOST = 60, 10, 30, 10_000


@dataclass(frozen=True)
class Synthetic:
    """synthetic(alpha, beta): client k has y = argmax(softmax(W_k x + b_k)).

    W_k, b_k ~ N(u_k, 1) with u_k ~ N(0, alpha); x ~ N(v_k, diag(j^-1.2)) with v_k ~ N(B_k, 1) in each of 60 features
    and B_k ~ N(0, beta); sizes are int(LogNormal(4, 2)) + 50. The last tenth of a client's samples is its test share:
    int(0.9 n) train.

    Args:
        alpha: how much the models differ, at least 0. A standard deviation, as in the released code (the text can be
            read as a variance).
        beta: how much the inputs differ, at least 0; a standard deviation too.
        clients: clients to make; None makes as many as the run has, or 30.
        seed: of the data; the run's seed does not change them.
    Source: Li et al. 2020, FedProx, sec. 5.1 and the released generator; 30 clients there, ``clients`` here.
    """

    alpha: float = 1.0
    beta: float = 1.0
    clients: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.alpha < 0 or self.beta < 0:
            raise ConfigError(f"synthetic: alpha is {self.alpha} and beta {self.beta}; both are spreads, at least 0.")

    def read(self, place: Place) -> Source:
        """See :class:`Reader`."""
        rng = stream(self.seed, "synthetic")
        sizes = _sizes(self.clients, place, rng)
        model_mean, input_mean = rng.normal(0, self.alpha, len(sizes)), rng.normal(0, self.beta, len(sizes))
        centres = (rng.normal(middle, 1, FEATURES) for middle in input_mean)
        models = (rng.normal(middle, 1, (FEATURES + 1, CLASSES)) for middle in model_mean)
        return _source(
            f"synthetic(alpha={self.alpha}, beta={self.beta}, seed={self.seed})", sizes, centres, models, rng
        )


@dataclass(frozen=True)
class SyntheticIid:
    """One model W, b ~ N(0, 1) and inputs around 0 for all clients, with the sizes of :class:`Synthetic`.

    Args:
        clients: clients to make; None makes as many as the run has, or 30.
        seed: of the data; the run's seed does not change them.
    Source: Li et al. 2020, FedProx, Synthetic-IID.
    """

    clients: int | None = None
    seed: int = 0

    def read(self, place: Place) -> Source:
        """See :class:`Reader`."""
        rng = stream(self.seed, "synthetic_iid")
        sizes = _sizes(self.clients, place, rng)
        model = rng.normal(0, 1, (FEATURES + 1, CLASSES))
        return _source(f"synthetic_iid(seed={self.seed})", sizes, repeat(np.zeros(FEATURES)), repeat(model), rng)


def _sizes(clients: int | None, place: Place, rng: np.random.Generator) -> Ints:
    count = clients or place.clients or CLIENTS
    if not 1 <= count <= MOST:
        raise DataError(
            f"synthetic: {count} clients of about 450 samples each would take {count * 450 * FEATURES * 4 / 1e9:.1f}"
            f" GB; set synthetic(clients=...) to 1 to {MOST}, and deal the samples to more clients by a partition."
        )
    return rng.lognormal(4, 2, count).astype(np.int64) + 50


def _source(
    name: str, sizes: Ints, centres: Iterator[Floats], models: Iterator[Floats], rng: np.random.Generator
) -> Source:
    spread = np.arange(1, FEATURES + 1) ** -0.6  # square root of the variance j^-1.2
    x, y, late = [], [], []
    for size, centre, model in zip(sizes.tolist(), centres, models, strict=False):  # the iid streams never end
        inputs = rng.normal(centre, spread, (size, FEATURES))
        x.append(inputs.astype(np.float32))
        y.append(
            (inputs @ model[:-1] + model[-1]).argmax(1).astype(np.int64)
        )  # model: W over b; softmax keeps the order
        late.append(np.arange(size) >= int(0.9 * size))
    features, labels, tested = (np.concatenate(part) for part in (x, y, late))
    owner = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    groups = Groups(tuple(f"f_{k:05d}" for k in range(len(sizes))), owner[~tested], owner[tested])
    task = Task("classification", (FEATURES,), CLASSES, tuple("0123456789"))
    train, test = (Tensors(torch.from_numpy(features[m]), torch.from_numpy(labels[m])) for m in (~tested, tested))
    return Source(name, task, train, test, {"client": groups}, natural=True, preprocessor=Numbers((FEATURES,), CLASSES))
