"""Write results as small HTML tables for notebooks; all text is escaped, as names of methods and clients are data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from fedstrata.analysis.comparison import Comparison
from fedstrata.analysis.records import Findings, Line
from fedstrata.analysis.scores import score_label
from fedstrata.common.units import duration, size, work
from fedstrata.report.terminal import difference, facts_of_run, mean, title_of_run
from fedstrata.runs.result import Result


def result_html(result: Result) -> str:
    """Write the facts of a run, one a line, and its notes."""
    rows = "".join(
        f"<tr><th scope='row' style='text-align:left'>{escape(name)}</th><td>{escape(value)}</td></tr>"
        for name, value in facts_of_run(result)
    )
    caption = escape(title_of_run(result.summary))
    return f"<table><caption>{caption}</caption><tbody>{rows}</tbody></table>{_notes(result.notes)}"


def comparison_html(comparison: Comparison, findings: Findings) -> str:
    """Write the answer, a line a method, and the flags."""
    heads = ["method", *map(score_label, findings.headline), "bytes", "training", "time"]
    head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in heads)
    body = "".join(_row(line, findings.headline) for line in findings.lines)
    chance = "" if findings.chance is None else f"; chance {findings.chance:.3f}"
    caption = (
        f"{findings.seeds} seeds, mean ± standard deviation, and the difference to {comparison.baseline} with its 95 %"
        f" interval{chance}"
    )
    table = f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<p><strong>{escape(findings.answer)}</strong></p>{table}{_notes(flag.text for flag in findings.flags)}"


def _row(line: Line, headline: Sequence[str]) -> str:
    cells = []
    for score in headline:
        below = difference(line.differences.get(score))
        unused = (
            " (no client uses this model)"
            if line.shared_unused and not score.startswith("personal") and score in line.scores
            else ""
        )
        cells.append(
            escape(mean(line.scores.get(score)) + unused) + (f"<br><small>{escape(below)}</small>" if below else "")
        )
    for key, write in (("bytes", size), ("flops", work), ("seconds", duration)):
        cells.append(escape(write(line.costs[key].mean if key in line.costs else None)))
    return (
        "<tr><th scope='row'"
        f" style='text-align:left'>{escape(line.label)}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    )


def _notes(texts: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""
