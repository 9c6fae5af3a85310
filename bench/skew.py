"""Measure the skew of known partitions with `fedstrata doctor`: the table that its labels are calibrated on.

    python bench/skew.py [FOLDER]

Digits and the synthetic federations need no files; with a FOLDER that holds cifar10, mnist, pacs and shakespeare, these
too. Means over seeds 0, 1, 2.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from statistics import fmean

from fedstrata import Federation
from fedstrata.config.config import Config
from fedstrata.data.statistics.facts import facts_of

LAWS = (
    "iid",
    "dirichlet(alpha=100)",
    "dirichlet(alpha=1)",
    "dirichlet(alpha=0.3)",
    "dirichlet(alpha=0.1, min=1)",
    "classes(k=2)",
    "classes(k=1)",
)
SIZES = ("quantity(alpha=10)", "quantity(alpha=1, min=0)", "quantity(alpha=0.3, min=0)", "quantity(alpha=0.1, min=0)")
COLUMNS = (
    "label_skew",
    "label_js",
    "label_js_chance",
    "label_classes",
    "label_missing",
    "quantity_gini",
    "quantity_max_median",
    "feature_shift",
    "feature_shift_chance",
)


def cases(folder: str | None) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the name of the data, the law and the settings."""
    for law in (*LAWS, *SIZES):
        yield "digits", law, [f"partition={law}", "clients=20"]
    for alpha in (0, 0.1, 0.5, 1):
        yield f"synthetic({alpha}, {alpha})", "natural", [f"data=synthetic(alpha={alpha}, beta={alpha})"]
    yield "synthetic_iid", "natural", ["data=synthetic_iid"]
    for law in ("iid", "dirichlet(alpha=1, min=1)", "dirichlet(alpha=0.3, min=1)", "dirichlet(alpha=0.1, min=1)"):
        yield "breast_cancer", law, ["data=breast_cancer", f"partition={law}", "clients=10"]
    if folder is None:
        return
    for law in LAWS:
        yield "cifar10", law, ["data=cifar10", f"data.root={folder}", f"partition={law}", "clients=100"]
    for name, law, clients in (
        ("mnist", "natural", "auto"),
        ("pacs", "natural", "auto"),
        ("pacs", "iid", "4"),
        ("shakespeare", "natural", "auto"),
    ):
        yield name, law, [f"data={name}", f"data.root={folder}", f"partition={law}", f"clients={clients}"]


def federation(settings: list[str], seed: int) -> Federation:
    """Build the federation of a run with these settings."""
    return Config.read(None, [*settings, f"seed={seed}"]).federation()


def main(folder: str | None) -> None:
    """Print the table."""
    print("| data | partition | clients | " + " | ".join(name.replace("_", " ") for name in COLUMNS) + " |")
    print("| --- " * (len(COLUMNS) + 3) + "|")
    for name, law, settings in cases(folder):
        seen = [facts_of(federation(settings, seed), features=True) for seed in range(3)]
        means = [[f.skew[column] for f in seen] for column in COLUMNS]
        cells = ["-" if None in values else f"{fmean(v for v in values if v is not None):.3f}" for values in means]
        print(f"| {name} | `{law}` | {seen[0].clients} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
