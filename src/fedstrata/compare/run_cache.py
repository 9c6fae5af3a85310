"""Cache the runs of comparisons by what decides their result: configuration, data, code."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Literal

import numpy as np
import torch

from fedstrata.common.call_syntax import parse_call
from fedstrata.common.errors import ConfigError, StateError, WireError
from fedstrata.config.config import Config
from fedstrata.core.chain import Method
from fedstrata.models import find
from fedstrata.runs.version import MANIFEST
from fedstrata.storage import lock
from fedstrata.storage.atomic_files import DamagedError, Stamp, make_folder, read_file, sync_folder, verify, write_file
from fedstrata.storage.container import read_json

PACKAGE = Path(__file__).parents[1]
SEAL = "sealed.json"
SEALED = ("config.toml", MANIFEST, "rounds.jsonl", "summary.json", "model.safetensors", "clients.csv")

RESULT_PACKAGES = frozenset(
    [
        "backends",
        "client",
        "common",
        "config",
        "core",
        "data",
        "diagnostics",
        "engine",
        "methods",
        "models",
        "runs",
        "storage",
        "wire",
    ]
)
"""Folders whose source may change the result of a run: a change in one of them makes every cached run out of date."""

PRESENTATION_PACKAGES = frozenset(
    [
        "analysis",
        "api",
        "bench",
        "citations",
        "cli",
        "compare",
        "doctor",
        "inference",
        "report",
        "studies",
        "templates",
        "testing",
        "trackers",
    ]
)
"""Folders that start runs, read them or write about them. A test holds that every folder is in one of the two sets."""


@lru_cache(maxsize=4)
def code_version(package: Path = PACKAGE) -> str:
    """Return the SHA-256 (hex) over the source files that decide results, and the versions of numeric libraries."""
    files = [
        file
        for file in sorted(package.rglob("*.py"))
        if file.relative_to(package).with_suffix("").parts[0] in RESULT_PACKAGES
    ]
    libraries = f"torch {torch.__version__} numpy {np.__version__} python {sys.version_info[0]}.{sys.version_info[1]}"
    return _source_digest(files, package, libraries)


def _source_digest(files: Iterable[Path], root: Path, start: str) -> str:
    digest = hashlib.sha256(start.encode())
    for file in files:
        digest.update(f"\n{file.relative_to(root)} ".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def plugin_digest(config: Config, method: Method, measures: Iterable[object] = ()) -> str | None:
    """Return the SHA-256 over the source of pieces, model and measures from other packages; "" without any.

    A package counts as a whole, a single module by its file. None where there is no source to be found, as in an
    interactive session.
    """
    used = {type(piece).__module__ for piece in method.pieces} | {type(measure).__module__ for measure in measures}
    if config.model != "auto":
        used.add(getattr(find(parse_call(config.model).name).factory, "__module__", "?"))
    digests = []
    for name in sorted({module for module in used if module.partition(".")[0] != "fedstrata"}):
        source = _module_digest(sys.modules.get(name))
        if source is None:
            return None
        digests.append(f"{name} {source}")
    return hashlib.sha256("\n".join(digests).encode()).hexdigest() if digests else ""


def _module_digest(module: ModuleType | None) -> str | None:
    file = getattr(module, "__file__", None)
    if module is None or file is None or not Path(file).is_file():
        return None
    top = sys.modules.get(module.__name__.partition(".")[0])
    roots = sorted(Path(path) for path in getattr(top, "__path__", ()))
    if not roots:
        return _source_digest([Path(file)], Path(file).parent, "")
    return "".join(_source_digest(sorted(root.rglob("*.py")), root, "") for root in roots)


def key_of(config: Config, fingerprint: str, external: str = "") -> str:
    """Return the cache key of a run (hex): its configuration, its data, and the code."""
    return hashlib.sha256(json.dumps([config.digest(), fingerprint, code_version(), external]).encode()).hexdigest()


def folder_of(out: Path, config: Config, key: str) -> Path:
    """Return the folder of a run with that key, below the folder for results."""
    return out / "cache" / f"{stem(f'{config.method}-{config.data}')}-s{config.seed}-{key[:20]}"


def stem(text: str) -> str:
    """Return the beginning of a folder's name."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")[:60].strip("-")


# ---- cached runs


@dataclass(frozen=True)
class CachedRun:
    """Describes the state of a folder of the cache.

    Attributes:
        state: "none", "begun" (can be continued), "finished", or "damaged".
        why: for a damaged one.
    """

    state: Literal["none", "begun", "finished", "damaged"]
    why: str = ""


def inspect_run(folder: Path, key: str) -> CachedRun:
    """Inspect a folder of the cache; the files of a finished run are verified against its seal."""
    if not folder.exists():
        return CachedRun("none")
    if not (folder / SEAL).exists():
        return CachedRun("begun" if (folder / MANIFEST).is_file() else "damaged", "it was left before it began")
    if strange := [name for name in (SEAL, *SEALED) if _no_file(folder / name)]:
        return CachedRun("damaged", f"{strange[0]} is no plain file")
    try:
        seal = read_json(bytes(read_file(folder / SEAL, limit=1 << 20)), depth=4)
        if seal["key"] != key:
            return CachedRun("damaged", f"{SEAL} is that of another run")
        for name in SEALED:
            sha256, length = seal["files"][name]
            verify(folder / name, Stamp(str(sha256), int(length)))
    except (WireError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, StateError) and not isinstance(error, DamagedError):
            raise  # a disk that does not answer says nothing about the run
        return CachedRun("damaged", str(error).rstrip("."))
    return CachedRun("finished")


def _no_file(path: Path) -> bool:
    """Return whether the path is something else than a file: a link, a folder."""
    return path.is_symlink() or (path.exists() and not path.is_file())


def seal(folder: Path, key: str, together: int = 1) -> None:
    """Seal a finished run: its files may not change, and how many runs shared the machine, including itself."""
    files = {}
    for name in SEALED:
        content = bytes(read_file(folder / name))
        files[name] = [hashlib.sha256(content).hexdigest(), len(content)]
    write_file(
        folder / SEAL,
        [(json.dumps({"key": key, "together": together, "files": files}, indent=1) + "\n").encode()],
        "seal",
    )
    sync_folder(folder)


def together(folder: Path) -> int:
    """Return how many runs shared the machine when this one was made; 1 where that is unknown."""
    if not (folder / SEAL).is_file():
        return 1
    count = read_json(bytes(read_file(folder / SEAL, limit=1 << 20)), depth=4)["together"]
    return count if isinstance(count, int) else 1


def set_aside(folder: Path) -> Path:
    """Rename the folder of a damaged run, so its path is free and nothing is lost."""
    for number in range(1, 10_000):
        path = folder.with_name(f"{folder.name}.damaged-{number}")
        if not path.exists():
            folder.rename(path)
            sync_folder(folder.parent)
            return path
    raise StateError(f"{folder.parent} holds 9,999 damaged copies of {folder.name}; look at the disk, and remove them.")


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Lock the folder of a run against other processes, whether or not it exists yet.

    Raises:
        StateError: another process has it; :func:`is_locked` tells this from other errors.
    """
    locks = folder.parent / ".locks" / folder.name
    make_folder(folder.parent)
    with lock(locks):
        yield


def is_locked(error: BaseException) -> bool:
    """Return whether another process has locked the folder."""
    return isinstance(error.__cause__, BlockingIOError)


def check_out(out: Path) -> None:
    """Refuse a results path that is no folder, before anything is trained."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"out is {str(out)!r}, which is a file; name a folder for results, for example out=runs.")
