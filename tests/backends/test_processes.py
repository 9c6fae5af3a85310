"""Worker processes that die between rounds."""

import multiprocessing
import os
import signal

import pytest
import torch

import fedstrata
from fedstrata.backends.selection import build
from fedstrata.engine.server import plan_round
from helpers import lab

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


def test_t30_a_layer_above_four_megabytes_trains_in_processes():
    wide = lab.filled(torch.nn.Sequential(torch.nn.Linear(6, 180_000), torch.nn.ReLU(), torch.nn.Linear(180_000, 3)))
    made = lab.parts("scaffold", (lab.federation((4, 5)), wide), cohort=2, local_steps=1, local_lr=1e-5)
    assert 4 * made.setup.layout.entries["0.weight"].shape.numel() > 4 << 20
    holder = lab.engine(made)
    tasks = plan_round(holder.server, made.rules, 1e-5, lambda *_: None, lambda _: None).tasks
    runner = build("processes", made.make_worker, 1, 1, lambda *_: None)
    try:
        there = sorted(runner.train(tasks), key=lambda r: r.cohort_index)
    finally:
        runner.close()
    here = sorted(holder.executor.train(tasks), key=lambda r: r.cohort_index)
    assert [lab.bits(r.delta) for r in there] == [lab.bits(r.delta) for r in here]
    assert [lab.bits(r.client_state) for r in there] == [lab.bits(r.client_state) for r in here]
