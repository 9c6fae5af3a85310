"""Run ``fedstrata compare`` as a function: several methods on the same federation, and the report on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from torch import nn

from fedstrata.analysis.comparison import Budget
from fedstrata.analysis.comparison import Comparison as ComparisonRecord
from fedstrata.analysis.findings import Findings, findings
from fedstrata.common.errors import ConfigError, MethodError
from fedstrata.compare import comparison_file, screening
from fedstrata.compare.execution import LOG, ComparisonStopped, open_executor
from fedstrata.compare.request import ComparisonRequest, Observers, PythonInputs, check_target, make_request
from fedstrata.config.config import Config
from fedstrata.core.chain import Method
from fedstrata.core.piece import Piece
from fedstrata.data.federation import Federation
from fedstrata.report.export import write_tables
from fedstrata.report.page import write_page, write_pictures
from fedstrata.report.terminal import comparison_table
from fedstrata.report.views import Comparison

REPORT = "report.html"


def compare(
    methods: Sequence[str | Piece | Method],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    baseline: str | None = None,
    budget: Budget | None = None,
    target: float | None = None,
    screen: bool | float = False,
    side_by_side: int | None = None,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    observers: Observers = (),
    console: Console | None = None,
    **settings: object,
) -> Comparison:
    """Train every method with every seed on the same federation, and write a report.

    Runs are cached below ``out`` by configuration, data and code: calling again, also after a kill, makes only what is
    missing. Runs that need what no other process has (a federation, module or pieces from Python) and runs with
    observers are made in this process, one after another.

    Args:
        methods: texts, ``"fedprox(mu=0.1) | local.lr=0.05"`` with its settings after a bar,
            or pieces.
        seeds: of the runs; differences are taken seed by seed. With fewer than three nothing can be concluded.
        baseline: label or method that differences are taken to; default fedavg where it takes part, otherwise the
            first.
        budget: where every run ends, if before its last round.
        target: accuracy that ends a run, and that the report measures costs to; the same as ``Budget("accuracy",
            target)``.
        screen: successive halving first; a number is the share of the dropped that is trained to the end anyway
            (True: a quarter).
        side_by_side: runs at a time; default as many as cores and memory serve.
        federation: your own data instead of the configured ones.
        module: your own model instead of the configured one.
        observers: receive every event of every run.
        console: for progress and the table; default none.
        settings: of all runs, as for :func:`fedstrata.run`.
    Raises:
        FedstrataError: an invalid request, before anything is trained; or every run failed.
        ComparisonStopped: a stop was requested.
    """
    if target is not None and budget is not None:
        raise ConfigError("target and budget both end runs; give one of them.")
    for name in ("method", "seed"):
        if name in settings:
            raise ConfigError(f"{name} is a setting of one run; a comparison takes {name}s.")
    request = make_request(
        methods,
        Config(**settings),
        seeds=seeds,
        baseline=baseline,
        budget=budget or check_target(target),
        screen=screen,
        side_by_side=side_by_side,
        python_inputs=PythonInputs(federation, module),
    )
    record, _ = run_comparison(request, console or Console(quiet=True), observers=observers)
    return Comparison.of(record)


def run_comparison(
    request: ComparisonRequest,
    console: Console,
    *,
    plain: bool = False,
    stop: Callable[[], bool] = lambda: False,
    observers: Observers = (),
) -> tuple[ComparisonRecord, Findings]:
    """Make all runs of a comparison, record it, and write the report.

    Raises:
        FedstrataError: an invalid request, before anything is trained; or every run failed.
        ComparisonStopped: ``stop`` returned True.
    """
    if request.screen is not None:
        screening.rungs(request)  # refused before data are loaded
    with open_executor(request, console, plain=plain, stop=stop, observers=observers) as executor:
        outcome = screening.run_screening(executor) if request.screen is not None else None
        executor.make(list(executor.run_set.jobs.values()) if outcome is None else [])
        executor.run_set.write("finished", outcome)
        if not executor.run_set.done:
            raise MethodError(
                f"all {len(executor.run_set.failures)} runs failed; the first:"
                f" {next(iter(executor.run_set.failures.values()))}"
            )
    _tidy(request.folder)
    comparison = comparison_file.read(request.folder)
    return comparison, report(comparison, console)


def report(comparison: ComparisonRecord, console: Console, target: float | None = None) -> Findings:
    """Write and print the findings of a comparison; the last line names the page.

    Args:
        comparison: with a folder.
        console: for the table.
        target: accuracy that the report measures costs to; default that of the budget.
    """
    folder = comparison.folder
    assert folder is not None, "a comparison that was read has a folder"
    if target is None and comparison.budget is not None and comparison.budget.kind == "accuracy":
        target = comparison.budget.amount
    result = findings(comparison, target)
    write_tables(comparison, result, folder)
    write_pictures(comparison, result, folder / "pictures")
    page = write_page(comparison, result, folder / REPORT)
    console.print(comparison_table(result))
    for flag in result.flags:
        console.print(f"note: {flag.text}", soft_wrap=True)
    console.print(result.answer, soft_wrap=True)
    console.print(f"report: {page}", soft_wrap=True)
    return result


def _tidy(folder: Path) -> None:
    """Remove an empty log."""
    log = folder / LOG
    if log.is_file() and not log.stat().st_size:
        log.unlink()


__all__ = ["ComparisonStopped", "compare", "report", "run_comparison"]
