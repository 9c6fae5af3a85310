"""Call syntax for settings: ``dirichlet(alpha=0.1)``, ``fedprox(mu=0.1) + fedavgm``.

A few kinds of syntax nodes are read; nothing is evaluated.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedstrata.common.errors import ConfigError
from fedstrata.common.suggest import suggestion

Value: typing.TypeAlias = "str | int | float | bool | tuple[Value, ...] | None"
T = typing.TypeVar("T")
LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Call:
    """A name with arguments, as written by a user."""

    name: str
    positional: tuple[Value, ...]
    named: Mapping[str, Value]

    def __str__(self) -> str:
        inside = [_show(v) for v in self.positional] + [f"{k}={_show(v)}" for k, v in self.named.items()]
        return f"{self.name}({', '.join(inside)})" if inside else self.name


def _show(value: Value) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_show(v) for v in value) + "]"
    return repr(value)


def shown(name: str, settings: Mapping[str, Value]) -> str:
    """Format a call for readers: the first value without its name, and words without quotes where they are plain.

    >>> shown("table", {"path": "mine.csv", "label": "ill", "drop": ("a b", "c")})
    "table(mine.csv, label=ill, drop=['a b', c])"
    """
    said = [
        _plain(value) if place == 0 else f"{key}={_plain(value)}" for place, (key, value) in enumerate(settings.items())
    ]
    return f"{name}({', '.join(said)})"


def _plain(value: Value) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_plain, value)) + "]"
    return value if isinstance(value, str) and re.fullmatch(r"[\w.-]+", value) else repr(value)


def parse_calls(text: str) -> tuple[Call, ...]:
    """Split ``"a(x=1) + b"`` into calls, in the order written.

    Raises:
        ConfigError: anything but names, calls with plain values, and ``+``.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(
            f"cannot read {text!r}: write name(key=value), for example dirichlet(alpha=0.3); joined by + where several"
            " are meant."
        ) from error
    return tuple(_call(part, text) for part in _summands(node))


def parse_call(text: str) -> Call:
    """One call; see :func:`parse_calls`."""
    calls = parse_calls(text)
    if len(calls) != 1:
        raise ConfigError(f"{text!r} joins {len(calls)} names by +; one is expected here.")
    return calls[0]


def _summands(node: ast.expr) -> list[ast.expr]:
    parts: list[ast.expr] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts.append(node.right)
        node = node.left
    return [node, *reversed(parts)]


def _call(node: ast.expr, text: str) -> Call:
    if isinstance(node, ast.Name):
        return Call(node.id, (), {})
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        named: dict[str, Value] = {}
        for word in node.keywords:
            if word.arg is None or word.arg in named:
                raise ConfigError(f"in {text!r}: every argument is key=value, each key once.")
            named[word.arg] = _value(word.value, text)
        return Call(node.func.id, tuple(_value(arg, text) for arg in node.args), named)
    raise ConfigError(f"cannot read {ast.unparse(node)!r} in {text!r}: write a name or name(key=value).")


def _value(node: ast.expr, text: str) -> Value:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _value(node.operand, text)
        if isinstance(inner, int | float) and not isinstance(inner, bool):
            return -inner
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):  # shares are often written as 2/64
        top, bottom = _value(node.left, text), _value(node.right, text)
        if isinstance(top, int | float) and isinstance(bottom, int | float) and bottom:
            return top / bottom
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value > LARGEST:
        digits = str(node.value)
        said = digits if len(digits) <= 40 else f"{digits[:20]}... ({len(digits)} digits)"
        raise ConfigError(f"the whole number {said} is beyond 64 bits; the largest is {LARGEST}.")
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | None):
        return node.value
    if isinstance(node, ast.Name):
        words: dict[str, Value] = {"true": True, "false": False, "null": None, "none": None, "inf": math.inf}
        return words.get(node.id, node.id)
    if isinstance(node, ast.List | ast.Tuple):
        return tuple(_value(item, text) for item in node.elts)
    raise ConfigError(
        f"cannot read the value {ast.unparse(node)!r} in {text!r}: numbers, names, quoted text, true, false, null and"
        " [lists] are values."
    )


def bind(call: Call, factory: Callable[..., T], *, what: str) -> T:
    """Build ``factory(**arguments)`` after names and types were checked against its signature.

    Args:
        call: what the user wrote.
        factory: a class or function with annotated parameters.
        what: the kind of thing, for messages: "method", "partition".
    Raises:
        ConfigError: an unknown key (with the nearest valid one), a missing one, or a value of the wrong type. Ranges
            are the factory's own business.
    """
    return factory(**arguments(call, factory, what=what))


def arguments(call: Call, factory: Callable[..., object], *, what: str) -> dict[str, Any]:
    """The checked keyword arguments that ``call`` means for ``factory``; see :func:`bind`."""
    parameters = {
        n: p for n, p in inspect.signature(factory).parameters.items() if p.kind is not inspect.Parameter.VAR_KEYWORD
    }
    positional = [name for name, p in parameters.items() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    if len(call.positional) > len(positional):
        raise ConfigError(
            f"{what} {call.name} takes {_options(parameters)}; {len(call.positional)} unnamed values were given."
        )
    given = dict(zip(positional, call.positional, strict=False))
    for name, value in call.named.items():
        if name not in parameters:
            raise ConfigError(
                f"{what} {call.name} has no setting {name!r}.{suggestion(name, parameters)} It takes"
                f" {_options(parameters)}."
            )
        if name in given:
            raise ConfigError(f"{what} {call.name}: {name} is given twice.")
        given[name] = value
    missing = [n for n, p in parameters.items() if p.default is inspect.Parameter.empty and n not in given]
    if missing:
        raise ConfigError(f"{what} {call.name} needs {', '.join(missing)}: write {call.name}({missing[0]}=...).")
    hints = typing.get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    return {name: _fit(value, hints.get(name, Any), f"{what} {call.name}: {name}") for name, value in given.items()}


def _options(parameters: Mapping[str, inspect.Parameter]) -> str:
    if not parameters:
        return "no settings"
    return ", ".join(n if p.default is inspect.Parameter.empty else f"{n}={p.default!r}" for n, p in parameters.items())


def _fit(value: Value, hint: Any, where: str) -> Any:
    """The value as the annotation wants it; an int serves as a float, nothing else is converted."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _fit_any(value, typing.get_args(hint), where)
    if origin is typing.Literal:
        return _fit_choice(value, typing.get_args(hint), where)
    if origin is tuple:
        items = value if isinstance(value, tuple) else (value,)
        return tuple(_fit(item, typing.get_args(hint)[0], where) for item in items)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if hint is float and number:
        return _number(value, where)
    if hint is Any or (hint is type(None) and value is None):
        return value
    if isinstance(hint, type) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise ConfigError(f"{where} is {value!r}; a value of type {getattr(hint, '__name__', str(hint))} is wanted.")


def _fit_any(value: Value, options: tuple[Any, ...], where: str) -> Any:
    for option in options:
        try:
            return _fit(value, option, where)
        except ConfigError:
            continue
    wanted = " or ".join("null" if o is type(None) else getattr(o, "__name__", str(o)) for o in options)
    raise ConfigError(f"{where} is {value!r}; a value of type {wanted} is wanted.")


def _fit_choice(value: Value, options: tuple[Any, ...], where: str) -> Any:
    if value in options:
        return value
    if value is None and "none" in options:
        return "none"  # the bare word is read as no value
    choices = [str(c) for c in options]
    raise ConfigError(f"{where} is {value!r}; it is one of {', '.join(choices)}.{suggestion(str(value), choices)}")


def _number(value: Any, where: str) -> float:
    if math.isnan(value):
        raise ConfigError(f"{where} is not a number.")
    return float(value)
