"""A run folder is gone on with by the run that it belongs to, and by nobody else (faults rows 47, 48, 49)."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from fedstrata.client.update import ClientUpdate
from fedstrata.common.errors import StateError
from fedstrata.common.processor import processor
from fedstrata.config.config import KEYS, NON_RESULT_SETTINGS, Config
from fedstrata.runs.run import Stopped, resume, run
from fedstrata.storage import lock
from helpers import lab

OTHER = {
    "method": "fedprox(mu=0.1)",
    "data": "wine",
    "augment": "flip",
    "partition": "iid",
    "test": "both",
    "validation": 0.1,
    "heldout": 0.2,
    "clients": 7,
    "cohort": 2,
    "rounds": 4,
    "model": "logistic",
    "norm": "group",
    "bn": "local",
    "weighting": "uniform",
    "local.epochs": 1,
    "local.steps": 2,
    "local.draw": "fresh",
    "local.batch": 5,
    "local.lr": 0.2,
    "local.optimizer": "adam",
    "local.momentum": 0.5,
    "local.weight_decay": 0.1,
    "local.clip": 1.0,
    "local.precision": "bfloat16",
    "local.threads": 2,
    "local.activation_cache_mb": 0,
    "schedule": "cosine",
    "finetune.epochs": 1,
    "finetune.steps": 3,
    "finetune.lr": 0.5,
    "finetune.groups": "role:head",
    "new_clients.steps": 3,
    "new_clients.lr": 0.5,
    "new_clients.groups": "role:head",
    "eval.every": 1,
    "measures": "drift",
    "stop.bytes": 10**9,
    "stop.flops": 1e15,
    "stop.seconds": 1e6,
    "stop.accuracy": 1.0,
    "quorum": 2,
    "max_update_norm": 5.0,
    "seed": 8,
}


def start(tmp_path, name="run", stop=lambda: True, **settings):
    data, module = lab.TOYS["layer"]()
    config = lab.config(**{"out": str(tmp_path), "name": name, "cohort": 3, "finetune.steps": 2} | settings)
    try:
        return run(config, federation=data, module=module, stop=stop)
    except Stopped as stopped:
        return stopped.folder


def go_on(folder, **options):
    data, module = lab.TOYS["layer"]()
    return resume(folder, federation=data, module=module, **options)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    return start(tmp_path_factory.mktemp("begun"))


def test_every_setting_is_tried():
    assert set(OTHER) == set(KEYS) - NON_RESULT_SETTINGS


@pytest.mark.parametrize("key", OTHER)
def test_row_47_a_configuration_that_differs_in_one_setting_is_refused_by_name(tmp_path, begun, key):
    folder = tmp_path / "run"
    shutil.copytree(begun, folder)
    config = Config.read(folder / "config.toml")
    (folder / "config.toml").write_text(config.replace(**{key: OTHER[key]}).to_toml())
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(StateError, match=rf"not the configuration of this run: .*\b{key}: ") as caught:
        go_on(folder)
    assert repr(OTHER[key]) in str(caught.value)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_row_48_where_and_by_whom_it_is_computed_may_change(tmp_path, begun):
    whole = start(tmp_path, "whole", stop=None)
    folder = tmp_path / "moved"
    shutil.copytree(begun, folder)
    changes = {
        "executor": "processes",
        "workers": 2,
        "client_state": "mapped",
        "checkpoint.every": 2,
        "out": "x",
        "name": "y",
        "data.root": "/z",
    }
    changes["track"] = f"tensorboard(folder={str(tmp_path / 'tb')!r})"
    assert set(changes) == NON_RESULT_SETTINGS
    (folder / "config.toml").write_text(Config.read(folder / "config.toml").replace(**changes).to_toml())
    assert go_on(folder).summary["model_sha256"] == whole.summary["model_sha256"]


def test_row_48_another_version_of_a_library_is_told_as_perhaps_not_exact(tmp_path, begun):
    folder = tmp_path / "run"
    shutil.copytree(begun, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["versions"]["torch"] = "1.0"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    notes = [note for note in go_on(folder).notes if "torch was 1.0" in note]
    assert len(notes) == 1
    assert "may differ in the last bits" in notes[0]


def test_row_48_another_kind_of_processor_is_noted_in_one_sentence(tmp_path, begun):
    folder = tmp_path / "run"
    shutil.copytree(begun, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["processor"] == processor()
    assert manifest["processor"]["model"]
    assert manifest["processor"]["capability"] == torch.backends.cpu.get_cpu_capability()
    assert not [note for note in go_on(begun).notes if "processor" in note]
    manifest["processor"] = {"model": "Abacus 1", "capability": "BEADS"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (note,) = [note for note in go_on(folder).notes if "processor" in note]
    assert note.startswith("The run began on Abacus 1 (BEADS) and continues on ")
    assert note.count(". ") == 0


def test_row_48_a_manifest_without_a_processor_is_resumed_without_a_note(tmp_path, begun):
    folder = tmp_path / "run"
    shutil.copytree(begun, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["processor"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert not [note for note in go_on(folder).notes if "processor" in note]


@pytest.mark.parametrize("changes", [{"seed": 8}, {"method": "fedprox(mu=0.1)"}, {"local.lr": 0.2}])
def test_row_47_checkpoints_of_another_run_are_refused(tmp_path, begun, changes):
    folder, other = tmp_path / "run", start(tmp_path, "other", **changes)
    shutil.copytree(begun, folder)
    shutil.rmtree(folder / "checkpoints")
    shutil.copytree(other / "checkpoints", folder / "checkpoints")
    with pytest.raises(StateError, match="checkpoint of another run"):
        go_on(folder)


def test_row_49_a_folder_that_is_in_use_is_refused_and_left_alone(tmp_path, begun):
    folder = tmp_path / "run"
    shutil.copytree(begun, folder)
    before = (folder / "rounds.jsonl").read_bytes()
    with lock(folder), pytest.raises(StateError, match="in use by process"):
        go_on(folder)
    assert (folder / "rounds.jsonl").read_bytes() == before
    assert go_on(folder).summary["rounds"] == 3


def test_row_45_a_damaged_manifest_is_refused(tmp_path, begun):
    folder = tmp_path / "run"
    shutil.copytree(begun, folder)
    text = (folder / "manifest.json").read_text()
    kinds = [
        json.dumps({**json.loads(text), key: value})
        for key, value in (("versions", []), ("custom", None), ("config", []), ("digest", 3))
    ]
    for bad in ("", "{", "[]", text[: len(text) // 2], text.replace('"digest"', '"digets"'), *kinds):
        (folder / "manifest.json").write_text(bad)
        with pytest.raises(StateError, match=r"manifest\.json is damaged"):
            go_on(folder)


def test_row_51_a_resumed_run_reads_the_batches_of_the_uninterrupted_one(monkeypatch):
    seen, read = [], ClientUpdate.read

    def spy(self, purpose, epoch, positions):
        if not self.probe:
            seen.append((self.work.round, self.work.client, purpose, epoch, self.index[positions].tolist()))
        return read(self, purpose, epoch, positions)

    monkeypatch.setattr(ClientUpdate, "read", spy)
    lab.play(rounds=4)
    whole = [entry for entry in seen if entry[0] >= 2]
    first = lab.engine(lab.parts(rounds=4))
    first.round()
    first.round()
    second = lab.engine(lab.parts(rounds=4))
    second.server = lab.copied(first.server)
    first.close()
    seen.clear()
    lab.finish(second)
    assert seen == whole
    for client in {c for _, c, *_ in whole if lab.SIZES[c] >= 8}:
        orders = {}
        for t, _, _, epoch, batch in (entry for entry in whole if entry[1] == client):
            orders.setdefault((t, epoch), []).extend(batch)
        assert len({tuple(order) for order in orders.values()}) == len(orders) >= 2, "no order stands twice"
