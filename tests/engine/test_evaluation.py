"""Scores where something is undefined: missing in the file, never a crash."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from fedstrata.core.piece import Piece
from fedstrata.data import Federation
from fedstrata.data.metrics import CLASSIFICATION
from helpers import lab
from helpers.examples import finite, in_folder, lines


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
    scores = (
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
        assert {row[name] is not None for name in (*scores, "metrics")} == {row["evaluated"]}
        if row["evaluated"]:
            assert set(row["metrics"]) == set(CLASSIFICATION)
    assert {"personal", "heldout", "final", "best", "selected"} <= {
        k for k, v in found.summary["accuracy"].items() if v is not None
    }


def test_row_6_splits_in_which_no_client_has_a_sample_are_null_not_a_crash():
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
        return [replace(r, loss=math.nan if r.cohort_index == 1 else r.loss) for r in replies]

    run_, clean = lab.engine(lab.parts(), change=lost), lab.play()
    found = lab.finish(run_)
    assert lab.differences(found, clean) == []
    for row, replies in zip(found.rows, run_.executor.replies, strict=True):
        others = [r for r in replies if r.cohort_index != 1]
        assert row["loss"] == pytest.approx(sum(r.loss * r.samples for r in others) / sum(r.samples for r in others))
        assert row["refused"] == []


@dataclass(frozen=True)
class Huge(Piece):
    """Moves the model so far that it is finite and its outputs are not."""

    def merge(self, step, ctx):
        return step.new(torch.full_like(step.flat, 3e38)) if ctx.round else step, ctx.state


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
