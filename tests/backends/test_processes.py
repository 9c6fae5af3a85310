"""Worker processes that die where nobody looked."""

import multiprocessing
import os
import signal

import pytest

import fedstrata

SMALL = {"clients": 4, "cohort": 4, "rounds": 3, "local_epochs": 1, "partition": "iid", "model": "mlp(hidden=8)"}


@pytest.mark.parametrize("which", [slice(1), slice(None)])
def test_a_worker_killed_between_rounds_is_replaced(tmp_path, which):
    killed = []

    def kill():
        for child in multiprocessing.active_children()[which]:
            os.kill(child.pid, signal.SIGKILL)
            child.join()
            killed.append(child.pid)
        return False

    whole = fedstrata.run(executor="loop", out=str(tmp_path), **SMALL).summary
    hurt = fedstrata.run(executor="processes", workers=2, out=str(tmp_path), stop=kill, **SMALL).summary
    assert killed
    assert hurt["model_sha256"] == whole["model_sha256"]
    assert not hurt["refused"]
