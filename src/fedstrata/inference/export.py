"""A model as files for other programs: weights, a program, its signature and a model card."""

from __future__ import annotations

import importlib
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedstrata.common.errors import ConfigError, StateError
from fedstrata.core.chain import Method
from fedstrata.core.piece import Piece
from fedstrata.data.federation import Federation
from fedstrata.inference.finished_run import Finished, Who, finished, threads_kept
from fedstrata.inference.model_card import card
from fedstrata.inference.programs import NEAR, SAMPLES, difference, exported_bytes, onnx_bytes, program_of, require_onnx
from fedstrata.inference.signature import signature
from fedstrata.runs.folder import as_json
from fedstrata.storage import container
from fedstrata.storage.atomic_files import make_folder, sync_folder, write_file

Format = Literal["safetensors", "torch-export", "onnx", "all"]
FORMATS: tuple[Format, ...] = ("safetensors", "torch-export", "onnx", "all")
WEIGHTS, PROGRAM, ONNX, SIGNATURE, CARD = (
    "model.safetensors",
    "model.pt2",
    "model.onnx",
    "signature.json",
    "MODEL_CARD.md",
)


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        folder: that holds the files.
        files: SHA-256 by name.
        difference: the largest difference of outputs from the run's evaluation, against the largest output, by what was
            compared.
        client: whose model it is; None for the shared one.
        notes: what a user must be told.
    """

    folder: Path
    files: Mapping[str, str]
    difference: Mapping[str, float]
    client: int | None
    notes: tuple[str, ...]


def export(
    run: str | Path,
    out: str | Path | None = None,
    client: Who = None,
    format: Format = "torch-export",  # the command's word  # noqa: A002
    *,
    root: str | Path | None = None,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    method: Piece | Method | None = None,
) -> Exported:
    """Write the model of a finished run into a new folder: all files of it, or none.

    Always model.safetensors (the module's state_dict), signature.json (what it reads and says) and MODEL_CARD.md; by
    format a program that needs nothing of ours. Before anything is written, every program is held against the run's
    evaluation on real samples.

    Args:
        run: the run folder; it is only read.
        out: the new folder; default export/RUN, with the client's number behind it.
        client: None for the shared model; a number or name for the model that this client uses itself.
        format: safetensors (no program), torch-export (model.pt2), onnx (model.onnx; an extra), or all.
        root: folder of the data, where they are not where the run had them.
        federation: again, where the run was given one.
        module: again, where the run was given one.
        method: again, where the run was given pieces instead of text.
    Raises:
        ConfigError: there is no such client or format, a folder that is in use, or a model that cannot be written so.
        StateError: see :func:`fedstrata.inference.load`; or a program that does not compute what the run's evaluation
            did.
    """
    if format not in FORMATS:
        raise ConfigError(f"format is {format!r}; it is one of {', '.join(FORMATS)}.")
    if format in ("onnx", "all"):
        require_onnx()
    if out is not None:
        _free(Path(out), Path(run))
    with threads_kept():
        found = finished(run, root=root, federation=federation, module=module, method=method)
        who = found.number(client)
        folder = (
            Path(out)
            if out is not None
            else Path("export") / (found.result.name + ("" if who is None else f"-client-{who}"))
        )
        _free(folder, found.folder)
        files, seen = _contents(found, who, format)
    notes = (*found.notes, *found.told(who))
    told = signature(found, who) | {
        "difference": seen,
        "files": {name: {"bytes": _size(parts)} for name, parts in files.items()},
    }
    return _written(folder, files, told, found, who, seen, notes)


def _free(folder: Path, run: Path) -> None:
    """Refuse a folder that is in use, and one inside the run's.

    Raises:
        ConfigError: with the way out.
    """
    if folder.resolve().is_relative_to(run.resolve()):
        raise ConfigError(f"--out {folder} lies in the run folder, which stays as it is; choose another place.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists; remove it, or choose another --out.")


Parts = list[bytes | memoryview]


def _contents(found: Finished, client: int | None, format: Format) -> tuple[dict[str, Parts], dict[str, float]]:  # noqa: A002
    """The bytes of weights and programs, and how far each is from the run's evaluation."""
    module = found.module(client)
    x, wanted = _probe(found, client)
    seen = {"module": _near(module(x).detach(), wanted, found, "the plain module")}
    files = {WEIGHTS: weights(module)}
    if format == "safetensors":
        return files, seen
    program = program_of(module, x)
    seen["torch.export"] = _near(program.module()(x).detach(), wanted, found, "the torch.export program")
    if format in ("torch-export", "all"):
        files[PROGRAM] = [exported_bytes(program)]
    if format in ("onnx", "all"):
        content = onnx_bytes(program)
        seen["onnx"] = _near(_run_onnx(content, x), wanted, found, "the ONNX program")
        files[ONNX] = [content]
    return files, seen


def _probe(found: Finished, client: int | None) -> tuple[Tensor, Tensor]:
    """Up to SAMPLES real samples, at least two rows, and what the run's evaluation says of them."""
    federation, engine = found.federation, found.engine
    held = None if client is None else federation.testing(client)
    if held is not None and len(held[1]):
        samples, index = held[0], held[1][:SAMPLES]
    else:
        samples = federation.train if federation.official is None else federation.official
        index = torch.arange(min(SAMPLES, len(samples)))
    index = index if len(index) > 1 else index.repeat(2)
    return samples.take(index), engine.evaluator.predict(engine.worker, found.params(client), samples, index)


def _near(outputs: Tensor, wanted: Tensor, found: Finished, what: str) -> float:
    """How far outputs are from the run's evaluation.

    Raises:
        StateError: farther than rounding explains.
    """
    far = difference(outputs, wanted)
    if not far <= _tolerance(found):
        raise StateError(
            f"{what} differs from the run's evaluation by {far:.2g} of the largest output; it is not written. Please"
            " report this."
        )
    return far


def _tolerance(found: Finished) -> float:
    """What rounding explains."""
    if found.engine.parts.config.local.precision != "float32":
        return 0.05  # the evaluation kept eight bits of each product
    if found.looks_at_batches:
        return 1e-2  # norms of a few samples divide by a spread that may be small, which amplifies rounding
    return NEAR


def _run_onnx(content: bytes, x: Tensor) -> Tensor:
    onnxruntime = importlib.import_module("onnxruntime")  # an extra
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    (outputs,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return torch.from_numpy(np.asarray(outputs))


def weights(module: nn.Module) -> Parts:
    """A module's state_dict as a safetensors file."""
    tensors = {name: tensor.detach() for name, tensor in module.state_dict().items()}
    head, order, _ = container.head({n: (tuple(t.shape), t.dtype) for n, t in tensors.items()}, {"format": "pt"})
    return [head, *(container.raw(tensors[n]) for n in order)]


def _size(parts: Parts) -> int:
    return sum(len(part) for part in parts)


def _written(
    folder: Path,
    files: Mapping[str, Parts],
    told: Mapping[str, Any],
    found: Finished,
    client: int | None,
    seen: Mapping[str, float],
    notes: tuple[str, ...],
) -> Exported:
    """All files in a draft folder, which then takes the name."""
    make_folder(folder.absolute().parent)
    draft = folder.absolute().parent / f".draft-{folder.name}-{secrets.token_hex(4)}"
    try:
        draft.mkdir()
        hashes = {name: write_file(draft / name, parts, "export").sha256 for name, parts in files.items()}
        described = dict(told) | {
            "files": {name: {**told["files"][name], "sha256": digest} for name, digest in hashes.items()}
        }
        hashes[SIGNATURE] = write_file(draft / SIGNATURE, [as_json(described)], "export").sha256
        text = card(found, client, described, hashes, notes)
        hashes[CARD] = write_file(draft / CARD, [text.encode()], "export").sha256
        sync_folder(draft)
        draft.replace(folder)
        sync_folder(folder.absolute().parent)
    except OSError as error:
        raise StateError(
            f"cannot write {folder}: {error.strerror or error}. Check the disk and the folder; nothing was written."
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Exported(folder, hashes, seen, client, notes)
