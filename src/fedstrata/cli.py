"""The command ``fedstrata``. It parses, calls the library and prints; everything it can do is in the library."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from fedstrata.config import KEYS, Config
from fedstrata.errors import ConfigError, FedstrataError
from fedstrata.interrupt import Interrupt
from fedstrata.keys import suggestion

if TYPE_CHECKING:
    from fedstrata.build import Parts
    from fedstrata.data.federation import Federation
    from fedstrata.events import Observer
    from fedstrata.report.result import Result

MACHINE, USAGE, INTERRUPTED = 1, 2, 130
"""Exit codes: a disk or folder that fails; something that the user can mend in the command; stopped by a signal, with a checkpoint kept."""

WIDE = 160  # columns of a table that goes to a file

app = typer.Typer(
    name="fedstrata",
    help="Federated learning on clients that differ.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    suggest_commands=False,  # click suggests already
)

Settings = Annotated[list[str] | None, typer.Argument(metavar="[CONFIG.toml] [key=value ...]", help="A file, then settings that hold over it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout; everything else goes to stderr.")]
Plain = Annotated[bool, typer.Option("--plain", help="Plain lines instead of a progress bar.")]
_LOOSE = {"ignore_unknown_options": True}  # so that --rounds=5 gets our own answer, which names rounds=5


def settings_help() -> str:
    """All settings with default and meaning, for ``--help``."""
    width = max(len(name) for name in KEYS) + 2
    lines = ['Settings, as key=value here and in TOML files (TOML quotes "data.root"):']
    for key in KEYS.values():
        default = "none" if key.default is None else key.default
        lines.append(f"  {key.name:<{width}}{key.meaning} [{default}]")
    return "\b\n" + "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; a FedstrataError becomes one line on stderr and exit code 2."""
    try:
        app(args=None if arguments is None else list(arguments))
    except FedstrataError as error:
        fail(str(error))
    except BrokenPipeError:  # the reader of a pipe has gone; nobody is left to tell
        raise SystemExit(MACHINE) from None
    except OSError as error:
        fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", MACHINE)
    except KeyboardInterrupt:
        print("fedstrata: stopped at once; what was checkpointed is kept, go on with `fedstrata resume RUN`", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None


def fail(message: str, code: int = USAGE) -> NoReturn:
    """One line on stderr, whatever the message holds, and the exit code."""
    text = "".join(c if c.isprintable() else " " for c in message)
    print(f"fedstrata: error: {text}", file=sys.stderr)
    raise SystemExit(code)


def console_for(*, stderr: bool = False) -> Console:
    """A console that prints text as it is; wide where nobody watches, so that tables in files are not folded."""
    console = Console(stderr=stderr, markup=False, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDE
    return console


def read_settings(texts: Sequence[str] | None) -> Config:
    """The configuration that a command line means: at most one file, first, then key=value."""
    given = list(texts or ())
    file = given.pop(0) if given and "=" not in given[0] and not given[0].startswith("-") else None
    if file is not None:
        _refuse_incomplete(Path(file))
    return Config.read(file, given)


def _refuse_incomplete(file: Path) -> None:
    """The config.toml of a run that was given data or a model from Python does not say what was run; another run must not pass for it."""
    from fedstrata.report.result import manifest  # noqa: PLC0415  # torch would slow every --help down

    if file.name == "config.toml" and (custom := manifest(file.parent).get("custom")):
        given = " and ".join(custom)
        again = ", ".join(f"{name}=..." for name in custom)
        raise ConfigError(f"{file} belongs to a run that was given its {given} from Python; run it from there: fedstrata.run(..., {again}).")


def _version(wanted: bool) -> None:  # noqa: FBT001  # typer's callback
    if wanted:
        print(f"fedstrata {metadata.version('fedstrata')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,  # noqa: FBT002
) -> None:
    """Federated learning on clients that differ."""


@app.command(context_settings=_LOOSE, epilog=settings_help())
def run(settings: Settings = None, as_json: AsJson = False, plain: Plain = False) -> None:  # noqa: FBT002  # flags of a command line
    """Train a federation. Without arguments: FedAvg on digits, within a minute."""
    config = read_settings(settings)
    from fedstrata.run import run as train  # noqa: PLC0415  # torch would slow every --help down

    with observed(as_json=as_json, plain=plain) as (console, observer, interrupt):
        result = train(config, observers=(observer,), stop=interrupt)
    finish(result, config, console, as_json=as_json)


@app.command(short_help="Go on with a run that was stopped.")
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    previous: Annotated[bool, typer.Option("--previous", help="Go on from the checkpoint before the last one.")] = False,  # noqa: FBT002
    executor: Annotated[str | None, typer.Option(help="Another executor than the run's own.")] = None,
    workers: Annotated[int | None, typer.Option(help="Another number of workers.")] = None,
    as_json: AsJson = False,  # noqa: FBT002
    plain: Plain = False,  # noqa: FBT002
) -> None:
    """Go on with a run, to the same model as if it had not been interrupted."""
    from fedstrata.run import resume as go_on  # noqa: PLC0415

    config = run_config(folder)
    if executor is not None:
        KEYS["executor"].read(executor)
    with observed(as_json=as_json, plain=plain) as (console, observer, interrupt):
        result = go_on(folder, previous=previous, executor=executor, workers=workers, observers=(observer,), stop=interrupt)
    finish(result, config, console, as_json=as_json)


def run_config(folder: Path) -> Config:
    """The configuration of a run folder."""
    if not (folder / "config.toml").is_file():
        near = sorted(str(p.parent) for p in folder.parent.glob("*/config.toml")) if folder.parent.is_dir() else []
        raise ConfigError(f"{str(folder)!r} is no run folder: it has no config.toml.{suggestion(str(folder), near)}")
    return Config.read(folder / "config.toml")


@contextmanager
def observed(*, as_json: bool, plain: bool) -> Iterator[tuple[Console, Observer, Interrupt]]:
    """A console, a progress observer, and the answer to Ctrl-C."""
    from fedstrata.allocator import keep_freed_blocks  # noqa: PLC0415
    from fedstrata.report.progress import progress  # noqa: PLC0415
    from fedstrata.run import Stopped  # noqa: PLC0415

    keep_freed_blocks()
    console = console_for(stderr=as_json)
    try:
        with Interrupt() as interrupt, progress(console, plain=plain) as observer:
            yield console, observer, interrupt
    except Stopped as stop:
        stopped(stop.folder, as_json=as_json)
    except KeyboardInterrupt:  # click would end in silence
        print("fedstrata: stopped at once; what was checkpointed is kept, go on with `fedstrata resume RUN`", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def finish(result: Result, config: Config, console: Console, *, as_json: bool) -> None:
    """Write the files for people and print the result."""
    from fedstrata.report.files import write  # noqa: PLC0415
    from fedstrata.report.tables import result_table  # noqa: PLC0415

    write(result, result.federation or config.federation())
    console.print(result_table(result))
    if as_json:
        print(json.dumps(result.summary, allow_nan=False))


def stopped(folder: Path, *, as_json: bool) -> NoReturn:
    """Say how to go on with a run that was asked to stop, and exit with 130."""
    from fedstrata.report.result import Result  # noqa: PLC0415

    so_far = Result.read(folder).summary
    if as_json:
        print(json.dumps(so_far, allow_nan=False), flush=True)
    print(f"fedstrata: stopped after round {so_far['rounds']}; go on with: fedstrata resume {folder}", file=sys.stderr)
    raise typer.Exit(INTERRUPTED)


@app.command(context_settings=_LOOSE, epilog=settings_help(), short_help="Would this run? Nothing is trained.")
def check(settings: Settings = None) -> None:
    """Check a configuration against data, model and method, without training."""
    config = read_settings(settings)
    from fedstrata.build import assemble  # noqa: PLC0415
    from fedstrata.report.tables import facts_table  # noqa: PLC0415

    console = console_for()
    console.print(facts_table(facts_of(assemble(config)), title="this configuration can run"))


def tests_of(federation: Federation) -> Iterator[str]:
    """Who tests on what."""
    if federation.test is not None:
        yield f"{len(federation.test):,} samples on the server"
    if federation.own_test is not None:
        yield "each client its own split"


def facts_of(parts: Parts) -> dict[str, str]:
    """What a run would be made of."""
    federation, setup = parts.federation, parts.setup
    facts = {
        "method": str(parts.method),
        "data": f"{federation.name}: {len(federation.train):,} training samples of shape {federation.task.shape}, {federation.task.classes} outputs",
        "partition": federation.partition.law,
        "clients": f"{federation.clients:,}, {setup.cohort} a round, {len(federation.heldout):,} kept out of training",
        "test": ", ".join(tests_of(federation)),
        "model": f"{parts.config.model_for(federation.task)}, {parts.parameters:,} parameters in {len(setup.layout.groups)} layer groups",
        "rounds": str(setup.rounds),
    }
    return facts | {f"note {place}": note for place, note in enumerate(federation.notes, 1)}


@app.command("list", short_help="Methods, data sets, models, ...: a line each.")
def list_(what: Annotated[str, typer.Argument(metavar="methods|datasets|models|partitions|measures|executors")], as_json: AsJson = False) -> None:  # noqa: FBT002
    """What is there, a line each."""
    from fedstrata.catalogue import CATALOGUES, rows  # noqa: PLC0415

    if what not in CATALOGUES:
        raise ConfigError(f"there is no list of {what!r}; it is one of {', '.join(CATALOGUES)}.{suggestion(what, CATALOGUES)}")
    show_rows(rows(what), as_json=as_json)


def show_rows(rows: Sequence[Mapping[str, str]], *, as_json: bool) -> None:
    """A table, or one JSON line."""
    if as_json:
        print(json.dumps(list(rows)))
        return
    from fedstrata.report.tables import list_table  # noqa: PLC0415

    console_for().print(list_table(rows) if rows else "none")


@app.command(context_settings=_LOOSE, epilog=settings_help(), short_help="What a method costs, by layer group.")
def describe(
    method: Annotated[str, typer.Argument(metavar="METHOD", help='A method or chain, such as "fedprox(mu=0.1) + fedavgm".')],
    settings: Settings = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """What a method costs on a federation: parameters, state, bytes, FLOPs and memory, by layer group."""
    given = list(settings or ())
    at = 1 if given and "=" not in given[0] else 0  # a file comes first, and the method holds over it
    config = read_settings([*given[:at], f"method={method}", *given[at:]])
    from fedstrata.describe import describe as cost  # noqa: PLC0415
    from fedstrata.report.costs import as_plain, show  # noqa: PLC0415

    description = cost(config)
    if as_json:
        print(json.dumps(as_plain(description), allow_nan=False))
    else:
        show(description, console_for())


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN [RUN ...]", help="Run folders.")],
    out: Annotated[Path | None, typer.Option(help="Where files go; default: the run folder of one run, ./report for several.")] = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Tables and pictures of finished, or unfinished, runs."""
    from fedstrata.report.result import Result  # noqa: PLC0415
    from fedstrata.report.runs import report as write_report  # noqa: PLC0415

    results = [Result.read(folder) for folder in folders]
    console = console_for(stderr=as_json)
    write_report(results, console, out)
    if as_json:
        print(json.dumps({result.name: result.summary for result in results}, allow_nan=False))


@app.command(short_help="Time the executors against a PyTorch loop.")
def bench(
    jobs: Annotated[str, typer.Option(help="Jobs: letters out of S (many small clients), M (classic CNN), L (ResNet-18).")] = "SML",
    pairs: Annotated[int, typer.Option(min=5, help="Interleaved pairs of measurements; the median counts.")] = 7,
    workers: Annotated[int, typer.Option(min=1, help="Workers of threads and processes.")] = 2,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Time the executors against a bare PyTorch loop that does the same local steps on the same samples."""
    from fedstrata.bench import main as measure  # noqa: PLC0415

    measure(jobs=jobs, pairs=pairs, workers=workers, as_json=as_json)
