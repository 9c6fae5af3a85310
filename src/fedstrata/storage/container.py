"""The safetensors container and strict JSON: the one byte format of messages and of checkpoints.

Layout: 8 bytes little-endian header length, a JSON header padded with spaces to a multiple of 8, then raw little-endian
    data. Tensors lie in
the safetensors library's own order (wide types first, then by name), so every tensor is aligned and equal content gives
equal bytes. Everything read is checked before anything is allocated; whatever is wrong is a
:class:`~fedstrata.common.errors.WireError`.

Source: the safetensors format description; held against the library (0.8) in tests/wire.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fedstrata.common.errors import WireError

Form: TypeAlias = tuple[tuple[int, ...], torch.dtype]  # one tensor's shape and dtype; a torch.Size is a tuple too
Shapes: TypeAlias = Mapping[str, Form]

DTYPES: dict[torch.dtype, str] = {  # in the order in which the safetensors library lays tensors out
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_RANK = {dtype: place for place, dtype in enumerate(DTYPES)}
_BY_NAME = {name: dtype for dtype, name in DTYPES.items()}
_NAME = re.compile(r"[A-Za-z0-9_@][A-Za-z0-9_@.:/#+-]*")
_ALIGN = 8

if sys.byteorder != "little":  # raw memory is the format; a silent swap would be a silent wrong model
    raise ImportError(
        "fedstrata writes tensors as they lie in memory and needs a little-endian machine; this one is big-endian."
    )


@dataclass(frozen=True)
class Limits:
    """What a reader accepts; a value above one of these is refused before it is allocated."""

    message: int = 1 << 33  # bytes in all
    header: int = 1 << 22  # bytes of JSON
    tensors: int = 10_000
    rank: int = 8  # axes of one tensor
    name: int = 256  # characters
    depth: int = 4  # nested brackets; the format itself needs 3
    fields: int = 256
    text: int = 1 << 16  # characters of one text field


LIMITS = Limits()


@dataclass(frozen=True)
class Entry:
    """One tensor in a container; ``begin`` and ``end`` count bytes from the start of the data."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Contents:
    """A checked header: entries in data order, text metadata, and the offset at which the data start."""

    entries: dict[str, Entry]
    metadata: dict[str, str]
    start: int


def cut(value: object, limit: int = 60) -> str:
    """A short, escaped form for messages: what a stranger sent is data, never text to be printed as it is."""
    text = repr(value[: limit + 1] if isinstance(value, str) else value)
    return text if len(text) <= limit else text[:limit] + "..."


def check_name(name: object, limits: Limits) -> str:
    """The name itself if it is a plain one within the limit."""
    if not isinstance(name, str) or len(name) > limits.name or not _NAME.fullmatch(name):
        length = len(name) if isinstance(name, str) else 0
        raise WireError(
            f"{cut(name)} ({length} characters) is not a name: at most {limits.name} of letters, digits and _ @ . : / #"
            " + - are allowed."
        )
    return name


def raw(tensor: Tensor) -> memoryview:
    """The bytes of a CPU tensor in C order; no copy where the tensor is contiguous."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


def sha256_of(tensors: Iterable[Tensor]) -> str:
    """Return SHA-256 over the little-endian bytes of the tensors in the order given.

    ``model_sha256`` is that of parameters, then buffers, in layout order.
    """
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(raw(tensor))
    return digest.hexdigest()


def nbytes(spec: Form) -> int:
    """Bytes of one tensor's data."""
    return math.prod(spec[0]) * spec[1].itemsize


def head(shapes: Shapes, metadata: Mapping[str, str], limits: Limits = LIMITS) -> tuple[bytes, list[str], int]:
    """Everything before the data, from shapes alone.

    Args:
        shapes: name -> (shape, dtype).
        metadata: text pairs; written as they are.
        limits: what a reader would accept; more is refused here already.

    Returns:
        (length prefix and padded header, names in data order, bytes of data).

    Raises:
        WireError: a name, dtype, rank, count or length that a reader would refuse.
    """
    if len(shapes) > limits.tensors:
        raise WireError(f"{len(shapes)} tensors; at most {limits.tensors} fit one message.")
    table: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    order = sorted(shapes, key=lambda n: (_rank(n, shapes[n], limits), n))
    offset = 0
    for name in order:
        shape, dtype = shapes[name]
        end = offset + nbytes(shapes[name])
        table[check_name(name, limits)] = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGN)
    if len(text) > limits.header or 8 + len(text) + offset > limits.message:
        raise WireError(
            f"a header of {len(text)} and data of {offset} bytes; the limits are {limits.header} and {limits.message}"
            " in all."
        )
    return len(text).to_bytes(8, "little") + text, order, offset


def _rank(name: str, spec: Form, limits: Limits) -> int:
    shape, dtype = spec
    if dtype not in _RANK:
        raise WireError(f"{cut(name)} is {dtype}; one of {', '.join(DTYPES.values())} can be written.")
    if len(shape) > limits.rank:
        raise WireError(f"{cut(name)} has {len(shape)} axes; at most {limits.rank} are allowed.")
    return _RANK[dtype]


def parse(data: memoryview, limits: Limits = LIMITS) -> Contents:
    """Read and check a header against the bytes that are really there.

    Args:
        data: the whole message or file, one byte an item.
        limits: what is accepted.

    Raises:
        WireError: anything that is not exactly a container within the limits.
    """
    total = len(data)
    if total > limits.message:
        raise WireError(f"a message of {total} bytes; the limit is {limits.message}.")
    if total < 8:
        raise WireError(f"a message of {total} bytes; even an empty one has 8 and a header.")
    length = int.from_bytes(data[:8], "little")
    if length > limits.header or length > total - 8:
        raise WireError(
            f"a header of {length} bytes is declared; the limit is {limits.header} and {total - 8} bytes follow."
        )
    table = read_json(bytes(data[8 : 8 + length]), depth=limits.depth, objects=limits.tensors + 2)
    if not isinstance(table, dict):
        raise WireError("the header is not a JSON object.")
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise WireError("__metadata__ holds something that is not text.")
    if len(table) > limits.tensors:
        raise WireError(f"{len(table)} tensors; the limit is {limits.tensors}.")
    entries = {check_name(name, limits): _entry(name, spec, limits) for name, spec in table.items()}
    entries = dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)))
    offset = 0
    for name, entry in entries.items():
        if entry.begin != offset:
            raise WireError(
                f"{cut(name)} starts at byte {entry.begin} of the data; {offset} is the next free one (no gaps, no"
                " overlap)."
            )
        offset = entry.end
    if offset != total - 8 - length:
        raise WireError(f"the tensors take {offset} bytes of data; {total - 8 - length} follow the header.")
    return Contents(entries, metadata, 8 + length)


def _entry(name: str, spec: object, limits: Limits) -> Entry:
    if not isinstance(spec, dict) or spec.keys() != {"dtype", "shape", "data_offsets"}:
        raise WireError(f"{cut(name)} is not described by exactly dtype, shape and data_offsets.")
    dtype, shape, offsets = spec["dtype"], spec["shape"], spec["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BY_NAME:
        raise WireError(f"{cut(name)} has dtype {cut(dtype)}; one of {', '.join(DTYPES.values())} is accepted.")
    if not _counts(shape) or len(shape) > limits.rank or math.prod(max(n, 1) for n in shape) > limits.message:
        raise WireError(
            f"{cut(name)} has shape {cut(shape)}; up to {limits.rank} axes, and {limits.message} entries in all, are"
            " accepted."
        )
    if not _counts(offsets) or len(offsets) != 2:
        raise WireError(f"{cut(name)} has data_offsets {cut(offsets)}; two byte positions are wanted.")
    kind, (begin, end) = _BY_NAME[dtype], offsets
    if end - begin != nbytes((tuple(shape), kind)) or begin % kind.itemsize:
        raise WireError(f"{cut(name)}: bytes {begin} to {end} do not hold {dtype} of shape {cut(shape)}, aligned.")
    return Entry(kind, tuple(shape), begin, end)


def _counts(value: object) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def tensors(contents: Contents, data: memoryview) -> dict[str, Tensor]:
    """All tensors, over one private copy of the data: writable, aligned, in data order.

    Raises:
        WireError: a boolean that is neither 0 nor 1.
    """
    return over(contents, bytearray(data[contents.start :]), 0)


def over(contents: Contents, buffer: bytearray, start: int) -> dict[str, Tensor]:
    """The tensors as views of ``buffer``, whose data begin at ``start`` (a multiple of 8).

    Copied only where memory is not :func:`aligned`.
    """
    result = {}
    for name, entry in contents.entries.items():
        count = math.prod(entry.shape)
        if not count:
            result[name] = torch.empty(entry.shape, dtype=entry.dtype)
            continue
        if (
            entry.dtype == torch.bool
            and torch.frombuffer(buffer, dtype=torch.uint8, count=count, offset=start + entry.begin).max() > 1
        ):
            raise WireError(f"{cut(name)} holds a byte that is neither 0 (false) nor 1 (true).")
        result[name] = aligned(
            torch.frombuffer(buffer, dtype=entry.dtype, count=count, offset=start + entry.begin).reshape(entry.shape)
        )
    return result


def aligned(tensor: Tensor) -> Tensor:
    """The tensor in memory that begins where torch's own does, at a multiple of 64 bytes; copied where it does not.

    Products with a single sample choose their kernel by it, and the last bits follow: a model read back must compute
    what it did before.
    """
    return tensor if tensor.data_ptr() % 64 == 0 else tensor.clone()


# A text with its closing quote, or, where that is missing, all the rest (which keeps the scan linear); or one bracket.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)


def read_json(text: bytes, *, depth: int, objects: int | None = None) -> Any:
    """JSON without Python's leniency: no NaN or Infinity, no number that overflows, no key twice, bounded nesting.

    Args:
        text: UTF-8.
        depth: nested brackets allowed.
        objects: objects allowed in all; None: as many as there are.

    Raises:
        WireError: anything else.
    """
    _check_nesting(text, depth, objects)
    try:
        return json.loads(
            text.decode(), object_pairs_hook=_unique, parse_constant=_constant, parse_float=_finite, parse_int=_integer
        )
    except UnicodeDecodeError as error:
        raise WireError(f"the JSON text is not UTF-8 at byte {error.start}.") from error
    except json.JSONDecodeError as error:
        raise WireError(f"not JSON: {error.msg} at character {error.pos}.") from error


def _check_nesting(text: bytes, depth: int, objects: int | None) -> None:
    level = seen = 0
    for token in _TOKEN.finditer(text):
        sign = token.group()[:1]
        if sign in b"{[":
            level += 1
            seen += sign == b"{"
            if level > depth:
                raise WireError(f"brackets are nested deeper than {depth} at byte {token.start()}.")
            if objects is not None and seen > objects:
                raise WireError(f"more than {objects} JSON objects.")
        elif sign in b"]}":
            level -= 1


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        seen: set[str] = set()
        twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        raise WireError(f"the key {cut(twice)} is given twice.")
    return table


def _constant(word: str) -> float:
    raise WireError(f"{word} is not a JSON number.")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise WireError(f"the number {cut(text)} is too large for a float.")
    return value


def _integer(text: str) -> int:
    if len(text) > 20:  # 64 bits; also keeps Python's quadratic conversion out of reach
        raise WireError(f"the integer {cut(text)} has more than 20 characters.")
    return int(text)
