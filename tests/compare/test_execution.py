"""Runs in children and in this process: paired, cached, resumed, and none of them lost to a neighbour."""

import dataclasses
import io
import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch

import fedstrata
from fedstrata.common.errors import StateError
from fedstrata.compare import comparison_file, process_worker, run_cache
from fedstrata.compare.execution import ComparisonStopped
from fedstrata.compare.request import PythonInputs, needs_this_process
from fedstrata.config.config import Config
from fedstrata.core.params import tmap
from fedstrata.core.piece import Piece
from fedstrata.engine.assembly import assemble
from fedstrata.methods import rows
from fedstrata.models import registry
from fedstrata.runs.result import Result
from fedstrata.runs.summary import fingerprint
from fedstrata.storage import lock
from helpers.comparisons import asked, make, summaries, without_times

METHODS = ("fedavg", "fedprox(mu=1)", "fedprox(mu=0)")
HERE = [lambda event: None]  # an observer keeps runs in this process


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Three methods, two seeds, made by children once for all tests that only look."""
    planned = asked(tmp_path_factory.mktemp("made"), METHODS)
    grid, started = make(planned)
    return planned, grid, started


def copied(made, tmp_path):
    """The same contest with its cache in a place of its own."""
    shutil.copytree(made[0].config.out, tmp_path / "runs")
    return asked(tmp_path / "runs", METHODS)


# ---- pairs


def test_methods_of_a_seed_share_data_cohorts_first_weights_and_order(made):
    _, grid, _ = made
    for seed in (0, 1):
        results = [Result.read(grid.jobs[label, seed].folder) for label in METHODS]
        manifests = [json.loads((result.folder / "manifest.json").read_text()) for result in results]
        assert len({manifest["fingerprint"] for manifest in manifests}) == 1
        assert len({json.dumps([row["cohort"] for row in result.rounds]) for result in results}) == 1
        plain, pulled, limit = (result.summary["model_sha256"] for result in results)
        assert plain == limit, "fedprox(mu=0) is fedavg, if all that is drawn is the same"
        assert plain != pulled
    one, two = (Result.read(grid.jobs["fedavg", seed].folder) for seed in (0, 1))
    assert [row["cohort"] for row in one.rounds] != [row["cohort"] for row in two.rounds]


@pytest.mark.full
def test_every_registered_method_begins_with_the_same_weights():
    base = Config(model="mlp(hidden=32)", norm="group", seed=3)
    start = fingerprint(assemble(base).setup.model)
    federation = base.federation()
    for row in rows():
        text = row.examples[0]
        parts = assemble(Config(model="mlp(hidden=32)", norm="group", seed=3, method=text))
        assert parts.federation.fingerprint == federation.fingerprint
        if not any("model" in vars(type(piece)) for piece in parts.method.pieces):
            assert fingerprint(parts.setup.model) == start, text


def test_children_and_this_process_make_the_same_runs(made, tmp_path):
    _, grid, started = made
    assert started >= 1
    in_process, none = make(asked(tmp_path, METHODS), observers=HERE)
    assert none == 0
    assert without_times(summaries(in_process)) == without_times(summaries(grid))


def test_data_are_read_once_a_seed_however_many_methods_there_are(tmp_path, monkeypatch):
    read = []
    original = Config.federation
    monkeypatch.setattr(Config, "federation", lambda config: (read.append(config.seed), original(config))[1])
    make(asked(tmp_path, (*METHODS, "fedavgm", "scaffold"), rounds=1), observers=HERE)
    assert sorted(read) == [0, 0, 1, 1], "once to look at them, once to train"


# ---- the cache


def test_a_second_call_runs_nothing(made, tmp_path):
    planned = copied(made, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs" / "cache").rglob("*") if path.is_file()}
    grid, started = make(planned)
    assert started == 0
    assert len(grid.done) == 6
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert grid.together == made[1].together


def test_a_further_method_and_another_name_run_only_what_is_missing(made, tmp_path):
    copied(made, tmp_path)
    begun = []
    more = asked(tmp_path / "runs", (*METHODS, "fedavgm"), seeds=(0,), name="more")
    grid, _ = make(
        more, observers=HERE, react=lambda job, message: begun.append(job.id) if message["event"] == "started" else None
    )
    assert begun == [("fedavgm", 0)]
    assert len(grid.done) == 4


def test_other_code_runs_everything_anew(made, tmp_path, monkeypatch):
    planned = copied(made, tmp_path)
    monkeypatch.setattr(run_cache, "code_version", lambda: "f" * 64)
    grid, _ = make(planned, observers=HERE)
    assert len(grid.done) == 6
    assert not {job.folder for job in grid.jobs.values()} & {job.folder for job in made[1].jobs.values()}
    assert without_times(summaries(grid)) == without_times(summaries(made[1]))


def damage(cached):
    """Three runs of a cache in three ways; the folders of those that have something to lose."""
    folders = sorted(path for path in cached.iterdir() if path.name[0] != ".")
    (folders[0] / "summary.json").write_text("{}")
    (folders[1] / run_cache.SEAL).unlink()  # begun, then its checkpoint was damaged
    for file in (folders[1] / "checkpoints").iterdir():
        file.write_bytes(file.read_bytes()[:-3])
    (folders[2] / run_cache.SEAL).unlink()
    (folders[2] / "manifest.json").unlink()  # it has lines of results, but nothing says whose
    return folders[:3]


@pytest.mark.parametrize(
    "observers", [pytest.param((), marks=pytest.mark.full, id="child"), pytest.param(HERE, id="here")]
)
def test_damaged_runs_are_set_aside_with_a_notice_and_run_anew(made, tmp_path, observers):
    planned = copied(made, tmp_path)
    folders = damage(tmp_path / "runs" / "cache")
    said = io.StringIO()
    hold_folder = run_cache.hold_folder(folders[0])
    waited = []
    if not observers:
        hold_folder.__enter__()  # as another process would; a child waits for it

    def react(job, message):
        if message["event"] == "waiting":
            waited.append(job.id)
            hold_folder.__exit__(None, None, None)

    grid, _ = make(planned, said=said, observers=observers, react=react)
    assert len(grid.done) == 6
    assert len(waited) == (0 if observers else 1)
    assert without_times(summaries(grid)) == without_times(summaries(made[1]))
    for folder in folders:
        assert folder.with_name(f"{folder.name}.damaged-1").is_dir()
    assert said.getvalue().count("the cached run was damaged") == 3


def test_a_comparison_whose_runs_are_gone_is_not_read_as_one_with_fewer_runs(made, tmp_path):
    planned = copied(made, tmp_path)
    assert len(comparison_file.read(planned.folder).results) == 6
    shutil.rmtree(tmp_path / "runs" / "cache" / made[1].jobs["fedavg", 1].folder.name)
    with pytest.raises(StateError, match=r"1 finished runs of .* are missing .*fedavg-"):
        comparison_file.read(planned.folder)


def test_two_comparisons_cannot_write_one_folder(made, tmp_path):
    planned = copied(made, tmp_path)
    with lock(planned.folder), pytest.raises(StateError, match="in use"):
        make(planned)


def test_a_name_that_is_taken_by_another_comparison_is_refused(made, tmp_path):
    planned = copied(made, tmp_path)
    make(asked(tmp_path / "runs", METHODS, name="mine"))  # all of it is in the cache
    with pytest.raises(StateError, match="holds another comparison"):
        make(asked(tmp_path / "runs", METHODS[:2], name="mine"))
    assert planned.folder.name.startswith("compare-synthetic-iid-")


# ---- what goes wrong


@pytest.mark.full
def test_a_child_that_dies_goes_on_from_its_checkpoint_and_a_second_death_is_a_failure_of_that_run_only(made, tmp_path):
    victim, first, said = ("fedprox(mu=1)", 0), [], io.StringIO()

    def react(job, message):
        if job.id == victim and message["event"] == "started":
            first.append(message["first"])
        if job.id == victim and message["event"] == "round" and message["done"] == 2 + len(first):
            os.kill(message["pid"], signal.SIGKILL)

    planned = asked(tmp_path, METHODS, seeds=(0,), rounds=30, how={"side_by_side": 1})
    grid, started = make(planned, said=said, react=react)
    assert first[0] == 0
    assert first[1] >= 2, "it goes on after the rounds that were committed"
    assert "was killed by SIGKILL (out of memory?); it continues from its checkpoint" in said.getvalue()
    assert "SIGKILL (out of memory?), 2 times" in grid.failures[victim]
    assert set(grid.failures) == {victim}
    assert grid.done == {("fedavg", 0), ("fedprox(mu=0)", 0)}
    assert started == 3
    comparison = comparison_file.read(planned.folder)
    assert set(comparison.results) == grid.done
    assert comparison.failures == grid.failures


@dataclasses.dataclass(frozen=True)
class Breaks(Piece):
    """Refuses seed 1 in its second round."""

    def plan(self, plan, ctx):
        if ctx.round == 1 and ctx.setup.seed == 1:
            raise fedstrata.MethodError("breaks cannot go on")
        return plan


def test_a_method_that_fails_at_run_time_is_a_failure_of_that_run_only(tmp_path):
    grid, _ = make(asked(tmp_path, [Breaks(), "fedavg"]))
    assert grid.in_process
    assert grid.failures == {("breaks", 1): "breaks cannot go on"}
    assert grid.done == {("breaks", 0), ("fedavg", 0), ("fedavg", 1)}


def test_a_child_tells_a_refusal_and_a_crash_and_serves_on(made, tmp_path, monkeypatch, capfd):
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    job = made[1].jobs["fedavg", 0]
    order = {
        "job": "x",
        "key": "k",
        "data": job.data,
        "code": job.code,
        "until": None,
        "executor": "loop",
        "workers": 1,
        "together": 1,
    }
    out = io.StringIO()
    try:
        served = process_worker.JobServer(out, process_worker.StopSignal(os.getppid()))
        settings = dict(job.config) | {"out": str(tmp_path)}
        served.serve(order | {"folder": str(tmp_path / "a"), "config": settings | {"name": "a", "bn": "local"}})
        with monkeypatch.context() as broken:
            broken.setattr(process_worker, "run", lambda *given, **more: 1 / 0)
            served.serve(order | {"folder": str(tmp_path / "b"), "config": settings | {"name": "b"}})
        served.serve(order | {"folder": str(tmp_path / "c"), "config": settings | {"name": "c"}})
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [m["event"] for m in told if m["event"] != "round"] == ["failed", "failed", "started", "finished"]
    assert "bn=local is set, but the model has no batch norm" in told[0]["why"]
    assert told[1]["why"].startswith("ZeroDivisionError: division by zero")
    assert "Traceback" in capfd.readouterr().err, "what the log of the comparison holds"
    assert run_cache.inspect_run(tmp_path / "c", "k").state == "finished"


def test_what_can_be_checked_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(fedstrata.FedstrataError, match="fedbn"):
        make(asked(tmp_path, ["fedavg", "fedbn"]))  # a logistic model has no norm
    assert not (tmp_path / "cache").exists()


# ---- interruptions


@pytest.mark.full
def test_asked_to_stop_runs_finish_their_round_and_the_same_call_goes_on(made, tmp_path):
    stop = [False]

    def react(job, message):
        stop[0] = stop[0] or (message["event"] == "round" and message["done"] >= 2)

    planned = asked(tmp_path, METHODS, how={"side_by_side": 1})
    with pytest.raises(ComparisonStopped, match="of 6 runs finished; run the same command again to continue"):
        make(planned, stop=lambda: stop[0], react=react)
    assert json.loads((planned.folder / comparison_file.FILE).read_text())["state"] == "stopped"
    begun = list((tmp_path / "cache").glob("*/checkpoints"))
    assert begun, "the runs at hand kept a checkpoint"
    first = {}
    watch = lambda job, message: first.setdefault(job.id, message["first"]) if message["event"] == "started" else None
    grid, _ = make(planned, react=watch, observers=HERE)
    assert max(first.values()) >= 1, "some run goes on from a later round than the first"
    assert without_times(summaries(grid)) == without_times(summaries(made[1]))


@pytest.mark.full
def test_children_of_a_killed_parent_stop_at_the_next_round(tmp_path):
    told, notify = os.pipe()
    parent = os.fork()
    if parent == 0:
        try:
            os.close(told)

            def react(job, message):
                if message["event"] == "round":
                    os.write(notify, f"{message['pid']}\n".encode())

            make(
                asked(tmp_path, METHODS[:2], rounds=100_000, validation=0.0, test="server", eval_every=1000),
                react=react,
            )
        finally:
            os._exit(1)
    os.close(notify)
    with os.fdopen(told) as lines:
        left = int(next(lines))
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and alive(left):
            time.sleep(0.05)
    assert not alive(left)
    assert list((tmp_path / "cache").glob("*/checkpoints"))


def alive(pid):
    """Whether a process runs; one that nobody has waited for is over."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# ---- from Python


@dataclasses.dataclass(frozen=True)
class Slower(Piece):
    """Half the server's step."""

    factor: float = 0.5

    def merge(self, step, ctx):
        return tmap(lambda d: self.factor * d, step), ctx.state


def test_pieces_and_federations_from_python_are_cached_by_their_source_and_settings(tmp_path):
    federation = Config(data="synthetic_iid", clients=6).federation()
    settings = {
        "data": "digits",
        "clients": "auto",
        "validation": 0.0,
        "test": "server",
    }  # what is said of data has no effect, so nothing is said
    how = {"python_inputs": PythonInputs(federation)}
    methods = [Slower(), Slower(0.25), "fedavg"]
    grid, started = make(asked(tmp_path, methods, seeds=(0,), how=how, **settings))
    assert (started, len(grid.done)) == (0, 3)
    assert len({summary["model_sha256"] for summary in summaries(grid).values()}) == 3
    again = []
    make(
        asked(tmp_path, methods, seeds=(0,), how=how, **settings),
        react=lambda job, message: again.append(message["event"]),
    )
    assert again == []


def test_a_module_from_python_has_no_identity_and_is_not_cached(tmp_path):
    how = {"python_inputs": PythonInputs(module=torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(60, 10)))}
    for number in (1, 2):
        grid, _ = make(asked(tmp_path, ["fedavg"], seeds=(0,), how=how, model="auto"))
        assert grid.jobs["fedavg", 0].folder.parent == grid.request.folder / "runs"
        assert grid.jobs["fedavg", 0].folder.name == f"fedavg-s0-{number}"
        assert ("fedavg", 0) in comparison_file.read(grid.request.folder).results


class Table:
    """Says nothing of what it holds."""

    def __repr__(self):
        return "table"


@dataclasses.dataclass(frozen=True)
class Holds(Piece):
    """A piece with a field that text does not tell."""

    table: object = None


def test_fields_that_text_does_not_tell_are_no_identity(tmp_path):
    grid, _ = make(asked(tmp_path, [Holds(Table()), Holds()], seeds=(0,)))
    assert grid.jobs["holds(table=table)", 0].key is None
    assert grid.jobs["holds", 0].key is not None


def test_names_that_were_registered_here_keep_runs_here(made, tmp_path, monkeypatch):
    monkeypatch.setattr(registry.MODELS, "_entries", dict(registry.MODELS.items()))
    base = made[0]
    assert not made[1].in_process
    parts = {"fedavg": assemble(base.config)}
    assert not needs_this_process(base, parts)
    registry.register(
        "only_in_this_process", lambda task: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(60, task.classes))
    )
    other = asked(tmp_path, model="only_in_this_process")
    assert needs_this_process(other, {"fedavg": assemble(other.config)})
