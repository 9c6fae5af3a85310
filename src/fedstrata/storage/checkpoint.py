"""Checkpoints: a round is committed as a whole, or it never happened.

``state-<round>.safetensors`` holds tensors, ``rows-<round>.safetensors`` the clients' rows, and ``state-<round>.json``,
written last, names every file with its length and SHA-256 and carries a digest of itself. What no manifest names is
garbage. The two newest good checkpoints are kept; older ones go only after the new one was read back from the disk.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fedstrata.common.errors import StateError, WireError
from fedstrata.storage import atomic_files, container
from fedstrata.storage.atomic_files import DamagedError, Stamp
from fedstrata.storage.client_state import RowStore, stamps
from fedstrata.storage.client_state_file import LIMITS

KEEP = 2  # good checkpoints in a folder
ASIDE = ".aside"  # suffix of files that a resume from the one before has put away; never deleted by us

_FORMAT = 1
_MANIFEST = re.compile(r"state-(\d{1,18})\.json")
_OURS = re.compile(r"(state-\d{1,18}\.(safetensors|json)|rows-\d{1,18}\.safetensors)(\.tmp)?")
_LARGEST = 1 << 26  # bytes of a manifest
_PREFIX = b'{"digest":"%s","body":'
_DEPTH = 32  # nested brackets in meta


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """All of a run after a round, except the clients' rows.

    Args:
        round: the last committed round, from 0.
        tensors: parameters, buffers and server slots by name.
        meta: plain JSON: text keys, finite numbers, lists, None; for example the length of rounds.jsonl in bytes.
    """

    round: int
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)


def save(folder: Path, checkpoint: Checkpoint, rows: RowStore | None = None) -> None:
    """Commit a round: afterwards a kill or a power cut cannot lose it, and before, the round before is intact.

    Args:
        folder: made if it is not there; hold its :func:`~fedstrata.storage.lock`.
        checkpoint: what to keep.
        rows: committed in the same step; None where no method keeps any.
    Raises:
        StateError: the round is committed already, meta are not plain JSON, or the disk refuses; the checkpoint before
            is intact.
    """
    meta = _plain(checkpoint.meta)
    atomic_files.make_folder(folder)
    newest = max(committed(folder), default=-1)
    if checkpoint.round <= newest:
        raise StateError(f"{folder}: round {newest} is committed; round {checkpoint.round} would rewrite history.")
    part = None if rows is None else rows.commit(folder, checkpoint.round)
    name = f"state-{checkpoint.round}.safetensors"
    files = {name: atomic_files.write_file(folder / name, _tensor_parts(checkpoint.tensors), "state")}
    atomic_files.sync_folder(folder)  # the names last before the manifest relies on them
    manifest = _write_manifest(folder, checkpoint.round, meta, files, part)
    atomic_files.sync_folder(folder)
    atomic_files.crash_point("committed")
    _read_back(folder, checkpoint.round, manifest, files | ({} if part is None else stamps(part)))
    atomic_files.crash_point("verified")
    _prune(folder)
    atomic_files.crash_point("pruned")


def load(folder: Path, rows: RowStore | None = None, *, previous: bool = False) -> Checkpoint:
    """The newest checkpoint, every byte of it verified before it is used.

    Args:
        folder: where :func:`save` wrote.
        rows: opened on the rows of that checkpoint; None where they are not wanted.
        previous: take the checkpoint before the newest one. Once that was found good, the newest one's files are
            renamed to ``*.aside``.
    Raises:
        StateError: nothing there, or something is damaged; the message names the file and the way on. Nothing is
            deleted or changed then.
    """
    rounds = committed(folder)
    if not rounds:
        raise StateError(f"{folder} holds no checkpoint; start the run anew.")
    if previous and len(rounds) < 2:
        raise StateError(
            f"{folder} holds one checkpoint only, of round {rounds[0]}; there is none before it. Start the run anew in"
            " another folder."
        )
    chosen = rounds[1 if previous else 0]
    try:
        checkpoint = _read(folder, chosen, rows)
    except DamagedError as error:
        if previous or len(rounds) < 2:
            raise StateError(
                f"{error} There is no other checkpoint to fall back on; start the run anew in another folder."
            ) from error
        way = f"fedstrata resume {folder.parent} --previous continues from the checkpoint before, of round {rounds[1]}."
        raise StateError(f"{error} The file is kept as it is; {way}") from error
    if previous:
        _set_aside(folder, rounds[0], keep=_named(folder, chosen))
    return checkpoint


def committed(folder: Path) -> list[int]:
    """Rounds that have a manifest, newest first; whether they are good is seen when they are read."""
    if not folder.is_dir():
        return []
    return sorted(
        (int(match[1]) for path in folder.iterdir() if (match := _MANIFEST.fullmatch(path.name))), reverse=True
    )


def _tensor_parts(tensors: Mapping[str, Tensor]) -> list[bytes | memoryview]:
    try:
        head, order, _ = container.head({name: (tuple(t.shape), t.dtype) for name, t in tensors.items()}, {}, LIMITS)
    except WireError as error:
        raise StateError(f"the checkpoint cannot be written: {error}") from error
    return [head, *(container.raw(tensors[name]) for name in order)]


def _plain(meta: Mapping[str, Any]) -> dict[str, Any]:
    try:
        text = json.dumps(dict(meta), allow_nan=False)
        if container.read_json(text.encode(), depth=_DEPTH) == dict(meta):
            return dict(meta)
        reason = "something in them reads back as something else (a tuple, a key that is not text)"
    except (TypeError, ValueError, RecursionError) as error:
        reason = str(error)
    raise StateError(
        f"a checkpoint's meta are plain JSON (text keys, finite numbers, 64-bit integers, lists); {reason}."
    )


def _write_manifest(
    folder: Path, number: int, meta: dict[str, Any], files: Mapping[str, Stamp], part: dict[str, Any] | None
) -> Stamp:
    stamped = {name: {"sha256": stamp.sha256, "bytes": stamp.bytes} for name, stamp in files.items()}
    body = json.dumps(
        {"format": _FORMAT, "round": number, "meta": meta, "files": stamped, "rows": part}, allow_nan=False
    ).encode()
    text = _PREFIX % hashlib.sha256(body).hexdigest().encode() + body + b"}\n"
    return atomic_files.write_file(folder / f"state-{number}.json", [text], "manifest")


def _read_manifest(folder: Path, number: int) -> dict[str, Any]:
    path = folder / f"state-{number}.json"
    text = bytes(atomic_files.read_file(path, limit=_LARGEST))
    start = len(_PREFIX % (b"0" * 64))
    body = text[start:-2]
    if text != _PREFIX % hashlib.sha256(body).hexdigest().encode() + body + b"}\n":
        raise DamagedError(f"{path} is damaged: its {len(text)} bytes do not match the digest in it.")
    manifest: dict[str, Any] = container.read_json(body, depth=_DEPTH + 2)
    if manifest["format"] != _FORMAT or manifest["round"] != number:
        raise StateError(
            f"{path} is of format {manifest['format']}, round {manifest['round']}; format {_FORMAT}, round {number} is"
            " wanted."
        )
    return manifest


def _read(folder: Path, number: int, rows: RowStore | None) -> Checkpoint:
    manifest = _read_manifest(folder, number)
    name = f"state-{number}.safetensors"
    content = atomic_files.read_file(folder / name, _stamps(manifest)[name])
    try:
        contents = container.parse(memoryview(content), LIMITS)
        tensors = container.over(contents, content, contents.start)
    except WireError as error:
        raise DamagedError(f"{folder / name} is not a checkpoint: {error}") from error
    if rows is not None:
        rows.open(folder, manifest["rows"] or {"seen": 0, "files": []})
    return Checkpoint(number, tensors, manifest["meta"])


def _read_back(folder: Path, number: int, manifest: Stamp, files: Mapping[str, Stamp]) -> None:
    """Only what this round wrote: older rows files were read back when they were new."""
    atomic_files.verify(folder / f"state-{number}.json", manifest)
    for name, stamp in files.items():
        if name in (f"state-{number}.safetensors", f"rows-{number}.safetensors"):
            atomic_files.verify(folder / name, stamp)


def _named(folder: Path, number: int) -> set[str]:
    """The manifest of a round and every file that it names; StateError if one of them is not there in full length."""
    named = _stamps(_read_manifest(folder, number))
    for name, stamp in named.items():
        atomic_files.check_length(folder / name, stamp)
    return {f"state-{number}.json", *named}


def _stamps(manifest: dict[str, Any]) -> dict[str, Stamp]:
    part = manifest["rows"]
    return {name: Stamp(**stamp) for name, stamp in manifest["files"].items()} | (stamps(part) if part else {})


def _prune(folder: Path) -> None:
    """Delete what neither of the two newest good checkpoints needs.

    The manifest of a bad one between them is put aside, not deleted.
    """
    keep: set[str] = set()
    good = 0
    for number in committed(folder):
        if good == KEEP:
            break
        try:
            keep |= _named(folder, number)
            good += 1
        except DamagedError:  # reported when it is opened; here it only must not count as one of the good ones
            _rename_aside(folder / f"state-{number}.json")
    ours = sorted(path for path in folder.iterdir() if _OURS.fullmatch(path.name) and path.name not in keep)
    for path in sorted(ours, key=lambda p: p.suffix != ".json"):  # manifests first: none may name a file that is gone
        atomic_files.remove(path)
        atomic_files.crash_point("removed")
    atomic_files.sync_folder(folder)


def _set_aside(folder: Path, number: int, keep: set[str]) -> None:
    """Put a checkpoint's own files away under another name.

    The manifest first, so that a kill in between leaves the one before as newest.
    """
    for name in (f"state-{number}.json", f"state-{number}.safetensors", f"rows-{number}.safetensors"):
        if name not in keep and (folder / name).exists():
            _rename_aside(folder / name)
    atomic_files.sync_folder(folder)


def _rename_aside(path: Path) -> None:
    try:
        path.rename(path.with_name(path.name + ASIDE))
    except OSError as error:
        atomic_files.refuse("rename", path, error)
