"""Export a model as files for other programs: weights, a program, a signature and a model card."""

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
from fedstrata.inference.finished_run import ClientRef, Finished, keep_threads, open_run
from fedstrata.inference.model_card import card
from fedstrata.inference.programs import (
    SAMPLES,
    TOLERANCE,
    difference,
    exported_bytes,
    onnx_bytes,
    program_of,
    require_onnx,
)
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
    """The files that were written.

    Attributes:
        folder: of the files.
        files: SHA-256 by name.
        difference: the largest difference of outputs from the run's evaluation, relative to the largest output, by
            program.
        client: whose model it is; None for the shared one.
        notes: for the user.
    """

    folder: Path
    files: Mapping[str, str]
    difference: Mapping[str, float]
    client: int | None
    notes: tuple[str, ...]


def export(
    run: str | Path,
    out: str | Path | None = None,
    client: ClientRef = None,
    format: Format = "torch-export",  # the command's name for it  # noqa: A002
    *,
    root: str | Path | None = None,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    method: Piece | Method | None = None,
) -> Exported:
    """Write the model of a finished run into a new folder: all files of it, or none.

    The folder always has model.safetensors (the module's state_dict), signature.json (its input and output) and
    MODEL_CARD.md; with a format that asks for one, a program that runs without fedstrata. Before anything is written,
    every program is compared with the run's evaluation on real samples.

    Args:
        run: the run folder; it is not changed.
        out: the new folder; default export/RUN, followed by the client's number.
        client: None for the shared model; a number or name for the model that this client uses itself.
        format: safetensors (no program), torch-export (model.pt2), onnx (model.onnx; an extra), or all.
        root: folder of the data, where they are not where the run had them.
        federation: again, where the run was given one.
        module: again, where the run was given one.
        method: again, where the run was given pieces instead of text.
    Raises:
        ConfigError: there is no such client or format, a folder that is in use, or a model that the format cannot hold.
        StateError: see :func:`fedstrata.inference.load`; or a program whose outputs differ from the run's
            evaluation.
    """
    if format not in FORMATS:
        raise ConfigError(f"format is {format!r}; it is one of {', '.join(FORMATS)}.")
    if format in ("onnx", "all"):
        require_onnx()
    if out is not None:
        _check_free(Path(out), Path(run))
    with keep_threads():
        finished = open_run(run, root=root, federation=federation, module=module, method=method)
        client_id = finished.client_number(client)
        folder = (
            Path(out)
            if out is not None
            else Path("export") / (finished.result.name + ("" if client_id is None else f"-client-{client_id}"))
        )
        _check_free(folder, finished.folder)
        files, differences = _contents(finished, client_id, format)
    notes = (*finished.notes, *finished.notes_for(client_id))
    description = signature(finished, client_id) | {
        "difference": differences,
        "files": {name: {"bytes": _size(parts)} for name, parts in files.items()},
    }
    return _write(folder, files, description, finished, client_id, differences, notes)


def _check_free(folder: Path, run: Path) -> None:
    """Refuse a folder that is in use, or inside the run folder.

    Raises:
        ConfigError: with the remedy.
    """
    if folder.resolve().is_relative_to(run.resolve()):
        raise ConfigError(
            f"--out {folder} lies in the run folder, which export does not change; choose another folder."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists; remove it, or choose another --out.")


Parts = list[bytes | memoryview]


def _contents(finished: Finished, client: int | None, format: Format) -> tuple[dict[str, Parts], dict[str, float]]:  # noqa: A002
    """Return the bytes of weights and programs, and how far each is from the run's evaluation."""
    module = finished.module(client)
    x, expected = _probe(finished, client)
    differences = {"module": _compare(module(x).detach(), expected, finished, "the plain module")}
    files = {WEIGHTS: weights(module)}
    if format == "safetensors":
        return files, differences
    program = program_of(module, x)
    differences["torch.export"] = _compare(program.module()(x).detach(), expected, finished, "the torch.export program")
    if format in ("torch-export", "all"):
        files[PROGRAM] = [exported_bytes(program)]
    if format in ("onnx", "all"):
        content = onnx_bytes(program)
        differences["onnx"] = _compare(_run_onnx(content, x), expected, finished, "the ONNX program")
        files[ONNX] = [content]
    return files, differences


def _probe(finished: Finished, client: int | None) -> tuple[Tensor, Tensor]:
    """Return up to SAMPLES real samples, at least two rows, and their outputs in the run's evaluation."""
    federation, engine = finished.federation, finished.engine
    held = None if client is None else federation.testing(client)
    if held is not None and len(held[1]):
        samples, index = held[0], held[1][:SAMPLES]
    else:
        samples = federation.train if federation.official is None else federation.official
        index = torch.arange(min(SAMPLES, len(samples)))
    index = index if len(index) > 1 else index.repeat(2)
    return samples.take(index), engine.evaluator.predict(engine.worker, finished.params(client), samples, index)


def _compare(outputs: Tensor, expected: Tensor, finished: Finished, what: str) -> float:
    """Return how far outputs are from the run's evaluation.

    Raises:
        StateError: the difference is larger than rounding explains.
    """
    distance = difference(outputs, expected)
    if not distance <= _tolerance(finished):
        raise StateError(
            f"{what} differs from the run's evaluation by {distance:.2g} of the largest output; it is not written."
            " Please"
            " report this."
        )
    return distance


def _tolerance(finished: Finished) -> float:
    """Return the difference that rounding explains."""
    if finished.engine.parts.config.local.precision != "float32":
        return 0.05  # the evaluation kept eight bits of each product
    if finished.uses_batch_statistics:
        return 1e-2  # the norms of a few samples may divide by a small spread, which amplifies rounding
    return TOLERANCE


def _run_onnx(content: bytes, x: Tensor) -> Tensor:
    onnxruntime = importlib.import_module("onnxruntime")  # an extra
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    (outputs,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return torch.from_numpy(np.asarray(outputs))


def weights(module: nn.Module) -> Parts:
    """Return a module's state_dict as the bytes of a safetensors file."""
    tensors = {name: tensor.detach() for name, tensor in module.state_dict().items()}
    head, order, _ = container.head({n: (tuple(t.shape), t.dtype) for n, t in tensors.items()}, {"format": "pt"})
    return [head, *(container.raw(tensors[n]) for n in order)]


def _size(parts: Parts) -> int:
    return sum(len(part) for part in parts)


def _write(
    folder: Path,
    files: Mapping[str, Parts],
    description: Mapping[str, Any],
    finished: Finished,
    client: int | None,
    differences: Mapping[str, float],
    notes: tuple[str, ...],
) -> Exported:
    """Write all files into a draft folder, then rename it."""
    make_folder(folder.absolute().parent)
    draft = folder.absolute().parent / f".draft-{folder.name}-{secrets.token_hex(4)}"
    try:
        draft.mkdir()
        hashes = {name: write_file(draft / name, parts, "export").sha256 for name, parts in files.items()}
        described = dict(description) | {
            "files": {name: {**description["files"][name], "sha256": digest} for name, digest in hashes.items()}
        }
        hashes[SIGNATURE] = write_file(draft / SIGNATURE, [as_json(described)], "export").sha256
        text = card(finished, client, described, hashes, notes)
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
    return Exported(folder, hashes, differences, client, notes)
