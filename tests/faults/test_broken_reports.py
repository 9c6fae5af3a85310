"""Reports of damaged folders, and the second Ctrl-C: one line."""

import os
import signal
import subprocess
import sys
import time

import pytest

import fedstrata
from fedstrata.cli import main

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


def test_the_second_interrupt_says_how_to_go_on(tmp_path):
    settings = [
        "clients=4",
        "cohort=4",
        "partition=iid",
        "local.epochs=60",
        "rounds=500",
        "model=mlp(hidden=400)",
        "executor=loop",
        f"out={tmp_path}",
    ]
    command = [sys.executable, "-m", "fedstrata", "run", "--plain", *settings]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    ) as run:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("*/manifest.json")) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        run.send_signal(signal.SIGINT)
        time.sleep(0.1)
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=60)
    assert run.returncode == 130, said
    assert "fedstrata: stopped at once" in said
    assert "fedstrata resume" in said
