"""File formats of images: WebP stacks and JPEG packs in .npz, IDX, CIFAR binary. No pickle anywhere."""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from fedstrata.common.errors import DataError

Bytes = NDArray[np.uint8]
Table = Mapping[str, NDArray[Any]]
IDX_UBYTE = 0x08


def read_npz(path: Path) -> Table:
    """Read all arrays of an .npz file, without pickle.

    Raises:
        DataError: a damaged file, or object arrays.
    """
    try:
        with path.open("rb") as file:  # numpy leaves the file open when it is damaged
            if file.read(2) != b"PK":
                raise DataError(f"{path} is not a .npz file (a zip archive of arrays); fetch it again.")
            file.seek(0)
            stored = np.load(file, allow_pickle=False)
            return {name: stored[name] for name in stored.files}
    except ValueError as error:
        raise DataError(
            f"{path}: {error} Object arrays need pickle, which can run code, and are refused; store plain arrays."
        ) from error
    except (OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} is damaged or not a .npz file ({error}); fetch it again.") from error


def required(table: Table, name: str, path: Path) -> NDArray[Any]:
    """Look up an array that the file must hold.

    Raises:
        DataError: there is no such array.
    """
    if name not in table:
        raise DataError(f"{path} has no array {name!r}; it has {', '.join(sorted(table)[:12])}.")
    return table[name]


def packed_pictures(path: Path, size: int | None = None) -> tuple[Bytes, Table]:
    """Decode the pictures of an .npz, and return its other arrays.

    Pictures are WebP stacks ``m0000`` ... with ``size``, or ``jpeg`` with ``offsets``.

    Args:
        path: the file.
        size: side to resize to, with a box filter; None keeps the stored size.
    Returns:
        [N, C, H, W] uint8, and the other arrays.
    Raises:
        DataError: a damaged file, or counts that do not agree.
    """
    stat = path.stat()
    return _packed(str(path), size, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4)  # train and test of two sets: comparing methods loads the same files again and again
def _packed(name: str, size: int | None, _mtime: int, _length: int) -> tuple[Bytes, Table]:
    path = Path(name)
    table = read_npz(path)
    height, width, channels = _size(required(table, "size", path), path)
    _columns(table, path)
    if "jpeg" in table:
        offsets, blob = required(table, "offsets", path), table["jpeg"].tobytes()
        parts = [blob[a:b] for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
    else:
        parts = [table[key].tobytes() for key in sorted(table) if key[0] == "m" and key[1:].isdigit()]
    labels = required(table, "labels", path)
    side = (height, width) if size is None else (size, size)
    pixels = np.empty((len(labels), channels, *side), dtype=np.uint8)
    done = 0
    with ThreadPoolExecutor(2) as pool:  # Pillow decodes outside the interpreter lock
        for stack in pool.map(lambda part: _stack(part, height, width, channels, size, path), parts):
            if done + len(stack) > len(pixels):
                raise DataError(f"{path} has more pictures than its {len(labels)} labels.")
            pixels[done : done + len(stack)] = stack
            done += len(stack)
    if done != len(labels):
        raise DataError(f"{path} has {done} pictures and {len(labels)} labels.")
    return pixels, {
        key: value for key, value in table.items() if key != "jpeg" and not (key[0] == "m" and key[1:].isdigit())
    }


def _size(size: NDArray[Any], path: Path) -> list[int]:
    sides = [int(v) for v in size.tolist()] if size.shape == (3,) and size.dtype.kind in "iu" else []
    if len(sides) != 3 or not all(1 <= side <= 4096 for side in sides):
        raise DataError(
            f"{path}: size is {size.tolist()!r}; it is [height, width, channels], whole numbers of at least 1."
        )
    return sides


def _columns(table: Table, path: Path) -> None:
    """Check the arrays beside the pictures: one-dimensional, and per-picture arrays as long as the labels.

    ``classes`` may have another length.
    """
    labels = required(table, "labels", path)
    for name in ("classes", "writer", "domain"):
        if name in table and (table[name].ndim != 1 or (name != "classes" and len(table[name]) != len(labels))):
            raise DataError(
                f"{path}: {name} has shape {table[name].shape};"
                f" it must be {'[classes]' if name == 'classes' else f'[{len(labels)}]'}."
            )


def _stack(part: bytes, height: int, width: int, channels: int, size: int | None, path: Path) -> Bytes:
    """Decode one file, a vertical stack of pictures: [k, C, H, W]."""
    picture = open_picture(io.BytesIO(part), channels, str(path))
    if picture.width != width or picture.height % height:
        raise DataError(
            f"{path}: a picture is {picture.height} x {picture.width}; stacks of {height} x {width} are expected."
        )
    stack = np.asarray(picture).reshape(-1, height, width, channels)
    if size is not None and (height, width) != (size, size):
        squeezed = [Image.fromarray(one.squeeze()).resize((size, size), Image.Resampling.BOX) for one in stack]
        stack = np.stack([np.asarray(one).reshape(size, size, channels) for one in squeezed])
    return stack.transpose(0, 3, 1, 2)


def open_picture(source: Path | io.BytesIO, channels: int, name: str) -> Image.Image:
    """Decode a picture in grey (1 channel) or RGB (3).

    Raises:
        DataError: not a picture, damaged, or larger than Pillow's safe number of pixels.
    """
    try:
        with Image.open(source) as picture:
            return picture.convert("RGB" if channels == 3 else "L")
    except (
        OSError,
        UnidentifiedImageError,
        SyntaxError,
        ValueError,
        Image.DecompressionBombError,
        Image.DecompressionBombWarning,
    ) as error:
        raise DataError(f"{name}: a picture cannot be read ({error}); remove it or fetch it again.") from error


def read_idx(path: Path) -> Bytes:
    """Read an IDX file of bytes (LeCun's format), plain or gzipped.

    Returns:
        uint8 of the shape in the header.
    Raises:
        DataError: a wrong header, or a length that does not agree with it.
    """
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(4)
            if len(head) < 4 or head[:2] != b"\0\0" or head[2] != IDX_UBYTE or not 1 <= head[3] <= 4:
                raise DataError(
                    f"{path}: header {head.hex()} is not that of an IDX file of bytes (0000 08 and the number of axes)."
                )
            shape = tuple(int(v) for v in np.frombuffer(file.read(4 * head[3]), dtype=">u4"))
            length = int(np.prod(shape, dtype=np.int64))
            body = file.read(length + 1)  # one byte more than expected, to detect a longer file
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged ({error}); fetch it again.") from error
    if len(body) != length or len(shape) != head[3]:
        raise DataError(
            f"{path}: the header says {shape}, which is {length} bytes; the file has"
            f" {'more' if len(body) > length else len(body)}."
        )
    return np.frombuffer(body, dtype=np.uint8).reshape(shape).copy()


def read_cifar(path: Path, label_bytes: int) -> tuple[Bytes, Bytes]:
    """Read a CIFAR binary file: records of label bytes and 3,072 pixels.

    Args:
        path: the file.
        label_bytes: 1 (CIFAR-10) or 2 (CIFAR-100: coarse, fine).
    Returns:
        [N, 3, 32, 32] and [N, label_bytes], both uint8.
    Raises:
        DataError: a length that is not a multiple of a record.
    """
    raw = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    record = label_bytes + 3072
    if not len(raw) or len(raw) % record:
        raise DataError(
            f"{path} has {len(raw)} bytes, which is not a multiple of a record of {record}; fetch it again."
        )
    rows = raw.reshape(-1, record)
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32).copy(), rows[:, :label_bytes].copy()
