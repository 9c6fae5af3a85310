"""Pieces that raise what they like, targets that nothing can reach, errors that run away, cached files that are no
files.
"""

import json
from dataclasses import dataclass

import pandas as pd
import pytest

from fedstrata import Federation, Piece, compare
from fedstrata.analysis.conclusion import written
from fedstrata.analysis.records import Difference, Spread
from fedstrata.common.errors import ConfigError, DataError, MethodError
from fedstrata.compare.execution import LOG
from fedstrata.report.figures import Picture
from fedstrata.report.terminal import difference, mean
from helpers.comparisons import asked, make

HERE = (lambda _event: None,)


@dataclass(frozen=True)
class Breaks(Piece):
    """Fails on the server in the second round."""

    says: str = "server\nboom"

    def merge(self, step, slot, v):
        if v.round == 1:
            raise ZeroDivisionError(self.says)
        return step, slot


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
    assert grid.failures == {("breaks", 0): "ZeroDivisionError: server boom (where, is in the log of the comparison)"}
    assert "raise ZeroDivisionError(self.says)" in (grid.asked.folder / LOG).read_text()
    told = json.loads((grid.asked.folder / "comparison.json").read_text())
    assert told["failures"] == [{"label": "breaks", "seed": 0, "why": grid.failures["breaks", 0]}]


def test_where_every_run_raises_the_error_says_why_in_one_line(tmp_path):
    with pytest.raises(
        MethodError, match=r"^all 1 runs failed; the first: ZeroDivisionError: server boom \(where[^\n]*\)$"
    ):
        compare([Breaks()], seeds=(0,), **small(tmp_path))


def test_an_observer_that_raises_ends_the_comparison_with_its_own_error(tmp_path):
    class MineError(Exception):
        pass

    def observer(event):
        raise MineError

    with pytest.raises(MineError):
        compare(["fedavg"], seeds=(0,), observers=[observer], **small(tmp_path))


def test_an_accuracy_to_reach_is_refused_where_there_are_no_classes(tmp_path):
    pd.DataFrame({"x": range(60), "y": [0.5 * x for x in range(60)], "who": list("abc") * 20}).to_csv(
        tmp_path / "r.csv", index=False
    )
    with pytest.raises(
        ConfigError, match=r"an accuracy of 0\.5 is to end runs, and .* is a regression, which has none"
    ):
        compare(
            ["fedavg", "scaffold"],
            target=0.5,
            **small(tmp_path, data=f"table(path='{tmp_path / 'r.csv'}', label=y, client=who)", clients=3),
        )
    assert not list(tmp_path.rglob("rounds.jsonl"))


def test_a_shown_difference_never_reads_as_a_p_of_005():
    assert [written(p) for p in (0.0001, 0.004, 0.012, 0.0488, 0.0499, 0.05, 0.051, 0.3)] == [
        "< 0.001",
        "0.004",
        "0.01",
        "0.049",
        "just under 0.05",
        "0.05",
        "0.05",
        "0.30",
    ]


@pytest.mark.parametrize("name", ["summary.json", "sealed.json", "rounds.jsonl"])
@pytest.mark.parametrize("how", ["folder", "link"])
def test_a_finished_run_whose_file_is_no_file_is_set_aside_and_made_again(tmp_path, name, how):
    contest = asked(tmp_path, seeds=(0,), executor="loop", rounds=1)
    whole, _ = make(contest, observers=HERE)
    place = next(iter(whole.jobs.values())).folder / name
    place.rename(tmp_path / "elsewhere")
    place.mkdir() if how == "folder" else place.symlink_to(tmp_path / "elsewhere")
    again, _ = make(contest, observers=HERE)
    assert len(again.done) == 2
    assert not again.failures
    assert place.is_file()
    assert not place.is_symlink()
    assert len(list((tmp_path / "cache").glob("*.damaged-1"))) == 1


def test_an_error_that_has_run_away_is_a_short_number():
    assert mean(Spread(7.2672e36, 9.0698e36, (1.0, 2.0))) == "7.267e+36 ± 9.070e+36"
    away = Difference(7.2672e36, -1.5263e37, 2.9798e37, 0.3, 0.3, "not shown", 3, "")
    assert difference(away) == "+7.267e+36 [-1.526e+37, 2.980e+37]"
    assert difference(Difference(-0.0001, -0.002, 0.002, 0.9, 0.9, "not shown", 3, "")) == "+0.000 [-0.002, 0.002]"


def test_a_share_where_test_samples_belong_says_what_is_meant():
    with pytest.raises(DataError, match=r"test is '0\.2'; it is \(x, y\).*testing='own\(share=0\.2\)'"):
        Federation.of([[0.0], [1.0]] * 4, [0, 1] * 4, client=[0, 1] * 4, test=0.2)


@pytest.mark.parametrize(
    ("name", "says"),
    [("p.xyz", r"PNG, SVG or PDF.*call it p\.png"), ("nosuch/p.png", "no folder"), ("", "is a folder")],
)
def test_a_picture_that_cannot_be_written_says_what_would_be_right(tmp_path, name, says):
    with pytest.raises(ConfigError, match=says):
        Picture().write(tmp_path / name)
    assert Picture().write(tmp_path / "p.PNG").read_bytes().startswith(b"\x89PNG")
