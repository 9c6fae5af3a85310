"""A specification of a federation: its checks, its test sets, and the clients kept out of training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedstrata.common.call_syntax import Call, bind, parse_call
from fedstrata.common.errors import ConfigError, DataError
from fedstrata.common.random_streams import stream
from fedstrata.common.suggest import suggestion
from fedstrata.data.augmentation import parse_moves
from fedstrata.data.io.samples import Joined, Samples
from fedstrata.data.location import Reader
from fedstrata.data.partition.base import ExplicitPartition, LabelView, Partition
from fedstrata.data.partition.client_tests import ClassMix, ClientTests, ClientTestSplit, OwnSplit, PartitionedTest
from fedstrata.data.registry import find_dataset, find_law
from fedstrata.data.source import Source
from fedstrata.data.types import Groups, Ints

CONVENTIONS = ("server", "client", "both", "own")


@dataclass(frozen=True)
class DataSpec:
    """A user's specification of data.

    Attributes:
        data: a data set in call syntax, such as ``synthetic(alpha=1, beta=1)``.
        root: folder of the files; None reads FEDSTRATA_DATA.
        augment: moves in call syntax, such as ``crop(pad=4) + flip``; None for none.
        partition: a law in call syntax; None is ``natural`` where the data come with clients, else ``class_partition``
            where targets are classes, else ``iid``.
        class_partition: see ``partition``.
        clients: number of clients; None is the data's number, or 20.
        test: ``server`` (one test set), ``client`` (a test split for each client with its class mix), ``both``, or
            ``own(share=0.2)`` (the official test set joins the pool, and each client keeps a share of its samples).
        validation: share of each client's samples kept for validation, in [0, 1).
        heldout: share of clients kept out of training, in [0, 1).
        seed: of the partition and the splits.
    """

    data: str = "digits"
    root: str | Path | None = None
    augment: str | None = None
    partition: str | None = None
    class_partition: str = "iid"
    clients: int | None = None
    test: str = "server"
    validation: float = 0.0
    heldout: float = 0.0
    seed: int = 0


def check_spec(spec: DataSpec) -> Reader:
    """Check every name, setting and range before a file is opened.

    Returns:
        The reader of the data set, with its settings.
    Raises:
        ConfigError: the message names the setting, the value and what would be right.
    """
    share_in("validation", spec.validation)
    share_in("heldout", spec.heldout)
    if spec.clients is not None and spec.clients < 1:
        raise ConfigError(f"clients is {spec.clients}; a federation has at least 1.")
    read_convention(spec.test)
    parse_moves(spec.augment)
    if spec.partition is not None:
        find_law(parse_call(spec.partition))
    call = parse_call(spec.data)
    reader: Reader = bind(call, find_dataset(call.name).factory, what="data")
    return reader


def share_in(name: str, value: float) -> None:
    """Refuse a share outside [0, 1).

    Raises:
        ConfigError: names the setting and the value.
    """
    if not 0 <= value < 1:
        raise ConfigError(f"{name} is {value}; it is a share, in [0, 1). Did you mean 0.2?")


def pool_of(source: Source, samples: Samples) -> LabelView:
    """Return what a law may read of the samples."""
    labels = samples.y.numpy() if source.task.has_classes else None
    return LabelView(len(samples), labels, source.task.num_classes, source.groups)


def read_convention(text: str) -> tuple[str, ClientTestSplit | None]:
    """Read who tests on what: the convention, and for ``own`` its settings.

    Raises:
        ConfigError: another word, or settings that it does not take.
    """
    call: Call = parse_call(text)
    if call.name not in CONVENTIONS:
        raise ConfigError(
            f"test is {text!r}; it is one of server, client, both, own(share=0.2).{suggestion(call.name, CONVENTIONS)}"
        )
    if call.name == "own":
        return "own", bind(call, ClientTestSplit, what="test")
    if call.positional or call.named:
        raise ConfigError(f"test={text!r}: {call.name} takes no settings; own(share=0.2) does.")
    return call.name, None


def pooled(source: Source) -> Source:
    """Join the test set to the training set."""
    if source.test is None:
        return source
    joined: dict[str, Groups] = {}
    for name, group in source.groups.items():
        if group.test is None:
            raise DataError(
                f"test own pools the official sets, and the test samples of {source.name} have no {name}; use"
                " test=client."
            )
        joined[name] = Groups(group.names, np.concatenate([group.train, group.test]))
    scale = source.scale
    again = None if scale is None else (lambda parts: pooled(scale(parts)))
    return replace(source, train=Joined(source.train, source.test), test=None, groups=joined, scale=again)


def own_tests(
    convention: str, own: ClientTestSplit | None, source: Source, train: LabelView, partition: Partition, seed: int
) -> tuple[ClientTests | None, tuple[str, ...]]:
    """Form the clients' test splits, with notes for the user; None where only the server tests."""
    if own is not None:
        return OwnSplit(partition, train.labels, own.share, own.by, seed), ()
    if source.test is None:
        raise DataError(
            f"test is {convention}, and {source.name} has no test set; use test='own(share=0.2)', which keeps a share"
            " of each client's samples."
        )
    if convention == "server":
        return None, ()
    test = pool_of(source, source.test)
    twin = partition.mirror(test)
    if twin is None:
        return ClassMix(partition, train, test, seed), ()
    if isinstance(twin, ExplicitPartition) and (without := np.flatnonzero(twin.sizes() == 0)).size:
        return PartitionedTest(twin), (f"client tests: {_some(without)} no test sample.",)
    return PartitionedTest(twin), ()


def draw_heldout(spec: DataSpec, clients: int) -> tuple[int, ...]:
    """Draw the clients that are kept out of training, sorted."""
    if not spec.heldout:
        return ()
    count = int(spec.heldout * clients + 0.5)
    if not 1 <= count < clients:
        raise DataError(
            f"heldout is {spec.heldout} of {clients} clients, which is {count}; at least 1 client is held out and at"
            " least 1 trains."
        )
    return tuple(sorted(stream(spec.seed, "heldout").choice(clients, count, replace=False).tolist()))


def _some(ids: Ints) -> str:
    shown = ", ".join(map(str, ids[:10].tolist()))
    return (
        f"{len(ids)} client{'s' if len(ids) > 1 else ''} ({shown}{', ...' if len(ids) > 10 else ''})"
        f" {'have' if len(ids) > 1 else 'has'}"
    )


def small_clients(partition: Partition, validation: float) -> tuple[str, ...]:
    """Name the clients with no sample, and those with one."""
    if not isinstance(partition, ExplicitPartition):
        return ()
    sizes, notes = partition.sizes(), []
    if (empty := np.flatnonzero(sizes == 0)).size:
        notes.append(f"partition: {_some(empty)} no sample and cannot train.")
    if (single := np.flatnonzero(sizes == 1)).size:
        notes.append(
            f"partition: {_some(single)} a single sample, which is trained"
            f" on{' and not validated' if validation else ''}."
        )
    return tuple(notes)
