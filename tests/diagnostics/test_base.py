"""Measures: the interface, the two that ship, and what becomes of one that fails."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from fedstrata.common.errors import ConfigError, MethodError
from fedstrata.core.piece import Piece
from fedstrata.diagnostics import registry
from fedstrata.diagnostics.base import Measure, RoundSnapshot, defined
from fedstrata.engine.rounds import Engine
from fedstrata.methods import NoLimit, Row
from fedstrata.methods import registry as methods
from helpers import lab


def rounds(method="fedavg", **settings):
    engine = Engine(lab.parts(method, **{"eval.every": 1} | settings), "loop", 1)
    return engine, list(engine.rounds())


def test_a_run_without_measures_keeps_none_and_one_with_them_is_the_same_run():
    plain, rows = rounds()
    looked, seen = rounds(measures="drift + step_size")
    assert torch.equal(plain.server.model.flat, looked.server.model.flat)
    assert all("measures" not in row for row in rows)
    assert all(set(row["measures"]) == {"drift", "step_size"} for row in seen)


def test_only_evaluated_rounds_are_looked_at():
    _, rows = rounds(measures="step_size", **{"eval.every": 2})
    assert ["measures" in row for row in rows] == [row["evaluated"] for row in rows] == [False, True, True]


class Keeps(Measure):
    """Keeps what it was shown."""

    def __init__(self):
        object.__setattr__(self, "snapshots", [])

    def measure(self, snapshot: RoundSnapshot):
        self.snapshots.append(snapshot)
        return {}


def measured(measure, **settings):
    """An engine that takes one more measure."""
    parts = lab.parts(**{"eval.every": 1} | settings)
    return Engine(replace(parts, measures={**parts.measures, "keeps": measure}), "loop", 1)


def test_step_size_is_the_root_mean_square_move_of_each_layer():
    keeps = Keeps()
    engine = measured(keeps, measures="step_size")
    rows = list(engine.rounds())
    for snapshot, row in zip(keeps.snapshots, rows, strict=True):
        moved = {n: (snapshot.after[n] - snapshot.before[n]).double() for n in snapshot.before}
        total = torch.cat([m.reshape(-1) for m in moved.values()])
        assert row["measures"]["step_size"]["all"] == pytest.approx(float(total.square().mean().sqrt()), rel=1e-6)
        for name, group in snapshot.layout.groups.items():
            part = torch.cat([moved[n].reshape(-1) for n in group.names if n in moved])
            assert row["measures"]["step_size"][name] == pytest.approx(float(part.square().mean().sqrt()), rel=1e-6)


def test_drift_is_the_spread_of_updates_over_the_length_of_their_mean():
    keeps = Keeps()
    engine = measured(keeps, measures="drift")
    rows = list(engine.rounds())
    for snapshot, row in zip(keeps.snapshots, rows, strict=True):
        d = torch.stack([r.delta.flat.double() for r in snapshot.replies])
        mean = d.mean(0)
        assert row["measures"]["drift"]["all"] == pytest.approx(
            float((d - mean).square().sum(1).mean().sqrt() / mean.norm()), rel=1e-5
        )


def test_drift_of_equal_updates_is_zero_and_of_one_reply_is_undefined():
    _, rows = rounds(measures="drift", cohort=1)
    assert all(row["measures"]["drift"] == {} for row in rows)


def test_features_are_those_in_front_of_the_head():
    keeps = Keeps()
    engine = measured(keeps, measures="drift", rounds=1)
    list(engine.rounds())
    (snapshot,) = keeps.snapshots
    z, y = snapshot.features(snapshot.after, 10)
    assert len(z) == len(y) <= 10
    logits = z @ snapshot.after["head.weight"].T + snapshot.after["head.bias"]
    samples = engine.parts.federation.test or engine.parts.federation.train
    index = torch.linspace(0, len(samples) - 1, len(y)).round().long()
    assert torch.allclose(logits, engine.evaluator.predict(engine.worker, snapshot.after, samples, index), atol=1e-6)


@dataclass(frozen=True)
class Broken(Measure):
    def measure(self, snapshot):
        return {"all": 1 / 0}


@dataclass(frozen=True)
class Constant(Measure):
    """A measure with a setting."""

    title: ClassVar[str] = "A constant"
    value: float = 1.0

    def measure(self, snapshot):
        return {"all": self.value, "odd": math.nan, "first": 2.0}


@pytest.fixture
def own(monkeypatch):
    monkeypatch.setattr(registry.MEASURES, "_entries", dict(registry.MEASURES.items()))
    registry.register("constant", Constant)
    registry.register("broken", Broken)


def test_a_measure_of_ones_own_is_used_by_name_and_its_undefined_numbers_are_none(own):
    _, rows = rounds(measures="constant(value=3)")
    assert all(row["measures"] == {"constant": {"all": 3.0, "odd": None, "first": 2.0}} for row in rows)
    assert defined({"a": math.inf, "b": None, "c": 1}) == {"a": None, "b": None, "c": 1.0}


def test_a_measure_that_fails_ends_the_run_with_its_name_and_the_round(own):
    with pytest.raises(MethodError, match=r"the measure broken failed in round 1: ZeroDivisionError"):
        rounds(measures="broken")


def test_a_method_brings_its_measures_unless_the_run_says_none(own, monkeypatch):
    @dataclass(frozen=True)
    class Shows(Piece):
        """Shows a constant."""

    row = Row(Shows, "shows a constant", ("shows",), NoLimit("it changes nothing", ""), measures=("constant",))
    monkeypatch.setattr(methods.METHODS, "_entries", {**methods.METHODS.items(), row.name: row})
    assert all(row["measures"]["constant"]["all"] == 1.0 for row in rounds(Shows())[1])
    assert all(row["measures"]["constant"]["all"] == 2.0 for row in rounds(Shows(), measures="constant(value=2)")[1])
    assert all("measures" not in row for row in rounds(Shows(), measures="none")[1])


@pytest.mark.parametrize(
    ("text", "said"),
    [("driftt", "Did you mean 'drift'"), ("drift + drift", "twice"), ("drift(x=1)", "x"), ("drift(", "drift")],
)
def test_measures_that_cannot_be_meant_are_refused(text, said):
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        lab.parts(measures=text)


def test_panels_have_a_curve_over_seeds_and_a_map_of_layers():
    a, b = (
        [{"round": r, "measures": {"drift": {"all": r + s, "x": 1.0, "y": None if r else 2.0}}} for r in range(3)]
        for s in (0.0, 2.0)
    )
    curve, layers = registry.panels({"fedavg": [a, b], "other": [[{"round": 0}]]})
    assert (curve.kind, list(curve.x), list(curve.series["fedavg"])) == ("lines", [1, 2, 3], [1.0, 2.0, 3.0])
    assert list(curve.spread["fedavg"]) == [pytest.approx(math.sqrt(2))] * 3
    assert "other" not in curve.series
    assert (layers.kind, list(layers.series["x"]), list(layers.series["y"])) == (
        "heat",
        [1.0, 1.0, 1.0],
        [2.0, None, None],
    )


def test_numbers_of_a_measure_that_is_not_installed_still_make_a_panel():
    (panel,) = registry.panels({"fedavg": [[{"round": 0, "measures": {"gone": {"all": 1.0}}}]]})
    assert "gone" in panel.title
    assert "not installed" in panel.text
