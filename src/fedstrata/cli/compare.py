"""Commands that make many runs: compare, sweep."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from typer.core import TyperCommand

from fedstrata.cli.common import (
    INTERRUPTED,
    LOOSE,
    AsJson,
    Plain,
    Settings,
    app,
    console_for,
    read_settings,
    settings_help,
)
from fedstrata.cli.interrupt import Interrupt
from fedstrata.common.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from fedstrata.analysis.comparison import Budget
    from fedstrata.config.config import Config

SEVERAL = ("--methods", "--seeds")
"""Options that take all words up to the next option, save settings (key=value) and configuration files (.toml), which
mean what they always mean.
"""

_SETTING = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*=.*", re.DOTALL)
_NUMBER = re.compile(r"[+-]?\d*\.?\d+(e[+-]?\d+)?", re.IGNORECASE)
AUDITED = "0.25"


class Several(TyperCommand):
    """A command whose ``--methods a b c`` and ``--seeds 0 1 2`` take several values after one flag, and whose
    ``--screen`` may have none.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Rewrite the words so that click understands them; the only place where they are looked at."""
        ctx.obj = list(args)  # as typed, for the command that a report prints
        return super().parse_args(ctx, list(spread(args)))


def spread(words: Sequence[str]) -> Iterator[str]:
    """``--methods a b rounds=5`` as ``--methods a --methods b rounds=5``, and ``--screen`` as ``--screen 0.25`` unless
    a number follows.

    >>> list(spread(["mine.toml", "--methods", "fedavg", "fedprox(mu=1)", "rounds=5", "--screen"]))
    ['mine.toml', '--methods', 'fedavg', '--methods', 'fedprox(mu=1)', 'rounds=5', '--screen', '0.25']
    """
    option, taken, place = "", 0, 0
    while place < len(words):
        word, place = words[place], place + 1
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            _refuse_empty(option, taken)
            option, taken = name if name in SEVERAL else "", 0
            if option and equals:
                taken += 1
                yield from (option, value)
            elif name == "--screen" and not equals:
                follows = place < len(words) and _NUMBER.fullmatch(words[place])
                yield from (word, words[place] if follows else AUDITED)
                place += bool(follows)
            elif not option:
                yield word
        elif option and not _SETTING.fullmatch(word) and not word.endswith(".toml"):
            taken += 1
            yield from (option, word)
        else:
            yield word
    _refuse_empty(option, taken)


def _refuse_empty(option: str, taken: int) -> None:
    if option and not taken:
        example = '"fedavg" "fedprox(mu=0.01)"' if option == "--methods" else "0 1 2"
        raise ConfigError(f"{option} has no value; write {option} {example}.")


Methods = Annotated[
    list[str] | None,
    typer.Option(
        metavar='"METHOD" ...',
        help='Methods or chains, with separate settings after a bar: "fedprox(mu=0.1) | local.lr=0.05".',
    ),
]
Seeds = Annotated[list[str] | None, typer.Option(metavar="SEED ...", help="Seeds of the runs; default 0 1 2.")]
SideBySide = Annotated[
    str | None, typer.Option(metavar="N", help="Runs at a time; default as many as cores and memory serve.")
]
Amount = str | None


@app.command(
    cls=Several,
    context_settings=LOOSE,
    epilog=settings_help(),
    short_help="Which method for my data? Several methods side by side, and a report.",
)
def compare(
    ctx: typer.Context,
    settings: Settings = None,
    methods: Methods = None,
    seeds: Seeds = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="METHOD", help="What differences are taken to; default fedavg, or the first.")
    ] = None,
    budget_bytes: Annotated[
        Amount, typer.Option(metavar="N", help="End every run with the round that reaches N bytes up and down.")
    ] = None,
    budget_flops: Annotated[
        Amount, typer.Option(metavar="N", help="... N floating-point operations of clients' training.")
    ] = None,
    budget_seconds: Annotated[
        Amount, typer.Option(metavar="N", help="... N seconds of training rounds (not repeatable).")
    ] = None,
    target_accuracy: Annotated[
        Amount, typer.Option(metavar="A", help="... accuracy A, on validation data where there are some.")
    ] = None,
    screen: Annotated[
        str | None,
        typer.Option(
            metavar="[SHARE]", help="Drop the worse half at 1/4 and 1/2 of the rounds; SHARE of them is audited [0.25]."
        ),
    ] = None,
    side_by_side: SideBySide = None,
    as_json: AsJson = False,  # flags of a command line  # noqa: FBT002
    plain: Plain = False,  # noqa: FBT002
) -> None:
    """Train several methods with several seeds on the same data, and write a report. Called again, also after a kill,
    it makes only what is missing.

    After --methods and --seeds, all words up to the next option are methods and seeds, except key=value settings and
    the .toml file.
    """
    config = _config(settings)
    numbers = {"bytes": budget_bytes, "flops": budget_flops, "seconds": budget_seconds, "accuracy": target_accuracy}
    budget = _budget({kind: text for kind, text in numbers.items() if text is not None})
    from fedstrata.compare.comparison import run_comparison  # torch would slow every --help down  # noqa: PLC0415
    from fedstrata.compare.request import make_request  # noqa: PLC0415

    request = make_request(
        methods or (),
        config,
        seeds=_seeds(seeds),
        baseline=baseline,
        budget=budget,
        screen=False if screen is None else _number("--screen", screen),
        side_by_side=_whole("--side-by-side", side_by_side),
        command=_command(ctx),
    )
    with _watched(as_json=as_json) as (console, interrupt):
        comparison, found = run_comparison(request, console, plain=plain, stop=interrupt)
    if as_json:
        print(json.dumps(_summary(comparison, found), allow_nan=False, default=sorted))  # sets as lists


def _summary(comparison: Any, found: Any) -> dict[str, Any]:
    """What ``--json`` prints: the answer and a row a method."""
    from dataclasses import asdict  # noqa: PLC0415

    return {
        "folder": str(comparison.folder),
        "answer": found.answer,
        "headline": list(found.headline),
        "baseline": comparison.baseline,
        "seeds": list(comparison.seeds),
        "lines": [asdict(line) for line in found.lines],
        "flags": [asdict(flag) for flag in found.flags],
        "failures": [{"label": label, "seed": seed, "why": why} for (label, seed), why in comparison.failures.items()],
    }


def _config(settings: Sequence[str] | None) -> Config:
    for text in settings or ():
        name = text.partition("=")[0]
        if name in ("method", "seed") and "=" in text:
            raise ConfigError(f"{text} is a setting of one run; here it is said by --{name}s.")
    return read_settings(
        sorted(settings or (), key=lambda text: not text.endswith(".toml"))
    )  # the file may be at any position


def _command(ctx: typer.Context) -> str:
    """What was typed, without how it was shown."""
    words = [word for word in ctx.obj if word not in ("--json", "--plain")]
    return shlex.join(["fedstrata", str(ctx.info_name), *words])


def _budget(command_words: dict[str, str]) -> Budget | None:
    from fedstrata.analysis.comparison import Budget, BudgetUnit  # noqa: PLC0415

    names: dict[BudgetUnit, str] = {
        "bytes": "--budget-bytes",
        "flops": "--budget-flops",
        "seconds": "--budget-seconds",
        "accuracy": "--target-accuracy",
    }
    if len(command_words) > 1:
        raise ConfigError(
            f"{' and '.join(name for kind, name in names.items() if kind in command_words)} each end a run; give one of"
            " them."
        )
    for kind, name in names.items():
        if kind not in command_words:
            continue
        text = command_words[kind]
        amount = _number(name, text)
        if kind == "accuracy":
            from fedstrata.compare.request import check_target  # noqa: PLC0415

            return check_target(amount)
        if amount <= 0:
            raise ConfigError(f"{name} is {text}; it is an amount above 0.")
        return Budget(kind, amount)
    return None


def _seeds(texts: Sequence[str] | None) -> tuple[int, ...]:
    return (0, 1, 2) if texts is None else tuple(_whole("--seeds", text) for text in texts)


def _whole(option: str, text: str | None) -> Any:
    """A whole number, or None."""
    if text is None:
        return None
    if not re.fullmatch(r"[+-]?\d{1,18}", text):
        raise ConfigError(f"{option}: {text!r} is no whole number.")
    return int(text)


def _number(option: str, text: str) -> float:
    """A finite number; 1e9 is one."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < float("inf"):
        raise ConfigError(f"{option}: {text!r} is no number.")
    return value


@contextmanager
def _watched(*, as_json: bool) -> Iterator[tuple[Console, Interrupt]]:
    """A console and the answer to Ctrl-C: the first lets every run finish its round, the second stops at once."""
    from fedstrata.common.allocator import keep_freed_blocks  # noqa: PLC0415
    from fedstrata.compare.execution import ComparisonStopped  # noqa: PLC0415

    keep_freed_blocks()
    try:
        with Interrupt() as interrupt:
            yield console_for(stderr=as_json), interrupt
    except ComparisonStopped as stop:
        print(f"fedstrata: {stop}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    except KeyboardInterrupt:
        print(
            "fedstrata: stopped at once; what was checkpointed is kept, call the same command again to go on",
            file=sys.stderr,
        )
        raise typer.Exit(INTERRUPTED) from None


@app.command(
    cls=Several,
    context_settings=LOOSE,
    epilog=settings_help(),
    short_help="Choose hyper-parameters on validation data, at equal cost.",
)
def sweep(
    ctx: typer.Context,
    settings: Settings = None,
    methods: Methods = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B,...",
            help="Values to try, of a setting (local.lr) or an argument (fedprox.mu); may be repeated.",
        ),
    ] = None,
    trials: Annotated[
        str, typer.Option(metavar="N", help="Combinations of every method; auto: as many as the smallest grid has.")
    ] = "auto",
    seeds: Annotated[
        list[str] | None, typer.Option(metavar="SEED ...", help="Seeds of every trial; default 0.")
    ] = None,
    side_by_side: SideBySide = None,
    as_json: AsJson = False,  # flags of a command line  # noqa: FBT002
    plain: Plain = False,  # noqa: FBT002
) -> None:
    """Try settings of several methods, the same number for each, and choose by clients' validation data.

    The test is never looked at.
    """
    config = _config(settings)
    from fedstrata.compare.sweep import FILE, SweepRequest  # torch would slow every --help down  # noqa: PLC0415

    request = SweepRequest.of(
        methods or (),
        vary or (),
        config,
        trials="auto" if trials == "auto" else _whole("--trials", trials),
        seeds=(0,) if seeds is None else _seeds(seeds),
        side_by_side=_whole("--side-by-side", side_by_side),
        command=_command(ctx),
        command_words=tuple(settings or ()),
    )
    with _watched(as_json=as_json) as (console, interrupt):
        swept = request.run(console, plain=plain, stop=interrupt)
    if as_json:
        print(json.dumps(json.loads((swept.folder / FILE).read_text(encoding="utf-8")), allow_nan=False))
