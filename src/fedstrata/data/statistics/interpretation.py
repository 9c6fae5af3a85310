"""Describe skew in words.

The thresholds come from well-known partitions: ``python bench/skew.py`` prints their table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

WORDS = ("none", "low", "moderate", "strong")


@dataclass(frozen=True)
class Scale:
    """How to read a number.

    Attributes:
        name: key in ``Facts.skew``.
        title: for users.
        thresholds: at which the number is low, moderate, strong.
        known: known values near the thresholds.
    """

    name: str
    title: str
    thresholds: tuple[float, float, float]
    known: str


SCALES: tuple[Scale, ...] = (
    Scale(
        "label_skew",
        "label skew",
        (0.05, 0.15, 0.4),
        "0 a random deal, 1 one class a client; dirichlet(alpha=1) gives 0.21 to 0.25, alpha=0.3 0.48 to 0.74,"
        " alpha=0.1 0.76 to 0.94, classes(k=2) of 10 0.80",
    ),
    Scale(
        "quantity_gini",
        "quantity skew",
        (0.05, 0.25, 0.6),
        "Gini coefficient: 0 equal sizes, near 1 one client holds all; quantity(alpha=10) gives 0.18,"
        " dirichlet(alpha=0.1) 0.36 to 0.59, quantity(alpha=1) 0.46, quantity(alpha=0.3) 0.77",
    ),
    Scale(
        "feature_shift",
        "feature skew",
        (0.01, 0.05, 0.2),
        "share of the spread of samples of one label that is between clients: 0 one source; 0.05 and 0.2 are clients"
        " whose centres differ by 0.23 and 0.5 of the spread within a client; MNIST's writers give 0.37, PACS's domains"
        " 0.37",
    ),
    Scale(
        "target_shift",
        "target skew",
        (0.01, 0.05, 0.2),
        "share of the targets' spread that is between clients: 0 one source; 0.05 and 0.2 are clients whose means"
        " differ by 0.23 and 0.5 of the spread within a client",
    ),
)


EXPLANATIONS: Mapping[str, tuple[str, str]] = {
    "label_skew": ("label skew", "0: labels as after a random deal; 1: every client holds one class only"),
    "label_js": (
        "label divergence",
        "mean Jensen-Shannon divergence of a client's labels to all labels, in bits; 0: alike, 1: no class in common",
    ),
    "label_classes": ("classes a client", "how many equally frequent classes would be as varied, mean over clients"),
    "label_missing": ("classes missing", "share of the classes of which a client has no sample, mean over clients"),
    "quantity_gini": (
        "size inequality",
        "Gini coefficient of clients' sizes; 0: all equal, near 1: one client holds everything",
    ),
    "quantity_max_median": ("largest to median", "samples of the largest client over those of the median one"),
    "quantity_smallest_tenth": (
        "smallest tenth",
        "share of all samples that the smallest tenth of the clients hold; 0.1: all equal",
    ),
    "feature_shift": (
        "feature shift",
        (
            "share of the variance between samples of one label that is between clients; above chance: clients'"
            " inputs differ"
        ),
    ),
    "target_shift": ("target shift", "the same of a regression's targets"),
}
"""Statistic in ``Facts.skew`` -> its title in the report, and what its values mean."""
CHANCE = "_chance"
"""Suffix of a statistic in ``Facts.skew``: its value after a random deal to clients of the same sizes."""


@dataclass(frozen=True)
class Meaning:
    """A number in words.

    Attributes:
        name, title: as in the scale.
        value: the number.
        chance: the value that chance alone reaches: the largest of 19 random deals for shifts; 0 for the others, which
            are corrected for chance.
        word: one of WORDS, or "unknown" where the number is undefined.
        text: an explanation with numbers.
        known: known values near the thresholds.
    """

    name: str
    title: str
    value: float | None
    chance: float | None
    word: str
    text: str
    known: str


def meanings(skew: Mapping[str, float | None]) -> tuple[Meaning, ...]:
    """Describe every kind of skew that was measured.

    Args:
        skew: of :class:`fedstrata.data.statistics.facts.Facts`.
    """
    return tuple(_meaning(scale, skew) for scale in SCALES if scale.name in skew)


def _meaning(scale: Scale, skew: Mapping[str, float | None]) -> Meaning:
    value, chance = skew[scale.name], skew.get(f"{scale.name}_chance")
    return Meaning(
        scale.name, scale.title, value, chance, word(scale, value, chance), _BEHIND[scale.name](skew), scale.known
    )


def word(scale: Scale, value: float | None, chance: float | None) -> str:
    """Return none, low, moderate or strong; a shift that chance reaches is none."""
    if value is None:
        return "unknown"
    if chance is not None and value <= chance:
        return WORDS[0]
    return WORDS[sum(value >= threshold for threshold in scale.thresholds)]


def _labels(skew: Mapping[str, float | None]) -> str:
    if skew["label_js"] is None:
        return "there is one client"
    js, classes, missing = (
        (skew[f"label_{name}"], skew[f"label_{name}_chance"]) for name in ("js", "classes", "missing")
    )
    return (
        f"a client's labels are as varied as {_n(classes[0], 1)} equal classes ({_n(classes[1], 1)} after a random"
        f" deal), {_n(missing[0], 0, 100)} % of the classes are missing ({_n(missing[1], 0, 100)} %), divergence to the"
        f" pooled labels {_n(js[0], 3)} bits ({_n(js[1], 3)})"
    )


def _sizes(skew: Mapping[str, float | None]) -> str:
    ratio, tenth = skew["quantity_max_median"], skew["quantity_smallest_tenth"]
    parts = [] if ratio is None else [f"the largest client holds {ratio:.3g} times the median one"]
    parts += (
        []
        if tenth is None
        else [f"the smallest tenth of the clients hold {100 * tenth:.2g} % of the samples (10 % if all were equal)"]
    )
    return "; ".join(parts) or "no client holds a sample"


def _shift(name: str) -> Callable[[Mapping[str, float | None]], str]:
    def describe(skew: Mapping[str, float | None]) -> str:
        value, chance = skew[f"{name}_shift"], skew[f"{name}_shift_chance"]
        if value is None or chance is None:
            return "nothing to compare: one client, or one sample of each label a client"
        context = "no more than chance" if value <= chance else f"chance alone reaches {chance:.3f}"
        return f"{100 * max(value, 0):.2g} % of the spread is between clients; {context}"

    return describe


def _n(value: float | None, digits: int, factor: int = 1) -> str:
    return "-" if value is None else f"{factor * value:.{digits}f}"


_BEHIND: Mapping[str, Callable[[Mapping[str, float | None]], str]] = {
    "label_skew": _labels,
    "quantity_gini": _sizes,
    "feature_shift": _shift("feature"),
    "target_shift": _shift("target"),
}
