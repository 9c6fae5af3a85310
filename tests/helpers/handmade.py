"""A comparison made by hand: plausible curves, personal scores, held-out clients, measures, failed runs.

All is derived from names.
"""

from __future__ import annotations

import zlib

import numpy as np

from fedstrata.analysis.comparison import Entry
from fedstrata.data.statistics.facts import Facts
from fedstrata.report.views import Comparison, Result

TOPS = {
    "fedavg": 0.55,
    "fedprox(mu=0.01)": 0.56,
    "fedavgm": 0.62,
    "fedadam": 0.58,
    "scaffold": 0.60,
    "moon": 0.55,
    "fedper": 0.13,
    "ditto": 0.55,
}
"""Where the curve of a method's shared model ends; FedPer's heads are private, so its shared model knows nothing."""
METHOD_SETTINGS = {"fedper": 0.78, "ditto": 0.80}
"""The same of its clients' own models, where they differ from the shared one."""
METHODS = ("fedavg", "fedprox(mu=0.01)", "fedavgm", "fedper", "ditto")
CHANCE, CLASSES, SIZE = 0.1, 10, 580_000.0


def rng_of(*words):
    """A generator for these words."""
    return np.random.default_rng([zlib.crc32(repr(word).encode()) for word in words])


def result(
    method="fedavg",
    seed=0,
    *,
    rounds=30,
    every=1,
    validation=True,
    clients=20,
    heldout=2,
    regression=False,
    measures=True,
    top=None,
    pace=5.0,
    noise=0.01,
    flat=None,
    **summary,
):
    """One run.

    ``top`` and ``pace`` shape the curve (pace in rounds; large: still rising at the end), ``noise`` is its standard
    deviation, ``flat`` makes it this constant; ``clients=0`` is a federation whose clients test nothing; further
    keywords replace keys of the summary.
    """
    rng = rng_of(method, seed)
    top = TOPS.get(method, 0.5) if top is None else top
    end = top + rng.normal(0, 0.006)
    rows = [
        _row(
            r,
            rounds,
            every,
            rng,
            (end, pace, noise, flat),
            method,
            (validation, clients, heldout, regression, measures),
        )
        for r in range(rounds)
    ]
    own = METHOD_SETTINGS.get(method)
    finals = _clients(rng_of(method, seed, "clients"), rows[-1], clients, own is None)
    return Result(_summary(method, seed, rows, validation, regression) | summary, rows, clients=finals)


def _row(r, rounds, every, rng, shape, method, what):
    end, pace, noise, flat = shape
    validation, clients, heldout, regression, measures = what
    grown = 1 - np.exp(-(r + 1) / pace)
    cohort = sorted(int(c) for c in rng.choice(max(clients, 20), 10, replace=False))
    score = float(np.clip(CHANCE + (end - CHANCE) * grown + rng.normal(0, noise), 0, 1)) if flat is None else flat
    own_end = METHOD_SETTINGS.get(method, end + 0.02)
    personal = (
        float(np.clip(CHANCE + (own_end - CHANCE) * grown + rng.normal(0, noise / 2), 0, 1)) if flat is None else flat
    )
    row = {
        "round": r,
        "cohort": cohort,
        "replies": 10,
        "updated": True,
        "refused": [],
        "loss": float(2.3 - 1.8 * grown),
        "bytes_up": int(10 * SIZE),
    }
    extra = 2 if method.startswith("scaffold") else 1
    row |= {
        "bytes_down": int(10 * SIZE * extra),
        "framing_up": 4960,
        "framing_down": 4640,
        "flops": 3e9 * (3 if method == "moon" else 1),
    }
    row |= {
        "seconds": 0.5 + 0.01 * r / rounds,
        "eval_seconds": 0.0,
        "evaluated": False,
        "accuracy": None,
        "validation": None,
        "metrics": {},
    }
    row |= dict.fromkeys(
        ("personal", "personal_weighted", "personal_std", "personal_worst10", "shared_on_clients", "heldout")
    )
    if measures:
        row["measures"] = {"drift": {"norm": float(1 + grown), "cosine": None if r == 0 else float(0.5 - grown / 4)}}
    if (r + 1) % every and r + 1 != rounds:
        return row
    row |= {"evaluated": True, "eval_seconds": 0.1}
    shared = -(2.0 - score) if regression else score
    mine = -(2.0 - personal) if regression else personal
    if validation:
        row["validation"] = (mine if method in METHOD_SETTINGS else shared) + float(rng.normal(0, 0.003))
    if regression:
        row["metrics"] = {"rmse": 2.0 - score, "r2": score}
    else:
        row |= {
            "accuracy": score,
            "metrics": {"accuracy": score, "auc": 0.5 + score / 2, "log_loss": 2.3 - score, "calibration_error": 0.05},
        }
    if clients:
        row |= {
            "personal": mine,
            "personal_weighted": mine,
            "personal_std": 0.1,
            "personal_worst10": mine - 0.2,
            "shared_on_clients": shared if method in METHOD_SETTINGS else mine,
        }
        row["heldout"] = shared - 0.02 if heldout else None
    return row


def _summary(method, seed, rows, validation, regression):
    scored = [row for row in rows if row["evaluated"]]
    last, key = scored[-1], "accuracy"
    curve = [] if regression else [row[key] for row in scored]
    tail = max(1, len(curve) // 10)
    chosen = max(scored, key=lambda row: (row["validation"], -row["round"])) if validation else None
    picked = chosen if chosen is not None and not regression else None
    own = {
        name: last[name] for name in ("personal", "personal_weighted", "personal_std", "personal_worst10", "heldout")
    }
    held = {"heldout_adapted": None if own["heldout"] is None else own["heldout"] + 0.05, "heldout_own": own["heldout"]}
    accuracy = (
        {"final": curve[-1], "best": max(curve), "window": sum(curve[-tail:]) / tail}
        if curve
        else dict.fromkeys(("final", "best", "window"))
    )
    accuracy |= {"selected": picked and picked[key], "personal_selected": picked and picked["personal"]}
    accuracy |= dict.fromkeys((*own, *held)) if regression else own | held
    metrics = dict(last["metrics"]) | {"shared_on_clients": last["shared_on_clients"]} | (own if regression else {})
    totals = {
        name: sum(row[name] for row in rows)
        for name in ("bytes_up", "bytes_down", "framing_up", "framing_down", "flops", "seconds", "eval_seconds")
    }
    return {
        "method": method,
        "seed": seed,
        "rounds": len(rows),
        "accuracy": accuracy,
        "selected_round": picked and picked["round"],
        "metrics": metrics,
        **totals,
        "executor": "loop",
        "workers": 1,
        "refused": {},
        "rounds_without_update": 0,
        "norm_source_client": None,
        "bn": None,
        "stopped_by": None,
        "num_private_tensors": int(method == "fedper"),
        "model_sha256": f"{zlib.crc32(repr((method, seed)).encode()):064x}",
    }


def _clients(rng, last, clients, same):
    if not clients:
        return {}
    offsets = rng.normal(0, 0.1, clients)
    offsets -= offsets.mean()
    found = {}
    for client, offset in enumerate(offsets.tolist()):
        mine = last["personal"] + offset
        shared = mine if same else last["shared_on_clients"] + offset
        if last["accuracy"] is not None:
            mine, shared = min(1.0, max(0.0, mine)), min(1.0, max(0.0, shared))
        found[client] = {"personal": mine, "shared": shared}
    return found


def facts(*, clients=20, heldout=2, regression=False, chance=CHANCE, **more):
    """A federation of ten classes whose counts add up, or a regression."""
    shown = tuple(range(clients or 20))
    counts = (
        ()
        if regression
        else tuple(tuple(int(c) for c in rng_of("facts", i).dirichlet([0.3] * CLASSES) * 90) for i in shown)
    )
    sizes = tuple(90 for _ in shown) if regression else tuple(sum(row) for row in counts)
    base = {
        "name": "made",
        "kind": "regression" if regression else "classification",
        "labels": () if regression else tuple("0123456789"),
    }
    base |= {
        "clients": len(shown),
        "heldout": heldout,
        "law": "dirichlet(alpha=0.3)",
        "train": sum(sizes),
        "validation": 180,
        "test": 360,
    }
    base |= {
        "chance": None if regression else chance,
        "shown": shown,
        "names": tuple(f"client {i}" for i in shown),
        "sizes": sizes,
        "counts": counts,
    }
    return Facts(
        **(
            base
            | {"skew": {} if regression else {"label_js": 0.41, "quantity_gini": 0.12, "feature_shift": None}}
            | more
        )
    )


def comparison(
    methods=METHODS,
    seeds=(0, 1, 2),
    *,
    failed=(),
    regression=False,
    baseline=None,
    facts_more=None,
    fields=None,
    runs=None,
    **shape,
):
    """All methods on all seeds.

    Args:
        methods: labels, which are methods too.
        seeds: of the runs.
        failed: (label, seed) of runs that failed.
        regression: errors instead of accuracies.
        baseline: label; default the first.
        facts_more: attributes of Facts to replace.
        fields: attributes of Comparison to replace.
        runs: label -> keywords of :func:`result` for that method alone.
        shape: keywords of :func:`result` for all.
    """
    results = {
        (label, seed): result(label, seed, regression=regression, **(shape | (runs or {}).get(label, {})))
        for label in methods
        for seed in seeds
        if (label, seed) not in failed
    }
    config = {
        "data": "made",
        "partition": "dirichlet(alpha=0.3)",
        "rounds": shape.get("rounds", 30),
        "local.lr": 0.1,
        "test": "both",
        "heldout": 0.1,
    }
    config |= {"validation": 0.1 if shape.get("validation", True) else 0.0}
    chosen = {
        "entries": tuple(Entry(label, label) for label in methods),
        "baseline": baseline or methods[0],
        "seeds": tuple(seeds),
        "results": results,
    }
    chosen |= {
        "config": config,
        "facts": facts(clients=shape.get("clients", 20), regression=regression, **(facts_more or {})),
    }
    chosen |= {
        "failures": dict.fromkeys(failed, "the loss was not finite in round 3"),
        "machine": {"processor": "made", "cores": "2", "torch": "2.13.0"},
    }
    chosen |= {
        "command": "fedstrata compare made.toml --methods "
        + " ".join(f'"{m}"' for m in methods)
        + " --seeds "
        + " ".join(map(str, seeds))
    }
    return Comparison(**(chosen | (fields or {})))
