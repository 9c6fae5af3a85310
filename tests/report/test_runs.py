"""``fedstrata report``: runs become a comparison, and a page."""

import json

import pytest
from rich.console import Console

from fedstrata.analysis.findings import findings
from fedstrata.analysis.grouping import group_runs
from fedstrata.config.config import Config
from fedstrata.report.runs import report
from fedstrata.runs.result import Result
from helpers import handmade


def folder(path, method="fedavg", seed=0, settings=None, custom=(), unfinished=False, **shape):
    """A run folder as ``fedstrata run`` leaves it, made by hand."""
    path.mkdir(parents=True)
    result = handmade.result(method, seed, rounds=4, clients=4, **shape)
    config = Config(**({"method": method, "seed": seed, "rounds": 4, "clients": 5, "cohort": 2} | (settings or {})))
    (path / "config.toml").write_text(config.to_toml())
    versions = {"torch": "2.13.0", "python": "3.11"}
    (path / "manifest.json").write_text(
        json.dumps(
            {"config": config.flat(), "custom": list(custom), "method": method, "seed": seed, "versions": versions}
        )
    )
    (path / "rounds.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in result.rounds[: 2 if unfinished else None])
    )
    if not unfinished:
        (path / "summary.json").write_text(json.dumps(dict(result.summary)))
    scores = "".join(f"{i},{s['personal']},{s['shared']}\n" for i, s in result.clients.items())
    (path / "clients.csv").write_text("client,score_personal,score_shared\n" + scores)
    return Result.read(path)


def test_runs_are_grouped_by_method_and_seed(tmp_path):
    runs = [folder(tmp_path / f"{m}-{s}", m, s) for m in ("moon", "fedavg") for s in (1, 0)]
    found = group_runs(runs)
    assert [entry.label for entry in found.entries] == ["moon", "fedavg"]
    assert (found.baseline, found.seeds) == ("fedavg", (0, 1))
    assert found.results["moon", 1] is runs[0]
    assert found.facts.clients == 5
    assert sum(found.facts.sizes) == found.facts.train > 1000, "digits are here, so that the federation is described"
    assert "seed" not in found.config
    assert "method" not in found.config, "it differs"
    assert found.config["clients"] == 5
    assert found.machine == {"torch": "2.13.0", "python": "3.11"}
    assert found.command.splitlines()[0] == f"fedstrata run {tmp_path}/moon-1/config.toml name=auto"
    assert findings(found).answer


def test_one_method_with_different_settings_is_several_entries(tmp_path):
    runs = [folder(tmp_path / f"{lr}", settings={"local.lr": lr}) for lr in (0.1, 0.2)]
    found = group_runs(runs)
    assert [(e.label, e.method, dict(e.settings)) for e in found.entries] == [
        ("fedavg | local.lr=0.1", "fedavg", {"local.lr": 0.1}),
        ("fedavg | local.lr=0.2", "fedavg", {"local.lr": 0.2}),
    ]


def test_where_a_run_was_computed_makes_no_entry_of_its_own(tmp_path):
    runs = [folder(tmp_path / f"{s}", seed=s, settings={"workers": 1 + s, "executor": "threads"}) for s in (0, 1)]
    assert [entry.label for entry in group_runs(runs).entries] == ["fedavg"]


def test_the_same_run_twice_is_two_entries(tmp_path):
    runs = [folder(tmp_path / place / "one") for place in ("a", "b", "c")]
    found = group_runs(runs)
    assert [entry.label for entry in found.entries] == ["fedavg", "fedavg (one)", "fedavg (one), 2"]
    assert len(found.results) == 3


def test_runs_of_two_federations_are_said_to_be_so(tmp_path):
    runs = [folder(tmp_path / f"{c}", settings={"clients": c}) for c in (4, 5)]
    assert any("differ in clients" in note for note in group_runs(runs).facts.notes)
    same = [folder(tmp_path / f"same-{s}", seed=s) for s in (0, 1)]
    assert group_runs(same).facts.notes == group_runs(same[:1]).facts.notes


@pytest.mark.full
@pytest.mark.parametrize(
    ("settings", "custom", "why"),
    [
        ({"data": "cifar10", "data.root": "/nowhere"}, (), "/nowhere"),
        ({}, ("federation",), "given a federation from Python"),
    ],
)
def test_a_federation_that_cannot_be_read_is_not_described_and_the_reason_is_told(tmp_path, settings, custom, why):
    run = folder(tmp_path / "one", settings=settings, custom=custom)
    found = group_runs([run])
    assert found.facts.clients == 0
    assert any(why in note for note in found.facts.notes)
    text = (report([run], Console(record=True), tmp_path / "out")[-1].parent.parent / "report.html").read_text()
    assert why in text


def test_a_report_has_a_page_and_pictures_of_both_kinds(tmp_path):
    runs = [folder(tmp_path / f"{m}-{s}", m, s) for m in ("fedavg", "moon") for s in (0, 1, 2)]
    console = Console(record=True, width=200)
    files = report(runs, console, tmp_path / "out")
    assert tmp_path / "out" / "report.html" in files
    kinds = [f.suffix for f in files if f.parent.name == "pictures"]
    assert kinds.count(".png") == kinds.count(".svg") > 10
    assert "report.html, its" in console.export_text()
    page = (tmp_path / "out" / "report.html").read_text()
    assert "2 methods" in page or "fedavg and moon on" in page
    assert "Are the differences real?" in page


@pytest.mark.full
def test_an_unfinished_run_is_reported_and_said_to_be_unfinished(tmp_path):
    runs = [folder(tmp_path / "a"), folder(tmp_path / "b", "moon", unfinished=True)]
    report(runs, Console(record=True), tmp_path / "out")
    assert "not finished" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.full
def test_the_report_of_a_comparison_is_made_again_from_its_folder(tmp_path, monkeypatch, capsys):
    from fedstrata.cli import main  # noqa: PLC0415
    from fedstrata.compare import compare  # noqa: PLC0415

    monkeypatch.chdir(tmp_path)
    settings = {
        "data": "digits",
        "clients": 4,
        "cohort": 2,
        "rounds": 1,
        "test": "both",
        "validation": 0.2,
        "executor": "loop",
    }
    comparison = compare(["fedavg", "local"], seeds=[0], side_by_side=1, **settings)
    page = comparison.folder / "report.html"
    before = page.read_bytes()
    page.unlink()
    monkeypatch.setattr("sys.argv", ["fedstrata", "report", str(comparison.folder), "--json"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code in (0, None)
    assert page.read_bytes() == before
    assert "1 seed" in json.loads(capsys.readouterr().out.splitlines()[-1])["answer"].lower()
    monkeypatch.setattr("sys.argv", ["fedstrata", "report", str(comparison.folder), "--out", "elsewhere"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "--out" in capsys.readouterr().err


def test_comparisons_are_reported_together_and_not_beside_runs(tmp_path, monkeypatch, capsys):
    from fedstrata.cli import main  # noqa: PLC0415
    from fedstrata.compare import comparison as compared  # noqa: PLC0415
    from fedstrata.compare import comparison_file  # noqa: PLC0415

    for name in ("even", "skewed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "comparison.json").write_text("{}")
    told = {
        tmp_path / name: handmade.comparison(
            ("fedavg",),
            runs={"fedavg": {"top": top}},
            facts_more={"skew": {"label_skew": skew}},
            fields={"folder": tmp_path / name, "config": {"partition": name, "rounds": 30}},
        )
        for name, top, skew in (("even", 0.5, 0.1), ("skewed", 0.6, 0.8))
    }
    monkeypatch.setattr(comparison_file, "read", told.get)
    monkeypatch.setattr(compared, "report", lambda comparison, _console: findings(comparison))
    with pytest.raises(SystemExit) as end:
        main(["report", *map(str, told), "--json"])
    assert end.value.code in (0, None)
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [one["folder"] for one in said["comparisons"]] == [str(place) for place in told]
    assert [flag["code"] for flag in said["flags"]] == ["implausible"]
    assert "better with more skew: 0.50" in said["flags"][0]["text"]
    with pytest.raises(SystemExit) as end:
        main(["report", str(tmp_path / "even"), str(tmp_path / "run")])
    assert end.value.code == 2
    assert "one after the other" in capsys.readouterr().err
