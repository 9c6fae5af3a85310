"""Read the competitors of a comparison: methods with their settings, times seeds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fedstrata.analysis.comparison import Entry
from fedstrata.common.errors import ConfigError, FedstrataError
from fedstrata.common.suggest import suggestion
from fedstrata.config.config import KEYS, Config, command_line
from fedstrata.core.chain import Method, chain
from fedstrata.core.piece import Piece
from fedstrata.methods import method as parse_method

METHOD_SETTINGS = tuple(
    key
    for key in KEYS
    if (key.startswith(("local.", "finetune.")) and key != "local.threads") or key in ("schedule", "weighting", "bn")
)
"""Settings that may differ between competitors: how a client trains and how clients are averaged. All others say
what everybody trains on,
from which weights, who takes part and how it is measured; they are the same for all, or no difference would speak of
the method."""

LABEL = 40  # characters of a label
_SETTING = re.compile(r"(?:^|(?<=\s))[A-Za-z_][A-Za-z0-9_.]*=")


@dataclass(frozen=True)
class Competitor:
    """Describes one competitor.

    Attributes:
        entry: label, method in call syntax, its settings.
        method: the pieces.
        from_python: whether the pieces came from Python, so that their text does not say all.
    """

    entry: Entry
    method: Method
    from_python: bool = False

    def config(self, base: Config, seed: int) -> Config:
        """Return the configuration of this competitor's run with a seed."""
        return base.replace(**{"method": self.entry.method, "seed": seed, **self.entry.settings})


def read_competitors(methods: Sequence[str | Piece | Method], base: Config) -> tuple[Competitor, ...]:
    """Read the competitors, in the order given.

    Args:
        methods: pieces, or texts ``"fedprox(mu=0.1) + fedavgm | local.lr=0.05 local.epochs=2"``: after the bar follow
            its settings (METHOD_SETTINGS).
        base: the configuration of all.
    Raises:
        ConfigError: none at all, an unknown method or key, a setting that must be the same for all, or the same
            competitor twice.
    """
    if isinstance(methods, str | Piece | Method):
        methods = [methods]
    if not methods:
        raise ConfigError(
            'there is no method to compare; give some: --methods "fedavg" "fedprox(mu=0.01)". `fedstrata list methods`'
            " shows all."
        )
    read = [_read(method) for method in methods]
    labels = _labels([(text, method, settings) for text, method, settings, _ in read])
    result = tuple(
        Competitor(Entry(label, text, settings), method, given)
        for label, (text, method, settings, given) in zip(labels, read, strict=True)
    )
    _refuse_duplicates(result, base)
    return result


def _read(given: str | Piece | Method) -> tuple[str, Method, dict[str, Any], bool]:
    if not isinstance(given, str | Piece | Method):
        raise ConfigError(f"a method is a text, a piece or a chain of pieces; {str(given)[:60]!r} is none of them.")
    if not isinstance(given, str):
        method = chain(given)
        return str(method), method, {}, True
    text, bar, rest = given.partition("|")
    text = " ".join(text.split())
    if not text:
        raise ConfigError(
            f"{given!r} names no method; write one, such as fedavg{' | ' + rest.strip() if rest.strip() else ''}."
        )
    if bar and not rest.strip():
        raise ConfigError(
            f"{given!r} has a bar, but no settings after it; write fedavg | local.lr=0.05, or leave the bar out."
        )
    try:
        return text, parse_method(text), method_settings(rest), False
    except FedstrataError as error:
        raise type(error)(f"method {text!r}: {error}") from error


def method_settings(text: str) -> dict[str, Any]:
    """Read the settings after the bar, by public key.

    Raises:
        ConfigError: an unknown key, one given twice, or one that must be the same for all.
    """
    settings = command_line(split_settings(text))
    for key in settings:
        if key not in METHOD_SETTINGS:
            raise ConfigError(
                f"{key} must be the same for all methods of a comparison, or their runs are not paired; set it beside"
                f" --methods. A method may set: {', '.join(METHOD_SETTINGS)}."
            )
    return settings


def split_settings(text: str) -> list[str]:
    """Split ``"local.lr=0.05 schedule=warmup(rounds=5) + cosine"`` into its settings.

    A value ends where the next ``name=`` begins outside brackets.
    """
    starts = [m.start() for m in _SETTING.finditer(text) if _depth(text[: m.start()]) == 0]
    if text.strip() and (not starts or text[: starts[0]].strip()):
        word = text.split(maxsplit=1)[0]
        raise ConfigError(
            f"{word!r} is not key=value; settings after the bar are written like local.lr=0.05 local.epochs=2."
        )
    return [text[a:b].strip() for a, b in pairwise([*starts, len(text)])]


def _depth(text: str) -> int:
    return sum((c in "([") - (c in ")]") for c in text)


def _labels(read: Sequence[tuple[str, Method, Mapping[str, Any]]]) -> list[str]:
    """Return short texts that differ: the whole text where it is short, otherwise the names of the pieces.

    Numbered where they would be equal.
    """
    texts = [
        text + (" | " + " ".join(f"{k}={v}" for k, v in settings.items()) if settings else "")
        for text, _, settings in read
    ]
    short = [
        t if len(t) <= LABEL else _cut(_names(method) + (" | …" if settings else ""))
        for t, (_, method, settings) in zip(texts, read, strict=True)
    ]
    labels: list[str] = []
    for text in short:
        number, label = 1, text
        while label in labels or (number == 1 and short.count(text) > 1):
            label = f"{text} #{number}" if short.count(text) > 1 else f"{text} #{number + 1}"
            number += 1
        labels.append(label)
    return labels


def _names(method: Method) -> str:
    return " + ".join(piece.name for piece in method.pieces) or "fedavg"


def _cut(text: str) -> str:
    return text if len(text) <= LABEL else text[: LABEL - 1] + "…"


def _refuse_duplicates(competitors: Sequence[Competitor], base: Config) -> None:
    """Refuse two equal competitors: they would count as independent ones in every correction for many methods."""
    seen: dict[str, str] = {}
    for competitor in competitors:
        meant = competitor.config(base, 0).replace(method="fedavg").digest() + str(competitor.method)
        if meant in seen:
            raise ConfigError(
                f"{competitor.entry.method!r} and {seen[meant]!r} are the same competitor; give it once, or one of them"
                " other settings."
            )
        seen[meant] = competitor.entry.method


def check_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    """Check the seeds and return them.

    Raises:
        ConfigError: none, one that is no whole number of at least 0, or one given twice.
    """
    seeds = tuple(seeds)
    if not seeds:
        raise ConfigError("there is no seed; give at least one, better three: --seeds 0 1 2.")
    for seed in seeds:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ConfigError(f"seed {seed!r} is not a whole number of at least 0; write --seeds 0 1 2.")
        if seeds.count(seed) > 1:
            raise ConfigError(
                f"seed {seed} is given {seeds.count(seed)} times; a run that is counted twice is no second run. Give"
                " each seed once."
            )
    return seeds


def baseline_of(competitors: Sequence[Competitor], wanted: str | None) -> str:
    """Return the label that differences are taken to.

    As given (label or method), otherwise fedavg where it takes part, otherwise the first.

    Raises:
        ConfigError: it is not among the competitors.
    """
    labels = [competitor.entry.label for competitor in competitors]
    if wanted is None:
        plain = [r.entry.label for r in competitors if not r.method.pieces]
        return plain[0] if plain else labels[0]
    hits = [r.entry.label for r in competitors if wanted in (r.entry.label, r.entry.method)]
    if len(hits) != 1:
        why = "is not among the methods" if not hits else "matches several methods"
        raise ConfigError(
            f"baseline {wanted!r} {why}: {', '.join(labels)}.{suggestion(wanted, labels) if not hits else ''}"
        )
    return hits[0]


def pairs(competitors: Sequence[Competitor], seeds: Sequence[int]) -> Iterator[tuple[Competitor, int]]:
    """List all runs, seed by seed, so neighbours share their data."""
    return ((competitor, seed) for seed in seeds for competitor in competitors)
