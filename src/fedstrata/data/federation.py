"""A federation: one data set plus an index. No object exists for a client.

:func:`load` reads a data set by name, and :func:`assemble` deals one that was read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fedstrata.common.call_syntax import parse_call
from fedstrata.common.errors import DataError
from fedstrata.common.random_streams import stream
from fedstrata.data.augmentation import Augment, parse_augment
from fedstrata.data.inputs import InputPreprocessor
from fedstrata.data.io.checks import finite_features
from fedstrata.data.io.samples import Samples, Tensors
from fedstrata.data.loading import (
    DataSpec,
    check_spec,
    draw_heldout,
    own_tests,
    pool_of,
    pooled,
    read_convention,
    share_in,
    small_clients,
)
from fedstrata.data.location import Place
from fedstrata.data.partition.base import Partition, check_client
from fedstrata.data.partition.client_tests import ClientTests, kept_out
from fedstrata.data.registry import find_law
from fedstrata.data.source import Source
from fedstrata.data.sources.arrays import source_of
from fedstrata.data.types import Groups, Ints, Task


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """Clients 0 .. ``clients`` - 1, each a set of positions in one training set.

    Attributes:
        name: identity of the data, without folders.
        task: of the model.
        train: all training samples.
        test: the server's test set; None where only clients test.
        partition: the samples of each client; listed, or derived when needed.
        own_test: each client's test split; None where only the server tests.
        validation: share of each client's samples that is kept for validation; at least one sample stays in
            training.
        heldout: clients kept out of training, sorted.
        augment: tensor augmentation for training batches, or None.
        fingerprint: sha256 over the identity of data and partition; a resume refuses another one.
        notes: for the user.
        seed: keys the splits.
        official: the test set that ``own_test`` points into, whether or not the server tests on it.
        intake: prepares further samples, for predictions; None where the data set defines no way.
    """

    name: str
    task: Task
    train: Samples
    test: Samples | None
    partition: Partition
    own_test: ClientTests | None
    validation: float
    heldout: tuple[int, ...]
    augment: Augment | None
    fingerprint: str
    notes: tuple[str, ...]
    seed: int = 0
    official: Samples | None = field(default=None, repr=False)
    preprocessor: InputPreprocessor | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        samples = f"{len(self.train):,} training samples of shape {self.task.shape}"
        return f"Federation({self.name}: {samples}, {self.clients:,} clients by {self.partition.law})"

    @property
    def clients(self) -> int:
        """Number of clients, held-out ones included."""
        return len(self.partition)

    @property
    def named(self) -> bool:
        """Whether clients have names besides their numbers."""
        return any(name != str(client) for client, name in enumerate(self.partition.names))

    def client_name(self, client: int) -> str:
        """Return the client's name: the value of a client column, a folder name; its number where it has no name.

        Raises:
            DataError: no such client.
        """
        check_client(client, self.clients)
        return self.partition.names[client] if self.partition.names else str(client)

    def training(self, client: int) -> Tensor:
        """Return the positions in ``train`` that the client trains on, [n] int64, in the order drawn.

        Its test and validation samples are removed.
        """
        return torch.from_numpy(self._split(client)[0])

    def validating(self, client: int) -> Tensor:
        """Return the positions in ``train`` kept for validation, [m] int64; may be empty."""
        return torch.from_numpy(self._split(client)[1])

    def testing(self, client: int) -> tuple[Samples, Tensor] | None:
        """Return the client's test split as (samples, int64 positions), or None where clients have none."""
        if self.own_test is None:
            return None
        which, positions = self.own_test.indices(client)
        samples = self.official if which == "test" else self.train
        assert samples is not None, "client tests that index a test set need one"
        return samples, torch.from_numpy(positions.copy())

    def counts(self, client: int) -> Tensor:
        """Count the client's training samples of each class: [classes] int64; [1] where targets are no classes."""
        rows = self.training(client)
        if not self.task.has_classes:
            return torch.tensor([len(rows)])
        return torch.bincount(self.train.y[rows], minlength=self.task.classes)

    def _split(self, client: int) -> tuple[Ints, Ints]:
        held = self.partition.indices(client)
        if self.own_test is not None and self.own_test.which == "train":
            held = held[~np.isin(held, self.own_test.indices(client)[1])]
        count = kept_out(self.validation, len(held)) if self.validation else 0
        if not count:
            return held.copy(), held[:0].copy()
        late = np.zeros(len(held), dtype=np.bool_)
        late[stream(self.seed, "validation", client).permutation(len(held))[:count]] = True
        return held[~late], held[late]

    @classmethod
    def of(
        cls,
        x: Tensor | ArrayLike,
        y: Tensor | ArrayLike,
        *,
        client: ArrayLike | None = None,
        test: (
            tuple[Tensor | ArrayLike, Tensor | ArrayLike]
            | tuple[Tensor | ArrayLike, Tensor | ArrayLike, ArrayLike]
            | None
        ) = None,
        labels: tuple[str, ...] = (),
        vocabulary: int = 0,
        task: str | None = None,
        name: str = "arrays",
        partition: str | None = None,
        clients: int | None = None,
        testing: str | None = None,
        validation: float = 0.0,
        heldout: float = 0.0,
        augment: str | None = None,
        seed: int = 0,
    ) -> Federation:
        """A federation from tensors or arrays.

        Args:
            x: [N, *shape]: floats; uint8 images [N, C, H, W], read as byte / 255; or integer tokens with ``vocabulary``
                above 0.
            y: [N] integers (classes), floats (regression), or what ``task`` wants.
            client: [N] who holds a sample, any names; makes ``natural`` the default partition.
            test: (x, y) or (x, y, client).
            labels: class names; default the numbers.
            vocabulary: above 0, x holds tokens below this number.
            task: the kind of task by name; default after the type of y: "classification" or "regression".
            name: identity for the fingerprint.
            partition: a law in call syntax; default ``natural`` with ``client``, ``iid`` without.
            clients: number of clients.
            testing: server, client, both or own(share=...); default server where there is a test set, own otherwise.
            validation: share of each client's samples kept for validation.
            heldout: share of clients kept out of training.
            augment: moves in call syntax.
            seed: of the partition and the splits.
        Raises:
            DataError: invalid shapes, labels or features.
        """
        source = source_of(x, y, client=client, test=test, labels=labels, vocabulary=vocabulary, task=task, name=name)
        how = testing or ("server" if test is not None else "own")
        spec = DataSpec(
            data=name,
            augment=augment,
            partition=partition,
            clients=clients,
            test=how,
            validation=validation,
            heldout=heldout,
            seed=seed,
        )
        return assemble(source, spec)

    def describe(self) -> str:
        """Describe the counts of every split, a line each."""
        lines = [f"{self.name}: {self.task.kind}, sample shape {self.task.shape}, {self.task.classes} outputs"]
        lines.append(
            f"training pool {len(self.train)} samples; clients {self.clients} by {self.partition.law}; held out"
            f" {len(self.heldout)}"
        )
        lines.append(
            f"server test {0 if self.test is None else len(self.test)} samples; clients' test splits: {_own(self)}"
        )
        if self.partition.lazy:
            lines.append(f"samples a client: {self.partition.size(0)}, derived when a client is asked for")
        elif self.clients <= 10_000:
            splits = [self._split(i) for i in range(self.clients)]
            train, late = (sum(len(s[k]) for s in splits) for k in (0, 1))
            lines.append(f"clients hold {train} training and {late} validation samples")
        return "\n".join([*lines, *self.notes])


def _own(federation: Federation) -> str:
    if federation.own_test is None:
        return "none"
    return "from the test set" if federation.own_test.which == "test" else "from their samples"


def load(spec: DataSpec) -> Federation:
    """Read the data, deal them to clients, and check both.

    Raises:
        ConfigError: an unknown name or setting.
        DataError: missing or damaged files, labels or features that are invalid, a partition that cannot be made.
    """
    reader = check_spec(spec)
    root = None if spec.root is None else Path(spec.root)
    return assemble(reader.read(Place(root, spec.clients)), spec)


def assemble(source: Source, spec: DataSpec) -> Federation:
    """Deal a data set that was read; see :func:`load`."""
    share_in("validation", spec.validation)
    share_in("heldout", spec.heldout)
    convention, own = read_convention(spec.test)
    check_samples(source.train, source.task, f"{source.name}, training set")
    if source.test is not None:
        check_samples(source.test, source.task, f"{source.name}, test set")
    if own is not None:
        source = pooled(source)
    unset = "natural" if source.natural else spec.class_partition if source.task.has_classes else "iid"
    law = parse_call(spec.partition or unset)
    train = pool_of(source, source.train)
    partition = find_law(law).deal(train, spec.clients, spec.seed)
    own_test, more = own_tests(convention, own, source, train, partition, spec.seed)
    heldout = draw_heldout(spec, len(partition))
    settings = (partition.law, len(partition), spec.test, spec.validation, spec.heldout, spec.seed)
    labels = [samples.y for samples in (source.train, source.test) if samples is not None]
    federation = Federation(
        name=source.name,
        task=source.task,
        train=source.train,
        test=source.test if convention in ("server", "both") else None,
        partition=partition,
        own_test=own_test,
        validation=spec.validation,
        heldout=heldout,
        augment=parse_augment(spec.augment, source.dark, source.task.shape),
        fingerprint=_fingerprint(source.task, source.identity or source.name, labels, source.groups, settings),
        notes=(*source.notes, *partition.notes, *more, *small_clients(partition, spec.validation)),
        seed=spec.seed,
        official=source.test,
        preprocessor=source.preprocessor,
    )
    return _scaled(federation, source, server=convention in ("server", "both")) if source.scale else federation


def _scaled(federation: Federation, source: Source, *, server: bool) -> Federation:
    """Normalise by sums over what the clients train on: held-out clients, validation and test samples do not count."""
    assert source.scale is not None
    kept = set(federation.heldout)
    if federation.partition.lazy:  # clients overlap and are many: every training sample counts once
        parts = [np.arange(len(federation.train), dtype=np.int64)]
    else:
        parts = [federation.training(i).numpy() for i in range(federation.clients) if i not in kept]
    scaled = source.scale(parts)
    notes = federation.notes + tuple(note for note in scaled.notes if note not in source.notes)
    return replace(
        federation,
        train=scaled.train,
        test=scaled.test if server else None,
        official=scaled.test,
        preprocessor=scaled.preprocessor,
        notes=notes,
    )


def _fingerprint(
    task: Task, name: str, labels: list[Tensor], groups: Mapping[str, Groups], settings: tuple[object, ...]
) -> str:
    """Hash the identity of a federation (sha256): names, sizes, label bytes, groups and settings.

    The hash does not depend on a folder or a process.
    """
    digest = hashlib.sha256(repr((name, task, settings, [len(y) for y in labels])).encode())
    for y in labels:
        digest.update(y.contiguous().numpy().astype(y.numpy().dtype.newbyteorder("<"), copy=False).tobytes())
    for key, group in sorted(groups.items()):
        digest.update(repr((key, group.names)).encode())
        digest.update(group.train.astype("<i8").tobytes())
    return digest.hexdigest()


def check_samples(samples: Samples, task: Task, where: str) -> None:
    """Check a data set: as many samples as labels, valid targets, and finite features of the task's shape.

    Raises:
        DataError: see :func:`class_labels` and :func:`finite_features`.
    """
    y = samples.y
    if len(y) != len(samples) or not len(y):
        raise DataError(
            f"{where}: {len(samples)} samples with {len(y)} labels; it must have at least one sample, and one label for"
            " each."
        )
    task.definition.check_targets(y, task.classes, where)
    if isinstance(samples, Tensors):
        finite_features(samples.x, where)
    first = samples.take(torch.zeros(1, dtype=torch.int64))
    if tuple(first.shape[1:]) != task.shape:
        raise DataError(f"{where}: a sample has shape {tuple(first.shape[1:])}, and the task says {task.shape}.")
