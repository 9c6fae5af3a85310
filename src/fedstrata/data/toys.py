"""Real data that ship with scikit-learn, for a first run without files or a network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fedstrata.data.checks import stratified
from fedstrata.data.place import Place
from fedstrata.data.samples import Tensors
from fedstrata.data.task import Source, Task
from fedstrata.streams import stream


@dataclass(frozen=True)
class Digits:
    """1,797 grey 8x8 digits, scaled from 0..16 to [0, 1]; a fixed fifth of every class is the test set, whatever the run's seed.

    Source: UCI, Optical Recognition of Handwritten Digits (Alpaydin and Kaynak, 1998), as shipped in scikit-learn.
    """

    def read(self, place: Place) -> Source:
        from sklearn.datasets import load_digits  # noqa: PLC0415  # scikit-learn takes a second to import

        pixels, y = load_digits(return_X_y=True)
        x = torch.from_numpy((pixels / 16).astype(np.float32)).reshape(-1, 1, 8, 8)
        labels = torch.from_numpy(y.astype(np.int64))
        late = torch.from_numpy(stratified(labels.numpy(), 0.2, stream(0, "digits-test")))
        task = Task("classification", (1, 8, 8), 10, tuple("0123456789"))
        return Source("digits", task, Tensors(x[~late], labels[~late]), Tensors(x[late], labels[late]), dark=(0.0,))
