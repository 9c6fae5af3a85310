"""Generate parts of pages from the code: settings, commands, registries, methods, public names."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
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
from fedstrata.engine.describe import CostProbe, probe_costs
from fedstrata.engine.describe import _bytes as state_bytes
from fedstrata.methods import Limit, NoLimit, Row, method
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
    """Return a Markdown table; a bar inside a cell does not end it."""
    cells = [[_BAR.sub("&#124;", cell).replace("\n", " ") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in [list(head), ["---"] * len(head), *cells])


def settings() -> str:
    """Return every setting with what it takes, its default and its meaning."""
    return grid(("setting", "default", "takes", "meaning"), (_setting(key) for key in KEYS.values()))


def _setting(key: Key) -> tuple[str, str, str, str]:
    default = "none" if key.default is None else str(key.default)
    return f"`{key.name}`", f"`{default}`", key.wanted, key.meaning


def commands() -> str:
    """Return every command of ``fedstrata``: usage, arguments, options."""
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
    """Return one registry as ``fedstrata list`` prints it; the first column is what users write."""
    return grid_of(rows(what))


def grid_of(lines: Sequence[Mapping[str, str]]) -> str:
    """Return a table of rows that all have the same keys."""
    head = list(lines[0])
    return grid(head, ([f"`{line[head[0]]}`", *(line[name] for name in head[1:])] for line in lines))


def catalogues() -> str:
    """Return all registries."""
    return "\n\n".join(f"## {what.capitalize()}\n\n{catalogue(what)}" for what in COLUMNS)


def python() -> str:
    """Return every public name, for mkdocstrings."""
    things = [getattr(fedstrata, name) for name in fedstrata.__all__]
    return "\n\n".join(f"::: {thing.__module__}.{thing.__qualname__}" for thing in things)


def costs() -> str:
    """Return what every registered method costs against FedAvg, as ``fedstrata describe`` counts it."""
    config = Config(data="digits", model="mlp", norm="batch")
    federation = config.federation()
    probes = {name: probe_costs(assemble(config.replace(method=name), federation)) for name in _examples()}
    base = probes["fedavg"]
    return grid(
        ("method", "sent down", "sent up", "server keeps (models)", "client keeps (models)", "training FLOPs"),
        (_cost(name, it, base) for name, it in probes.items()),
    )


def _examples() -> list[str]:
    """Return each method with its defaults, or an example if it needs settings."""
    return ["fedavg", *(row.name if _default(row.name) else row.examples[0] for row in methods())]


def _default(name: str) -> bool:
    try:
        method(name)
    except FedstrataError:
        return False
    return True


def _cost(name: str, probe: CostProbe, base: CostProbe) -> tuple[str, ...]:
    model = base.down.payload
    server = sum(state_bytes(state) for state in probe.server.states.values())
    sent = (f"x {size.payload / model:.2g}" for size in (probe.down, probe.up))
    kept = (f"{amount / model:.2g}" if amount else "0" for amount in (server, probe.client_state))
    return (f"`{name}`", *sent, *kept, f"x {_training(probe) / _training(base):.2g}")


def _training(probe: CostProbe) -> float:
    """Return the FLOPs of a sample in a round, with each phase as long as its share of the run's epochs."""
    run = probe.worker.setup.local.epochs or 1
    phases = {phase.name: (phase.epochs or run) / run for phase in probe.task.plan.phases}
    return sum(flops * phases.get(purpose, 1.0) for purpose, flops in probe.flops.items())


def method_list() -> str:
    """Return a table of methods for every family: rule, limit law and source, from rows and docstrings."""
    return "\n\n".join(f"### [{title}](families/{name}.md)\n\n{family(name)}" for name, title in FAMILIES.items())


def family(name: str) -> str:
    """Return the methods of one family, a line each."""
    lines = [_method(row) for row in methods() if row.family == name]
    lines = [FEDAVG, *lines] if name == "averaging" else lines
    return grid(("method", "rule", "equals", "source"), lines)


def _method(row: Row) -> tuple[str, str, str, str]:
    law = f"none: {row.limit.why}" if isinstance(row.limit, NoLimit) else _law(row.limit)
    return f"`{row.name}`", _sentence(row.piece), law, row.source


def _law(limit: Limit) -> str:
    condition = ", with equal local steps" if limit.uniform else ", for the shared model" if limit.shared_only else ""
    return f"`{limit.of}` at `{limit.method}`{condition}"


def _sentence(thing: type) -> str:
    """Return the summary line of a docstring as Markdown, in which signs of formulas are literal."""
    line = (inspect.getdoc(thing) or "").splitlines()[0].replace("``", "`")
    parts = line.split("`")
    return "`".join(part if i % 2 else re.sub(r"([*_<|\\^])", _literal, part) for i, part in enumerate(parts))


def _literal(sign: re.Match[str]) -> str:
    return {"<": "&lt;", "|": "&#124;"}.get(sign[1], "\\" + sign[1])


def family_settings(name: str) -> str:
    """Return the settings of a family's methods: default and meaning, from the fields of the pieces."""
    return grid(
        ("setting", "default", "meaning"),
        (
            (f"`{row.name}.{field.name}`", f"`{_default_of(field)}`", _meaning(field))
            for row in methods()
            if row.family == name
            for field in dataclasses.fields(row.piece)
        ),
    )


def _default_of(field: dataclasses.Field[Any]) -> str:
    return "none" if field.default is None else str(field.default)


def _meaning(field: dataclasses.Field[Any]) -> str:
    """Return what the piece declares, or the words that a setting takes."""
    words = re.findall(r'"([^"]+)"|\'([^\']+)\'', str(field.type)) if "Literal" in str(field.type) else []
    choices = " or ".join(f"`{a or b}`" for a, b in words)
    return field.metadata.get("meaning", "") or (
        f"one of {choices}" if choices else f"`{field.type}`".replace("|", "or")
    )


FAMILIES: Mapping[str, str] = {
    "averaging": "Averaging and server optimizers",
    "drift": "Drift correction",
    "contrast": "Contrast",
    "resets": "Resets, mutations and clustered cohorts",
    "partial": "Partial networks",
    "private-layers": "Private layers",
    "private-models": "Private models",
}
FEDAVG = ("`fedavg`", "Train locally, then average, weighted by samples.", "the empty chain", "McMahan et al., 2017")


MAKE: Mapping[str, Callable[[], str]] = {
    "settings": settings,
    "commands": commands,
    "catalogues": catalogues,
    "costs": costs,
    "python": python,
    "methods": method_list,
    **{name.replace("-", "_"): partial(family, name) for name in FAMILIES},
    **{f"{name.replace('-', '_')}_settings": partial(family_settings, name) for name in FAMILIES},
}
