"""Examples of all methods, runs in folders, and what they wrote."""

import json
from dataclasses import dataclass

import pytest
import torch

from fedstrata.core.piece import Piece
from fedstrata.methods import rows
from fedstrata.runs.run import run
from helpers import lab
from helpers.tiers import tiered

EXAMPLES = ("fedavg", *(example for row in rows() for example in row.examples))
FIRST = ("fedavg", *dict.fromkeys(row.examples[0] for row in rows()))
"""One example a method."""


every_example = pytest.mark.parametrize("example", tiered(EXAMPLES, FIRST))


def in_folder(tmp_path, toy, **settings):
    data, module = toy
    return run(lab.config(out=str(tmp_path), name="run", **settings), federation=data, module=module)


def lines(folder):
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().split("\n") if line]


def finite(params):
    return bool(torch.isfinite(params.flat).all())


@dataclass(frozen=True)
class Raises(Piece):
    """Fails on the client of 17 samples."""

    error: Exception | None = None

    def upload(self, delta, ctx):
        if ctx.samples == 17:
            raise self.error or RuntimeError("x")
        return delta, {}, ctx.state
