"""`fedstrata compare` and `fedstrata sweep` as they are typed: what they print where, and one line for every
mistake.
"""

import json
import os
import re
import signal
import threading
import time

import pytest

from fedstrata.common.errors import StateError
from fedstrata.compare import read
from fedstrata.compare.comparison import REPORT
from fedstrata.compare.comparison_file import FORMAT
from fedstrata.runs.result import Result
from helpers.comparisons import WORDS


@pytest.mark.full
def test_compare_prints_runs_table_answer_and_where_the_report_is(call, tmp_path):
    words = [
        "compare",
        *WORDS,
        "name=mine",
        "--methods",
        "fedavg",
        "fedprox(mu=1) | local.lr=0.1",
        "--seeds",
        "0",
        "1",
        "2",
    ]
    code, out, err = call(*words)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "2 methods, 3 seeds on synthetic_iid(seed=0), natural(by=client): 6 runs of 4 rounds"
    assert sum("of 6 runs)" in line for line in lines) == 6
    assert any(line.startswith("fedprox(mu=1) | local.lr=0.1, seed 2: accuracy 0.") for line in lines)
    assert lines[-1] == f"report: runs/compare-mine/{REPORT}"
    folder = tmp_path / "runs" / "compare-mine"
    assert {"comparison.json", REPORT, "table.csv", "rounds.csv", "pictures"} <= {
        path.name for path in folder.iterdir()
    }
    assert not (folder / "children.log").exists()
    assert not [path for path in folder.rglob("*") if path.name.endswith(".tmp")]
    record = json.loads((folder / "comparison.json").read_text())
    assert record["state"] == "finished"
    assert all(run["folder"].startswith("../cache/") for run in record["runs"])

    code, out, err = call(*words, "--json")  # nothing is trained again
    assert code == 0
    (line,) = out.splitlines()
    found = json.loads(line)
    assert {row["label"] for row in found["lines"]} == {"fedavg", "fedprox(mu=1) | local.lr=0.1"}
    assert found["answer"]
    assert "6 of them in the cache" in err
    assert "tracked" not in err

    comparison = read(folder)
    assert len(comparison.results) == 6
    assert comparison.command == "fedstrata " + " ".join(
        [*words[:11], "--methods", "fedavg", "'fedprox(mu=1) | local.lr=0.1'", "--seeds", "0", "1", "2"]
    )
    assert comparison.config["local.lr"] == 0.05
    assert comparison.entries[1].settings == {"local.lr": 0.1}

    code, out, _ = call(
        "compare", *WORDS, "track=tensorboard", "--methods", "fedavg", "--seeds", "0", "--plain"
    )  # one method, one seed
    assert code == 0
    assert "note: runs from the cache are not tracked again" in out
    assert not (tmp_path / "runs" / "tensorboard").exists()
    assert "1 of them in the cache" in out
    assert "there is no other result to compare it with" in out


@pytest.mark.full
def test_ctrl_c_keeps_every_run_and_says_to_call_again(call, tmp_path):
    def interrupt():
        deadline = time.monotonic() + 60
        while not list((tmp_path / "runs" / "cache").glob("*/checkpoints/*")) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    impatient = threading.Thread(target=interrupt)
    impatient.start()
    code, _, err = call(
        "compare", *WORDS[:4], "rounds=100000", "eval.every=1000", "--methods", "fedavg", "--seeds", "0"
    )
    impatient.join()
    assert code == 130
    assert "finishing this round" in err
    assert (
        err.splitlines()[-1] == "fedstrata: stopped with 0 of 1 runs finished; run the same command again to continue"
    )
    (record,) = (tmp_path / "runs").glob("compare-*/comparison.json")
    assert json.loads(record.read_text())["state"] == "stopped"
    (folder,) = (path.parent for path in (tmp_path / "runs" / "cache").glob("*/manifest.json"))
    assert len(Result.read(folder).rounds) >= 1


SOME = ["--methods", "fedavg", "fedprox"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "there is no method to compare"),
        (["--methods"], "--methods has no value"),
        (["--methods", ""], "names no method"),
        (["--methods", "fedavg", "fedprxo"], "Did you mean 'fedprox'"),
        (["--methods", "fedprox(nu=1)"], "has no setting 'nu'"),
        (["--methods", "fedavg", "fedavg"], "are the same competitor"),
        (["--methods", "fedavg | seed=1"], "must be the same for all methods"),
        (["--methods", "fedavg | local.lr=fast"], "local.lr is 'fast'"),
        (["--methods", "fedavg", "rouns=3"], "Did you mean 'rounds'"),
        ([*SOME, "method=fedprox"], "said by --methods"),
        ([*SOME, "seed=3"], "said by --seeds"),
        ([*SOME, "--seeds", "0", "0"], "is given 2 times"),
        ([*SOME, "--seeds", "-1"], "seed -1 is not"),
        ([*SOME, "--seeds", "one"], "'one' is no whole number"),
        ([*SOME, "--budget-bytes", "10", "--budget-flops", "10"], "each end a run"),
        ([*SOME, "--budget-bytes", "0"], "above 0"),
        ([*SOME, "--budget-bytes", "1.5"], "stop.bytes is 1.5"),
        ([*SOME, "--budget-seconds", "nan"], "is no number"),
        ([*SOME, "--target-accuracy", "0"], "above 0 and at most 1"),
        ([*SOME, "--target-accuracy", "80"], "above 0 and at most 1"),
        ([*SOME, "--target-accuracy", "0.8", "stop.bytes=5"], "give one of them"),
        ([*SOME, "stop.flops=5", "stop.bytes=5"], "two ends of a run"),
        ([*SOME, "--baseline", "scaffold"], "is not among the methods"),
        ([*SOME, "--side-by-side", "0"], "from 1 to 1024"),
        ([*SOME, "--screen", "2"], "above 0 and at most 1"),
        ([*SOME, "--screen", "-1"], "screen is -1.0; it is the share"),
        ([*SOME, "track=nosuch"], "there is no tracker 'nosuch'"),
        ([*SOME, "track=tensorboard(folder='')"], "track tensorboard.folder is empty"),
        ([*SOME, "--screen", "rounds=3"], "a half of 3 rounds"),
        ([*SOME, "--screen", "validation=0"], "validation is 0"),
        ([*SOME, "--screen", "eval.every=3"], "eval.every is 3"),
        ([*SOME, "bn=local"], "fedavg: bn=local is set, but the model has no batch norm"),
        ([*SOME, "--budget", "5"], "budget"),
        ([*SOME, "nowhere.toml"], "there is no configuration file"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_every_mistake_is_one_line_and_leaves_nothing(call, tmp_path, words, said):
    code, out, err = call(
        "compare",
        *[word for word in WORDS if word.partition("=")[0] not in {w.partition("=")[0] for w in words}],
        *words,
    )
    assert code == 2, err
    assert said in err
    assert (out, err.count("\n")) == ("", 1)
    assert not (tmp_path / "runs" / "cache").exists()


def test_out_that_is_a_file_is_refused(call, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = call("compare", *WORDS, "out=file", *SOME)
    assert code == 2
    assert "which is a file" in err


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"format": 2}',
        '{"format": 1}',
        '{"format": 2, "runs": [], "entries": [{}]}',
        '{"format": 2, "runs": 3, "screening": null}',
    ],
)
def test_a_damaged_record_is_named_and_no_crash(tmp_path, text):
    (tmp_path / "comparison.json").write_text(text)
    with pytest.raises(StateError, match=r"comparison\.json"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"seeds": [0, 1.5]}, "seed 1.5 is no whole number"),
        ({"seeds": ["0"]}, "seed '0' is no whole number"),
        ({"seeds": [True]}, "seed True is no whole number"),
        ({"runs": [{"label": "fedavg", "seed": None}]}, "seed None is no whole number"),
        ({"baseline": "fedprox"}, "its baseline 'fedprox' is none of its entries: fedavg"),
    ],
    ids=str,
)
def test_a_record_with_values_that_no_comparison_has_says_which(tmp_path, changed, said):
    record = {
        "format": FORMAT,
        "seeds": [0],
        "runs": [],
        "entries": [{"label": "fedavg", "method": "fedavg", "settings": {}}],
        "baseline": "fedavg",
    }
    (tmp_path / "comparison.json").write_text(json.dumps(record | changed))
    with pytest.raises(StateError, match=rf"comparison\.json is damaged \({re.escape(said)}\)"):
        read(tmp_path)


def test_no_comparison_is_no_comparison(tmp_path):
    with pytest.raises(StateError, match="there is no comparison"):
        read(tmp_path)


@pytest.mark.full
def test_sweep_chooses_on_validation_and_prints_the_comparison_of_the_chosen(call, tmp_path):
    code, out, err = call(
        *("sweep", *WORDS, "name=mine", "--methods", "fedavg", "fedprox + fedavgm", "--vary", "local.lr=0.01,0.1"),
        *("--vary", "fedprox.mu=0.01,0.1", "--vary", "fedavgm.beta=0.5", "--trials", "auto"),
    )
    chosen = [word for word in WORDS if word in out.splitlines()[-1].split()]
    assert chosen == WORDS, "as typed"
    assert (code, err) == (0, "")
    folder = tmp_path / "runs" / "sweep-mine"
    found = json.loads((folder / "sweep.json").read_text())
    assert [len(one["trials"]) for one in found["methods"]] == [2, 2]
    assert out.splitlines()[-1] == found["command"]
    for one in found["methods"]:
        assert one["chosen"] == max(one["trials"], key=lambda trial: trial["score"])["method"]
        assert one["chosen"] in found["command"]
    assert len((folder / "sweep.csv").read_text().splitlines()) == 5
    assert set(found["methods"][0]["trials"][0]) == {"method", "values", "score", "why"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--vary", "local.lr=0.1,0.2"], "there is no method"),
        (SOME, "there is nothing to vary"),
        ([*SOME, "--vary", "local.lr"], "is not key=value"),
        ([*SOME, "--vary", "local.lr=0.1,"], "is not key=value"),
        ([*SOME, "--vary", "local.lr=0.1,0.1"], "a value twice"),
        ([*SOME, "--vary", "local.lr=0.1", "--vary", "local.lr=0.2"], "varied twice"),
        ([*SOME, "--vary", "local.lr=0.1,fast"], "local.lr is 'fast'"),
        ([*SOME, "--vary", "rounds=1,2"], "must be the same for all"),
        ([*SOME, "--vary", "fedprox.mu=1,2"], "nothing is varied of 'fedavg'"),
        ([*SOME, "--vary", "moon.mu=1,2"], "neither a setting nor an argument"),
        (["--methods", "fedprox", "--vary", "fedprox.nu=1,2"], "has no setting 'nu'"),
        ([*SOME, "--vary", "local.lr=0.1,0.2", "--trials", "3"], "use --trials 2"),
        ([*SOME, "--vary", "local.lr=0.1,0.2", "--trials", "0"], "at least 1, or auto"),
        ([*SOME, "--vary", "local.lr=0.1,0.2", "--trials", "few"], "is no whole number"),
        (["--methods", "fedavg | local.lr=0.3", "--vary", "local.lr=0.1,0.2"], "sets it too"),
        ([*SOME, "validation=0", "--vary", "local.lr=0.1,0.2"], "validation is 0"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_every_mistake_of_a_sweep_is_one_line(call, tmp_path, words, said):
    code, out, err = call(
        "sweep", *[word for word in WORDS if word.partition("=")[0] not in {w.partition("=")[0] for w in words}], *words
    )
    assert code == 2, err
    assert said in err
    assert (out, err.count("\n")) == ("", 1)
    assert not (tmp_path / "runs" / "cache").exists()


def test_help_shows_the_examples_and_every_option(call):
    for command, options in (
        ("compare", ["--methods", "--seeds", "--baseline", "--budget-bytes", "--target-accuracy", "--screen"]),
        ("sweep", ["--vary", "--trials"]),
    ):
        code, out, _ = call(command, "--help")
        assert code == 0
        for option in options:
            assert option in out
        assert "local.lr" in out
