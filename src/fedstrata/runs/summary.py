"""What a run came to: the content of summary.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedstrata.core.params import Params
from fedstrata.engine.assembly import RunComponents
from fedstrata.engine.rounds import Engine, tally
from fedstrata.storage import sha256_of


def summarise(parts: RunComponents, rows: Sequence[Mapping[str, Any]], engine: Engine) -> dict[str, Any]:
    """What summary.json holds; null where a task has none."""
    scored = [r for r in rows if r.get("evaluated")]
    main = [(r["accuracy"] if parts.federation.test is not None else r["shared_on_clients"], r) for r in scored]
    main = [(a, r) for a, r in main if a is not None]
    last = scored[-1] if scored else {}
    classes = parts.federation.task.kind == "classification"
    curve = [a for a, _ in main] if classes else []
    chosen = [(r["validation"], -r["round"], a) for a, r in main if r["validation"] is not None]
    best = max(chosen) if chosen and classes else None
    total = engine.ledger.total
    own = (
        "personal",
        "personal_weighted",
        "personal_std",
        "personal_worst10",
        "heldout",
        "heldout_own",
        "heldout_adapted",
    )
    accuracy = {
        "final": curve[-1] if curve else None,
        "best": max(curve) if curve else None,
        "window": sum(curve[-max(1, len(curve) // 10) :]) / max(1, len(curve) // 10) if curve else None,
        "selected": best[2] if best else None,
        "personal_selected": scored_at(scored, -best[1]).get("personal") if best else None,
    } | {key: last.get(key) if classes else None for key in own}
    metrics = dict(last.get("metrics") or {}) | {"shared_on_clients": last.get("shared_on_clients")}
    if not classes:
        metrics |= {key: last.get(key) for key in own}
    refused: dict[str, int] = {}
    for row in rows:
        for _, code, _ in row["refused"]:
            refused[code] = refused.get(code, 0) + 1
    return {
        "method": str(parts.method),
        "seed": parts.config.seed,
        "rounds": len(rows),
        "accuracy": accuracy,
        "stopped_by": engine.stopped_by,
        "selected_round": -best[1] if best else None,
        "metrics": metrics,
        "bytes_up": total.up.payload,
        "bytes_down": total.down.payload,
        "framing_up": total.up.framing,
        "framing_down": total.down.framing,
        "flops": total.flops,
        "seconds": engine.seconds,
        "eval_seconds": sum(r.get("eval_seconds") or 0.0 for r in rows),
        "executor": engine.executor.name,
        "workers": engine.executor.workers,
        "refused": refused,
        "rounds_without_update": sum(not r["moved"] for r in rows),
        "norms_of": engine.norms_of,
        "private": len(engine.plan.keep),
        "front": tally(row.get("front") for row in rows) or None,
        "bn": parts.config.bn if len(parts.setup.layout.statistics.names) else None,
        "model_sha256": fingerprint(engine.server.params),
    }


def scored_at(rows: Sequence[Mapping[str, Any]], number: int) -> Mapping[str, Any]:
    """The row of a round."""
    return next(row for row in rows if row["round"] == number)


def fingerprint(params: Params) -> str:
    """SHA-256 over parameters, then statistics, in layout order, little-endian."""
    assert params.buffers is not None
    return sha256_of([*params.views.values(), *params.buffers.views.values()])
