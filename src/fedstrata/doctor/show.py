"""Print a diagnosis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedstrata.common.units import duration, number, size, work
from fedstrata.doctor.diagnosis import Advice, CostEstimate, Diagnosis, Problem
from fedstrata.doctor.problems import printable
from fedstrata.report.terminal import facts_table

LONG = 3600.0  # seconds from which a cheaper way is shown
MOST_SOURCES = 2  # methods refused for one reason whose publications are still shown
UNITS = {"bytes": size, "flops": work, "seconds": duration}
CAVEAT = (
    "This is advice before measurement: rules about numbers of the data, not results. It names methods that deserve a"
    " run;"
    " only the comparison shows which is better here, and the answer may be none."
)


def show(diagnosis: Diagnosis, console: Console) -> None:
    """Print all sections.

    Args:
        diagnosis: the diagnosis.
        console: to print on.
    """
    console.print(facts_table(dict(_facts(diagnosis)), title="data and splits"))
    _skew(diagnosis, console)
    _problems(diagnosis.problems, console)
    console.print(_costs(diagnosis.costs))
    console.print(_advice(diagnosis.advice))
    console.print(_method_costs(diagnosis.advice))
    _other_methods(diagnosis.advice, console)
    console.print(Text(f"\n{CAVEAT}\n"))
    for line in _last_lines(diagnosis):
        console.print(Text(line), soft_wrap=True)


def _last_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Write the last lines; the command ends them, so it can be copied."""
    if diagnosis.left_out:
        yield (
            f"candidates beyond a first comparison: {', '.join(diagnosis.left_out)}; add them to --methods if the time"
            " is"
            " there"
        )
    if diagnosis.seconds:
        low, high = (duration(seconds) for seconds in diagnosis.seconds)
        yield (
            f"the comparison takes about {low}{'' if low == high else f' to {high}'} on this machine, if it does"
            " nothing else"
        )
        if diagnosis.seconds[0] > LONG:
            yield "for a first look, use fewer rounds (rounds=10), or drop the worse half early (--screen)"
    yield from ("", "compare them on your data:", "", f"  {diagnosis.command}", "")


def _facts(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    facts = diagnosis.facts
    yield "data", printable(facts.name, 120)
    yield "task", f"{facts.kind}, {len(facts.labels)} classes" if facts.labels else facts.kind
    yield "clients", f"{facts.clients:,} by {facts.law}, {facts.heldout:,} of them kept out of training"
    yield "training", f"{facts.train:,} samples; {diagnosis.setting['sizes']}"
    yield "validation", f"{facts.validation:,} samples of the clients"
    tests = [f"{facts.test:,} samples on the server"] if facts.test else []
    tests += [f"{facts.own_test:,} samples on the clients"] if facts.own_test else []
    yield "test", ", ".join(tests) or "none"
    if facts.chance is not None:
        yield "chance level", f"{number(facts.chance, 3)}, by always naming the commonest class of the test data"
    yield from ((name, text) for name, text in diagnosis.setting.items() if name not in ("test", "validation", "sizes"))
    for note in facts.notes:
        yield "note", printable(note, 400)


def _skew(diagnosis: Diagnosis, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, title="skew: how much clients differ", title_justify="left")
    for name in ("", "value", "in words", "what it is computed from"):
        table.add_column(name, justify="right" if name == "value" else "left", overflow="fold")
    for meaning in diagnosis.skew:
        table.add_row(meaning.title, number(meaning.value, 3), meaning.word, meaning.text)
    console.print(table)
    for meaning in diagnosis.skew:
        console.print(Padding(Text(f"{meaning.title}: {meaning.known}"), (0, 0, 0, 2)))
    console.print()


def _problems(problems: Sequence[Problem], console: Console) -> None:
    console.print(Text("problems, the weightiest first" if problems else "problems: none was found"))
    lines = Table.grid(padding=(0, 2))
    for problem in problems:
        remedy = f" -> {problem.remedy}" if problem.remedy else ""
        lines.add_row("", problem.weight, Text(f"{problem.text}{remedy}"))
    console.print(lines)
    console.print()


def _costs(costs: Sequence[CostEstimate]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="what it costs, and what will be slow or large (!)", title_justify="left")
    for name in ("", "amount", "arithmetic"):
        table.add_column(name, justify="right" if name == "amount" else "left", overflow="fold")
    for cost in costs:
        shown = UNITS[cost.unit](cost.value)
        high = shown if cost.high is None else UNITS[cost.unit](cost.high)
        shown = shown if high == shown else f"{shown} to {high}"
        table.add_row(f"{cost.what}{' !' if cost.large else ''}", shown, cost.how)
    return table


def _advice(advice: Sequence[Advice]) -> Table:
    """Build a table with a line a method; methods refused for one reason share one."""
    table = Table(box=box.SIMPLE_HEAD, title="which methods deserve a run here", title_justify="left")
    for name in ("method", "", "reason", "source"):
        table.add_column(name, overflow="fold")
    refused: dict[tuple[str, str], list[Advice]] = {}
    for a in advice:
        if a.verdict in ("baseline", "candidate", "control"):
            table.add_row(a.method, a.verdict, "; ".join(a.reasons), a.source)
        elif a.verdict in ("not advised", "cannot run"):
            refused.setdefault((a.verdict, "; ".join(a.reasons)), []).append(a)
    for (verdict, reason), those in refused.items():
        sources = "; ".join(a.source for a in those) if len(those) <= MOST_SOURCES else ""
        table.add_row(", ".join(a.method for a in those), verdict, reason, sources)
    return table


def _method_costs(advice: Sequence[Advice]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="what they cost", title_justify="left")
    for name in ("method", "sent by and to a client a round", "training against fedavg", "kept by a client"):
        table.add_column(name, overflow="fold", justify="left" if name == "method" else "right")
    base = next((a for a in advice if a.verdict == "baseline"), None)
    for a in advice:
        if a.bytes is not None:
            table.add_row(a.method, size(a.bytes), _times(a, base), size(a.state))
    return table


def _times(advice: Advice, base: Advice | None) -> str:
    if advice.flops is None or base is None or not base.flops:
        return "-"
    return f"x {advice.flops / base.flops:.2g}"


def _other_methods(advice: Sequence[Advice], console: Console) -> None:
    later = [f"{a.method} ({'; '.join(a.reasons)})" for a in advice if a.verdict == "later"]
    quiet = [a.method for a in advice if a.verdict == "open"]
    if later:
        console.print(Text(f"later: {', '.join(later)}"))
    if quiet:
        console.print(Text(f"no rule speaks for or against: {', '.join(quiet)}"))
