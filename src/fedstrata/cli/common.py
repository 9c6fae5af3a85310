"""What all commands share: the application, settings from a command line, consoles, exit codes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from fedstrata.cli.interrupt import Interrupt
from fedstrata.common.errors import ConfigError
from fedstrata.common.suggest import suggestion
from fedstrata.config.config import KEYS, Config
from fedstrata.runs.version import check_version

if TYPE_CHECKING:
    from fedstrata.common.events import Observer

MACHINE, USAGE, INTERRUPTED = 1, 2, 130
"""Exit codes: a disk or folder that fails; something that the user can mend in the command.

Stopped by a signal, with a checkpoint kept.
"""

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

Settings = Annotated[
    list[str] | None,
    typer.Argument(metavar="[CONFIG.toml] [key=value ...]", help="A file, then settings that hold over it."),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object as the last line of stdout; everything else goes to stderr."),
]
Plain = Annotated[bool, typer.Option("--plain", help="Plain lines instead of a progress bar.")]
LOOSE = {"ignore_unknown_options": True}  # so that --rounds=5 gets our own answer, which names rounds=5


def settings_help() -> str:
    """All settings with default and meaning, for ``--help``."""
    width = max(len(name) for name in KEYS) + 2
    lines = ['Settings, as key=value here and in TOML files (TOML quotes "data.root"):']
    for key in KEYS.values():
        default = "none" if key.default is None else key.default
        lines.append(f"  {key.name:<{width}}{key.meaning} [{default}]")
    return "\b\n" + "\n".join(lines)


def fail(message: str, code: int = USAGE) -> NoReturn:
    """One line on stderr, whatever the message holds, and the exit code."""
    text = "".join(c if c.isprintable() else " " for c in message)
    print(f"fedstrata: error: {text}", file=sys.stderr)
    raise SystemExit(code)


def console_for(*, stderr: bool = False) -> Console:
    """A console that prints text as it is; wide where no terminal shows it, so that tables in files are not folded."""
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


def read_for(method: str, texts: Sequence[str] | None) -> Config:
    """The same for a command whose method is a separate argument, which overrides the file."""
    given = list(texts or ())
    at = 1 if given and "=" not in given[0] else 0  # a file comes first
    return read_settings([*given[:at], f"method={method}", *given[at:]])


def _refuse_incomplete(file: Path) -> None:
    """The config.toml of a run that was given data or a model from Python does not say what was run.

    Another run must not pass for it.
    """
    from fedstrata.runs.result import manifest  # torch would slow every --help down  # noqa: PLC0415

    if file.name == "config.toml" and (custom := manifest(file.parent).get("custom")):
        given = " and ".join(custom)
        again = ", ".join(f"{name}=..." for name in custom)
        raise ConfigError(
            f"{file} belongs to a run that was given its {given} from Python; run it from there: fedstrata.run(...,"
            f" {again})."
        )


def run_config(folder: Path) -> Config:
    """The configuration of a run folder."""
    if not (folder / "config.toml").is_file():
        near = sorted(str(p.parent) for p in folder.parent.glob("*/config.toml")) if folder.parent.is_dir() else []
        raise ConfigError(f"{str(folder)!r} is no run folder: it has no config.toml.{suggestion(str(folder), near)}")
    check_version(folder)
    return Config.read(folder / "config.toml")


@contextmanager
def observed(*, as_json: bool, plain: bool) -> Iterator[tuple[Console, Observer, Interrupt]]:
    """A console, a progress observer, and the answer to Ctrl-C."""
    from fedstrata.common.allocator import keep_freed_blocks  # noqa: PLC0415
    from fedstrata.report.progress import progress  # noqa: PLC0415
    from fedstrata.runs.run import Stopped  # noqa: PLC0415

    keep_freed_blocks()
    console = console_for(stderr=as_json)
    try:
        with Interrupt() as interrupt, progress(console, plain=plain) as observer:
            yield console, observer, interrupt
    except Stopped as stop:
        stopped(stop.folder, as_json=as_json)
    except KeyboardInterrupt:  # click would end silently
        print(
            "fedstrata: stopped at once; what was checkpointed is kept, go on with `fedstrata resume RUN`",
            file=sys.stderr,
        )
        raise typer.Exit(INTERRUPTED) from None


def stopped(folder: Path, *, as_json: bool) -> NoReturn:
    """Say how to go on with a run that was asked to stop, and exit with 130."""
    from fedstrata.runs.result import Result  # noqa: PLC0415

    so_far = Result.read(folder).summary
    if as_json:
        print(json.dumps(so_far, allow_nan=False), flush=True)
    print(f"fedstrata: stopped after round {so_far['rounds']}; go on with: fedstrata resume {folder}", file=sys.stderr)
    raise typer.Exit(INTERRUPTED)
