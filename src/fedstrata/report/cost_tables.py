"""Show a description of costs to readers and to programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from fedstrata.common.units import size, work
from fedstrata.report.terminal import facts_table


def as_plain(value: Any) -> Any:
    """Convert dataclasses to dictionaries and tuples to lists, for JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: as_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [as_plain(item) for item in value]
    return value


def show(description: Any, console: Console) -> None:
    """Print facts first, then a table for each list of records."""
    plain: dict[str, Any] = as_plain(description)
    records = {
        name: value for name, value in plain.items() if isinstance(value, list) and value and isinstance(value[0], dict)
    }
    facts = {
        _label(name): _text(name, value)
        for name, value in plain.items()
        if name not in records and value not in (None, [], {})
    }
    console.print(facts_table(facts))
    for name, rows in records.items():
        table = Table(box=box.SIMPLE_HEAD, title=_label(name), title_justify="left")
        for column, first in rows[0].items():
            table.add_column(
                column.replace("_", " "), justify="right" if isinstance(first, int | float) else "left", overflow="fold"
            )
        for row in rows:
            table.add_row(*(_text(column, value) for column, value in row.items()))
        console.print(table)


LABELS: Mapping[str, str] = {
    "client_state": "state of a client",
    "bytes_down": "to a client, first round",
    "bytes_up": "from a client, first round",
    "framing_down": "framing to a client",
    "framing_up": "framing from a client",
    "flops_step": "training, a sample",
    "memory": "memory, a local step",
    "not_kept": "not kept in front",
    "formulas": "by formula",
    "probe": "measured on",
    "pieces": "the method",
    "layers": "each layer group, as if it alone were trained",
}


def _label(name: str) -> str:
    return LABELS.get(name, name.replace("_", " "))


def _text(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(name, item)}" for key, item in value.items())
    if isinstance(value, list):
        return "; ".join(_text(name, item) for item in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if any(word in name for word in ("bytes", "memory", "state", "framing")):
            return size(value)
        return work(value) if "flops" in name else f"{value:,}"
    return str(value)
