"""Build tables for the terminal."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from os.path import commonprefix
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedstrata.analysis.records import Difference, Findings, Line, Reached, Spread
from fedstrata.analysis.scores import ACCURACIES, score_label, threshold_text
from fedstrata.common.units import duration, number, size, work
from fedstrata.runs.result import Result

LONG = 40  # letters of a run's name that a table or a legend has room for


def result_table(result: Result) -> Table:
    """Build the table of a finished run: one line a fact; facts that a task lacks are left out."""
    table = Table(box=box.SIMPLE_HEAD, show_header=False, title=title_of_run(result.summary), title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts_of_run(result):
        table.add_row(name, value)
    return table


def title_of_run(summary: Mapping[str, Any]) -> str:
    """Write method, seed and rounds."""
    return f"{summary.get('method', '')}, seed {summary.get('seed', '-')}, {summary.get('rounds', '-')} rounds"


def facts_of_run(result: Result) -> Iterable[tuple[str, str]]:
    """Yield the names and values of a run's facts."""
    summary = result.summary
    accuracy = summary.get("accuracy") or {}
    for key, name in ACCURACIES.items():
        if accuracy.get(key) is not None:
            yield name, number(accuracy[key])
    for key, value in (summary.get("metrics") or {}).items():
        if isinstance(value, int | float) and key != "accuracy":  # said above
            yield key.replace("_", " "), number(value)
    if summary.get("refused"):
        yield "replies left out", ", ".join(f"{count} {code}" for code, count in summary["refused"].items())
    if summary.get("rounds_without_update"):
        yield (
            "rounds without an update",
            f"{summary['rounds_without_update']} of {summary.get('rounds', '-')}; the model stayed as it was",
        )
    yield "sent by clients", _with_framing(summary, "up")
    yield "sent to clients", _with_framing(summary, "down")
    yield "clients' training", work(summary.get("flops"))
    yield "training time", duration(summary.get("seconds"))
    if summary.get("executor"):
        yield (
            "executor",
            f"{summary['executor']}, {summary.get('workers', 1)} worker{'s' if summary.get('workers', 1) != 1 else ''}",
        )
    if summary.get("model_sha256"):
        yield "model sha256", f"{summary['model_sha256'][:16]}..."
    if result.folder is not None:
        yield "run folder", str(result.folder)


def _with_framing(summary: Mapping[str, Any], way: str) -> str:
    framing = summary.get(f"framing_{way}")
    return size(summary.get(f"bytes_{way}")) + (f" and {size(framing)} of framing" if framing else "")


def comparison(results: Sequence[Result]) -> Table:
    """Build a table of several runs, a line each."""
    table = Table(box=box.SIMPLE_HEAD)
    columns = ["final", "best", "window", "selected", "personal", "personal_worst10"]
    shown = [c for c in columns if any((r.summary.get("accuracy") or {}).get(c) is not None for r in results)]
    heads = [c.replace("personal_worst10", "worst tenth") for c in shown]
    for name in ("run", "method", "seed", "rounds", *heads, "up", "down", "training", "time"):
        table.add_column(name, justify="left" if name in ("run", "method") else "right", overflow="fold")
    for result, name in zip(results, short_names([r.name for r in results]), strict=True):
        s, accuracy = result.summary, result.summary.get("accuracy") or {}
        scores = [number(accuracy.get(c)) for c in shown]
        costs = [size(s.get("bytes_up")), size(s.get("bytes_down")), work(s.get("flops")), duration(s.get("seconds"))]
        table.add_row(
            name, str(s.get("method", "-")), str(s.get("seed", "-")), str(s.get("rounds", "-")), *scores, *costs
        )
    return table


def short_names(names: Sequence[str]) -> list[str]:
    """Shorten long names of runs by what they share at their beginning."""
    if len(names) < 2 or max(map(len, names)) <= LONG:
        return list(names)
    shared = commonprefix(names).rfind("-") + 1  # letters are meant, not path components  # noqa: RUF071
    return [f"...{name[shared:]}" if shared > LONG // 2 else name for name in names]


def rounds_table(result: Result, most: int = 20) -> Table:
    """Build a table of evaluated rounds; at most ``most``, evenly spaced, including the last."""
    rows = [row for row in result.rounds if row.get("accuracy") is not None or row.get("metrics")] or list(
        result.rounds
    )
    stride = max(1, -(-len(rows) // most))
    table = Table(box=box.SIMPLE_HEAD, title=_rounds_title(result, stride), title_justify="left")
    for name in ("round", "accuracy", "personal", "loss", "replies", "refused", "up", "down", "time"):
        table.add_column(name, justify="right")
    for row in rows[::-1][::stride][::-1]:
        table.add_row(
            str(int(row["round"]) + 1),
            number(row.get("accuracy")),
            number(row.get("personal")),
            number(row.get("loss")),
            str(row.get("replies", "-")),
            str(len(row.get("refused") or ())),
            size(row.get("bytes_up")),
            size(row.get("bytes_down")),
            duration(row.get("seconds")),
        )
    return table


def _rounds_title(result: Result, stride: int) -> str:
    return f"{result.name}: {len(result.rounds)} rounds" + (
        f", one in {stride} evaluated ones shown" if stride > 1 else ""
    )


def facts_table(facts: Mapping[str, str], title: str = "") -> Table:
    """Build a table of names and values."""
    table = Table(box=box.SIMPLE_HEAD, show_header=False, title=title or None, title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, value)
    return table


HEADS: Mapping[str, str] = {
    "window": "accuracy, last tenth",
    "personal_selected": "selected, personal",
    "rmse_window": "RMSE, last tenth",
    "personal_rmse_selected": "selected, personal",
}
"""Heads of columns that are shorter than the words of a sentence."""

MARKS: Mapping[str, str] = {"better": "*", "worse": "*", "not shown": "", "no conclusion": "?", "baseline": ""}
"""Beside a difference: * shown (corrected p under 0.05), ? no conclusion, nothing: not shown."""


def comparison_table(findings: Findings) -> Table:
    """Build a table with a line a method, the headline scores with paired differences below them.

    120 columns hold 8 methods with two headlines.
    """
    table = Table(
        box=box.SIMPLE_HEAD,
        title=_heading(findings),
        title_justify="left",
        caption=_legend(findings),
        caption_justify="left",
    )
    table.collapse_padding, table.pad_edge = True, False
    table.add_column("method", overflow="fold", max_width=18 if len(findings.headline) > 1 else 40)
    for score in findings.headline:
        table.add_column(HEADS.get(score, score_label(score)), min_width=25 if findings.seeds > 1 else 16)
    heads = ["bytes", "training", "time", *(_reach(score, target) for score, target in findings.targets.items())]
    for name in heads:
        table.add_column(name, justify="right", no_wrap=True)
    for line in findings.lines:
        costs = [
            _cost(line.costs.get(key), write)
            for key, write in (("bytes", size), ("flops", work), ("seconds", duration))
        ]
        reached = [_way(line.targets.get(score)) for score in findings.targets]
        table.add_row(Text(line.label), *(_cell(line, score) for score in findings.headline), *costs, *reached)
    return table


def _reach(score: str, target: float) -> str:
    """Return the head of a column of rounds to the target."""
    return f"rounds\nto {target:.3f}" + (",\npersonal" if score.startswith("personal") else "")


def flag_lines(findings: Findings) -> list[str]:
    """List what must be known before the table is believed, a line each."""
    return [f"! {flag.text}" for flag in findings.flags]


def comparison_text(findings: Findings, width: int = 120) -> str:
    """Write the answer, the table and the flags as plain text."""
    console = Console(  # force_jupyter: in a notebook rich would show it instead of writing it
        width=width,
        file=io.StringIO(),
        record=True,
        markup=False,
        highlight=False,
        color_system=None,
        force_jupyter=False,
    )
    console.print(findings.answer)
    console.print(comparison_table(findings))
    for line in flag_lines(findings):
        console.print(line)
    return console.export_text().rstrip()


def _heading(findings: Findings) -> str:
    seeds = f"{findings.seeds} seed{'s' if findings.seeds != 1 else ''}, differences to {findings.baseline}"
    if findings.chance is None:
        return seeds
    limit = (
        ""
        if all(line.informative for line in findings.lines)
        else f" (not informative: the baseline is under {threshold_text(findings.chance)})"
    )
    return f"{seeds}, chance {findings.chance:.3f}{limit}"


def _legend(findings: Findings) -> str:
    verdicts = {it.verdict for line in findings.lines for it in line.differences.values()}
    parts = ["mean ± standard deviation over seeds; below it the paired difference with its 95 % interval"]
    if verdicts & {"better", "worse"}:
        parts.append("* shown (p under 0.05 after correction)")
    if "no conclusion" in verdicts:
        parts.append("? no conclusion")
    if any(line.shared_unused for line in findings.lines):
        parts.append("(unused): layers are private, no client uses the shared model")
    return "; ".join(parts)


def _cell(line: Line, score: str) -> str:
    spread = line.scores.get(score)
    if spread is None:
        return "-"
    unused = " (unused)" if line.shared_unused and not score.startswith("personal") else ""
    below = difference(line.differences.get(score))
    return mean(spread) + unused + (f"\n{below}" if below else "")


def mean(spread: Spread | None, digits: int = 3) -> str:
    """Write mean and standard deviation: "0.512 ± 0.012"."""
    if spread is None:
        return "-"
    return number(spread.mean, digits) + ("" if spread.std is None else f" ± {number(spread.std, digits)}")


def difference(it: Difference | None) -> str:
    """Write a paired difference, its interval and its mark: "+0.021 [0.008, 0.034] *"; "" for the baseline."""
    if it is None or it.verdict == "baseline":
        return ""
    interval = (
        "" if it.low is None or it.high is None else f" [{number(_zero(it.low), 3)}, {number(_zero(it.high), 3)}]"
    )
    sign = "+" if _zero(it.mean) >= 0 else ""
    return f"{sign}{number(_zero(it.mean), 3)}{interval} {MARKS[it.verdict]}".rstrip()


def _zero(value: float) -> float:
    """Round for a table, without the sign of a zero."""
    return round(value, 3) + 0.0


def _cost(spread: Spread | None, write: Callable[[float | None], str]) -> str:
    return write(None if spread is None else spread.mean)


def _way(reached: Reached | None) -> str:
    """Write the rounds to the target, and how many seeds reached it where not all did."""
    if reached is None or not reached.seeds[1]:
        return "-"
    hits, seeds = reached.seeds
    if reached.rounds is None:
        return "never"
    rounds = f"{reached.rounds.mean:.3g}"
    return rounds if hits == seeds else f"{rounds}\n({hits} of {seeds})"
