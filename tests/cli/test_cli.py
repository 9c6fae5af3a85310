"""The command: what it prints where, exit codes, and one line for every mistake."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from fedstrata.config.config import KEYS, Config
from fedstrata.config.fields import flatten
from helpers.tiers import tiered

SMALL = ["rounds=3", "cohort=4", "local.epochs=1", "executor=loop", "model=logistic"]


def refused(result):
    code, out, err = result
    assert code == 2, err
    assert out == ""
    assert err.startswith("fedstrata: error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


def test_version_and_help(call):
    assert call("--version")[1].startswith("fedstrata 0.")
    code, out, _ = call("--help")
    assert code == 0
    for command in ("run", "check", "resume", "list", "describe", "report", "bench"):
        assert re.search(rf"^  {command} ", out, re.MULTILINE), command


def test_help_of_run_names_every_key_with_default_and_meaning(call):
    lines = {
        line.split()[0]: line
        for line in call("run", "--help")[1].splitlines()
        if line.startswith("    ") and line.split()
    }
    for key in KEYS.values():
        assert key.meaning in lines[key.name]
        assert lines[key.name].endswith(f"[{'none' if key.default is None else key.default}]")


def test_run_writes_the_run_folder_and_prints_the_result(here, call):
    code, out, err = call("run", *SMALL, "name=one")
    assert (code, err) == (0, "")
    folder = here / "runs" / "one"
    names = {p.name for p in folder.iterdir()}
    assert names >= {
        "config.toml",
        "manifest.json",
        "rounds.jsonl",
        "summary.json",
        "clients.csv",
        "curve.png",
        "partition.png",
        "checkpoints",
    }
    assert Config(**flatten(tomllib.loads((folder / "config.toml").read_text()))) == Config.read(
        None, [*SMALL, "name=one"]
    )
    assert "runs/one" in out
    assert len(re.findall(r"^round \d/3  accuracy 0\.\d{4}  loss", out, re.MULTILINE)) == 3
    assert "accuracy, last round" in out
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["model_sha256"][:16] in out


def test_json_is_the_last_line_of_stdout_and_nothing_else(here, call):
    code, out, err = call("run", *SMALL, "--json")
    assert code == 0
    (line,) = out.splitlines()
    summary = json.loads(line)
    assert {
        "method",
        "seed",
        "rounds",
        "accuracy",
        "metrics",
        "bytes_up",
        "bytes_down",
        "flops",
        "seconds",
        "executor",
        "workers",
        "model_sha256",
    } <= set(summary)
    assert set(summary["accuracy"]) == {
        "final",
        "best",
        "window",
        "selected",
        "personal",
        "personal_weighted",
        "personal_std",
        "personal_worst10",
        "personal_selected",
        "heldout",
        "heldout_own",
        "heldout_adapted",
    }
    assert summary["accuracy"]["selected"] is None
    assert "round 3/3" in err


def test_a_file_then_the_command_line(here, call):
    (here / "mine.toml").write_text('rounds = 2\nmodel = "logistic"\nexecutor = "loop"\n[local]\nepochs = 1\n')
    code, out, _ = call("run", "mine.toml", "rounds=1", "cohort=2", "--json")
    assert code == 0
    assert json.loads(out)["rounds"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["metod=fedavg"], "'method'"),
        (["method=fedprox(mu=-1)"], "-1"),
        (["method=fedprox(mux=1)"], "'mu'"),
        (["method=fedpox"], "'fedprox'"),
        (["method=fedper(personal='role:haed')"], "head"),
        (["method=fedprox + fedprox"], "2 times"),
        (["partition=dirichlet(alpha=0.1, min=90)"], "90"),
        (["partition=dirichlet(alpha=0.1, min=60, tries=20)"], "smaller min"),
        (["partition=dirichlett(alpha=0.1)"], "'dirichlet'"),
        (["data=cifar10"], "data.root"),
        (["data=cifar10", "data.root=/nowhere"], "/nowhere"),
        (["data=cifar11"], "'cifar10'"),
        (["model=resnet99"], "resnet9"),
        (["model=char_lstm"], "tokens"),
        (["norm=batch", "model=logistic"], "norm"),
        (["bn=local", "model=logistic"], "batch norm"),
        (["clients=5", "cohort=6"], "cohort is 6"),
        (["heldout=0.5", "clients=20", "cohort=15"], "cohort=10 or less"),
        (["quorum=30"], "quorum"),
        (["finetune.epochs=1", "finetune.groups=role:haed"], "head"),
        (["nosuch.toml"], "no configuration file 'nosuch.toml'"),
        (["rounds=5", "mine.toml"], "not key=value"),
        (["--rounds=5"], "rounds=5"),
        (["name=../../x"], "folder name"),
        (["track=nosuch"], "there is no tracker"),
        (["track=tensorboard(folder='')"], "folder is empty"),
    ],
)
@pytest.mark.parametrize("command", ["run", "check"])
def test_a_mistake_is_one_line_with_the_remedy_and_leaves_no_folder(here, call, command, arguments, said):
    message = refused(call(command, *arguments))
    assert said in message
    assert not (here / "runs").exists()


def test_the_configuration_of_a_run_with_data_from_python_is_not_run_on_other_data(here, call):
    (here / "config.toml").write_text('data = "digits"\n')
    (here / "manifest.json").write_text('{"custom": ["federation", "module"]}')
    code, out, err = call("run", "config.toml")
    assert (code, out) == (2, "")
    assert "given its federation and module from Python" in err


def test_check_says_what_would_run(here, call):
    code, out, err = call("check", "method=fedprox(mu=0.1)", "test=both")
    assert (code, err) == (0, "")
    for fact in (
        "fedprox(mu=0.1)",
        "1,438 training samples",
        "20, 10 a round",
        "each client its own split",
        "9,610 parameters",
    ):
        assert fact in out
    assert not (here / "runs").exists()


@pytest.mark.parametrize("what", ["methods", "datasets", "models", "partitions", "measures", "executors"])
def test_lists_print_rows_and_json(call, what):
    code, out, _ = call("list", what)
    assert code == 0
    code, line, _ = call("list", what, "--json")
    rows = json.loads(line)
    assert rows
    for row in rows:
        assert next(iter(row.values())) in out
        assert all(row.values()), row


def test_an_unknown_list_names_the_near_one(call):
    assert "'methods'" in refused(call("list", "method"))


def test_every_metric_of_a_summary_is_a_listed_measure(here, call):
    listed = {row["measure"] for row in json.loads(call("list", "measures", "--json")[1])}
    for data in ("digits", "diabetes"):
        summary = json.loads(
            call("run", "rounds=1", f"data={data}", "cohort=2", "executor=loop", "test=both", "--json")[1]
        )
        assert set(summary["metrics"]) <= listed | set(summary["accuracy"])


@pytest.mark.parametrize("as_json", [False, True])
def test_describe_prices_a_method(here, call, as_json):
    code, out, _ = call("describe", "fedprox(mu=0.1)", "model=mlp", *(["--json"] if as_json else []))
    assert code == 0
    assert "9,610" in out or json.loads(out)["parameters"] == 9610


def test_describe_tells_settings_verbs_and_sources_of_a_chain(here, call):
    found = json.loads(call("describe", "fedprox(mu=0.1) + fedpart(warmup=1)", "model=mlp", "rounds=10", "--json")[1])
    prox, part = found["pieces"]
    assert prox == {
        "name": "fedprox",
        "settings": "mu=0.1, distance=squared",
        "verbs": "gradient",
        "source": "Li et al., MLSys 2020",
    }
    assert part["verbs"] == "plan"
    assert "warmup=1, first=None" in part["settings"]
    assert found["formulas"]["fedpart: uplink over FedAvg's"] == round(3 / 5, 4), "two groups, two whole cycles"
    shown = " ".join(call("describe", "fedprox + fedpart", "model=mlp")[1].split())
    assert "Li et al., MLSys 2020" in shown
    assert "training FLOPs over FedAvg's, exact" in shown


def test_describe_refuses_an_unknown_method(here, call):
    assert "'fedprox'" in refused(call("describe", "fedpox"))


def test_resume_of_a_finished_run_gives_the_same_result(here, call):
    first = json.loads(call("run", *SMALL, "name=one", "--json")[1])
    code, out, _ = call("resume", "runs/one", "--json")
    assert code == 0
    assert json.loads(out)["model_sha256"] == first["model_sha256"]


def test_resume_refuses_an_executor_that_is_none(here, call):
    call("run", *SMALL, "name=one")
    assert "'loop'" in refused(call("resume", "runs/one", "--executor", "lop"))


def test_a_folder_that_cannot_be_made_is_one_line(here, call):
    (here / "file").write_text("")
    assert "file/runs" in refused(call("run", *SMALL, "out=file/runs"))


def test_trouble_of_the_machine_is_one_line_and_exit_code_1(here, call, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device", "runs/one/clients.csv")

    monkeypatch.setattr("fedstrata.report.files.clients_csv", full)
    code, _, err = call("run", *SMALL, "name=one")
    assert (code, err) == (1, "fedstrata: error: No space left on device: runs/one/clients.csv\n")


@pytest.mark.parametrize(
    "setting", ["method=fedgen(batch=100000000000)", "method=fedgen(latent=10000000, hidden=1000000)"]
)
def test_memory_that_does_not_suffice_is_one_line_and_exit_code_1(here, call, setting):
    code, _, err = call("run", *SMALL, "name=one", setting)
    assert code == 1
    assert err.count("\n") == 1, err
    assert "this machine's memory does not suffice" in err
    assert "you tried to allocate" in err


def test_a_bug_is_not_taken_for_a_lack_of_memory(here, call, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr("fedstrata.report.files.clients_csv", broken)
    with pytest.raises(RuntimeError, match="shapes"):
        call("run", *SMALL, "name=one")


def test_resume_refuses_what_is_no_run_and_another_runs_configuration(here, call):
    assert "no run folder" in refused(call("resume", "runs/none"))
    call("run", *SMALL, "name=one")
    assert "'runs/one'" in refused(call("resume", "runs/on"))
    config = here / "runs/one/config.toml"
    config.write_text(config.read_text().replace("seed = 0", "seed = 1"))
    assert "seed: 1 now, 0 then" in refused(call("resume", "runs/one"))


@pytest.mark.full
def test_report_of_one_run_and_of_several(here, call):
    call("run", *SMALL, "name=one")
    call("run", *SMALL, "name=two", "seed=1", "test=both")
    code, out, _ = call("report", "runs/two")
    assert code == 0
    assert (here / "runs/two/rounds.csv").read_text().count("\n") == 4
    assert "score_personal" in (here / "runs/two/clients.csv").read_text().splitlines()[0]
    code, out, _ = call("report", "runs/one", "runs/two", "--out", "both")
    assert code == 0
    assert {p.name for p in (here / "both").iterdir()} == {
        "curve.png",
        "rounds-one.csv",
        "rounds-two.csv",
        "report.html",
        "pictures",
    }
    code, out, _ = call("report", "runs/one", "runs/two", "--json")
    assert set(json.loads(out.splitlines()[-1])) == {"one", "two"}


def test_report_refuses_a_folder_without_a_run(here, call):
    (here / "empty").mkdir()
    assert "no run folder" in refused(call("report", "empty"))
    assert "no run folder" in refused(call("report", "missing"))


def test_report_refuses_a_file_to_write_into_and_a_run_given_twice(here, call):
    call("run", *SMALL, "name=one")
    (here / "file").write_text("mine")
    assert "--out is 'file', which is a file" in refused(call("report", "runs/one", "--out", "file"))
    assert (here / "file").read_text() == "mine"
    assert "'runs/../runs/one' is given more than once" in refused(call("report", "runs/../runs/one", "runs/one"))


def _started(folder: Path, *arguments: str) -> subprocess.Popen:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COV")}
    command = [sys.executable, "-m", "fedstrata", "run", *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.full
@pytest.mark.parametrize("number", tiered([signal.SIGINT, signal.SIGTERM], [signal.SIGINT]))
def test_ctrl_c_keeps_a_checkpoint_says_how_to_go_on_and_resume_reaches_the_same_model(here, call, number):
    settings = ["rounds=40", "cohort=4", "local.steps=60", "executor=loop", "model=logistic", "checkpoint.every=1000"]
    process = _started(here, *settings, "name=stopped", "--json")
    lines = here / "runs/stopped/rounds.jsonl"
    for _ in range(3000):
        if lines.is_file() and lines.read_text().count("\n") >= 2:
            break
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "go on with: fedstrata resume runs/stopped" in err
    assert 0 < json.loads(out.splitlines()[-1])["rounds"] < 40
    code, out, _ = call("resume", "runs/stopped", "--json")
    assert code == 0
    whole = call("run", *settings, "name=whole", "--json")[1]
    assert json.loads(out)["model_sha256"] == json.loads(whole)["model_sha256"]


@pytest.mark.full
def test_a_second_ctrl_c_ends_the_run_at_once_and_it_can_still_be_resumed(here, call):
    """Rounds of half a second or more: the signals arrive in the middle of one."""
    settings = ["rounds=2", "cohort=3", "local.steps=3000", "executor=loop", "model=logistic"]
    process = _started(here, *settings, "name=stopped", "--plain")
    lines = here / "runs/stopped/rounds.jsonl"
    for _ in range(3000):
        if lines.is_file() and lines.read_text().count("\n") >= 1:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    told = process.stderr.readline() + process.stderr.readline()
    assert "once more stops at once" in told
    process.send_signal(signal.SIGINT)
    err = process.stderr.read()
    process.stderr.close()
    process.stdout.close()
    assert process.wait(timeout=60) == 130, err
    assert "stopped at once" in err
    assert "Traceback" not in err
    assert lines.read_text().count("\n") == 1
    code, out, _ = call("resume", "runs/stopped", "--json")
    assert code == 0
    whole = call("run", *settings, "name=whole", "--json")[1]
    assert json.loads(out)["model_sha256"] == json.loads(whole)["model_sha256"]


@pytest.mark.full
def test_a_broken_pipe_is_no_traceback(here):
    command = f"{sys.executable} -m fedstrata run --help | head -1"
    done = subprocess.run(["bash", "-c", command], cwd=here, capture_output=True, text=True, check=True)
    assert "Traceback" not in done.stderr


def test_python_module_and_command_are_the_same(here):
    done = subprocess.run(
        [sys.executable, "-m", "fedstrata", "run", "metod=1"], cwd=here, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("fedstrata: error: ")


def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_serves(here, call):
    first = json.loads(call("run", *SMALL, "name=one", "--json")[1])
    checkpoints = sorted((here / "runs/one/checkpoints").rglob("*.safetensors"), key=lambda p: p.stat().st_mtime)
    data = bytearray(checkpoints[-1].read_bytes())
    data[-3] ^= 1
    checkpoints[-1].write_bytes(data)
    message = refused(call("resume", "runs/one"))
    assert "previous" in message
    code, out, _ = call("resume", "runs/one", "--previous", "--json")
    assert code == 0
    assert json.loads(out)["model_sha256"] == first["model_sha256"]
