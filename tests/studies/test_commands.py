"""The studies of partial training from the command line, on runs that were really written."""

import json

import pytest

from fedstrata.config.config import Config
from fedstrata.runs.run import run
from helpers.tiers import tiered

STUDIES = {
    "steps": "steps(optimizer=sgd, lr=0.05)",
    "settling": "settling(samples=20, looks=3)",
    "masks": "masks(samples=5)",
    "memory": "memory",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    common = {
        "out": str(out),
        "rounds": 4,
        "clients": 4,
        "executor": "loop",
        "local.epochs": 1,
        "local.optimizer": "adam",
        "local.lr": 0.001,
    }
    return [
        run(Config(method=text, name=name, **common)).folder
        for name, text in (("full", "fedavg"), ("part", "fedpart(warmup=1, repeat=1)"))
    ]


@pytest.mark.parametrize("name", tiered(STUDIES, ("path",)))
def test_the_command_writes_the_same_files_twice(name, runs, call, tmp_path):
    written = []
    for place in range(2):
        folder = tmp_path / str(place)
        code, out, err = call("study", STUDIES[name], *runs, "--out", folder, "--json")
        assert code == 0, err
        assert json.loads(out)["study"] == name
        written.append({file.name: file.read_bytes() for file in sorted(folder.iterdir())})
    assert written[0] == written[1]
    assert "outcome.json" in written[0]
    assert any(file.endswith(".png") for file in written[0])
    numbers = json.loads(written[0]["outcome.json"])["numbers"]
    assert {"full", "part"} <= set(numbers)


@pytest.mark.full
def test_two_runs_that_are_the_same_training_for_a_while_agree_there(runs, call, tmp_path):
    code, out, err = call("study", "steps", *runs, "--out", tmp_path / "s", "--json")
    assert code == 0, err
    assert json.loads(out)["numbers"]["part over full"]["step ratios"][0] == 1.0
