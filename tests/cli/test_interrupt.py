"""The second Ctrl-C: one line."""

import os
import signal
import subprocess
import sys
import time

import pytest


@pytest.mark.full
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
