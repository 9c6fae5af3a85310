"""Results, pictures, tables, CSV files."""

import csv
import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import fedstrata
from fedstrata.cli import main
from fedstrata.common.errors import StateError
from fedstrata.common.units import duration, number, size, work
from fedstrata.data.federation import Federation
from fedstrata.report import views
from fedstrata.report.cost_tables import as_plain, show
from fedstrata.report.figures import curve, partition
from fedstrata.report.files import rounds_csv, write
from fedstrata.report.runs import report
from fedstrata.report.terminal import comparison, result_table, rounds_table, short_names
from fedstrata.runs.result import Result
from fedstrata.storage.atomic_files import atomic


def row(n, **more):
    base = {
        "round": n,
        "cohort": [n % 3, 3],
        "replies": 2,
        "refused": [],
        "loss": 1 / (n + 1),
        "bytes_up": 1000,
        "bytes_down": 2000,
        "flops": 1e6,
    }
    return base | {"seconds": 0.5, "accuracy": 0.5 + n / 20, "metrics": {"auc": None, "log_loss": 0.3}} | more


def result(n=5, **more):
    summary = {
        "method": "fedavg",
        "seed": 0,
        "rounds": n,
        "accuracy": {"final": 0.7, "best": 0.71, "selected": None},
        "metrics": {"auc": None},
    }
    return Result(
        summary | {"bytes_up": 5000, "bytes_down": 10_000, "flops": 5e6, "seconds": 2.5},
        [row(i) for i in range(n)],
        **more,
    )


def federation(clients=4, regression=False, **more):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3)).astype(np.float32)
    y = rng.normal(size=80).astype(np.float32) if regression else rng.integers(0, 3, 80)
    return Federation.of(torch.from_numpy(x), torch.from_numpy(y), partition="iid", clients=clients, **more)


def shown(thing):
    console = Console(record=True, width=140, markup=False)
    console.print(thing)
    return console.export_text()


def read_csv(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (number(0.12345), "0.1235"),
        (number(None), "-"),
        (number(float("nan")), "-"),
        (size(0), "0 B"),
        (size(999), "999 B"),
        (size(999.6), "1 kB"),
        (size(1_200_000), "1.2 MB"),
        (size(None), "-"),
        (work(3.4e9), "3.4 GFLOP"),
        (work(2e21), "2e+03 EFLOP"),
        (duration(1.25), "1.2 s"),
        (duration(150), "2.5 min"),
        (duration(9000), "2.5 h"),
        (duration(None), "-"),
    ],
)
def test_numbers_are_written_for_people(text, said):
    assert text == said


def test_clients_csv_counts_what_each_client_holds(tmp_path):
    fed = federation(validation=0.2)
    write(result(clients={0: {"personal": 0.5, "shared": None}, 3: {"personal": 0.25}}), fed, tmp_path)
    rows = read_csv(tmp_path / "clients.csv")
    assert [int(r["client"]) for r in rows] == [0, 1, 2, 3]
    for i, r in enumerate(rows):
        assert int(r["training"]) == len(fed.training(i)) == sum(int(v) for k, v in r.items() if k.startswith("label_"))
        assert int(r["validation"]) == len(fed.validating(i))
    assert [r["rounds"] for r in rows] == ["2", "2", "1", "5"]
    assert [r["score_personal"] for r in rows] == ["0.5", "", "", "0.25"]
    assert {p.name for p in tmp_path.iterdir()} == {"clients.csv", "curve.png", "partition.png"}


def test_lazy_clients_are_listed_only_where_they_took_part(tmp_path):
    rng = np.random.default_rng(0)
    fed = Federation.of(
        rng.normal(size=(80, 3)).astype(np.float32),
        rng.integers(0, 3, 80),
        partition="overlap(size=5)",
        clients=1_000_000,
        testing="own(share=0.2)",
    )
    write(result(3), fed, tmp_path)
    assert [r["client"] for r in read_csv(tmp_path / "clients.csv")] == ["0", "1", "2", "3"]


def test_a_regression_has_no_label_columns_and_a_picture(tmp_path):
    rows = [row(i, accuracy=None, metrics={"rmse": 2.0 - i / 5, "r2": 0.1}) for i in range(4)]
    files = write(Result({"method": "fedavg"}, rows), federation(regression=True), tmp_path)
    assert all(f.is_file() for f in files)
    assert not any(name.startswith("label_") for name in read_csv(tmp_path / "clients.csv")[0])


@pytest.mark.parametrize("count", [1, 2, 9])
def test_curve_is_a_picture_of_every_run(tmp_path, count):
    path = curve([result(6) for _ in range(count)], tmp_path / "curve.png")
    pixels = np.asarray(Image.open(path).convert("RGB"))
    colours = {tuple(c) for c in pixels.reshape(-1, 3)}
    assert (0x00, 0x72, 0xB2) in colours
    assert ((0xD5, 0x5E, 0x00) in colours) == (count > 1)


@pytest.mark.parametrize("rows", [[], [row(0, accuracy=None, loss=None)]])
def test_curve_of_nothing_is_an_empty_picture(tmp_path, rows):
    assert curve([Result({}, rows)], tmp_path / "c.png").is_file()


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_plot_writes_the_format_of_the_suffix(tmp_path, kind):
    data = views.Result.of(result()).plot(tmp_path / f"c.{kind}").read_bytes()
    assert data.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[kind])


def test_pictures_of_equal_runs_are_equal_bytes(tmp_path):
    fed = federation()
    first, second = [curve([result()], tmp_path / f"{n}.png").read_bytes() for n in (1, 2)]
    assert first == second
    assert partition(fed, tmp_path / "a.png").read_bytes() == partition(fed, tmp_path / "b.png").read_bytes()


def test_partition_picture_of_many_clients_shows_some_of_them(tmp_path):
    rng = np.random.default_rng(0)
    fed = Federation.of(
        rng.normal(size=(400, 3)).astype(np.float32), rng.integers(0, 3, 400), partition="iid", clients=200
    )
    assert partition(fed, tmp_path / "p.png").is_file()


def test_drawing_leaves_no_state_of_the_process(tmp_path):

    views.Result.of(result()).plot(tmp_path / "c.png")
    assert "matplotlib.pyplot" not in sys.modules


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("old")

    def interrupted():
        with atomic(path) as draft:
            draft.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_tables_say_what_is_there_and_leave_out_what_is_not():
    text = shown(result_table(result()))
    assert "accuracy, last round" in text
    assert "validation" not in text
    assert "5 kB" in text
    several = shown(comparison([result(), result()]))
    assert several.count("fedavg") == 4  # name and method
    assert "one in 2 evaluated ones shown" in shown(rounds_table(result(30)))


def test_the_last_round_is_always_in_the_table():
    lines = [line.split() for line in shown(rounds_table(result(30))).splitlines() if line.split()]
    assert lines[-1][0] == "30"


def test_hostile_text_is_shown_as_text():
    text = shown(result_table(Result({"method": "[red]x[/red]"}, [])))
    assert "[red]x[/red]" in text


def test_rounds_csv_has_a_line_a_round_and_flat_columns(tmp_path):
    rows = read_csv(rounds_csv(result(), tmp_path / "rounds.csv"))
    assert len(rows) == 5
    assert rows[0]["metrics.log_loss"] == "0.3"
    assert rows[0]["metrics.auc"] == ""
    assert rows[0]["cohort"] == "2"


def write_run(folder, rows, summary=None, tail=""):
    folder.mkdir()
    (folder / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows) + tail)
    if summary:
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_a_run_is_read_from_its_folder(tmp_path):
    folder = write_run(tmp_path / "one", [row(0), row(1)], {"method": "fedavg", "rounds": 2})
    write(Result({}, [], clients={1: {"personal": 0.5}}), federation(), folder)
    read = Result.read(folder)
    assert (read.name, read.summary["rounds"], len(read.rounds), read.notes) == ("one", 2, 2, ())
    assert read.clients == {1: {"personal": 0.5}}


def test_an_unfinished_run_with_a_torn_line_is_read_and_says_so(tmp_path):
    folder = write_run(tmp_path / "one", [row(0), row(1)], tail='{"round": 2, "coh')
    read = Result.read(folder)
    assert read.summary["rounds"] == 2
    assert read.summary["bytes_up"] == 2000
    assert any("half written" in note for note in read.notes)
    assert any("fedstrata resume" in note for note in read.notes)


def test_damage_elsewhere_is_refused_with_the_place(tmp_path):
    folder = write_run(tmp_path / "one", [row(0)], {"method": "fedavg"})
    (folder / "rounds.jsonl").write_text('{"round": 0}\n{"rou\n{"round": 2}\n')
    with pytest.raises(StateError, match="line 2"):
        Result.read(folder)
    (folder / "summary.json").write_text("{")
    with pytest.raises(StateError, match="damaged"):
        Result.read(folder)
    with pytest.raises(StateError, match="no run folder"):
        Result.read(tmp_path / "missing")


def names_beside_pictures(files):
    assert all(f.is_file() for f in files)
    return {f.name for f in files if f.parent.name != "pictures"}


def test_a_report_without_the_data_still_has_table_and_curve(tmp_path):
    folder = write_run(tmp_path / "one", [row(0), row(1)], {"method": "fedavg", "rounds": 2})
    (folder / "config.toml").write_text('data = "cifar10"\n"data.root" = "/nowhere"\n')
    console = Console(record=True, width=140, markup=False)
    files = report([Result.read(folder)], console)
    assert names_beside_pictures(files) == {"rounds.csv", "curve.png", "report.html"}
    assert "not written again" in console.export_text()


def test_runs_of_one_name_get_files_of_their_own(tmp_path):
    folders = []
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        folders.append(write_run(tmp_path / place / "one", [row(0)], {"method": "fedavg", "rounds": 1}))
    files = report([Result.read(f) for f in folders], Console(record=True), tmp_path / "out")
    assert names_beside_pictures(files) == {"rounds-one-1.csv", "rounds-one-2.csv", "curve.png", "report.html"}


def test_costs_are_shown_by_kind_of_number():
    console = Console(record=True, width=140, markup=False)
    show(
        {
            "parameters": 9610,
            "bytes_up": 38_440,
            "flops": 3e9,
            "groups": [{"name": "fc1", "memory": 1000}],
            "nothing": None,
        },
        console,
    )
    text = console.export_text()
    for part in ("9,610", "38.4 kB", "3 GFLOP", "fc1", "1 kB"):
        assert part in text
    assert "nothing" not in text
    assert as_plain(row(0)) == row(0)


def test_long_names_lose_what_they_share_and_still_differ():
    long = "table-path-stays-csv-label-died-client-hospital-s1-"
    assert short_names([long + "0b577c3a", long + "0b577c3a-2"]) == ["...0b577c3a", "...0b577c3a-2"]
    assert short_names([long]) == [long]
    assert short_names(["digits-fedavg-s0", "digits-fedprox-s0"]) == ["digits-fedavg-s0", "digits-fedprox-s0"]


def test_a_run_on_a_federation_from_python_keeps_its_own_table_of_clients(tmp_path):
    (tmp_path / "config.toml").write_text('method = "fedavg"\n')
    (tmp_path / "manifest.json").write_text('{"custom": ["federation"], "method": "fedavg", "seed": 3}')
    (tmp_path / "rounds.jsonl").write_text('{"round": 0, "loss": 1.0, "accuracy": 0.5}\n')
    (tmp_path / "clients.csv").write_text("client\nnorth\n")
    read = Result.read(tmp_path)
    assert (read.summary["method"], read.summary["seed"]) == ("fedavg", 3)
    report([read], Console(record=True))
    assert (tmp_path / "clients.csv").read_text() == "client\nnorth\n"
    assert not (tmp_path / "partition.png").exists()


def test_clients_with_names_are_named_in_the_table_and_others_have_no_such_column(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)).astype(np.float32), rng.integers(0, 2, 40)
    fed = Federation.of(x, y, client=np.repeat(["north $1$", "süd, ost"], 20), testing="own(share=0.2)")
    write(result(2), fed, tmp_path)
    rows = read_csv(tmp_path / "clients.csv")
    assert [(r["client"], r["name"]) for r in rows] == [("0", "north $1$"), ("1", "süd, ost")]
    assert list(rows[0])[:2] == ["client", "name"]
    assert (tmp_path / "partition.png").stat().st_size > 5_000  # dollar signs are no formula
    write(result(2), federation(), tmp_path)
    assert "name" not in read_csv(tmp_path / "clients.csv")[0]


SMALL = {
    "clients": 4,
    "cohort": 2,
    "rounds": 2,
    "local_epochs": 1,
    "executor": "loop",
    "model": "mlp(hidden=8)",
    "test": "both",
}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rounds.jsonl", b"null\n"),
        ("rounds.jsonl", b"[]\n"),
        ("clients.csv", b"\xff\x00\xfe"),
        ("clients.csv", b"score_x\n1\n"),
    ],
)
def test_a_report_of_a_damaged_folder_names_the_file(tmp_path, capsys, name, content):
    folder = fedstrata.run(out=str(tmp_path), **SMALL).folder
    (folder / name).write_bytes(content)
    with pytest.raises(SystemExit) as end:
        main(["report", str(folder)])
    assert end.value.code == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert name in said[0]
