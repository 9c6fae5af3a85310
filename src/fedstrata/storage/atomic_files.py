"""Files that are either wholly there or not there at all.

Every file is written beside its place, hashed on the way, flushed to the disk, and renamed; so a kill, a full disk or a
power cut leaves the old file or the new one. Named crash points let a test kill the process between any two of these
steps.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from fedstrata.common.errors import StateError

_BLOCK = 1 << 20  # bytes hashed and written while they are still in the processor's cache
_CRASH = "FEDSTRATA_CRASH"
_passed: Counter[str] = Counter()
_REMEDIES = {
    errno.ENOSPC: "Free some space, or continue on another disk",
    errno.EDQUOT: "Your quota is used up; free some space, or continue on another disk",
    errno.EACCES: "Make the folder writable for this user",
    errno.EPERM: "Make the folder writable for this user",
    errno.EROFS: "The file system is read-only; continue on another one",
    errno.EIO: "The disk reports an error; check it before you go on",
}


def crash_point(name: str) -> None:
    """Mark a named point at which a test may kill the process.

    Without the environment variable FEDSTRATA_CRASH nothing happens.

    ``FEDSTRATA_CRASH=name:count`` sends SIGKILL to this process when it passes that name for the count-th time;
    ``*:count`` counts all names together, and a count of 0 never kills, so that :func:`passed` tells how many points a
    run has.
    """
    order = os.environ.get(_CRASH)
    if not order:
        return
    wanted, _, count = order.rpartition(":")
    if not wanted or not count.isdecimal():
        raise StateError(f"{_CRASH} is {order!r}; write name:count, for example state.written:2, or *:17.")
    _passed[name] += 1
    _passed["*"] += 1
    if wanted in (name, "*") and _passed[wanted] == int(count):
        os.kill(os.getpid(), signal.SIGKILL)


def passed() -> dict[str, int]:
    """How often each crash point was passed by this process, ``*`` for all together.

    Counted only while FEDSTRATA_CRASH is set.
    """
    return dict(_passed)


class DamagedError(StateError):
    """A file that is missing or is not what was saved; in contrast to one that cannot be read just now."""


@dataclass(frozen=True)
class Stamp:
    """What a file must be: its length in bytes and the SHA-256 of all of them."""

    sha256: str
    bytes: int


def write_file(path: Path, parts: Iterable[bytes | memoryview], what: str) -> Stamp:
    """Write a file in one step as seen from outside; parts are hashed and written as they lie in memory.

    Args:
        path: where it will be. Call :func:`sync_folder` before anything relies on the new name after a power cut.
        parts: its bytes; a memoryview of bytes is not copied.
        what: prefix of the crash points ``begin``, ``inside`` (after every block), ``written``, ``synced``,
            ``renamed``.
    Raises:
        StateError: the disk is full, the folder is not writable, or the disk failed. The half-written file is gone, the
            old one untouched.
    """
    temporary = path.with_name(path.name + ".tmp")
    digest, length = hashlib.sha256(), 0
    crash_point(f"{what}.begin")
    try:
        with _opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as handle:
            for block in _blocks(parts):
                digest.update(block)
                length += len(block)
                _write_all(handle, block)
                crash_point(f"{what}.inside")
            crash_point(f"{what}.written")
            os.fsync(handle)
        crash_point(f"{what}.synced")
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            refuse("write", path, error)
        raise
    crash_point(f"{what}.renamed")
    return Stamp(digest.hexdigest(), length)


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a draft beside ``path``, which takes that name if all went well: no half-written file is left."""
    draft = path.with_name(f".draft-{path.name}")  # the suffix tells a picture's format
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make renames and removals in a folder outlast a power cut."""
    try:
        with _opened(folder, os.O_RDONLY | os.O_DIRECTORY) as handle:
            os.fsync(handle)
    except OSError as error:
        refuse("flush", folder, error)


def make_folder(folder: Path) -> None:
    """Make a folder that outlasts a power cut, where it is not there yet."""
    if folder.is_dir():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        refuse("make", folder, error)
    sync_folder(folder.parent)


def remove(path: Path) -> None:
    """Delete a file that nothing refers to any more."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        refuse("delete", path, error)


def read_file(path: Path, stamp: Stamp | None = None, *, limit: int | None = None) -> bytearray:
    """A whole file, checked against its stamp before anybody uses it.

    Args:
        path: a plain file; a link is refused.
        stamp: what it must be; None where the file carries its own digest.
        limit: largest accepted length in bytes.
    Raises:
        DamagedError: it is missing or is not what the stamp says; nothing is allocated for a wrong length.
        StateError: it cannot be read.
    """
    try:
        with _opened(path, os.O_RDONLY) as handle:
            length = _length(handle, path, stamp)
            if limit is not None and length > limit:
                raise DamagedError(f"{path} has {length} bytes; at most {limit} are expected.")
            content = bytearray(length)
            view, done = memoryview(content), 0
            while done < length and (count := os.preadv(handle, [view[done:]], done)):
                done += count
    except OSError as error:
        refuse("read", path, error)
    if stamp is not None:
        _compare(hashlib.sha256(content).hexdigest(), stamp, path)
    return content


def verify(path: Path, stamp: Stamp) -> None:
    """Read a file back, block by block.

    :class:`~fedstrata.common.errors.StateError` unless every byte is as stamped.
    """
    digest, block, place = hashlib.sha256(), bytearray(_BLOCK), 0
    view = memoryview(block)
    try:
        with _opened(path, os.O_RDONLY) as handle:
            _length(handle, path, stamp)
            while count := os.preadv(handle, [block], place):
                digest.update(view[:count])
                place += count
    except OSError as error:
        refuse("read", path, error)
    _compare(digest.hexdigest(), stamp, path)


def check_length(path: Path, stamp: Stamp) -> None:
    """The cheap half of :func:`verify`: the file is there, in its length."""
    try:
        with _opened(path, os.O_RDONLY) as handle:
            _length(handle, path, stamp)
    except OSError as error:
        refuse("read", path, error)


def refuse(verb: str, path: Path, error: OSError) -> NoReturn:
    """Say which file could not be served, why, and what to do; what was committed before is untouched."""
    if isinstance(error, FileNotFoundError) and verb == "read":
        raise DamagedError(f"{path} is missing.") from error
    remedy = _REMEDIES.get(error.errno or 0, "Check the disk and the folder")
    raise StateError(
        f"cannot {verb} {path}: {os.strerror(error.errno or 0)}. {remedy}; what was saved before is intact."
    ) from error


@contextlib.contextmanager
def _opened(path: Path, how: int) -> Iterator[int]:
    """A file descriptor.

    New files are private to the user, links are refused (a run folder is never a way to another place).
    """
    handle = os.open(path, how | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)


def _blocks(parts: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), _BLOCK):
            yield view[start : start + _BLOCK]


def _write_all(handle: int, block: memoryview) -> None:
    done = 0
    while done < len(block):
        done += os.write(handle, block[done:])


def _length(handle: int, path: Path, stamp: Stamp | None) -> int:
    length = os.fstat(handle).st_size
    if stamp is not None and length != stamp.bytes:
        raise DamagedError(f"{path} is damaged: it has {length} bytes, and {stamp.bytes} were saved.")
    return length


def _compare(found: str, stamp: Stamp, path: Path) -> None:
    if found != stamp.sha256:
        raise DamagedError(f"{path} is damaged: its SHA-256 is {found[:12]}..., and {stamp.sha256[:12]}... was saved.")
