"""Pieces and observers from Python that raise."""

import json
from dataclasses import dataclass

import pytest

from fedstrata import Piece, compare
from fedstrata.common.errors import MethodError
from fedstrata.compare.execution import LOG
from helpers.comparisons import asked, make

HERE = (lambda _event: None,)


@dataclass(frozen=True)
class Breaks(Piece):
    """Fails on the server in the second round."""

    says: str = "server\nboom"

    def merge(self, step, ctx):
        if ctx.round == 1:
            raise ZeroDivisionError(self.says)
        return step, {}


def small(out, **more):
    return {
        "data": "synthetic_iid",
        "model": "logistic",
        "clients": 4,
        "rounds": 2,
        "local.epochs": 1,
        "executor": "loop",
        "out": str(out),
    } | more


def test_a_piece_from_python_that_raises_is_a_failed_run_and_the_others_go_on(tmp_path):
    grid, _ = make(asked(tmp_path, ["fedavg", Breaks(), "fedprox(mu=1)"], seeds=(0,), executor="loop"), observers=HERE)
    assert {label for label, _ in grid.done} == {"fedavg", "fedprox(mu=1)"}
    assert grid.failures == {
        ("breaks", 0): "ZeroDivisionError: server boom (see the traceback in the log of the comparison)"
    }
    assert "raise ZeroDivisionError(self.says)" in (grid.request.folder / LOG).read_text()
    told = json.loads((grid.request.folder / "comparison.json").read_text())
    assert told["failures"] == [{"label": "breaks", "seed": 0, "why": grid.failures["breaks", 0]}]


def test_where_every_run_raises_the_error_says_why_in_one_line(tmp_path):
    with pytest.raises(
        MethodError, match=r"^all 1 runs failed; the first: ZeroDivisionError: server boom \(see the traceback[^\n]*\)$"
    ):
        compare([Breaks()], seeds=(0,), **small(tmp_path))


def test_an_observer_that_raises_ends_the_comparison_with_its_own_error(tmp_path):
    class MineError(Exception):
        pass

    def observer(event):
        raise MineError

    with pytest.raises(MineError):
        compare(["fedavg"], seeds=(0,), observers=[observer], **small(tmp_path))
