"""Write the report as one HTML file that needs no network, and its pictures as files."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from fedstrata._version import __version__
from fedstrata.analysis.comparison import Comparison
from fedstrata.analysis.records import Findings
from fedstrata.diagnostics.panel import Panel
from fedstrata.diagnostics.registry import panels as kept_panels
from fedstrata.report.page.content import pictures, sections
from fedstrata.report.page.context import PageContext
from fedstrata.report.page.drawing import Picture, save, svg_text
from fedstrata.report.page.svg import inline
from fedstrata.report.page.text import HOVER, counted, listed, plain, short
from fedstrata.report.page.theme import DARK, LIGHT, Stroke
from fedstrata.storage.atomic_files import atomic

FLAGS = 6  # warnings that are shown at once
MARKS = {
    "o": "M13 6a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "s": "M13.4 2.4h7.2v7.2h-7.2z",
    "D": "M17 1.2l4.8 4.8l-4.8 4.8l-4.8-4.8z",
    "^": "M17 1.6l4.6 8h-9.2z",
    "v": "M17 10.4l4.6-8h-9.2z",
    "P": "M15.6 2h2.8v2.6h2.6v2.8h-2.6v2.6h-2.8v-2.6h-2.6v-2.8h2.6z",
    "X": "M13.6 4.2l1.6-1.6l1.8 1.8l1.8-1.8l1.6 1.6l-1.8 1.8l1.8 1.8l-1.6 1.6l-1.8-1.8l-1.8 1.8l-1.6-1.6l1.8-1.8z",
    "<": "M12.6 6l8-4.6v9.2z",
    ">": "M21.4 6l-8-4.6v9.2z",
    "*": "M17 1l1.3 3.6h3.8l-3 2.3l1.1 3.7l-3.2-2.2l-3.2 2.2l1.1-3.7l-3-2.3h3.8z",
}
"""Matplotlib's markers in a box of 34 by 12, for keys and tables."""


def write_page(comparison: Comparison, findings: Findings, path: Path, panels: Sequence[Panel] | None = None) -> Path:
    """Write the report.

    Args:
        comparison: one method with one seed is enough.
        findings: of it.
        path: of the HTML file.
        panels: default those of the measures that its runs have kept.
    Returns:
        ``path``. Equal arguments give equal bytes.
    """
    text = page_text(PageContext(comparison, findings), _panels(comparison) if panels is None else panels)
    with atomic(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return path


def write_pictures(
    comparison: Comparison, findings: Findings, folder: Path, panels: Sequence[Panel] | None = None
) -> list[Path]:
    """Write every picture of the report as PNG and as SVG, with title and legend.

    Args:
        comparison: as for :func:`write_page`.
        findings: of it.
        folder: is made where it is missing.
        panels: default those of the measures that its runs have kept.
    Returns:
        the files, two a picture.
    """
    folder.mkdir(parents=True, exist_ok=True)
    context = PageContext(comparison, findings)
    return [
        file
        for picture in pictures(context, _panels(comparison) if panels is None else panels)
        for file in save(picture, folder, context.strokes, context.names)
    ]


def _panels(comparison: Comparison) -> list[Panel]:
    return kept_panels(
        {entry.label: [run.rounds for run in comparison.runs(entry.label)] for entry in comparison.entries}
    )


def page_text(context: PageContext, panels: Sequence[Panel]) -> str:
    """Render the page."""
    style, script, early = (_asset(name) for name in ("page.css", "page.js", "early.js"))
    facts = context.comparison.facts
    title = (
        f"{listed(context.names)} on {short(facts.name, 40)}"
        if len(context.names) <= 2
        else f"{len(context.names)} methods on {short(facts.name, 60)}"
    )
    return str(
        _template().render(
            title=title,
            subtitle=_subtitle(context),
            version=__version__,
            sections=sections(context, panels),
            strokes=context.strokes,
            names=context.names,
            labels=[plain(label) for label in context.labels],
            marks=MARKS,
            many=FLAGS,
            variables={"light": _variables(LIGHT), "dark": _variables(DARK)},
            css=Markup(style),  # our own file  # noqa: S704
            script=Markup(script),  # noqa: S704
            early=Markup(early),  # noqa: S704
            hashes=Markup(" ".join(_hash(text) for text in (early, script))),  # noqa: S704
            drawn=lambda picture: _drawn(picture, context),
            dash=_dash,
            number=lambda value: f"{value:.10g}",
            tip=lambda text: text if len(text) <= HOVER else text[:HOVER] + "…",
        )
    )


def _subtitle(context: PageContext) -> str:
    runs = sum(len(runs) for runs in context.runs)
    seeds = context.comparison.seeds
    seed_text = (
        f"seed {seeds[0]}"
        if len(seeds) == 1
        else f"seeds {', '.join(str(seed) for seed in seeds)}"
        if len(seeds) <= 8
        else f"{len(seeds)} seeds"
    )
    return (
        f"{counted(runs, 'finished run')}, {seed_text}, on the same clients, initial weights and order of data for"
        " every"
        " method of a seed"
        if not context.alone
        else f"{counted(runs, 'run')}, {seed_text}"
    )


def _drawn(picture: Picture, context: PageContext) -> Markup:
    return inline(svg_text(picture), picture.name, picture.alt, dict(enumerate(context.names)))


def _dash(stroke: Stroke) -> str:
    return " ".join(f"{2 * length:g}" for length in stroke.dash)


def _variables(theme: dict[str, str] | Any) -> Markup:
    return Markup(";".join(f"--{name}:{value}" for name, value in theme.items()))  # our own colours  # noqa: S704


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _asset(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8").strip()


@cache
def _template() -> Any:
    loader = PackageLoader("fedstrata.report.page", ".")
    environment = Environment(
        loader=loader,
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")


__all__ = ["write_page", "write_pictures"]
