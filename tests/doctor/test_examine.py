"""The doctor as a whole: what it says about known federations, as text and as JSON, and what it costs."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest

from fedstrata.cli.common import console_for
from fedstrata.config.config import Config
from fedstrata.data import Facts, Federation
from fedstrata.doctor import examine
from fedstrata.doctor.show import CAVEAT, show
from fedstrata.runs.run import run

QUICK = ["model=mlp", "rounds=20", "executor=loop"]


def words(diagnosis):
    return {meaning.name: meaning.word for meaning in diagnosis.skew}


def proposed(diagnosis, verdict):
    return {advice.method for advice in diagnosis.advice if advice.verdict == verdict}


def examined(*settings, **more):
    return examine(Config.read(None, [*QUICK, *settings]), **more)


def test_skew_of_known_partitions_is_said_in_words():
    assert words(examined("partition=iid", quick=True)) == {
        "label_skew": "none",
        "quantity_gini": "none",
        "feature_shift": "none",
    }
    assert words(examined("partition=dirichlet(alpha=0.1, min=1)", quick=True))["label_skew"] == "strong"
    assert words(examined("partition=dirichlet(alpha=1)", quick=True))["label_skew"] == "moderate"
    assert words(examined("partition=quantity(alpha=0.2, min=0)", quick=True))["quantity_gini"] == "strong"
    assert words(examined("data=synthetic(alpha=1, beta=1)", quick=True))["feature_shift"] == "strong"


def test_candidates_follow_the_skew():
    strong = examined("test=both", "validation=0.1", quick=True)
    assert {"fedper", "ditto", "scaffold"} <= proposed(strong, "candidate")
    none = examined("partition=iid", "test=both", "validation=0.1", quick=True)
    assert none.candidates == ("fedavg", "local")
    assert {"scaffold", "fedprox", "fednova"} <= proposed(none, "not advised")


def test_every_registered_method_is_spoken_of_once():
    from fedstrata.methods import method, rows  # noqa: PLC0415

    spoken = [name for advice in examined(quick=True).advice for name in method(advice.method).named or ["fedavg"]]
    assert sorted(spoken) == sorted(["fedavg", *(row.name for row in rows())])


def test_a_method_that_cannot_run_here_is_said_so_with_the_reason():
    found = examined("local.optimizer=adam", "local.lr=0.01", quick=True)
    (scaffold,) = (advice for advice in found.advice if advice.method == "scaffold")
    assert scaffold.verdict == "cannot run"
    assert "local.optimizer is adam" in scaffold.reasons[0]
    assert "scaffold" not in found.candidates


def test_the_bill_is_the_one_that_the_run_pays(tmp_path):
    settings = ["model=mlp", "rounds=3", "executor=loop", "partition=iid", "local.epochs=2", f"out={tmp_path}"]
    found = {cost.what: cost.value for cost in examine(Config.read(None, settings)).costs}
    paid = run(Config.read(None, settings)).summary
    assert found["sent in all"] == paid["bytes_up"] + paid["bytes_down"]
    assert found["clients' training in all"] == pytest.approx(
        paid["flops"], rel=1e-9
    )  # equal clients: the mean is everybody's
    assert found["training time on this machine"] > 0


def test_rows_are_counted_for_clients_that_can_take_part():
    few = Config(method="scaffold", model="logistic", cohort=2, rounds=3)
    found = {cost.what: cost for cost in examine(few, quick=True).costs}
    assert found["state of clients"].value == 6 * 650 * 4  # two clients in three rounds, 64 x 10 + 10 numbers
    many = {cost.what: cost for cost in examine(Config(method="scaffold", model="logistic"), quick=True).costs}
    assert many["state of clients"].value == 20 * 650 * 4


def test_a_million_derived_clients_are_no_trouble():
    found = examined("partition=overlap(size=20)", "clients=1000000", "test=both")
    assert (found.facts.clients, len(found.facts.shown)) == (1_000_000, 200)
    assert "scaffold" in proposed(found, "not advised")
    assert {problem.code for problem in found.problems} >= {"participation"}
    assert "client-duplicates" not in {problem.code for problem in found.problems}


@pytest.mark.parametrize("data", ["diabetes", "eeg"])
def test_a_regression_has_targets_instead_of_labels(data):
    found = examine(Config.read(None, [f"data={data}", "rounds=5", "executor=loop", "test=client"]))
    assert set(words(found)) == {"quantity_gini", "feature_shift", "target_shift"}
    assert found.facts.chance is None
    assert found.candidates[0] == "fedavg"


def test_text_is_looked_at_by_its_tokens():
    rng = np.random.default_rng(0)
    owners = np.arange(600) % 6
    tokens = rng.integers(0, 5, (600, 10)) + 5 * owners[:, None]
    fed = Federation.of(
        tokens, rng.integers(0, 2, 600), client=owners, vocabulary=30, testing="own(share=0.2)", validation=0.1
    )
    found = examine(
        Config(model="transformer(width=16, layers=1, heads=2, feedforward=16)", rounds=5, executor="loop"),
        federation=fed,
    )
    assert words(found)["feature_shift"] == "strong"
    assert "fedadam" in found.candidates


def test_one_client_and_one_class_are_said_and_not_guessed():
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    one = examine(
        Config(model="logistic", rounds=2), federation=Federation.of(x, np.arange(60) % 2, partition="pooled")
    )
    assert set(words(one).values()) == {"unknown", "none"}
    assert "one-client" in {problem.code for problem in one.problems}
    same = examine(
        Config(model="logistic", rounds=2),
        federation=Federation.of(x, np.zeros(60, dtype=np.int64), client=np.arange(60) % 4),
    )
    assert words(same)["label_skew"] == "unknown"
    assert "one-class" in {problem.code for problem in same.problems}


def test_the_proposed_command_is_what_compare_reads():
    found = examined(
        "partition=dirichlet(alpha=0.3)",
        "test=both",
        quick=True,
        given=["partition=dirichlet(alpha=0.3)", "test=both", "method=moon"],
    )
    parts = shlex.split(found.command)
    assert parts[:5] == ["fedstrata", "compare", "partition=dirichlet(alpha=0.3)", "test=both", "validation=0.1"]
    assert parts[5:] == ["--methods", *found.candidates, "--seeds", "0", "1", "2"]
    Config.read(None, parts[2:5])


def test_without_words_of_a_command_line_the_differences_are_written_out():
    found = examined("test=both", "validation=0.2", quick=True)
    settings = [
        word for word in shlex.split(found.command) if "=" in word and "(" not in word and not word.startswith("-")
    ]
    assert set(settings) == {
        "test=both",
        "validation=0.2",
        "rounds=20",
        "model=mlp",
        "executor=loop",
    }


def test_a_federation_from_python_is_compared_from_python():
    x = np.random.default_rng(0).normal(size=(80, 3)).astype(np.float32)
    fed = Federation.of(x, np.arange(80) % 2, client=np.arange(80) % 4, testing="own(share=0.2)")
    assert examine(Config(rounds=2), federation=fed, quick=True).command.startswith("fedstrata.compare(['fedavg'")


def test_the_command_prints_every_section_and_ends_with_a_command(call):
    code, out, err = call("doctor", *QUICK, "test=both")
    assert (code, err) == (0, "")
    sections = [
        "data and splits",
        "skew: how much",
        "problems, the weightiest",
        "what it costs",
        "which methods deserve",
        "advice before measurement",
    ]
    places = [out.index(section) for section in sections]
    assert places == sorted(places)
    assert out.rstrip().splitlines()[-1].startswith("  fedstrata compare ")


def test_json_is_one_line_that_holds_everything(call):
    code, out, _ = call("doctor", *QUICK, "--json", "--quick")
    assert code == 0
    (line,) = out.splitlines()
    found = json.loads(line, parse_constant=lambda c: pytest.fail(f"{c} is no JSON"))
    assert Facts.read(found["facts"]).clients == 20
    assert set(found) >= {
        "facts",
        "setting",
        "skew",
        "problems",
        "costs",
        "advice",
        "candidates",
        "command",
        "settings",
    }
    assert found["advice"][0]["method"] == "fedavg"


@pytest.mark.parametrize(
    "words",
    [
        ["data=nosuch"],
        ["method=nosuch"],
        ["method=fedbn"],
        ["data=cifar10"],
        ["cohort=50"],
        ["track=nosuch"],
        ["partition=dirichlet(alpha=-1)"],
    ],
    ids=" ".join,
)
def test_what_check_refuses_the_doctor_refuses_in_the_same_line(call, words):
    code, out, err = call("doctor", *QUICK, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert (2, "", err) == call("check", *QUICK, *words)


def test_a_configuration_file_is_kept_in_the_command(call, tmp_path):
    (tmp_path / "mine.toml").write_text('model = "logistic"\ntest = "both"\nrounds = 5\n')
    out = call("doctor", "mine.toml", "partition=iid", "--quick")[1]
    assert (
        out.rstrip()
        .splitlines()[-1]
        .startswith("  fedstrata compare mine.toml partition=iid validation=0.1 --methods ")
    )


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_text_fits_its_terminal_save_for_lines_to_copy(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    show(examined("test=both", quick=True), console_for())
    lines = capsys.readouterr().out.splitlines()
    wide = [line for line in lines if len(line) > width]
    assert all(line.startswith(("  fedstrata compare", "candidates beyond", "the comparison")) for line in wide)
    assert CAVEAT.split(":")[0] in " ".join(lines)


def test_hostile_names_reach_no_terminal(capsys):
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    owners = np.repeat(["\x1b[2J[bold]evil[/bold]", "plain"], [4, 56])
    fed = Federation.of(x, np.arange(60) % 2, client=owners, testing="own(share=0.2)", name="x\x1b[31m")
    show(examine(Config(model="logistic", rounds=2), federation=fed, quick=True), console_for())
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "[bold]evil" in out
