"""TensorBoard and MLflow, read back with their own libraries: what a run shows, how it is resumed, and that nothing
leaves this machine.
"""

import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

import fedstrata
from fedstrata.common.events import RoundDone, Started
from fedstrata.trackers import tracking
from fedstrata.trackers.tensorboard import EventFile

SETTINGS = {
    "rounds": 4,
    "clients": 6,
    "cohort": 3,
    "local_epochs": 1,
    "eval_every": 2,
    "executor": "loop",
    "measures": "drift",
    "name": "abc",
}


class Killed(Exception):
    pass


class TensorBoardStore:
    text = "tensorboard(folder={folder!r})"

    def __init__(self, folder):
        self.folder = folder / "tb"
        self.text = self.text.format(folder=str(self.folder))

    def read(self, name="abc"):
        logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it tells that it purges what a resume writes anew
        found = EventAccumulator(str(self.folder / name), size_guidance={"scalars": 0})
        found.Reload()
        return found

    def curve(self, name):
        return [(e.step, e.value) for e in self.read().Scalars(name)]

    def settings(self):
        found = self.read().summary_metadata["_hparams_/session_start_info"].plugin_data.content
        record = plugin_data_pb2.HParamsPluginData.FromString(found)
        return {
            key: getattr(value, value.WhichOneof("kind")) for key, value in record.session_start_info.hparams.items()
        }

    def runs(self):
        return len(list(self.folder.iterdir()))


class MLflowStore:
    text = "mlflow(uri={folder!r}, experiment=tests)"

    def __init__(self, folder):
        self.folder = folder / "ml"
        self.text = self.text.format(folder=str(self.folder))
        self.client = MlflowClient(tracking_uri=self.folder.absolute().as_uri())

    def all(self):
        return self.client.search_runs(
            [self.client.get_experiment_by_name("tests").experiment_id], order_by=["attributes.start_time ASC"]
        )

    def curve(self, name):
        return [(m.step, m.value) for m in self.client.get_metric_history(self.all()[-1].info.run_id, name)]

    def settings(self):
        return self.all()[-1].data.params

    def runs(self):
        return len(self.all())


@pytest.fixture(params=[TensorBoardStore, MLflowStore])
def store(request, tmp_path):
    return request.param(tmp_path)


def track(store, tmp_path, *after, resume=False, **more):
    with tracking(store.text) as found:
        if resume:
            return fedstrata.resume(tmp_path / "runs" / "abc", observers=(*found, *after))
        return fedstrata.run("fedprox", out=str(tmp_path / "runs"), observers=(*found, *after), **SETTINGS | more)


def kill_after(round_):
    def observer(event):
        if isinstance(event, RoundDone) and event.row["round"] == round_:
            raise Killed

    return observer


def float32(values):
    return [pytest.approx(v, rel=1e-6) for v in values]  # TensorBoard keeps four bytes


def test_curves_hold_what_the_rounds_hold(store, tmp_path):
    result = track(store, tmp_path)
    scored = [row for row in result.rounds if row["evaluated"]]
    assert store.curve("accuracy") == list(
        zip([r["round"] + 1 for r in scored], float32(r["accuracy"] for r in scored), strict=True)
    )
    assert store.curve("loss") == list(zip([1, 2, 3, 4], float32(r["loss"] for r in result.rounds), strict=True))
    assert store.curve("measures/drift/all") == list(
        zip([r["round"] + 1 for r in scored], float32(r["measures"]["drift"]["all"] for r in scored), strict=True)
    )
    assert store.curve("cost/bytes_up")[-1] == (4, pytest.approx(result.summary["bytes_up"], rel=1e-6))
    assert [step for step, _ in store.curve("cost/seconds")] == [1, 2, 3, 4]


def test_the_settings_are_the_runs(store, tmp_path):
    track(store, tmp_path, local_lr=0.05)
    found = store.settings()
    assert found["method"] == "fedprox"
    assert float(found["local.lr"]) == 0.05
    assert float(found["rounds"]) == 4
    assert found["stop.bytes"] == "none"


def test_the_summary_comes_at_the_end(store, tmp_path):
    result = track(store, tmp_path)
    assert store.curve("summary/accuracy/final") == [(4, pytest.approx(result.summary["accuracy"]["final"], rel=1e-6))]


def test_a_tracker_changes_no_bit(store, tmp_path):
    tracked = track(store, tmp_path)
    plain = fedstrata.run("fedprox", out=str(tmp_path / "plain"), **SETTINGS)
    assert tracked.summary["model_sha256"] == plain.summary["model_sha256"]


def test_a_resume_goes_on_in_the_same_tracker_run_and_writes_each_step_once(store, tmp_path):
    """Checkpoints after rounds 2 and 4; killed after round 3, which is therefore done again."""
    with pytest.raises(Killed):
        track(store, tmp_path, kill_after(2), checkpoint_every=2)
    assert [step for step, _ in store.curve("loss")] == [1, 2, 3]
    result = track(store, tmp_path, resume=True)
    assert store.runs() == 1
    assert store.curve("loss") == list(zip([1, 2, 3, 4], float32(r["loss"] for r in result.rounds), strict=True))
    assert store.curve("cost/bytes_up")[-1] == (4, pytest.approx(result.summary["bytes_up"], rel=1e-6))
    assert len(store.curve("summary/accuracy/final")) == 1


def test_a_run_killed_before_its_first_checkpoint_begins_anew(store, tmp_path):
    with pytest.raises(Killed):
        track(store, tmp_path, kill_after(0), checkpoint_every=2)
    result = track(store, tmp_path, resume=True)
    assert store.curve("loss") == list(zip([1, 2, 3, 4], float32(r["loss"] for r in result.rounds), strict=True))


def test_mlflow_says_how_a_run_ended(tmp_path):
    store = MLflowStore(tmp_path)
    with pytest.raises(Killed):
        track(store, tmp_path, kill_after(0), checkpoint_every=2)
    assert [run.info.status for run in store.all()] == ["KILLED"]
    track(store, tmp_path, resume=True)
    assert [run.info.status for run in store.all()] == ["KILLED", "FINISHED"]
    assert store.all()[-1].info.run_name == "abc"
    assert store.all()[-1].data.tags["summary.method"] == "fedprox"


def test_two_runs_are_two_tracker_runs(store, tmp_path):
    track(store, tmp_path)
    track(store, tmp_path, name="abd")
    assert store.runs() == 2


def test_several_trackers_work_side_by_side(tmp_path):
    one, two = TensorBoardStore(tmp_path), MLflowStore(tmp_path)
    with tracking(f"{one.text} + {two.text}") as found:
        fedstrata.run("fedprox", out=str(tmp_path / "runs"), observers=found, **SETTINGS)
    assert one.curve("loss") == [(step, pytest.approx(value, rel=1e-6)) for step, value in two.curve("loss")]


def test_a_full_disk_ends_the_tracker_and_not_the_run(tmp_path, monkeypatch, capfd):
    store, written = TensorBoardStore(tmp_path), []
    write = RecordWriter.write

    def full(self, data):
        written.append(data)
        if len(written) > 6:
            raise OSError(28, "No space left on device")
        return write(self, data)

    monkeypatch.setattr(RecordWriter, "write", full)
    result = track(store, tmp_path)
    assert result.summary["rounds"] == 4
    assert capfd.readouterr().err.count("the tracker tensorboard failed") == 1


def test_a_place_that_cannot_be_written_ends_the_tracker_and_not_the_run(store, tmp_path, capfd):
    shutil.rmtree(store.folder, ignore_errors=True)
    store.folder.write_text("a file, no folder")
    result = track(store, tmp_path)
    assert result.summary["rounds"] == 4
    assert capfd.readouterr().err.count("failed (") == 1


def test_a_store_that_goes_away_ends_the_tracker_and_not_the_run(tmp_path, capfd):
    store = MLflowStore(tmp_path)

    def remove(event):
        if isinstance(event, RoundDone) and event.row["round"] == 1:
            shutil.rmtree(store.folder)

    result = track(store, tmp_path, remove)
    assert result.summary["rounds"] == 4
    assert capfd.readouterr().err.count("the tracker mlflow failed") == 1


def test_a_server_that_is_not_there_ends_the_tracker_soon_and_not_the_run(tmp_path, capfd):
    seen = []
    with tracking("mlflow(uri='http://127.0.0.1:9')") as found:  # nobody listens there
        result = fedstrata.run(out=str(tmp_path / "runs"), observers=(seen.append, *found), **SETTINGS)
    assert isinstance(seen[0], Started)
    assert result.summary["rounds"] == 4
    assert "the tracker mlflow failed" in capfd.readouterr().err


OFFLINE = """
import socket, sys
tried = []
def refused(self, address):
    tried.append(address)
    raise OSError("no network in this test")
socket.socket.connect = refused
socket.getaddrinfo = lambda *a, **k: tried.append(a) or (_ for _ in ()).throw(OSError("no network in this test"))
import fedstrata
from fedstrata.trackers import tracking
from fedstrata.trackers.tensorboard import EventFile
with tracking("mlflow(uri='file:ml') + tensorboard(folder='tb')") as found:
    fedstrata.run(rounds=2, clients=4, executor="loop", local_epochs=1, observers=found)
import time
time.sleep(1)
print(tried)
"""


@pytest.mark.full
def test_a_folder_as_a_store_reaches_no_network(tmp_path):
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", OFFLINE], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1] == "[]"
    assert "failed" not in found.stderr
    assert (tmp_path / "ml").is_dir()
    assert (tmp_path / "tb").is_dir()


def test_event_files_hold_the_settings_and_the_summary_as_text(tmp_path):
    store = TensorBoardStore(tmp_path)
    result = track(store, tmp_path)
    [settings] = store.read().Tensors("settings/text_summary")
    assert b"method = fedprox" in settings.tensor_proto.string_val[0]
    [summary] = store.read().Tensors("summary/text_summary")
    shown = "\n".join(line.removeprefix("    ") for line in summary.tensor_proto.string_val[0].decode().splitlines())
    assert json.loads(shown) == json.loads((Path(result.folder) / "summary.json").read_text())


def test_the_setting_tracks_a_run_and_its_resume(store, tmp_path):
    """As a user has it: no observer is handed over; the run folder remembers."""
    settings = SETTINGS | {"checkpoint_every": 2, "track": store.text, "out": str(tmp_path / "runs")}
    with pytest.raises(Killed):
        fedstrata.run("fedprox", observers=(kill_after(2),), **settings)
    result = fedstrata.resume(tmp_path / "runs" / "abc")
    assert store.runs() == 1
    assert [step for step, _ in store.curve("loss")] == [1, 2, 3, 4]
    assert store.curve("summary/accuracy/final") == [(4, pytest.approx(result.summary["accuracy"]["final"], rel=1e-6))]


def test_a_tracker_is_no_part_of_what_decides_the_result(store, tmp_path):
    assert fedstrata.Config(track=store.text).digest() == fedstrata.Config().digest()


def test_an_unknown_tracker_is_refused_before_a_folder_is_made(tmp_path):
    with pytest.raises(fedstrata.ConfigError, match="there is no tracker 'wand'"):
        fedstrata.run(track="wand", out=str(tmp_path / "runs"), rounds=1)
    assert not (tmp_path / "runs").exists()


def test_event_files_are_read_in_the_order_written_also_where_the_clock_goes_back(tmp_path, monkeypatch):
    for step, now in ((1, 5_000_000_000_000_000_001), (3, 5_000_000_000_000_000_001), (2, 4)):
        monkeypatch.setattr("time.time_ns", lambda now=now: now)
        file = EventFile(tmp_path, step)
        file.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [name.split(".")[4] for name in names] == ["000000001", "000000002", "000000003"]
