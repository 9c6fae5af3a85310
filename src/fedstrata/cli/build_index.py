"""Make ``common/index.json`` from the registries: ``python -m fedstrata.cli.build_index``."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from fedstrata.backends.selection import EXECUTORS
from fedstrata.citations.cite import Row
from fedstrata.cli.catalogue import COLUMNS
from fedstrata.common import index, plugins
from fedstrata.data.registry import DATASETS, PARTITIONS
from fedstrata.diagnostics.registry import MEASURES
from fedstrata.methods import rows as methods
from fedstrata.models.registry import MODELS
from fedstrata.studies.registry import STUDIES, settings
from fedstrata.trackers import TRACKERS

SCORES: Mapping[str, str] = {
    "accuracy": "share of right answers",
    "balanced_accuracy": "mean recall over the classes present",
    "macro_f1": "mean F1 over the classes present or predicted",
    "auc": "area under the curve, each class against the rest, mean over the classes present",
    "log_loss": "mean negative log-likelihood, in nats",
    "calibration_error": "gap between confidence and accuracy, 15 bins",
    "rmse": "root of the mean squared error, in units of the target (regression)",
    "r2": "share of the target's variance explained (regression)",
    "shared_on_clients": "the shared model's accuracy on clients' own test splits, mean over clients",
}
"""Keys of "metrics" in summary.json; null where undefined."""


def build() -> dict[str, Any]:
    """Return the content of ``common/index.json``, made from the registries."""
    datasets, partitions = tuple(DATASETS.items().values()), tuple(PARTITIONS.items().values())
    models = tuple(MODELS.items().values())
    fedavg = ("fedavg", "the empty chain: local training, weighted mean", "McMahan et al. 2017")
    auto = ("auto", "measures those that agree bit for bit in the first rounds, and keeps the fastest")
    entries: Mapping[plugins.Kind, list[tuple[str, ...]]] = {
        "methods": [fedavg, *((r.name, r.summary, r.source) for r in methods())],
        "datasets": [(r.name, r.about, "nothing" if r.offline else "data.root", r.source) for r in datasets],
        "models": [(r.name, r.summary, r.norm or "-", r.source) for r in models],
        "partitions": [(r.name, r.about, r.source) for r in partitions],
        "measures": [
            *((name, "metrics of summary.json", about) for name, about in SCORES.items()),
            *((name, f"measures={name}", measure.text) for name, measure in MEASURES.items().items()),
        ],
        "studies": [(name, _range(s.least, s.most), settings(s) or "-", s.text) for name, s in STUDIES.items().items()],
        "trackers": [(name, _summary(tracker), "extra: track") for name, tracker in TRACKERS.items().items()],
        "executors": [auto, *((name, row.summary) for name, row in EXECUTORS.items().items())],
    }
    return {
        "lists": {kind: [dict(zip(COLUMNS[kind], entry, strict=True)) for entry in entries[kind]] for kind in COLUMNS},
        "citations": {
            "methods": {row.name: _cited(row) for row in methods()},
            "datasets": {row.name: _cited(row) for row in datasets},
            "models": {row.name: _cited(row) for row in models},
            "partitions": {row.name: _cited(row) for row in partitions},
        },
    }


def _cited(row: Row) -> dict[str, Any]:
    return {"cite": list(row.cite), "uncited": row.uncited}


def _range(least: int, most: int | None) -> str:
    return str(least) if most == least else f"{least} or more" if most is None else f"{least} to {most}"


def _summary(factory: Callable[..., object]) -> str:
    return (inspect.getdoc(factory) or "").partition("\n")[0].rstrip(".")


def written() -> str:
    """Return :func:`build` as the text of the file."""
    return json.dumps(build(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    index.PATH.write_text(written(), encoding="utf-8")
    print(index.PATH)
