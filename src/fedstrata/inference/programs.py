"""Write a plain module as a program that other tools run: torch.export and ONNX. Programs are never read here."""

from __future__ import annotations

import importlib.util
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedstrata.common.errors import ConfigError

SAMPLES = 8  # real samples on which a program is compared with the run's evaluation
TOLERANCE = 1e-5  # largest difference, relative to the largest output


def program_of(module: nn.Module, x: Tensor) -> Any:
    """Trace the module into a ``torch.export`` program that accepts any number of samples.

    Args:
        module: in evaluation mode.
        x: [B, *shape] samples, at least two.
    Raises:
        ConfigError: the module cannot be traced; the message has torch's reason and the remedy.
    """
    batch = torch.export.Dim("batch", min=1)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of torch about itself
            return torch.export.export(module, (x,), dynamic_shapes=({0: batch},))
    except Exception as error:
        raise ConfigError(
            f"torch.export cannot trace this model: {_reason(error)} A model whose control flow depends on its values,"
            " or"
            " on the number of samples, has no program; --format safetensors writes the weights alone."
        ) from error


def exported_bytes(program: Any) -> bytes:
    """Return the bytes that ``torch.export.save`` writes."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(program, buffer)
    return buffer.getvalue()


def require_onnx() -> None:
    """Check that the ONNX extra is installed, before anything is read.

    Raises:
        ConfigError: the extra is not installed.
    """
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"--format onnx needs {', '.join(missing)}: pip install 'fedstrata[onnx]'. --format torch-export needs"
            " nothing more."
        )


def onnx_bytes(program: Any) -> bytes:
    """Convert the program to ONNX.

    Raises:
        ConfigError: it has an operation that ONNX lacks.
    """
    try:
        with warnings.catch_warnings(), _quiet("torch.onnx"):
            warnings.simplefilter("ignore")  # of torch about itself
            onnx_program = torch.onnx.export(program, dynamo=True, verbose=False, external_data=False)
            assert onnx_program is not None, "with dynamo=True a program comes back"
            return bytes(onnx_program.model_proto.SerializeToString())
    except Exception as error:
        raise ConfigError(
            f"this model cannot be written in ONNX: {_reason(error)} Use --format torch-export."
        ) from error


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Silence a library's notes about what is not installed."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return (
        f"{type(error).__name__}:"
        f" {text[:300]}{'...' if len(text) > 300 else '.' if text and text[-1] not in '.!?' else ''}"
    )


def difference(outputs: Tensor, expected: Tensor) -> float:
    """Return max|outputs - expected| / max(1, max|expected|)."""
    return float((outputs - expected).abs().max() / expected.abs().max().clamp(min=1.0))
