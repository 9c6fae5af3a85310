"""Describe a model's input and output as plain JSON for programs (signature.json)."""

from __future__ import annotations

from typing import Any

from fedstrata._version import __version__
from fedstrata.inference.finished_run import Finished
from fedstrata.inference.inputs import preprocessor_of

FORMAT = 1
SINGLE_SAMPLE = "; a single sample, which the run (bn=batch) evaluated with running statistics, has none here"


def signature(finished: Finished, client: int | None) -> dict[str, Any]:
    """Describe input, output, and how samples are prepared before the model."""
    task, parts = finished.federation.task, finished.engine.parts
    return {
        "format": FORMAT,
        "fedstrata": __version__,
        "task": task.kind,
        "labels": list(task.labels),
        "input": {
            "shape": ["batch", *task.shape],
            "dtype": str(task.input_dtype).removeprefix("torch."),
            "tokens_below": task.vocabulary or None,
        },
        "before_the_model": preprocessor_of(finished).facts(),
        "output": {
            "shape": ["batch", *task.output_shape],
            "dtype": "float32",
            "meaning": task.definition.output_meaning,
        },
        "after_the_model": None if task.has_classes else _units(finished),
        "client": None if client is None else {"number": client, "name": finished.federation.client_name(client)},
        "method": str(parts.method),
        "changed_by": [piece.name for piece in parts.method.pieces if piece.overrides("model")],
        "batch_norm": batch_norm(finished),
    }


def _units(finished: Finished) -> dict[str, Any] | None:
    """Describe how a number gets the units of the data."""
    target = preprocessor_of(finished).facts().get("target")
    return None if target is None else {"rule": "value * std + mean", **target}


def batch_norm(finished: Finished) -> str | None:
    """Describe which statistics batch norms use; None where there are no batch norms."""
    if not finished.engine.worker.bound.norms:
        return None
    if finished.uses_batch_statistics:
        return (
            "statistics of the batch, as the run was evaluated, 500 samples at a time: outputs depend on the other"
            " samples of the batch; use batches as mixed as the data"
            + (SINGLE_SAMPLE if finished.engine.evaluator.batch_statistics else "")
        )
    return f"running statistics, as the run was evaluated (bn={finished.engine.parts.config.bn})"
