"""Lines of JSON that grow with a run (rounds.jsonl), and the lock that keeps a second process out of a run folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedstrata.common.errors import StateError, WireError
from fedstrata.storage import atomic_files, container

_DEPTH = 32
_held: set[int] = set()


@dataclass(frozen=True)
class Lines:
    """What a file of lines holds: its rows, and how many bytes of a torn last line were left out."""

    rows: list[dict[str, Any]]
    torn: int


def append_line(path: Path, row: Mapping[str, Any]) -> int:
    """Add one row and flush it to the disk.

    Returns:
        the file's length in bytes, to be kept in the checkpoint of the same round.

    Raises:
        StateError: the row is not plain JSON, the last line is torn (:func:`truncate_lines` first), or the disk
            refuses.
    """
    try:
        text = json.dumps(dict(row), allow_nan=False, ensure_ascii=False).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise StateError(f"{path}: a row is plain JSON with finite numbers; {error}.") from error
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            length = os.fstat(handle).st_size
            if length and os.pread(handle, 1, length - 1) != b"\n":
                raise StateError(f"{path} ends in a torn line; cut it to its committed length before more is added.")
            atomic_files.crash_point("lines.begin")
            _write_at(handle, text, length)
            atomic_files.crash_point("lines.written")
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        atomic_files.refuse("write", path, error)
    if not length:
        atomic_files.sync_folder(path.parent)
    return length + len(text)


def _write_at(handle: int, text: bytes, start: int) -> None:
    """All of it, or none: what a full disk left half-written is cut off again."""
    done = 0
    try:
        while done < len(text):
            done += os.pwrite(handle, text[done:], start + done)
    except OSError:
        os.ftruncate(handle, start)
        raise


def read_lines(path: Path, upto: int | None = None) -> Lines:
    """The rows of a file, or of its first ``upto`` bytes.

    A last line that is only half there is left out and counted; a bad line elsewhere is damage.

    Raises:
        StateError: missing, shorter than ``upto``, or damaged.
    """
    content = bytes(atomic_files.read_file(path))
    if upto is not None:
        if len(content) < upto:
            raise StateError(f"{path} is damaged: it has {len(content)} bytes, and {upto} were committed.")
        content = content[:upto]
    whole, _, tail = content.rpartition(b"\n")
    rows = []
    for number, line in enumerate(whole.split(b"\n") if whole else [], 1):
        try:
            row = container.read_json(line, depth=_DEPTH)
        except WireError as error:
            raise StateError(f"{path}, line {number} is damaged: {error}") from error
        if not isinstance(row, dict):
            raise StateError(f"{path}, line {number} is damaged: it is not a JSON object.")
        rows.append(row)
    return Lines(rows, len(tail))


def truncate_lines(path: Path, upto: int) -> int:
    """Cut a file back to its committed length, at a resume.

    Returns:
        how many bytes were cut off: lines of a round that was never committed.

    Raises:
        StateError: the file is missing or shorter than that, so committed lines are lost.
    """
    if not upto and not path.exists():
        return 0
    try:
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            length = os.fstat(handle).st_size
            if length < upto:
                raise StateError(f"{path} is damaged: it has {length} bytes, and {upto} were committed.")
            os.ftruncate(handle, upto)
            os.fsync(handle)
        finally:
            os.close(handle)
    except FileNotFoundError as error:
        raise StateError(f"{path} is missing; {upto} bytes were committed.") from error
    except OSError as error:
        atomic_files.refuse("cut", path, error)
    return length - upto


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold a run folder for this process; it is free again when the process ends, however it ends.

    Raises:
        StateError: another process, or another part of this one, holds it; the message names pid and host.
    """
    path = folder / ".lock"
    atomic_files.make_folder(folder)
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        atomic_files.refuse("lock", folder, error)
    _held.add(handle)
    try:
        _take(handle, folder)
        yield
    finally:
        _release(handle)


def _take(handle: int, folder: Path) -> None:
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now(UTC).isoformat(timespec="seconds")}
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(owner).encode(), 0)
    except BlockingIOError as error:
        raise StateError(
            f"{folder} is in use by {_owner(handle)}. Wait for that run to end, or choose another folder."
        ) from error
    except OSError as error:
        atomic_files.refuse("lock", folder, error)


def _owner(handle: int) -> str:
    try:
        owner = container.read_json(os.pread(handle, 4096, 0), depth=1)
        return f"process {owner['pid']} on {owner['host']} since {owner['since']}"
    except (WireError, KeyError, TypeError):  # it is just being written
        return "another process"


def _release(handle: int) -> None:
    if handle in _held:
        _held.discard(handle)
        os.close(handle)


def _let_go() -> None:
    """In a forked child: a worker that outlives a killed run must not keep its folder locked."""
    for handle in list(_held):
        _release(handle)


os.register_at_fork(after_in_child=_let_go)
