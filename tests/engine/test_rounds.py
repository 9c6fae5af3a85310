"""Runs: odd federations, sampling, personal models, and folders that continue where they stopped."""

import dataclasses
import hashlib

import numpy as np
import pytest
import safetensors.torch
import torch

import fedstrata
from fedstrata.common.errors import ConfigError, StateError
from fedstrata.engine.rounds import Engine
from fedstrata.methods.fedprox import FedProx
from fedstrata.runs.run import Stopped, resume, run
from fedstrata.runs.summary import fingerprint
from helpers import lab
from helpers.examples import every_example
from helpers.rules import World
from helpers.tiers import tiered

SOME = (
    "fedavg",
    "scaffold",
    "fedadam(lr=0.05)",
    "fedrep",
    "ditto(mu=0.5)",
    "moon",
    "pfedme(lam=5, inner=2)",
    "fednova",
)
some_method = pytest.mark.parametrize("method", SOME)


def finite(found):
    assert np.isfinite(found.model.flat.numpy()).all()
    assert all(np.isfinite(m.flat.numpy()).all() for m in found.models)
    assert all(row["updated"] for row in found.rows)


# ---- odd federations


@some_method
@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_one_client(method, norm):
    finite(lab.play(method, (lab.federation((9,)), lab.small(norm))))


def test_one_client_alone_is_local_training():
    toy = lab.federation((9,)), lab.small()
    assert lab.gap(lab.play("fedavg", toy).model, lab.play("local", toy).models[0]) < 1e-6


@some_method
def test_one_class_for_each_client(method):
    x, _, client = lab.arrays((8, 9, 10))
    data = lab.listed(x, client, (8, 9, 10), testing="own")
    found = lab.play(method, (data, lab.small()))
    finite(found)
    assert found.rows[-1]["personal"] is not None


@some_method
@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_clients_with_one_sample_and_with_none(method, norm):
    found = lab.play(method, (lab.federation((8, 0, 1, 7)), lab.small(norm)), cohort=4)
    finite(found)
    left_out = {(client, code) for row in found.rows for client, code, _ in row["refused"]}
    assert left_out == {(1, "empty")} | ({(2, "single")} if norm == "batch" else set())


@some_method
def test_a_cohort_of_one(method):
    finite(lab.play(method, cohort=1))


@some_method
def test_a_batch_larger_than_the_data(method):
    finite(lab.play(method, local_batch=1000))


def test_no_client_has_a_sample():
    """T11: the round counts, the model stays, every client is named, nothing is NaN."""
    data = dataclasses.replace(lab.federation((0, 0, 8)), heldout=(2,))
    found = lab.play("scaffold", (data, lab.small()), cohort=2)
    assert lab.bits(found.model) == lab.bits(lab.parts("scaffold").setup.model)
    assert [row["updated"] for row in found.rows] == [False] * 3
    assert all({r[1] for r in row["refused"]} == {"empty"} for row in found.rows)


@every_example
def test_clients_never_sampled_or_sampled_twice_have_no_stale_tensors(example):
    """T22: one client a round, five rounds; each client has a model, and a state exactly if it took part."""
    run = lab.engine(lab.parts(example, cohort=1, rounds=5))
    found = lab.finish(run)
    cohorts = [row["cohort"][0] for row in found.rows]
    assert len(set(cohorts)) < len(cohorts), "one client came twice"
    stores = any(state is not None for state in found.clients)
    for client, state in enumerate(found.clients):
        assert (state is not None) == (stores and client in cohorts)
    finite(found)


def test_a_regression_trains_and_reports_errors_not_accuracy():
    x, _, _ = lab.arrays()
    y = x.sum(1) + 0.5
    data = lab.listed(x, y, lab.SIZES, testing="server", test=(x.numpy(), y.numpy()))
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    found = lab.play("fedprox", (data, lab.filled(module)), rounds=12, local_lr=0.02)
    metrics = found.rows[-1]["metrics"]
    assert found.rows[-1]["accuracy"] is None
    assert metrics["rmse"] < float(y.std()), "better than the mean"


def test_an_easy_task_is_learnt():
    """Three separated clusters; a loop that only pretends to train does not reach 95 %."""
    x, y, _ = lab.arrays((40, 50, 60), seed=3)
    x = x + 4 * torch.nn.functional.one_hot(y, 6)
    data = lab.listed(x, y, (40, 50, 60), test=(x.numpy(), y.numpy()))
    assert lab.play(toy=(data, lab.small()), rounds=10).rows[-1]["accuracy"] > 0.95


# ---- evaluation


def test_personal_scores_are_those_of_personal_models_on_the_clients_splits():
    x, y, _ = lab.arrays((20, 24, 28))
    data = lab.listed(x, y, (20, 24, 28), testing="own")
    run = lab.engine(lab.parts("fedper", (data, lab.small())))
    found = lab.finish(run)
    world, personal, shared = World(run, [row["cohort"] for row in found.rows]), [], []
    for client in range(3):
        samples, index = data.testing(client)
        test = samples.x[index].double(), samples.y[index]
        for model, scores in ((found.models[client], personal), (found.model, shared)):
            w = torch.cat([model[n].double().reshape(-1) for n in world.shapes])
            logits = world.head(world.split(w), world.features(w, test[0]))
            scores.append(float((logits.argmax(1) == test[1]).double().mean()))
    assert found.rows[-1]["personal"] == pytest.approx(sum(personal) / 3)
    assert found.rows[-1]["shared_on_clients"] == pytest.approx(sum(shared) / 3)
    assert personal != shared


def test_evaluation_does_not_change_a_run():
    data = lab.listed(*lab.arrays((20, 24, 28))[:2], (20, 24, 28), testing="own")
    for method in ("fedper", "perfedavg", "fedbabu(epochs=2)", "ditto"):
        often, once = (lab.play(method, (data, lab.small("batch")), eval_every=n) for n in (1, 100))
        assert lab.differences(often, once) == []
        assert sum(row["evaluated"] for row in often.rows) == 3
        assert [row["evaluated"] for row in once.rows] == [False, False, True]


def test_every_row_has_the_same_keys():
    found = lab.play(eval_every=2)
    assert len({tuple(sorted(row)) for row in found.rows}) == 1


def test_a_run_draws_nothing_from_the_process_wide_generators():
    made = lab.parts("pfedme", "dropout")  # torch's layers draw initial weights before ours replace them
    # read, not used
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    lab.finish(lab.engine(made, "threads", 2))
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()  # noqa: NPY002


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_auto_changes_no_bit_and_reports_its_choice(workers):
    choices = []
    made = lab.parts(rounds=8)
    run = Engine(made, "auto", workers, lambda *choice: choices.append(choice))
    found = lab.finish(run)
    assert lab.bits(found.model) == lab.bits(lab.play(rounds=8).model)
    assert len(choices) == 1
    assert choices[0][0] in ("loop", "threads", "processes")


# ---- folders


def in_folder(tmp_path, name="run", method="fedavg", stop=None, **settings):
    data, module = lab.TOYS["layer"]()
    config = lab.config(method=method, out=str(tmp_path), name=name, **settings)
    return run(config, federation=data, module=module, stop=stop)


def go_on(tmp_path, name="run", **options):
    data, module = lab.TOYS["layer"]()
    return resume(tmp_path / name, federation=data, module=module, **options)


@every_example
@pytest.mark.parametrize("store", tiered(["memory", "mapped"], ["mapped"]))
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, example, store):
    whole = in_folder(tmp_path, "whole", example, client_state=store)
    done = iter([False, True])
    with pytest.raises(Stopped):
        in_folder(tmp_path, "halves", example, stop=lambda: next(done), client_state=store)
    halves = go_on(tmp_path, "halves")
    assert halves.summary["model_sha256"] == whole.summary["model_sha256"]
    volatile = {"seconds", "eval_seconds"}
    assert {k: v for k, v in halves.summary.items() if k not in volatile} == {
        k: v for k, v in whole.summary.items() if k not in volatile
    }
    assert [{k: v for k, v in row.items() if k not in volatile} for row in halves.rounds] == [
        {k: v for k, v in row.items() if k not in volatile} for row in whole.rounds
    ]


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_run_may_be_resumed_by_another_executor(tmp_path, executor):
    whole = in_folder(tmp_path, "whole", "scaffold")
    with pytest.raises(Stopped):
        in_folder(tmp_path, "halves", "scaffold", stop=lambda: True)
    assert (
        go_on(tmp_path, "halves", executor=executor, workers=2).summary["model_sha256"] == whole.summary["model_sha256"]
    )


def test_the_folder_does_not_matter(tmp_path):
    first, second = in_folder(tmp_path / "a"), in_folder(tmp_path / "b", "other")
    assert first.summary["model_sha256"] == second.summary["model_sha256"]


def test_the_fingerprint_is_sha256_over_parameters_then_statistics_in_layout_order():
    found = lab.play(toy="batch")
    digest = hashlib.sha256()
    for tensor in (*found.model.values(), *found.model.statistics.values()):
        digest.update(tensor.numpy().astype("<f4").tobytes())
    assert fingerprint(found.model) == digest.hexdigest()


def test_another_federation_at_resume_is_refused(tmp_path):
    with pytest.raises(Stopped):
        in_folder(tmp_path, stop=lambda: True)
    _, module = lab.TOYS["layer"]()
    with pytest.raises(StateError, match="data or partition is not"):
        resume(tmp_path / "run", federation=lab.federation(seed=5), module=module)
    with pytest.raises(StateError, match="a federation from Python"):
        resume(tmp_path / "run", module=module)
    with pytest.raises(StateError, match="model is not"):
        resume(tmp_path / "run", federation=lab.federation(), module=lab.small("batch"))


def test_settings_about_data_beside_a_given_federation_are_refused_not_ignored(tmp_path):
    data = lab.federation()
    for key, value in {
        "partition": "iid",
        "test": "both",
        "heldout": 0.3,
        "augment": "flip",
        "validation": 0.5,
        "clients": 99,
        "data": "mnist",
    }.items():
        with pytest.raises(ConfigError, match=f"{key}=.*would have no effect"):
            fedstrata.run(federation=data, out=str(tmp_path), **{key: value})
    assert not list(tmp_path.iterdir())


def test_pieces_that_are_not_registered_run_and_are_given_again_at_resume(tmp_path):
    class Gentle(FedProx):
        """A proximal pull by another name."""

    settings = {"rounds": 2, "clients": 6, "cohort": 2, "model": "mlp(hidden=4)", "out": str(tmp_path)}
    mine = fedstrata.run(Gentle(mu=0.5), name="mine", **settings)
    theirs = fedstrata.run("fedprox(mu=0.5)", name="theirs", **settings)
    assert mine.summary["model_sha256"] == theirs.summary["model_sha256"]
    with pytest.raises(StateError, match="a method from Python"):
        fedstrata.resume(tmp_path / "mine")
    assert fedstrata.resume(tmp_path / "mine", method=Gentle(mu=0.5)).summary["rounds"] == 2


def test_the_final_model_lies_in_the_folder_by_names(tmp_path):
    found = fedstrata.run(
        rounds=1, clients=6, cohort=2, model="mlp(hidden=4)", norm="batch", out=str(tmp_path), name="a"
    )
    tensors = safetensors.torch.load_file(tmp_path / "a" / "model.safetensors")
    assert set(tensors) == set(found.params) | set(found.params.statistics)
    assert all(torch.equal(tensors[n], t) for n, t in found.params.views.items())


def test_row_20_equal_clients_make_one_model_in_any_order_of_answers():
    x, y, _ = lab.arrays((8,))
    data = lab.listed(x.repeat(4, 1), y.repeat(4), (8,) * 4, test=(x.numpy(), y.numpy()))
    rotated = {"order": lambda tasks: tasks[::-1], "change": lambda replies: replies[2:] + replies[:2]}
    toy = data, lab.small()
    for method in ("fedavg", "scaffold", "fedadam(lr=0.05)"):
        assert lab.differences(lab.play(method, toy, cohort=4), lab.play(method, toy, cohort=4, wrap=rotated)) == []
