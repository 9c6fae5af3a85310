"""Tables as CSV, parquet and pandas."""

import csv
import re
import sys

import pandas as pd
import pytest

from fedstrata.analysis.findings import findings
from fedstrata.analysis.frames import flat
from fedstrata.report import export
from fedstrata.report.export import FIRST, NOTE, parquet_note, tables, write_tables
from helpers.handmade import comparison

NAMES = ("table", "differences", "runs", "rounds", "clients")


def read_csv(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def made():
    return comparison(failed=(("ditto", 2),))


@pytest.fixture(scope="module")
def told(made):
    return findings(made, target=0.5)


@pytest.fixture
def folder(made, told, tmp_path):
    write_tables(made, told, tmp_path / "new" / "tables")
    return tmp_path / "new" / "tables"


def test_every_table_is_written_as_csv_and_parquet_and_nothing_else(made, told, tmp_path):
    files = write_tables(made, told, tmp_path)
    assert (
        {f.name for f in files}
        == {f.name for f in tmp_path.iterdir()}
        == {f"{n}.{kind}" for n in NAMES for kind in ("csv", "parquet")}
    )


def test_the_table_holds_the_findings(folder, told):
    rows = read_csv(folder / "table.csv")
    assert [row["label"] for row in rows] == [line.label for line in told.lines]
    for row, line in zip(rows, told.lines, strict=True):
        for score, spread in line.scores.items():
            assert float(row[f"{score}_mean"]) == spread.mean
            assert int(row[f"{score}_n"]) == spread.n
        assert float(row["bytes_mean"]) == line.costs["bytes"].mean
        assert row["shared_unused"] == str(line.shared_unused)
        assert int(row["selected_target_seeds"]) == line.target.seeds[0]
        assert row["selected_target_rounds"] == ("" if line.target.rounds is None else str(line.target.rounds.mean))


def test_differences_hold_both_the_baseline_and_the_rival(folder, told):
    rows = read_csv(folder / "differences.csv")
    methods, headlines = len(told.lines), len(told.headline)
    assert sum(row["kind"] == "baseline" for row in rows) == (methods - 1) * headlines
    assert sum(row["kind"] == "rival" for row in rows) == methods * headlines
    row = next(r for r in rows if (r["label"], r["score"], r["kind"]) == ("fedavgm", "selected", "baseline"))
    it = told.line("fedavgm").differences["selected"]
    assert [float(row[name]) for name in ("mean", "low", "high", "p", "corrected")] == [
        it.mean,
        it.low,
        it.high,
        it.p,
        it.corrected,
    ]
    assert (row["against"], int(row["n"]), row["verdict"]) == ("fedavg", 3, it.verdict)


def test_a_difference_to_a_method_with_two_seeds_has_empty_cells(folder):
    row = next(
        r
        for r in read_csv(folder / "differences.csv")
        if (r["label"], r["score"], r["kind"]) == ("ditto", "selected", "baseline")
    )
    assert (row["p"], row["corrected"], row["verdict"], row["n"]) == ("", "", "no conclusion", "2")


def test_runs_rounds_and_clients_have_a_row_each(folder, made):
    assert len(read_csv(folder / "runs.csv")) == len(made.results) == 14
    rounds = read_csv(folder / "rounds.csv")
    assert len(rounds) == sum(len(run.rounds) for run in made.results.values())
    first = next(r for r in rounds if (r["label"], r["seed"], r["round"]) == ("ditto", "1", "4"))
    row = made.results["ditto", 1].rounds[4]
    assert float(first["metrics.auc"]) == row["metrics"]["auc"]
    assert float(first["measures.drift.norm"]) == row["measures"]["drift"]["norm"]
    assert first["cohort"] == "10"
    clients = read_csv(folder / "clients.csv")
    assert len(clients) == sum(len(run.clients) for run in made.results.values())
    assert clients[3]["name"] == "client 3"


@pytest.mark.parametrize("name", NAMES)
def test_parquet_holds_what_csv_holds(folder, name):
    text, binary = (
        pd.read_csv(folder / f"{name}.csv", dtype_backend="numpy_nullable"),
        pd.read_parquet(folder / f"{name}.parquet"),
    )
    assert list(text.columns) == list(binary.columns)
    assert len(text) == len(binary)
    for column in text.columns:
        for a, b in zip(text[column], binary[column], strict=True):
            assert (pd.isna(b) or b == "") if pd.isna(a) else a == b, column


def test_column_names_are_those_of_the_documentation(made, told):
    for name, rows in tables(made, told).items():
        assert list(rows[0])[: len(FIRST[name])] == list(FIRST[name])


@pytest.mark.parametrize("name", NAMES)
def test_every_column_is_documented(made, told, name):
    scores = {*told.lines[0].scores, *told.lines[0].costs}
    patterns = [rf"({'|'.join(scores)})(_mean|_std|_n)?", r"(\w+_)?(metrics|measures)\..*"]
    patterns += [rf"({'|'.join(told.headline)})_(target(_seeds|_rounds|_bytes|_flops|_seconds)?|front_(bytes|flops))"]
    documented = set(re.findall(r"\w+", export.__doc__)) | (
        set(made.results["fedavg", 0].rounds[0]) if name == "rounds" else set()
    )
    for column in {column for row in tables(made, told)[name] for column in row}:
        assert column in documented or any(re.fullmatch(pattern, column) for pattern in patterns), column


def test_nothing_finished_still_has_its_headings(tmp_path):
    made = comparison(("fedavg", "ditto"), failed=[(m, s) for m in ("fedavg", "ditto") for s in (0, 1, 2)])
    write_tables(made, findings(made), tmp_path)
    for name in NAMES:
        assert (tmp_path / f"{name}.csv").read_text().startswith(",".join(FIRST[name]))
        assert list(pd.read_parquet(tmp_path / f"{name}.parquet").columns)[: len(FIRST[name])] == list(FIRST[name])


def test_without_pyarrow_csv_is_written_and_the_extra_is_named(made, told, tmp_path, monkeypatch):
    assert parquet_note() == ""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    files = write_tables(made, told, tmp_path)
    assert {f.name for f in files} == {f"{n}.csv" for n in NAMES}
    assert parquet_note() == NOTE
    assert "fedstrata[text]" in NOTE


def test_labels_with_commas_quotes_and_newlines_survive(tmp_path):
    label = 'fedprox(mu="a", x=1)\n=2'
    made = comparison(("fedavg", label))
    write_tables(made, findings(made), tmp_path)
    assert read_csv(tmp_path / "table.csv")[1]["label"] == label
    assert pd.read_parquet(tmp_path / "table.parquet")["label"][1] == label


def test_a_column_of_words_and_numbers_is_text_in_parquet(tmp_path):
    made = comparison(("fedavg", "moon"), runs={"moon": {"stopped_by": 3}, "fedavg": {"stopped_by": "stop.bytes"}})
    write_tables(made, findings(made), tmp_path)
    assert set(pd.read_parquet(tmp_path / "runs.parquet")["stopped_by"]) == {"3", "stop.bytes"}


def test_nested_values_become_dotted_columns_and_lists_counts():
    assert flat({"a": {"b": {"c": 1}, "d": None}, "e": [1, 2], "f": "x"}) == {"a.b.c": 1, "a.d": None, "e": 2, "f": "x"}
