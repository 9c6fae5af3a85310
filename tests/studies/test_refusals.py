"""Studies refused or told apart: damaged rounds, numbers not finite or huge, names given twice, folders that cannot be
written.
"""

import json
import math
import shutil

import pytest
import torch

import fedstrata
from fedstrata.common.errors import ConfigError, StateError
from fedstrata.core.piece import require
from fedstrata.diagnostics.panel import Panel
from fedstrata.inference.finished_run import open_run
from fedstrata.studies import Outcome, Study, find
from fedstrata.studies.base import finite
from fedstrata.studies.surface import cut
from helpers.trained_runs import toy

HUGE = 10**18


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run of 4 rounds."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("damage")
    fedstrata.run(
        out=str(folder),
        name="run",
        model="logistic",
        rounds=4,
        clients=4,
        cohort=2,
        executor="loop",
        local={"epochs": 1},
    )
    return folder / "run"


@pytest.fixture
def run(whole, tmp_path):
    """A copy of it."""
    return shutil.copytree(whole, tmp_path / "run")


# ---- rounds.jsonl


@pytest.mark.parametrize("text", ["steps", "settling(samples=5)", "masks(samples=2)"])
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda lines: None, "it has 0 lines, and the run had 4 rounds; restore the"),
        (lambda lines: b"", "it has 0 lines"),
        (lambda lines: b"\x80\xff\x00", "it has 0 lines"),
        (lambda lines: b"".join(lines[:2]), "it has 2 lines, and the run had 4 rounds"),
        (lambda lines: b"".join(lines + lines[:1]), "it has 5 lines, and the run had 4 rounds"),
        (lambda lines: b"".join([*lines[:3], b"{}\n"]), "it does not list its rounds in order"),
        (lambda lines: b"".join(lines[::-1]), "it does not list its rounds in order"),
    ],
)
def test_rounds_that_are_not_those_of_the_run_are_refused_before_it_is_trained_again(run, text, damage, said):
    path = run / "rounds.jsonl"
    left = damage(path.read_bytes().splitlines(keepends=True))
    path.unlink()
    if left is not None:
        path.write_bytes(left)
    with pytest.raises(StateError, match=f"rounds.jsonl is damaged: {said}"):
        fedstrata.study(text, run)


def test_a_study_that_trains_nothing_again_needs_no_rounds(run):
    (run / "rounds.jsonl").unlink()
    assert fedstrata.study("sharpness(samples=8, iterations=2, directions=1)", run).numbers


def test_a_whole_run_has_its_rounds(whole):
    assert open_run(whole).rounds == 4


# ---- numbers


def test_an_ascent_that_leaves_the_finite_numbers_is_told_and_its_numbers_are_empty(whole, tmp_path):
    outcome = fedstrata.study("maximise(lr=1e30, steps=2, channels=[0, 1])", whole, out=tmp_path / "out")
    kept = json.loads((tmp_path / "out" / "outcome.json").read_text(), parse_constant=pytest.fail)
    (told,) = kept["numbers"]["run"].values()
    assert told["last"] == [None, None]
    assert all(math.isfinite(v) for v in told["first"])
    assert any("the ascent for channel 0, 1 diverged; use a smaller lr" in note for note in outcome.notes)


def test_numbers_that_are_not_finite_are_empty_and_their_places_are_told():
    panel = Panel("Lines", "", "lines", [1.0, 2.0], {"a": [1.0, math.inf]}, {"a": (math.nan, 0.5)})
    found = finite(Outcome({"run": {"x": math.nan, "y": [1.0, -math.inf], "z": "text"}}, [panel], notes=("first",)))
    assert found.numbers == {"run": {"x": None, "y": [1.0, None], "z": "text"}}
    assert found.panels[0].series == {"a": [1.0, None]}
    assert found.panels[0].spread == {"a": [None, 0.5]}
    first, note = found.notes
    assert first == "first"
    assert note.startswith("numbers that are not finite are left empty: run, x, run, y, Lines, a;")


def test_an_outcome_of_finite_numbers_is_left_as_it_is():
    outcome = Outcome({"x": 1.0, "none": None}, [Panel("Lines", "", "lines", [1.0], {"a": [None]})])
    assert finite(outcome) is outcome


def test_a_batch_beyond_all_samples_is_all_of_them():
    assert [part.tolist() for part in cut(torch.arange(5), HUGE)] == [[0, 1, 2, 3, 4]]
    told = find(f"sharpness(samples=8, iterations=2, directions=1, batch={HUGE})")[1].study({"run": toy(rounds=1)})
    assert told.numbers["samples"] == 8


@pytest.mark.parametrize("looks", [5, 6, 9, HUGE])
def test_more_looks_than_rounds_look_at_each(looks):
    told = find(f"settling(samples=5, against=none, looks={looks})")[1].study({"run": toy(rounds=4)})
    assert told.numbers["run"]["rounds"] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"path(points={HUGE})", "with both ends, from 3 to 10000"),
        (f"landscape(points={HUGE + 1})", "an odd number of points on a side, from 3 to 999"),
        (f"sharpness(directions={HUGE})", "from 1 to 10000"),
        (f"maximise(form=maco, crops={HUGE})", "from 1 to 10000"),
        (f"maximise(kernels={HUGE})", "from 0 to 1000"),
        ("sharpness(radii=1e300)", r"sharpness.radii is \[1e\+300\]"),
        ("sharpness(radii=[0.1, 1e39])", "ascending"),
        ("maximise(channels=[0, 1, 0])", r"maximise.channels is \[0, 1, 0\], which has 0 twice; name each once"),
        ("maximise(layers=[head, head])", "maximise.layers .* has head twice"),
        ("inversion(visible=[full, full])", "inversion.visible .* has full twice"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        find(text)


@pytest.mark.parametrize("value", [[0.5, 1e39], (math.inf,), [math.nan]])
def test_elements_of_lists_are_finite_float32_too(value):
    with pytest.raises(ConfigError, match=r"x is .*; it is shares"):
        require(True, "x", value, "shares")
    require(True, "x", [0.5, 1, "word"], "shares")


# ---- the folder


class Refusing(Study):
    """Fails when it is computed."""

    title = text = "Refusing."

    def study(self, runs):
        raise ConfigError("computed")


def test_a_place_below_a_file_is_refused_before_anything_is_computed(whole, tmp_path, call):
    (tmp_path / "file").write_text("mine")
    out = tmp_path / "file" / "x" / "y"
    with pytest.raises(ConfigError, match=r"out is '.*/file/x/y', which cannot be written to \(Not a directory\)"):
        fedstrata.study(Refusing(), whole, out=out)
    code, _, err = call("study", "memory", whole, "--out", out)
    assert code == 2
    assert err.startswith("fedstrata: error: out is ")
    assert err.count("\n") == 1


def test_a_study_that_fails_leaves_no_folders_behind_but_those_that_were_there(whole, tmp_path):
    (tmp_path / "there").mkdir()
    for out in (tmp_path / "there" / "a" / "b", tmp_path / "there"):
        with pytest.raises(ConfigError, match="computed"):
            fedstrata.study(Refusing(), whole, out=out)
    assert list(tmp_path.iterdir()) == [tmp_path / "there"]
    assert list((tmp_path / "there").iterdir()) == []
