"""Describe settings by their public, dotted names: what each accepts and how text is read.

The table is made from a pydantic model.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedstrata.common.errors import ConfigError
from fedstrata.common.suggest import suggestion

NULL_WORDS = ("none", "null")  # how "no value" is written in text and in TOML, which has no null
_INTEGER = re.compile(r"[+-]?\d+(_\d+)*")


@dataclass(frozen=True)
class Range:
    """Numbers of one kind that a setting takes.

    Attributes:
        kind: int or float.
        low, high: limits, None where there is none.
        open: limits that are not accepted themselves, of "low" and "high".
    """

    kind: type
    low: float | None = None
    high: float | None = None
    open: frozenset[str] = frozenset()

    def __str__(self) -> str:
        limits = []
        if self.low is not None:
            limits.append(f"{'above' if 'low' in self.open else 'at least'} {self.low:g}")
        if self.high is not None:
            limits.append(f"{'below' if 'high' in self.open else 'at most'} {self.high:g}")
        name = "an integer" if self.kind is int else "a number"
        return f"{name}, {' and '.join(limits)}" if limits else name


@dataclass(frozen=True)
class Key:
    """One setting.

    Attributes:
        name: as users write it, "local.lr".
        path: attributes that lead to it, ("local", "lr").
        numbers: ranges accepted.
        text: whether any text is accepted.
        choices: words accepted.
        optional: whether "none" may be given.
        default: the value if the setting is not given.
        meaning: one line.
    """

    name: str
    path: tuple[str, ...]
    numbers: tuple[Range, ...]
    text: bool
    choices: tuple[str, ...]
    optional: bool
    default: Any
    meaning: str

    @property
    def wanted(self) -> str:
        """What the setting accepts, as the end of a sentence: "an integer, at least 1, or auto"."""
        parts = [*map(str, self.numbers), *(["text"] if self.text else [])]
        words = [*self.choices, *(["none"] if self.optional else [])]
        if not parts and len(words) > 1:
            return f"one of {', '.join(words)}"
        return ", or ".join([*parts, *words])

    def read(self, text: str) -> Any:
        """Parse the value of a text; nothing is evaluated.

        Raises:
            ConfigError: text that is none of the accepted kinds.
        """
        word = text.strip()
        if word in self.choices:
            return word
        if self.optional and word in NULL_WORDS:
            return None
        kinds = {number.kind for number in self.numbers}
        if int in kinds and _INTEGER.fullmatch(word):
            return int(word)
        if float in kinds and (number := _number(word)) is not None:
            return number
        if self.text:
            return text
        raise ConfigError(self.refusal(text))

    def refusal(self, value: object, source: str = "") -> str:
        """Describe an invalid value in a sentence."""
        near = suggestion(value, self.choices) if isinstance(value, str) else ""
        return f"{self.name} is {_shown(value)}{f' ({source})' if source else ''}; it is {self.wanted}.{near}"


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _shown(value: object, limit: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "..."


def table(model: type[BaseModel]) -> dict[str, Key]:
    """Return all settings of a model by public name, in the order of its fields; nested models give dotted names."""
    return {key.name: key for key in _walk(model, (), ())}


def _walk(model: type[BaseModel], names: tuple[str, ...], path: tuple[str, ...]) -> Iterable[Key]:
    for attribute, info in model.model_fields.items():
        name, where = (*names, info.alias or attribute), (*path, attribute)
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from _walk(info.annotation, name, where)
        else:
            yield _key(".".join(name), where, info)


def _key(name: str, path: tuple[str, ...], info: FieldInfo) -> Key:
    parts = list(_parts(info.annotation, info.metadata))
    kinds = [kind for kind, _ in parts]
    numbers = tuple(_range(kind, rules) for kind, rules in parts if kind in (int, float))
    words = tuple(word for kind in kinds if not isinstance(kind, type) for word in typing.get_args(kind))
    return Key(name, path, numbers, str in kinds, words, type(None) in kinds, info.default, info.description or "")


def _parts(annotation: Any, rules: Iterable[Any]) -> Iterable[tuple[Any, list[Any]]]:
    """Yield the plain types and Literals of an annotation, each with its rules."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        inner, *extra = typing.get_args(annotation)
        own = [rule for item in extra for rule in (item.metadata if isinstance(item, FieldInfo) else [item])]
        yield from _parts(inner, [*rules, *own])
    elif origin in (typing.Union, types.UnionType):
        for part in typing.get_args(annotation):
            yield from _parts(part, rules)
    else:
        assert origin is typing.Literal or isinstance(annotation, type), (
            f"settings are plain types and words, not {annotation}"
        )
        yield annotation, list(rules)


def _range(kind: type, rules: Iterable[Any]) -> Range:
    limits = {
        limit: getattr(rule, limit)
        for rule in rules
        for limit in ("gt", "ge", "lt", "le")
        if getattr(rule, limit, None) is not None
    }
    closed = frozenset(side for side, limit in (("low", "gt"), ("high", "lt")) if limit in limits)
    return Range(kind, limits.get("gt", limits.get("ge")), limits.get("lt", limits.get("le")), closed)


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables to dotted names.

    Raises:
        ConfigError: one name spelt twice, as a table and with a dot.
    """
    flat: dict[str, Any] = {}
    for name, item in settings.items():
        value = item.model_dump() if isinstance(item, BaseModel) else item
        inner = flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
        for key in inner:
            if key in flat:
                raise ConfigError(f"{key} is given twice, once with a dot and once in a table; write it once.")
        flat |= inner
    return flat
