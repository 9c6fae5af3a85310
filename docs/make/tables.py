"""Parts of pages that are made from the code: settings, commands, registries, public names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click
import typer

import fedstrata
from fedstrata.cli import app
from fedstrata.cli.catalogue import COLUMNS, rows
from fedstrata.common.errors import FedstrataError
from fedstrata.config.config import KEYS, Config
from fedstrata.config.fields import Key
from fedstrata.engine.assembly import assemble
from fedstrata.engine.describe import CostProbe, trial
from fedstrata.engine.describe import _bytes as state_bytes
from fedstrata.methods import method
from fedstrata.methods import rows as methods

_BAR = re.compile(r"\|(?=(?:[^`]*`[^`]*`)*[^`]*$)")  # outside of code, where a bar is safe
FIRST = (
    "run",
    "compare",
    "sweep",
    "doctor",
    "check",
    "describe",
    "list",
    "report",
    "resume",
)  # of the commands; the others follow


def grid(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table; a bar inside a cell does not end it."""
    cells = [[_BAR.sub("&#124;", cell).replace("\n", " ") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in [list(head), ["---"] * len(head), *cells])


def settings() -> str:
    """Every setting with what it takes, its default and its meaning."""
    return grid(("setting", "default", "takes", "meaning"), (_setting(key) for key in KEYS.values()))


def _setting(key: Key) -> tuple[str, str, str, str]:
    default = "none" if key.default is None else str(key.default)
    return f"`{key.name}`", f"`{default}`", key.wanted, key.meaning


def commands() -> str:
    """Every command of ``fedstrata``: usage, arguments, options."""
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    names = sorted(group.commands, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    return "\n\n".join(_command(name, group.commands[name]) for name in names)


def _command(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"fedstrata {name}")
    usage = " ".join([*context.command.collect_usage_pieces(context)])
    parts = [f"## `fedstrata {name}`", f"```text\nfedstrata {name} {usage}\n```", _plain(command.help)]
    if isinstance(command, click.Group):
        parts += [_command(f"{name} {inner}", sub).replace("## ", "### ", 1) for inner, sub in command.commands.items()]
    options = [_option(p) for p in command.params if isinstance(p, click.Option) and not p.hidden]
    if options:
        parts.append(grid(("option", "default", "meaning"), options))
    return "\n\n".join(part for part in parts if part)


def _option(option: click.Option) -> tuple[str, str, str]:
    value = "" if option.is_flag or not option.metavar else f" {option.metavar}"
    names = ", ".join(f"`{name}{value}`" for name in [*option.opts, *option.secondary_opts])
    default: Any = option.default
    shown = "" if default in (None, False, (), []) or callable(default) else f"`{default}`"
    return names, shown, _plain(option.help)


def _plain(text: str | None) -> str:
    return (text or "").replace("\b", "").strip()


def catalogue(what: str) -> str:
    """One registry, as ``fedstrata list`` prints it; the first column is what users write."""
    return grid_of(rows(what))


def grid_of(lines: Sequence[Mapping[str, str]]) -> str:
    """A table of rows that all have the same keys."""
    head = list(lines[0])
    return grid(head, ([f"`{line[head[0]]}`", *(line[name] for name in head[1:])] for line in lines))


def catalogues() -> str:
    """All registries."""
    return "\n\n".join(f"## {what.capitalize()}\n\n{catalogue(what)}" for what in COLUMNS)


def python() -> str:
    """Every public name, from its docstring."""
    things = [getattr(fedstrata, name) for name in fedstrata.__all__]
    return "\n\n".join(f"::: {thing.__module__}.{thing.__qualname__}" for thing in things)


def costs() -> str:
    """What every registered method costs against FedAvg, as ``fedstrata describe`` counts it."""
    config = Config(data="digits", model="mlp", norm="batch")
    federation = config.federation()
    found = {name: trial(assemble(config.replace(method=name), federation)) for name in _examples()}
    base = found["fedavg"]
    return grid(
        ("method", "sent down", "sent up", "server keeps (models)", "client keeps (models)", "training FLOPs"),
        (_cost(name, it, base) for name, it in found.items()),
    )


def _examples() -> list[str]:
    """Each method with its defaults, or an example where it has none."""
    return ["fedavg", *(row.name if _default(row.name) else row.examples[0] for row in methods())]


def _default(name: str) -> bool:
    try:
        method(name)
    except FedstrataError:
        return False
    return True


def _cost(name: str, it: CostProbe, base: CostProbe) -> tuple[str, ...]:
    model = base.down.payload
    held = sum(state_bytes(slot) for slot in it.server.slots.values())
    sent = (f"x {mine / model:.2g}" for mine in (it.down.payload, it.up.payload))
    kept = (f"{amount / model:.2g}" if amount else "0" for amount in (held, it.row))
    return (f"`{name}`", *sent, *kept, f"x {_training(it) / _training(base):.2g}")


def _training(it: CostProbe) -> float:
    """FLOPs of a sample in a round, each phase as long as it is beside the run's own epochs."""
    run = it.session.kit.setup.epochs
    phases = {phase.name: (phase.epochs or run) / run for phase in it.session.work.plan.phases}
    return sum(flops * phases.get(purpose, 1.0) for purpose, flops in it.flops.items())


MAKE: Mapping[str, Callable[[], str]] = {
    "settings": settings,
    "commands": commands,
    "catalogues": catalogues,
    "costs": costs,
    "python": python,
}
