"""Summarise a run: the content of summary.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedstrata.core.params import Model
from fedstrata.engine.assembly import RunComponents
from fedstrata.engine.rounds import Engine
from fedstrata.engine.rows import tally
from fedstrata.storage import sha256_of

OF_CLIENTS = (
    "personal",
    "personal_weighted",
    "personal_std",
    "personal_worst10",
    "heldout",
    "heldout_own",
    "heldout_adapted",
)
"""Scores of clients' models, in a row of rounds.jsonl."""


@dataclass(frozen=True)
class Curve:
    """The main score of the evaluated rounds, where a task has an accuracy.

    Attributes:
        values: of the rounds that have it, in order.
        selected: the round that validation data choose, and its score, or None.
    """

    values: tuple[float, ...]
    selected: tuple[int, float] | None

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], key: str) -> Curve:
        """Return the curve of a score over evaluated rounds."""
        scored = [row for row in rows if row[key] is not None]
        validated = [(row["validation"], -row["round"], row[key]) for row in scored if row["validation"] is not None]
        best = max(validated) if validated else None
        return cls(tuple(row[key] for row in scored), None if best is None else (-best[1], best[2]))

    def summary(self) -> dict[str, float | None]:
        """Return the last, the best, the selected score, and the mean of the last tenth of the evaluations."""
        values = self.values
        tail = max(1, len(values) // 10)
        return {
            "final": values[-1] if values else None,
            "best": max(values) if values else None,
            "window": sum(values[-tail:]) / tail if values else None,
            "selected": self.selected[1] if self.selected else None,
        }


def summarise(parts: RunComponents, rows: Sequence[Mapping[str, Any]], engine: Engine) -> dict[str, Any]:
    """Return the content of summary.json; null where a task has none."""
    scored = [r for r in rows if r.get("evaluated")]
    last = scored[-1] if scored else {}
    has_accuracy = parts.federation.task.has_accuracy
    main = "accuracy" if parts.federation.test is not None else "shared_on_clients"
    curve = Curve.of(scored, main) if has_accuracy else Curve((), None)
    selected = curve.selected[0] if curve.selected else None
    personal_selected = None if selected is None else scored_at(scored, selected).get("personal")
    accuracy = {**curve.summary(), "personal_selected": personal_selected}
    of_clients = {key: last.get(key) for key in OF_CLIENTS}
    metrics = dict(last.get("metrics") or {}) | {"shared_on_clients": last.get("shared_on_clients")}
    total = engine.ledger.total
    return {
        "method": str(parts.method),
        "seed": parts.config.seed,
        "rounds": len(rows),
        "accuracy": accuracy | (of_clients if has_accuracy else dict.fromkeys(OF_CLIENTS)),
        "stopped_by": engine.stopped_by,
        "selected_round": selected,
        "metrics": metrics if has_accuracy else metrics | of_clients,
        "bytes_up": total.up.payload,
        "bytes_down": total.down.payload,
        "framing_up": total.up.framing,
        "framing_down": total.down.framing,
        "flops": total.flops,
        "seconds": engine.seconds,
        "eval_seconds": sum(r.get("eval_seconds") or 0.0 for r in rows),
        "executor": engine.executor.name,
        "workers": engine.executor.workers,
        "refused": dict(Counter(code for row in rows for _, code, _ in row["refused"])),
        "rounds_without_update": sum(not r["updated"] for r in rows),
        "norm_source_client": engine.serving.norm_source_client,
        "num_private_tensors": len(engine.plan.client_local),
        "activation_cache": tally(row.get("activation_cache") for row in rows) or None,
        "bn": parts.config.bn if len(parts.setup.layout.statistics.names) else None,
        "model_sha256": fingerprint(engine.server.model),
    }


def scored_at(rows: Sequence[Mapping[str, Any]], number: int) -> Mapping[str, Any]:
    """Return the row of a round."""
    return next(row for row in rows if row["round"] == number)


def fingerprint(model: Model) -> str:
    """Return SHA-256 over parameters, then statistics, in layout order, little-endian."""
    return sha256_of([*model.views.values(), *model.statistics.views.values()])
