"""A plain module as a program that other tools run: torch.export and ONNX. Programs are written here, never read."""

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

SAMPLES = 8  # real samples on which a program is held against the run's evaluation
NEAR = 1e-5  # largest difference, against the largest output


def program_of(module: nn.Module, x: Tensor) -> Any:
    """The module as a ``torch.export`` program that takes any number of samples.

    Args:
        module: in evaluation mode.
        x: [B, *shape] samples, at least two.
    Raises:
        ConfigError: the module cannot be traced; the message has torch's reason and the way out.
    """
    batch = torch.export.Dim("batch", min=1)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of torch about itself
            return torch.export.export(module, (x,), dynamic_shapes=({0: batch},))
    except Exception as error:
        raise ConfigError(
            f"torch.export cannot trace this model: {_reason(error)} A model whose path hangs on its values, or on the"
            " number of samples, has no program; --format safetensors writes the weights alone."
        ) from error


def exported_bytes(program: Any) -> bytes:
    """What ``torch.export.save`` writes."""
    held = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(program, held)
    return held.getvalue()


def require_onnx() -> None:
    """Refuse, before anything is read, what the extra is needed for.

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
    """The same program in ONNX.

    Raises:
        ConfigError: it holds an operation that ONNX does not have.
    """
    try:
        with warnings.catch_warnings(), _quiet("torch.onnx"):
            warnings.simplefilter("ignore")  # of torch about itself
            made = torch.onnx.export(program, dynamo=True, verbose=False, external_data=False)
            assert made is not None, "with dynamo=True a program comes back"
            return bytes(made.model_proto.SerializeToString())
    except Exception as error:
        raise ConfigError(
            f"this model cannot be written in ONNX: {_reason(error)} Use --format torch-export."
        ) from error


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Without a library's chatter about what is not installed."""
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


def difference(found: Tensor, wanted: Tensor) -> float:
    """max|found - wanted| / max(1, max|wanted|)."""
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1.0))
