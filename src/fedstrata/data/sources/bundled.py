"""Read real data that ship with scikit-learn, for a first run without files or a network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fedstrata.common.random_streams import stream
from fedstrata.data.inputs import Pictures
from fedstrata.data.io.checks import stratified
from fedstrata.data.io.columns import Column
from fedstrata.data.io.encoding import Encoding, Kind
from fedstrata.data.io.samples import Tensors
from fedstrata.data.location import Place
from fedstrata.data.source import Source
from fedstrata.data.sources.tables import encode
from fedstrata.data.types import Task


@dataclass(frozen=True)
class Digits:
    """1,797 grey 8x8 digits, scaled from 0..16 to [0, 1].

    A fixed fifth of every class is the test set; it does not depend on the run's seed.

    Source: UCI, Optical Recognition of Handwritten Digits (Alpaydin and Kaynak, 1998), as shipped in scikit-learn.
    """

    def read(self, place: Place) -> Source:
        """See :class:`Reader`."""
        from sklearn.datasets import load_digits  # scikit-learn takes a second to import  # noqa: PLC0415

        pixels, y = load_digits(return_X_y=True)
        x = torch.from_numpy((pixels / 16).astype(np.float32)).reshape(-1, 1, 8, 8)
        labels = torch.from_numpy(y.astype(np.int64))
        is_test = torch.from_numpy(stratified(labels.numpy(), 0.2, stream(0, "digits-test")))
        task = Task("classification", (1, 8, 8), 10, tuple("0123456789"))
        train, test = Tensors(x[~is_test], labels[~is_test]), Tensors(x[is_test], labels[is_test])
        return Source("digits", task, train, test, dark=(0.0,), preprocessor=Pictures(8, 8, (0.0,), (1.0,), 10))


@dataclass(frozen=True)
class Toy:
    """A table that ships with scikit-learn; a fixed fifth is the test set."""

    def table(self, name: str, label: str, kind: Kind) -> Source:
        """Encode one of scikit-learn's tables like a user's file."""
        from sklearn import datasets  # takes a second to import  # noqa: PLC0415

        bunch = getattr(datasets, f"load_{name}")()
        columns = {
            str(n): Column(np.zeros(len(v), dtype=np.bool_), numbers=v)
            for n, v in zip(bunch.feature_names, bunch.data.T, strict=True)
        }
        columns[label] = Column(np.zeros(len(bunch.target), dtype=np.bool_), numbers=bunch.target.astype(np.float64))
        return encode(columns, Encoding(label, kind=kind), None, 0.2, name, name)


@dataclass(frozen=True)
class BreastCancer(Toy):
    """569 tumours, 30 measurements, malignant (0) or benign (1).

    Source: UCI, Breast Cancer Wisconsin (Diagnostic), as shipped in scikit-learn.
    """

    def read(self, place: Place) -> Source:
        """See :class:`Reader`."""
        return self.table("breast_cancer", "benign", "classification")


@dataclass(frozen=True)
class Wine(Toy):
    """178 wines, 13 measurements, 3 cultivars.

    Source: UCI, Wine, as shipped in scikit-learn.
    """

    def read(self, place: Place) -> Source:
        """See :class:`Reader`."""
        return self.table("wine", "cultivar", "classification")


@dataclass(frozen=True)
class Diabetes(Toy):
    """442 patients, 10 measurements, disease progression after a year (regression).

    Source: Efron et al. 2004, as shipped in scikit-learn.
    """

    def read(self, place: Place) -> Source:
        """See :class:`Reader`."""
        return self.table("diabetes", "progression", "regression")
