"""What a model reads and says, as plain JSON for programs (signature.json)."""

from __future__ import annotations

from typing import Any

from fedstrata._version import __version__
from fedstrata.core.chain import name_of
from fedstrata.inference.finished_run import Finished
from fedstrata.inference.inputs import intake_of

FORMAT = 1
SINGLE = "; a single sample, which the run (bn=batch) evaluated with running statistics, has none here"


def signature(found: Finished, client: int | None) -> dict[str, Any]:
    """Input, output, and what happened to samples before the model."""
    task, parts = found.federation.task, found.engine.parts
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
        "before_the_model": intake_of(found).facts(),
        "output": {
            "shape": ["batch", task.classes],
            "dtype": "float32",
            "meaning": task.definition.output_meaning,
        },
        "after_the_model": None if task.has_classes else _units(found),
        "client": None if client is None else {"number": client, "name": found.federation.client_name(client)},
        "method": str(parts.method),
        "changed_by": [name_of(piece) for piece in parts.method.pieces if piece.overrides("model")],
        "batch_norm": batch_norm(found),
    }


def _units(found: Finished) -> dict[str, Any] | None:
    """How a number gets the units of the data."""
    target = intake_of(found).facts().get("target")
    return None if target is None else {"rule": "value * std + mean", **target}


def batch_norm(found: Finished) -> str | None:
    """How norms that look at batches stand in the module, in words; None where there are none."""
    if not found.engine.kit.bound.norms:
        return None
    if found.looks_at_batches:
        return (
            "statistics of the batch in hand, as the run was evaluated, 500 samples at a time: outputs hang on the"
            " other samples of the batch, so give batches as mixed as the data"
            + (SINGLE if found.engine.evaluator.batch_statistics else "")
        )
    return f"running statistics, as the run was evaluated (bn={found.engine.parts.config.bn})"
