"""The folder of a run: its name, and the manifest that says whose it is."""

from __future__ import annotations

import json
import platform
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedstrata._version import __version__
from fedstrata.common import plugins
from fedstrata.common.errors import StateError
from fedstrata.common.processor import processor
from fedstrata.config.config import Config
from fedstrata.engine.assembly import RunComponents
from fedstrata.runs.version import MANIFEST, check_version
from fedstrata.storage import sha256_of
from fedstrata.storage.atomic_files import make_folder


def new_folder(config: Config, data: str) -> Path:
    """Make the folder of a new run: as named, or called after method, data, seed and configuration.

    Raises:
        StateError: it is there already.
    """
    out = Path(config.out)
    if config.name != "auto":
        folder = out / config.name
        if folder.exists():
            raise StateError(f"{folder} exists; go on with it by `fedstrata resume {folder}`, or choose another name.")
        make_folder(folder)
        return folder
    stem = re.sub(r"[^A-Za-z0-9]+", "-", f"{config.method}-{data}").strip("-")[:60].strip("-")
    stem = f"{stem}-s{config.seed}-{config.digest()[:8]}"
    for number in range(1, 10_000):
        folder = out / (stem if number == 1 else f"{stem}-{number}")
        if not folder.exists():
            make_folder(folder)
            return folder
    raise StateError(f"{out} holds 9,999 runs of this configuration; remove some, or set name.")


def discard(folder: Path) -> None:
    """Take away the folder of a run that was refused before its first round was written."""
    if {path.name for path in folder.iterdir()} <= {"config.toml", MANIFEST, ".lock"}:
        shutil.rmtree(folder)


def manifest_of(parts: RunComponents, custom: Sequence[str]) -> dict[str, Any]:
    """What identifies a run; ``custom`` names the Python objects that it was given."""
    layout = parts.setup.layout
    shape = json.dumps([[e.name, list(e.shape), e.group, e.kind] for e in layout.entries.values()])
    return {
        "fedstrata": __version__,
        "versions": {
            "fedstrata": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            **plugins.versions(parts.config.flat() | {"task": parts.federation.task.kind}),
        },
        "processor": processor(),
        "config": parts.config.flat(),
        "digest": parts.config.digest(),
        "fingerprint": parts.federation.fingerprint,
        "layout": sha256_of([torch.frombuffer(bytearray(shape.encode()), dtype=torch.uint8)]),
        "frozen_base": parts.frozen_base,
        "method": str(parts.method),
        "seed": parts.config.seed,
        "parameters": parts.parameters,
        "custom": list(custom),
    }


KINDS = {
    "config": dict,
    "digest": str,
    "custom": list,
    "fingerprint": str,
    "layout": str,
    "versions": dict,
    "frozen_base": str,
}
"""Of a manifest, what a run is identified by."""


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run folder.

    Raises:
        StateError: no run there, or a damaged manifest.
    """
    if not (folder / MANIFEST).is_file():
        raise StateError(
            f"{folder} is no run folder: it has no {MANIFEST}. `fedstrata run` prints the folder of a run."
        )
    check_version(folder)
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for key, kind in KINDS.items():
            if not isinstance(manifest[key], kind):
                raise TypeError(f"{key} is no {kind.__name__}")
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"{folder / MANIFEST} is damaged ({error}); the run cannot be identified. Start it anew."
        ) from error
    return dict(manifest)


def same_run(config: Config, manifest: Mapping[str, Any], folder: Path) -> None:
    """Refuse, field by field, a configuration that is not the one the run began with."""
    if config.digest() == manifest["digest"]:
        return
    flat = json.loads(json.dumps(config.flat()))
    differing = [
        f"{k}: {v!r} now, {manifest['config'].get(k)!r} then" for k, v in flat.items() if v != manifest["config"].get(k)
    ]
    raise StateError(
        f"{folder / 'config.toml'} is not the configuration of this run: {'; '.join(differing[:5])}. Restore it, or"
        " start another run."
    )


def as_json(value: Mapping[str, Any]) -> bytes:
    """Readable JSON without NaN or infinity."""
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()
