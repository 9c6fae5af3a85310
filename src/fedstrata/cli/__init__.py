"""The command ``fedstrata``. It parses, calls the library and prints; everything it can do is in the library."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated

import click
import typer

from fedstrata.cli import compare, doctor, extend, look, study, train, use  # each registers its commands  # noqa: F401
from fedstrata.cli.common import INTERRUPTED, MACHINE, app, fail, read_settings
from fedstrata.common.errors import FedstrataError

__all__ = ["app", "main", "read_settings"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command.

    A FedstrataError, like a command line that cannot be read, becomes one line on stderr and exit code 2.
    """
    try:
        raise SystemExit(app(args=None if arguments is None else list(arguments), standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:  # its message is the help
        error.show()
        raise SystemExit(error.exit_code) from None
    except click.ClickException as error:
        where = (
            f" `{error.ctx.command_path} --help` shows what it takes."
            if isinstance(error, click.UsageError) and error.ctx is not None
            else ""
        )
        said = error.format_message()
        fail(f"{said if said.endswith(('.', '?')) else f'{said}.'}{where}")
    except click.Abort:
        raise SystemExit(MACHINE) from None
    except FedstrataError as error:
        fail(str(error))
    except BrokenPipeError:  # the reader of a pipe has gone; no one reads a message
        raise SystemExit(MACHINE) from None
    except OSError as error:
        fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", MACHINE)
    except (MemoryError, RuntimeError) as error:
        if not _full(error):
            raise
        fail(
            f"this machine's memory does not suffice ({str(error) or 'MemoryError'}). Make models, batches, cohorts or"
            " generators smaller, or take fewer workers; what was checkpointed is kept.",
            MACHINE,
        )
    except KeyboardInterrupt:
        print(
            "fedstrata: stopped at once; what was checkpointed is kept, go on with `fedstrata resume RUN`",
            file=sys.stderr,
        )
        raise SystemExit(INTERRUPTED) from None


def _full(error: Exception) -> bool:
    """Return whether memory ran out; torch has no class for it."""
    return isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error)


def _version(wanted: bool) -> None:  # typer's callback  # noqa: FBT001
    if wanted:
        print(f"fedstrata {metadata.version('fedstrata')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[  # noqa: FBT002
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated learning on clients that differ."""
