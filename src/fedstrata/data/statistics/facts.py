"""Describe a federation in numbers: sizes, labels, skew.

Facts are plain data: a report needs no samples.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fedstrata.common.errors import StateError
from fedstrata.common.random_streams import stream
from fedstrata.data.statistics.divergence import label_skew, quantity_skew
from fedstrata.data.statistics.feature_shift import feature_skew
from fedstrata.data.statistics.survey import SHOWN, Survey, spaced, survey
from fedstrata.data.task_kinds import find_task

if TYPE_CHECKING:
    from fedstrata.data.federation import Federation

DIGITS = 6  # of numbers about skew, so that they do not depend on how a machine orders its sums


@dataclass(frozen=True)
class Facts:
    """A federation in numbers.

    Attributes:
        name: of the data; kind: of its task, such as "classification" or "regression".
        labels: class names; () where targets are no classes.
        clients, heldout: counts; law: of the partition.
        train, validation: samples over all clients (held-out ones included).
        test: samples of the server's test set, 0 where only clients test.
        own_test: samples over all clients' test splits, which may overlap; 0 where they have none.
        chance: accuracy of always predicting the most frequent class of the test data (of the clients' test splits
            where there is no server test); None where targets are no classes.
        shown: clients of ``names``, ``sizes`` and ``counts``: all up to 200, otherwise evenly spaced ones.
        names: of these clients, as users know them (values of a client column, folder names, or numbers).
        sizes: their training samples.
        counts: training samples of each class, a row for each client.
        skew: name -> number, as ``fedstrata doctor`` explains them: label_js, quantity_gini, feature_shift, ...; None
            where it is undefined.
        notes: for the user.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    clients: int
    heldout: int
    law: str
    train: int
    validation: int
    test: int
    chance: float | None
    shown: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    counts: tuple[tuple[int, ...], ...] = ()
    skew: Mapping[str, float | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    own_test: int = 0

    @property
    def has_classes(self) -> bool:
        """Whether targets are class numbers."""
        return find_task(self.kind).targets == "classes"

    @property
    def has_accuracy(self) -> bool:
        """Whether models are scored by an accuracy, in [0, 1]."""
        return find_task(self.kind).headline == "accuracy"

    def as_dict(self) -> dict[str, Any]:
        """Return plain data that JSON stores exactly; :meth:`read` gives an equal record."""
        plain = dataclasses.asdict(self)
        return {name: _listed(value) for name, value in plain.items()}

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Facts:
        """Read the record that :meth:`as_dict` wrote.

        Raises:
            StateError: a field that is missing, unknown, or of another type; the message names it.
        """
        if not isinstance(given, Mapping):
            raise StateError(f"facts of a federation are a JSON object; this is {type(given).__name__}.")
        known = {f.name for f in dataclasses.fields(cls)}
        if missing := [name for name in _KINDS if name not in given]:
            raise StateError(
                f"facts of a federation lack {', '.join(missing)}; they were written by another version, or are"
                " damaged."
            )
        if unknown := sorted(str(name) for name in given if name not in known):
            raise StateError(
                f"facts of a federation hold {', '.join(unknown)}, which is not among {', '.join(_KINDS)}."
            )
        return cls(**{name: _checked(name, value) for name, value in given.items()})


_KINDS: Mapping[str, str] = {
    "name": "text",
    "kind": "text",
    "labels": "texts",
    "clients": "count",
    "heldout": "count",
    "law": "text",
    "train": "count",
    "validation": "count",
    "test": "count",
    "chance": "number",
    "shown": "counts",
    "names": "texts",
    "sizes": "counts",
    "counts": "table",
    "skew": "numbers",
    "notes": "texts",
    "own_test": "count",
}
"""What each field holds in JSON."""


def _listed(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_listed(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def _is(value: Any, kind: str) -> bool:
    if kind == "text":
        return isinstance(value, str)
    if kind == "count":
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if kind == "number":
        return value is None or (
            isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        )
    if kind == "numbers":
        return isinstance(value, Mapping) and all(isinstance(k, str) and _is(v, "number") for k, v in value.items())
    inner = {"texts": "text", "counts": "count", "table": "counts"}[kind]
    return isinstance(value, Sequence) and not isinstance(value, str) and all(_is(item, inner) for item in value)


def _checked(name: str, value: Any) -> Any:
    kind = _KINDS[name]
    if not _is(value, kind):
        raise StateError(
            f"facts of a federation: {name} is {str(value)[:60]!r}, which is not a {kind}; the file is damaged."
        )
    if kind == "table":
        return tuple(tuple(row) for row in value)
    return tuple(value) if kind in ("texts", "counts") else dict(value) if kind == "numbers" else value


def facts_of(federation: Federation, *, features: bool | None = None) -> Facts:
    """Compute the facts of a federation.

    Args:
        federation: any; of a derived one only the shown clients are surveyed, with a
            note.
        features: whether to measure feature skew, which reads up to 4,096 samples; None measures it where samples are
            in memory.
    """
    return facts_from(survey(federation), features=features)


def facts_from(seen: Survey, *, features: bool | None = None) -> Facts:
    """Compute the facts of a surveyed federation; see :func:`facts_of`."""
    federation = seen.federation
    shown = spaced(federation.clients, SHOWN)
    positions = (
        np.searchsorted(seen.ids, shown) if seen.whole or federation.partition.lazy else spaced(len(seen.ids), SHOWN)
    )
    shown = seen.ids[positions]
    classes = federation.task.has_classes
    return Facts(
        name=federation.name,
        kind=federation.task.kind,
        labels=tuple(federation.task.labels) if classes else (),
        clients=federation.clients,
        heldout=len(federation.heldout),
        law=federation.partition.law,
        train=seen.total(seen.training),
        validation=seen.total(seen.validation),
        test=0 if federation.test is None else len(federation.test),
        chance=_chance(seen) if classes else None,
        shown=tuple(shown.tolist()),
        names=tuple(federation.client_name(client) for client in shown.tolist()),
        sizes=tuple(seen.training[positions].tolist()),
        counts=tuple(tuple(row) for row in seen.counts[positions].tolist()),
        skew=_skew(seen, shown.tolist(), not federation.train.lazy if features is None else features),
        notes=(*federation.notes, *_partial(seen)),
        own_test=0 if federation.own_test is None else seen.total(seen.test),
    )


def _chance(seen: Survey) -> float | None:
    federation = seen.federation
    counts = (
        seen.tested
        if federation.test is None
        else np.bincount(federation.test.y.numpy(), minlength=federation.task.classes)
    )
    return float(counts.max() / counts.sum()) if counts.sum() else None


def _skew(seen: Survey, shown: list[int], features: bool) -> dict[str, float | None]:  # noqa: FBT001
    federation = seen.federation
    measured: dict[str, float | None] = {}
    if federation.task.has_classes:
        measured |= label_skew(seen.counts, stream(federation.seed, "facts", "labels"))
    measured |= quantity_skew(seen.training)
    if features:
        measured |= feature_skew(federation, shown)
    return {name: None if value is None else round(value, DIGITS) + 0.0 for name, value in measured.items()}


def _partial(seen: Survey) -> tuple[str, ...]:
    if seen.whole:
        return ()
    return (
        (
            f"{len(seen.ids):,} of {seen.federation.clients:,} clients were surveyed, evenly spaced; totals"
            " are scaled up."
        ),
    )
