"""A run in another process, folder and hash seed, without a network."""

import os
import subprocess
import sys

import pytest

import fedstrata
from fedstrata.data import datasets

ALONE = """
import sys

def guard(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        raise RuntimeError(f"the network was used: {event} {arguments}")

sys.addaudithook(guard)
import fedstrata
from fedstrata.data import DataSpec, load
for name in sys.argv[1].split(","):
    load(DataSpec(data=name, clients=4, partition="iid"))
settings = {"rounds": 2, "clients": 6, "cohort": 3, "local.epochs": 1, "executor": "loop"}
settings["model"] = "mlp(hidden=8, dropout=0.2)"
print(fedstrata.run(method="scaffold", seed=5, **settings).summary["model_sha256"])
"""


@pytest.mark.full
def test_t34_and_row_65_no_network_is_used_and_neither_hash_seed_nor_folder_changes_the_model(tmp_path, monkeypatch):
    bundled = ",".join(row.name for row in datasets() if row.offline)
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    there = subprocess.run(
        [sys.executable, "-c", ALONE, bundled],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    monkeypatch.chdir(tmp_path.parent)
    settings = {
        "rounds": 2,
        "clients": 6,
        "cohort": 3,
        "local.epochs": 1,
        "executor": "threads",
        "workers": 2,
        "model": "mlp(hidden=8, dropout=0.2)",
    }
    here = fedstrata.run(method="scaffold", seed=5, out=str(tmp_path / "here"), **settings)
    assert there.stdout.split() == [here.summary["model_sha256"]]
