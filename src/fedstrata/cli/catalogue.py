"""What is registered, as rows of text for ``fedstrata list``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from fedstrata.common import plugins

Rows: TypeAlias = Sequence[Mapping[str, str]]

EXECUTORS: Mapping[str, str] = {
    "auto": "measures those that agree bit for bit in the first rounds, and keeps the fastest",
    "loop": "one client after another, in this process",
    "threads": "several clients at a time, one intra-op thread each",
    "processes": "several clients at a time in processes of their own, with shared memory",
    "batched": "clients stacked along a leading axis; small models; equal to loop to 1e-6, not bit for bit",
}


MEASURES: Mapping[str, str] = {
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

TRACKERS: Mapping[str, str] = {
    "tensorboard": "event files for TensorBoard: tensorboard(folder='runs/tb')",
    "mlflow": "an MLflow run in a folder or on a server: mlflow(uri='runs/mlflow', experiment='fedstrata')",
}


def _plugged(kind: plugins.Kind) -> Sequence[plugins.Plugin]:
    """What installed packages offer; nothing of it is imported."""
    return tuple(plugins.installed(kind).values())


def _origin(plugin: plugins.Plugin) -> str:
    return f"plug-in: {plugin.origin}"


def _methods() -> Rows:
    from fedstrata.methods import rows  # a registry is loaded only when it is listed  # noqa: PLC0415

    plain = {
        "method": "fedavg",
        "what it does": "the empty chain: local training, weighted mean",
        "source": "McMahan et al. 2017",
    }
    ours = [plain, *({"method": r.name, "what it does": r.summary, "source": r.source} for r in rows())]
    return ours + [{"method": p.name, "what it does": p.about, "source": _origin(p)} for p in _plugged("methods")]


def _datasets() -> Rows:
    from fedstrata.data import datasets  # noqa: PLC0415

    ours = [
        {"data": r.name, "what it is": r.about, "needs": "nothing" if r.offline else "data.root", "source": r.source}
        for r in datasets()
    ]
    return ours + [
        {"data": p.name, "what it is": p.about, "needs": "?", "source": _origin(p)} for p in _plugged("datasets")
    ]


def _partitions() -> Rows:
    from fedstrata.data import partitions  # noqa: PLC0415

    ours = [{"partition": r.name, "how samples are dealt": r.about, "source": r.source} for r in partitions()]
    return ours + [
        {"partition": p.name, "how samples are dealt": p.about, "source": _origin(p)} for p in _plugged("partitions")
    ]


def _models() -> Rows:
    from fedstrata.models.registry import rows  # noqa: PLC0415

    ours = [{"model": r.name, "what it is": r.summary, "norm": r.norm or "-", "source": r.source} for r in rows()]
    return ours + [
        {"model": p.name, "what it is": p.about, "norm": "?", "source": _origin(p)} for p in _plugged("models")
    ]


def _measures() -> Rows:
    from fedstrata.diagnostics.registry import MEASURES as REGISTERED  # noqa: PLC0415

    scores = [
        {"measure": name, "where": "metrics of summary.json", "what it says": about} for name, about in MEASURES.items()
    ]
    looks = [
        {"measure": name, "where": f"measures={name}", "what it says": m.text} for name, m in REGISTERED.items().items()
    ]
    plugged = [
        {"measure": p.name, "where": f"measures={p.name} ({p.origin})", "what it says": p.about}
        for p in _plugged("measures")
    ]
    return [*scores, *looks, *plugged]


def _studies() -> Rows:
    from fedstrata.studies.registry import settings, table  # noqa: PLC0415

    return [
        {"study": name, "runs": _several(s.least, s.most), "settings": settings(s) or "-", "what it says": s.text}
        for name, s in table().items()
    ]


def _several(least: int, most: int | None) -> str:
    return str(least) if most == least else f"{least} or more" if most is None else f"{least} to {most}"


def _trackers() -> Rows:
    ours = [{"tracker": name, "where curves go": about, "source": "extra: track"} for name, about in TRACKERS.items()]
    return ours + [{"tracker": p.name, "where curves go": p.about, "source": _origin(p)} for p in _plugged("trackers")]


def _executors() -> Rows:
    return [{"executor": name, "who trains": about} for name, about in EXECUTORS.items()]


CATALOGUES: Mapping[str, Callable[[], Rows]] = {
    "methods": _methods,
    "datasets": _datasets,
    "models": _models,
    "partitions": _partitions,
    "measures": _measures,
    "studies": _studies,
    "trackers": _trackers,
    "executors": _executors,
}


def rows(what: str) -> Rows:
    """The rows of one catalogue, one of CATALOGUES."""
    return CATALOGUES[what]()
