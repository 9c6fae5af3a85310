"""What every study does alike: refusals with exit code 2 in one line, files that can be read, lists."""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

import fedstrata
from fedstrata.common.errors import ConfigError, StateError
from fedstrata.diagnostics.panel import Panel
from fedstrata.inference.finished_run import open_run
from fedstrata.report.page.data_table import DataTable, Head, number_cell, text_cell
from fedstrata.report.page.drawing import Picture
from fedstrata.studies import Outcome, Study, replay, run_labels, table
from fedstrata.studies.outputs import csv_of, panel_table, stem

LIGHT = {"model": "logistic", "rounds": 2, "cohort": 3, "executor": "loop", "local": {"epochs": 1}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two finished runs, and one that is not."""
    folder = tmp_path_factory.mktemp("frame")
    for name, seed in (("one", 0), ("two", 1)):
        fedstrata.run(out=str(folder), name=name, seed=seed, **LIGHT)
    fedstrata.run(out=str(folder), name="open", **LIGHT)
    (folder / "open" / "summary.json").unlink()
    return folder


def refused(result):
    """The one line on stderr of a command that was refused."""
    code, out, err = result
    assert code == 2, err
    assert out == ""
    assert err.startswith("fedstrata: error: ")
    assert err.count("\n") == 1
    return err


@dataclass(frozen=True)
class Weight(Study):
    """Length of the served model; enough to see what the frame does."""

    power: int = 2

    title = "Weight of models"
    text = "Length of the served model."
    least = 1
    most = 2

    def study(self, runs: Mapping[str, object]) -> Outcome:
        """The length, a panel of every kind, a picture and a note."""
        found = {label: float(run.served.flat.norm(self.power)) for label, run in runs.items()}
        lines = Panel(
            "By x",
            "",
            "lines",
            [1.0, 2.0],
            {label: [value, None] for label, value in found.items()},
            {"one": [0.5, None]},
        )
        bars = Panel("Bars", "", "bars", list(found), {"length": list(found.values())})
        heat = Panel("A map", "", "heat", [1, 2], {"row": [1.0, 2.0], "other": [3.0, None]})
        rows = Panel("Only a table", "", "table", ["length"], {label: [value] for label, value in found.items()})
        own = Picture(
            "own",
            "Own",
            "A line.",
            lambda f: f.subplots().plot([0, 1]),
            DataTable("Own", [Head("x")], [[text_cell("a"), number_cell("1", 1.0)]]),
        )
        return Outcome({"length": found}, [lines, bars, heat, rows], [own], notes=["a note"])


# ---- refusals


def test_a_folder_in_a_run_is_no_place_for_files(runs):
    for out in (runs / "one", runs / "one" / "study"):
        with pytest.raises(ConfigError, match=r"inside the run .*, and a study never changes a run"):
            fedstrata.study(Weight(), runs / "one", out=out)
    assert not (runs / "one" / "outcome.json").exists()


def test_an_unknown_study_is_refused_with_the_nearest_name(runs, call):
    assert "there is no study 'sharpnes'" in (said := refused(call("study", "sharpnes", runs / "one")))
    assert "sharpness" in said


def test_an_unknown_setting_is_refused_with_those_there_are(runs, call):
    said = refused(call("study", "sharpness(sampels=5)", runs / "one"))
    assert "no setting 'sampels'" in said
    assert "samples" in said


def test_a_setting_of_another_type_or_out_of_range_is_refused(runs, call):
    assert "samples" in refused(call("study", "sharpness(samples=many)", runs / "one"))
    assert "landscape.points is 4" in refused(call("study", "landscape(points=4)", runs / "one"))


def test_too_few_runs_are_refused(runs, call):
    assert "takes 2 or more runs, and 1 were given" in refused(call("study", "path", runs / "one"))


def test_too_many_runs_are_refused(runs):
    with pytest.raises(ConfigError, match="takes 1 to 2 runs, and 3 were given"):
        fedstrata.study(Weight(), [runs / "one", runs / "two", runs / "open"])


def test_a_run_that_is_given_twice_is_refused_however_it_is_spelt(runs, call):
    assert "given twice" in refused(call("study", "path", runs / "one", runs / "two" / ".." / "one"))


def test_a_run_that_is_not_finished_is_refused_with_the_command_that_goes_on(runs, call):
    assert f"fedstrata resume {runs / 'open'}" in refused(call("study", "sharpness", runs / "open"))


def test_a_folder_without_a_run_is_refused(runs, call, tmp_path):
    refused(call("study", "sharpness", tmp_path / "nothing"))
    with pytest.raises(StateError):
        fedstrata.study("sharpness", tmp_path / "nothing")


def test_an_out_that_is_a_file_is_refused_before_anything_is_computed(runs, call, tmp_path):
    (tmp_path / "file").write_text("mine")
    assert "which is a file; name a folder" in refused(
        call("study", "sharpness(samples=1000000)", runs / "one", "--out", tmp_path / "file")
    )
    assert (tmp_path / "file").read_text() == "mine"


# ---- files


def files_of(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_files_are_the_outcome_a_table_a_panel_and_pictures_in_two_formats(runs, tmp_path):
    outcome = fedstrata.study(Weight(power=1), [runs / "one", runs / "two"], out=tmp_path / "out")
    pictures = {"by-x", "bars", "a-map", "own"}
    tables = {"by-x.csv", "bars.csv", "a-map.csv", "only-a-table.csv"}
    assert files_of(tmp_path / "out") == {
        "outcome.json",
        *tables,
        *(f"{p}.{kind}" for p in pictures for kind in ("png", "svg")),
    }
    for picture in pictures:
        with Image.open(tmp_path / "out" / f"{picture}.png") as opened:
            assert opened.format == "PNG"
            assert min(opened.size) > 100
        assert "</svg>" in (tmp_path / "out" / f"{picture}.svg").read_text()
    kept = json.loads((tmp_path / "out" / "outcome.json").read_text(), parse_constant=pytest.fail)
    assert kept["study"] == "weight"
    assert kept["settings"] == {"power": 1}
    assert kept["runs"] == {"one": str(runs / "one"), "two": str(runs / "two")}
    assert kept["version"] == fedstrata.__version__
    assert kept["notes"] == ["a note"]
    assert kept["numbers"] == outcome.numbers


def test_a_table_holds_every_number_with_all_its_digits(runs, tmp_path):
    outcome = fedstrata.study(Weight(), [runs / "one", runs / "two"], out=tmp_path)
    with (tmp_path / "by-x.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["series", "1.0", "2.0"]
    assert rows[1:] == [
        ["one", repr(outcome.numbers["length"]["one"]), ""],
        ["one (spread)", "0.5", ""],
        ["two", repr(outcome.numbers["length"]["two"]), ""],
    ]


def test_without_out_nothing_is_written(runs, here):
    fedstrata.study("sharpness(samples=8, groups=whole, iterations=2, directions=1)", runs / "one")
    assert list(here.iterdir()) == []


def test_a_study_changes_no_file_of_a_run(runs, tmp_path):
    before = {path: path.read_bytes() for path in (runs / "one").rglob("*") if path.is_file()}
    fedstrata.study("path(points=3, samples=20)", [runs / "one", runs / "two"], out=tmp_path)
    assert {path: path.read_bytes() for path in (runs / "one").rglob("*") if path.is_file()} == before


def test_files_of_the_same_name_are_replaced(runs, tmp_path):
    (tmp_path / "outcome.json").write_text("old")
    (tmp_path / "mine.txt").write_text("mine")
    fedstrata.study(Weight(), runs / "one", out=tmp_path)
    assert json.loads((tmp_path / "outcome.json").read_text())["study"] == "weight"
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_the_command_writes_and_says_where(runs, call, here):
    code, out, err = call("study", "sharpness(samples=8, groups=whole, iterations=2, directions=1)", runs / "one")
    assert code == 0, err
    assert "numbers, tables and pictures: study/sharpness" in out
    assert "Largest Hessian eigenvalue" in " ".join(out.split())
    assert {"outcome.json", "largest-hessian-eigenvalue.png", "largest-hessian-eigenvalue.csv"} <= files_of(
        here / "study" / "sharpness"
    )


def test_the_command_prints_one_line_of_json_and_notes_go_to_stderr(runs, call, tmp_path):
    code, out, err = call(
        "study",
        "sharpness(samples=8, groups=whole, iterations=2, tolerance=1e-9)",
        runs / "one",
        "--out",
        tmp_path / "x",
        "--json",
    )
    assert code == 0, err
    assert out.count("\n") == 1
    said = json.loads(out, parse_constant=pytest.fail)
    assert said["study"] == "sharpness"
    assert said["folder"] == str(tmp_path / "x")
    assert said["numbers"] == json.loads((tmp_path / "x" / "outcome.json").read_text())["numbers"]
    assert said["notes"]
    assert all(note[:20] in err for note in said["notes"])


# ---- lists


def test_every_study_is_listed_with_the_number_of_its_runs(call):
    code, out, _ = call("list", "studies", "--json")
    assert code == 0
    rows = {row["study"]: row for row in json.loads(out)}
    assert set(rows) == set(table())
    assert rows["path"]["runs"] == "2 or more"
    assert rows["sharpness"]["runs"] == "1 or more"
    assert all(row["what it says"] for row in rows.values())
    assert "landscape" in call("list", "studies")[1]


@pytest.mark.parametrize("name", sorted(table()))
def test_every_study_has_words_and_settings_with_defaults(name):
    kind = table()[name]
    assert kind.title
    assert kind.text.endswith(".")
    assert kind.__doc__
    assert not kind.__doc__.startswith(f"{kind.__name__}(")
    assert kind() == kind()


# ---- parts of the frame


def test_runs_are_called_by_as_much_of_their_folders_as_tells_them_apart():
    assert run_labels(["runs/a", "runs/b"]) == ["a", "b"]
    assert run_labels(["x/a/run", "x/b/run"]) == ["a/run", "b/run"]
    assert run_labels(["x/run"]) == ["run"]


def test_titles_become_names_of_files():
    assert stem("Loss, by ε (mean)") == "loss-by-mean"
    assert stem("εδ") == "panel"


def test_a_panel_with_very_many_columns_is_thinned_in_the_terminal_alone():
    panel = Panel("Many", "", "table", [str(k) for k in range(100)], {"row": [float(k) for k in range(100)]})
    assert len(panel_table(panel).columns) == 13
    assert len(csv_of(panel).splitlines()[0].split(",")) == 101


def test_a_replay_trains_the_run_again_bit_for_bit(runs):
    run = open_run(runs / "one")
    seen = [(done, params.flat.clone()) for done, params in replay(run)]
    assert [done for done, _ in seen] == [0, 1, 2]
    assert bool((seen[-1][1] == run.engine.server.model.flat).all())
    assert not bool((seen[0][1] == seen[-1][1]).all())


def test_a_figure_of_a_picture_is_drawn_once_for_both_formats(runs, tmp_path):
    drawn = []

    @dataclass(frozen=True)
    class Once(Weight):
        def study(self, runs):
            def draw(figure: Figure) -> None:
                drawn.append(figure)
                figure.subplots()

            return Outcome({}, pictures=[Picture("once", "Once", "Nothing.", draw, DataTable("Once", [], []))])

    fedstrata.study(Once(), runs / "one", out=tmp_path)
    assert len(drawn) == 1
