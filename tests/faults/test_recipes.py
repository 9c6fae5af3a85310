"""Inputs that broke other software (T rows) and rows of the fault catalogue that no other file shows.

Tests/README.md is the table of all.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import fedstrata
from fedstrata.backends.selection import build
from fedstrata.cli import main
from fedstrata.client.update import ClientUpdate
from fedstrata.common.errors import ConfigError, DataError
from fedstrata.core.piece import Piece
from fedstrata.core.plan import Phase
from fedstrata.data import Federation, datasets
from fedstrata.engine.metrics import CLASSIFICATION
from fedstrata.engine.server import plan_round
from fedstrata.methods import rows
from fedstrata.runs.run import run
from fedstrata.wire import Frame, decode, encode
from helpers import lab

EXAMPLES = ("fedavg", *(example for row in rows() for example in row.examples))
every_example = pytest.mark.parametrize("example", EXAMPLES)


def in_folder(tmp_path, toy, **settings):
    data, module = toy
    return run(lab.config(out=str(tmp_path), name="run", **settings), federation=data, module=module)


def lines(folder):
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().split("\n") if line]


def finite(params):
    return bool(torch.isfinite(params.flat).all())


# ---- T8, T19, T20: what is measured
# ---------------------------------------------------------------------------------------------------------


def test_t8_a_test_set_of_one_class_has_no_auc_and_all_else(tmp_path):
    x, y, _ = lab.arrays((20, 20))
    data = lab.listed(x, y, (20, 20), test=(x[:9].numpy(), np.zeros(9, dtype=np.int64)))
    found = in_folder(tmp_path, (data, lab.small()), cohort=2, eval_every=1)
    for row in (found.summary, *lines(found.folder)):
        assert row["metrics"].pop("auc") is None
        assert all(row["metrics"][name] is not None for name in CLASSIFICATION if name != "auc")


def test_t20_every_declared_metric_is_in_the_file_for_every_evaluated_round_and_for_no_other(tmp_path):
    x, y, client = lab.arrays((20,) * 6)
    data = Federation.of(
        x.numpy(),
        y.numpy(),
        client=client.numpy(),
        test=(x.numpy(), y.numpy()),
        testing="both",
        validation=0.2,
        heldout=0.34,
    )
    found = in_folder(tmp_path, (data, lab.small()), method="fedper", cohort=3, rounds=5, eval_every=2)
    written = lines(found.folder)
    assert [row["round"] for row in written if row["evaluated"]] == [1, 3, 4]
    own = (
        "personal",
        "personal_weighted",
        "personal_std",
        "personal_worst10",
        "shared_on_clients",
        "heldout",
        "validation",
        "accuracy",
    )
    for row in written:
        assert {row[name] is not None for name in (*own, "metrics")} == {row["evaluated"]}
        if row["evaluated"]:
            assert set(row["metrics"]) == set(CLASSIFICATION)
    assert {"personal", "heldout", "final", "best", "selected"} <= {
        k for k, v in found.summary["accuracy"].items() if v is not None
    }


def test_row_6_splits_in_which_nobody_has_a_sample_are_null_not_a_crash():
    x, y, _ = lab.arrays((1, 1, 1))
    data = lab.listed(x, y, (1, 1, 1), testing="own", validation=0.5, labels=("a", "b", "c"))
    assert [len(data.testing(i)[1]) + len(data.validating(i)) for i in range(3)] == [0, 0, 0]
    found = lab.play(toy=(data, lab.small()), validation=0.5)
    assert {
        found.rows[-1][name] for name in ("personal", "personal_std", "validation", "shared_on_clients", "accuracy")
    } == {None}
    assert found.rows[-1]["evaluated"]


def test_row_4_a_loss_that_is_no_number_is_left_out_and_the_weights_are_kept():
    def lost(replies):
        return [replace(r, loss=math.nan if r.place == 1 else r.loss) for r in replies]

    run_, clean = lab.engine(lab.parts(), change=lost), lab.play()
    found = lab.finish(run_)
    assert lab.same(found, clean) == []
    for row, replies in zip(found.rows, run_.executor.replies, strict=True):
        told = [r for r in replies if r.place != 1]
        assert row["loss"] == pytest.approx(sum(r.loss * r.samples for r in told) / sum(r.samples for r in told))
        assert row["refused"] == []


@dataclass(frozen=True)
class Huge(Piece):
    """Moves the model so far that it is finite and its outputs are not."""

    def merge(self, step, slot, v):
        return step.new(torch.full_like(step.flat, 3e38)) if v.round else step, slot


@pytest.mark.parametrize("classes", [True, False])
def test_row_4_a_score_that_is_no_number_is_null_in_the_file_and_chooses_nothing(tmp_path, monkeypatch, classes):
    x, y, _ = lab.arrays((20, 20))
    module = lab.filled(
        torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3 if classes else 1))
    )
    data = lab.listed(x, y if classes else x.sum(1), (20, 20), testing="own", validation=0.2)
    monkeypatch.setattr("fedstrata.engine.assembly.parse_method", lambda text: lab.parse("fedavg") + Huge())
    found = in_folder(tmp_path, (data, module), cohort=2, validation=0.2, eval_every=1, rounds=2)
    first, late = lines(found.folder)
    assert first["personal"] is not None
    assert finite(found.params)
    if not classes:
        assert (late["validation"], late["personal"]) == (None, None)
        return
    torch.nn.utils.vector_to_parameters(found.params.flat, module.parameters())
    right = []
    for client in range(2):
        samples, index = data.testing(client)
        logits = module(samples.x[index]).detach()
        assert not logits.isfinite().all()
        right.append(float((logits.isfinite().all(1) & (logits.argmax(1) == samples.y[index])).double().mean()))
    assert late["personal"] == pytest.approx(sum(right) / 2), "outputs that are no numbers are wrong, not class 0"


# ---- T12, T16: batch norm
# -------------------------------------------------------------------------------------------------------------------


def test_t12_shared_statistics_are_exactly_the_weighted_mean():
    """4, 4 and 8 samples: shares that are powers of two, so that the sum is exact in any order of its products."""
    made = lab.engine(lab.parts(toy=(lab.federation((4, 4, 8)), lab.small("batch")), cohort=3, rounds=1))
    made.round()
    made.close()
    replies = made.executor.replies[0]
    mean = torch.zeros_like(replies[0].statistics.flat)
    for reply in replies:
        mean += reply.statistics.flat * (reply.samples / 16)
    assert len({lab.bits(r.statistics) for r in replies}) == 3
    assert torch.equal(made.server.params.buffers.flat, mean)


@every_example
def test_t16_no_method_ever_sees_a_single_sample_and_none_loses_one(monkeypatch, example):
    """n = k * batch + 1: in training, in private fits and in fine-tuning, every pass reads all n samples in k
    batches.
    """
    seen, read = {}, ClientUpdate.read

    def spy(self, purpose, epoch, positions):
        if not self.probe:
            seen.setdefault((purpose, self.work.round, (self.work.client, self.work.place), epoch), []).append(
                positions
            )
        return read(self, purpose, epoch, positions)

    monkeypatch.setattr(ClientUpdate, "read", spy)
    x, y, _ = lab.arrays((9, 5, 17))
    data = lab.listed(x, y, (9, 5, 17), testing="server", test=(x.numpy(), y.numpy()))
    found = lab.play(example, (data, lab.small("batch")), cohort=3, rounds=2)
    assert all(row["refused"] == [] for row in found.rows)
    assert {purpose for purpose, *_ in seen}
    for (purpose, _, (client, _), _), batches in seen.items():
        n = (9, 5, 17)[client]
        sizes = [len(b) for b in batches]
        assert 1 not in sizes
        if purpose not in ("finetune.finetune", "perfedavg.adapt"):  # a number of steps, which may end inside a pass
            assert sizes == [4] * (n // 4 - 1) + [5], purpose
            assert sorted(torch.cat(batches).tolist()) == list(range(n))


# ---- T17, T32: clients that go wrong
# --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wild(Piece):
    """Client 1 trains with a rate a million times (or more) that of the others."""

    factor: float = 1e7

    def plan(self, plan, slot, answers, round, setup):  # noqa: A002
        return replace(
            plan,
            places={
                place: {"phases": (Phase(lr=self.factor),)} for place, client in enumerate(plan.cohort) if client == 1
            },
        )


def test_t17_one_client_with_a_learning_rate_of_a_million_is_left_out_and_counted(tmp_path, monkeypatch):
    module = lab.filled(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)))
    monkeypatch.setattr("fedstrata.engine.assembly.parse_method", lambda text: lab.parse("fedavg") + Wild())
    found = in_folder(tmp_path, (lab.federation(lab.EQUAL), module), cohort=6, gate_norm=100.0)
    written = lines(found.folder)
    assert finite(found.params)
    assert all([r[:2] for r in row["refused"]] in ([[1, "nonfinite"]], [[1, "norm"]]) for row in written)
    assert sum(found.summary["refused"].values()) == 3
    assert found.summary["rounds_without_update"] == 0
    twin = lab.play(
        toy=(lab.federation(lab.EQUAL), module),
        cohort=6,
        wrap={"change": lambda replies: [r for r in replies if r.client != 1]},
    )
    assert lab.bits(found.params) == lab.bits(twin.params)


@every_example
def test_t17_nan_in_one_client_s_data_never_reaches_the_model(example):
    """The data check refuses such a federation; here it is made behind its back."""
    data, module = lab.federation(), lab.filled(lab.Small("layer"))
    x = data.train.x.clone()
    x[18, 2] = math.nan
    bad = replace(data, train=type(data.train)(x, data.train.y))
    found = lab.play(example, (bad, module), cohort=6, rounds=2)
    assert finite(found.params)
    if example != "local":  # which sends nothing that could be refused
        assert all([r[:2] for r in row["refused"]] == [[1, "nonfinite"]] for row in found.rows)
    assert all(finite(m) for i, m in enumerate(found.models) if i != 1)


def test_t17_nan_in_the_data_is_refused_where_they_are_read():
    x, y, client = lab.arrays()
    x[18, 2] = math.nan
    with pytest.raises(DataError, match="row 18, column 2 is nan"):
        Federation.of(x.numpy(), y.numpy(), client=client.numpy())


def test_t17_a_run_in_which_every_reply_was_refused_ends_with_exit_code_0_and_says_so(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(["run", "rounds=2", "cohort=2", "local.lr=1e30", "local.epochs=1", "executor=loop", "--json"])
    out, _ = capfd.readouterr()
    assert (left.value.code or 0) == 0
    summary = json.loads(out)
    assert summary["refused"] == {"nonfinite": 4}
    assert summary["rounds_without_update"] == 2
    assert summary["accuracy"]["final"] is not None


ERRORS = [
    RuntimeError("CUDA out of memory"),
    MemoryError("no memory"),
    OSError(5, "Input/output error"),
    ZeroDivisionError("x"),
    IndexError("y"),
]


@dataclass(frozen=True)
class Raises(Piece):
    """Fails on the client of 17 samples."""

    error: Exception | None = None

    def upload(self, delta, own, v):
        if v.samples == 17:
            raise self.error or RuntimeError("x")
        return delta, {}, own


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("executor", ["loop", "processes"])
def test_t32_a_client_that_raises_is_counted_and_the_others_make_the_model(error, executor):
    found = lab.play(Raises(error), executor=executor, cohort=6)
    twin = lab.play(cohort=6, wrap={"change": lambda replies: [r for r in replies if r.client != 0]})
    assert lab.bits(found.params) == lab.bits(twin.params)
    assert all(row["refused"] == [[0, "raised", f"{type(error).__name__}: {error}"]] for row in found.rows)


@pytest.mark.parametrize(("quorum", "moved"), [(5, True), (6, False), (1.0, False)])
def test_t32_fewer_replies_than_the_quorum_leave_the_model(quorum, moved):
    made = lab.parts(Raises(), cohort=6, quorum=quorum)
    found = lab.play(Raises(), cohort=6, quorum=quorum)
    assert [row["moved"] for row in found.rows] == [moved] * 3
    assert (lab.bits(found.params) == lab.bits(made.setup.params)) is not moved


def test_row_14_a_gradient_of_nothing_is_clipped_without_dividing_by_it():
    @dataclass(frozen=True)
    class Nothing(Piece):
        def objective(self, loss, v):
            return lambda p, b: 0 * loss(p, b)

    for optimizer in ("sgd", "adam"):
        found = lab.play(Nothing(), local_clip=1.0, local_optimizer=optimizer, local_lr=0.01)
        assert lab.bits(found.params) == lab.bits(lab.parts().setup.params)
        assert all(row["moved"] and row["refused"] == [] for row in found.rows)


def test_row_20_equal_clients_make_one_model_whoever_answers_first():
    x, y, _ = lab.arrays((8,))
    data = lab.listed(x.repeat(4, 1), y.repeat(4), (8,) * 4, test=(x.numpy(), y.numpy()))
    rotated = {"order": lambda works: works[::-1], "change": lambda replies: replies[2:] + replies[:2]}
    toy = data, lab.small()
    for method in ("fedavg", "scaffold", "fedadam(lr=0.05)"):
        assert lab.same(lab.play(method, toy, cohort=4), lab.play(method, toy, cohort=4, wrap=rotated)) == []


# ---- T23: an order that must hold
# -----------------------------------------------------------------------------------------------------------


def blobs(n, seed):
    """Four overlapping clusters in six dimensions."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (n,), generator=generator)
    return torch.randn(n, 6, generator=generator) + 2 * torch.nn.functional.one_hot(y, 6), y


def accuracy(method, seed, sizes, x, y, test):
    """Mean accuracy, on the common test set, of the models that clients end up with."""
    module = lab.filled(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)), seed)
    data = lab.listed(x, y, sizes, test=(test[0].numpy(), test[1].numpy()))
    made = lab.engine(lab.parts(method, (data, module), cohort=len(sizes), rounds=12, seed=seed, local_lr=0.05))
    lab.finish(made)
    everything = torch.arange(len(test[1]))
    told = [
        made.evaluator.predict(made.kit, lab.own_model(made, i), data.test, everything).argmax(1)
        for i in range(len(sizes))
    ]
    return sum(float((t == test[1]).float().mean()) for t in told) / len(sizes)


@pytest.mark.parametrize("seed", range(3))
def test_t23_the_pooled_oracle_is_at_least_fedavg_and_fedavg_at_least_local_training(seed):
    """Eight clients of two classes each: alone, a client cannot know the other two.

    One test sample in a hundred may fall either way.
    """
    x, y = blobs(240, seed)
    order = torch.argsort(y, stable=True)
    deal = torch.cat(
        [
            torch.arange(240).reshape(8, 30)[[i, (i + 3) % 8]][:, half::2].reshape(-1)
            for i in range(8)
            for half in (i % 2,)
        ]
    )
    x, y, test = x[order][deal], y[order][deal], blobs(400, seed + 100)
    oracle = accuracy("fedavg", seed, (240,), x, y, test)
    federated, alone = (accuracy(method, seed, (30,) * 8, x, y, test) for method in ("fedavg", "local"))
    assert oracle >= federated - 0.01
    assert federated >= alone + 0.1
    assert oracle > 0.75


# ---- T30: tensors larger than a message chunk
# -----------------------------------------------------------------------------------------------


def test_t30_a_tensor_above_four_megabytes_travels_whole():
    tensor = torch.randn(1_100_000, generator=torch.Generator().manual_seed(0))
    data = encode(Frame("up", {"samples": 1}, {"w": tensor}))
    assert len(data) > 4 << 20
    assert torch.equal(decode(data).tensors["w"], tensor)


def test_t30_a_layer_above_four_megabytes_trains_in_processes():
    wide = lab.filled(torch.nn.Sequential(torch.nn.Linear(6, 180_000), torch.nn.ReLU(), torch.nn.Linear(180_000, 3)))
    made = lab.parts("scaffold", (lab.federation((4, 5)), wide), cohort=2, local_steps=1, local_lr=1e-5)
    assert 4 * made.setup.layout.entries["0.weight"].shape.numel() > 4 << 20
    holder = lab.engine(made)
    works = plan_round(holder.server, made.method, made.setup, "share", 1e-5, lambda *_: None, lambda _: None).works
    runner = build("processes", made.make, 1, 1, lambda *_: None)
    try:
        there = sorted(runner.train(works), key=lambda r: r.place)
    finally:
        runner.close()
    here = sorted(holder.executor.train(works), key=lambda r: r.place)
    assert [lab.bits(r.delta) for r in there] == [lab.bits(r.delta) for r in here]
    assert [lab.bits(r.row) for r in there] == [lab.bits(r.row) for r in here]


# ---- T34, row 65: another process, folder and hash seed, without a network
# ------------------------------------------------------------------

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
settings = {"rounds": 2, "clients": 6, "cohort": 3, "local.epochs": 1, "executor": "loop", "model": "mlp(hidden=8, dropout=0.2)"}
print(fedstrata.run(method="scaffold", seed=5, **settings).summary["model_sha256"])
"""


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


# ---- T35: data and model that do not fit
# ----------------------------------------------------------------------------------------------------


def images(channels=1, classes=10):
    rng = np.random.default_rng(0)
    y = np.arange(40) % classes
    return Federation.of(
        rng.normal(size=(40, channels, 8, 8)).astype(np.float32),
        y,
        clients=2,
        labels=tuple(str(i) for i in range(classes)),
    )


def conv(channels=1, outputs=10):
    return torch.nn.Sequential(
        torch.nn.Conv2d(channels, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 36, outputs)
    )


@pytest.mark.parametrize(
    ("data", "module", "said"),
    [
        (images(), conv(channels=3), r"1 channel.*takes 3"),
        (images(classes=20), conv(), r"20 classes"),
        (images(), conv(outputs=100), r"100.*10"),
    ],
    ids=["1 channel, 3 wanted", "20 classes, 10 outputs", "10 classes, 100 outputs"],
)
def test_t35_data_and_model_that_do_not_fit_are_refused_before_anything_is_written(tmp_path, data, module, said):
    with pytest.raises((ConfigError, DataError), match=said):
        in_folder(tmp_path, (data, module), cohort=2)
    assert list(tmp_path.iterdir()) == []
