"""Scores agree with scikit-learn where they are defined, and are None where they are not (T8)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sklearn.metrics as reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.common.errors import DataError
from fedstrata.data.metrics import CLASSIFICATION, REGRESSION, classification_metrics, regression_metrics

cases = st.tuples(st.integers(1, 40), st.integers(2, 6), st.integers(0, 10**6), st.sampled_from([0.0, 0.5, 3.0]))


def scores(output, y):
    return regression_metrics(output, y) if y.is_floating_point() else classification_metrics(output, y)


def drawn(case, *, all_classes=False):
    n, classes, seed, scale = case
    g = torch.Generator().manual_seed(seed)
    logits = (torch.randn(n, classes, generator=g) * scale).round(decimals=1)  # ties are common
    y = torch.randint(0, classes, (n,), generator=g)
    if all_classes:
        logits, y = torch.cat([logits, torch.zeros(classes, classes)]), torch.cat([y, torch.arange(classes)])
    return logits, y


@settings(max_examples=150, deadline=None)
@given(cases)
def test_classification_agrees_with_scikit_learn(case):
    logits, y = drawn(case, all_classes=True)
    found = scores(logits, y)
    told, p = logits.argmax(1).numpy(), logits.double().softmax(1).numpy()
    truth = y.numpy()
    assert tuple(found) == CLASSIFICATION
    assert found["accuracy"] == pytest.approx(
        reference.accuracy_score(truth, told), abs=1e-12
    )  # the same sums in another order
    assert found["balanced_accuracy"] == pytest.approx(reference.balanced_accuracy_score(truth, told), abs=1e-12)
    assert found["macro_f1"] == pytest.approx(reference.f1_score(truth, told, average="macro"), abs=1e-12)
    assert found["log_loss"] == pytest.approx(
        reference.log_loss(truth, p), abs=1e-9
    )  # sklearn takes the log of rounded probabilities
    if p.shape[1] == 2:
        assert found["auc"] == pytest.approx(reference.roc_auc_score(truth, p[:, 1]), abs=1e-12)
    else:
        assert found["auc"] == pytest.approx(reference.roc_auc_score(truth, p, multi_class="ovr"), abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(cases)
def test_no_classification_crashes_or_warns(case):
    found = scores(*drawn(case))
    assert all(value is None or math.isfinite(value) for value in found.values())
    assert (found["auc"] is None) == (len(drawn(case)[1].unique()) < 2)


@settings(max_examples=100, deadline=None)
@given(cases)
def test_regression_agrees_with_scikit_learn(case):
    n, _, seed, scale = case
    g = torch.Generator().manual_seed(seed)
    told, y = torch.randn(n, 1, generator=g), torch.randn(n, generator=g) * scale
    found = scores(told, y)
    assert tuple(found) == REGRESSION
    assert found["rmse"] == pytest.approx(
        reference.root_mean_squared_error(y.numpy(), told[:, 0].numpy()), rel=1e-5
    )  # float32 there
    if n > 1 and scale:
        assert found["r2"] == pytest.approx(
            reference.r2_score(y.double().numpy(), told[:, 0].double().numpy()), rel=1e-9
        )
    else:
        assert found["r2"] is None


def test_one_class_has_no_auc():
    found = scores(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    assert found["auc"] is None
    assert found["accuracy"] == found["balanced_accuracy"] == 0.5
    assert found["macro_f1"] == pytest.approx(1 / 3)  # 2/3 for class 0, 0 for the wrongly predicted class 1


def test_absent_classes_do_not_take_the_auc_away():
    logits = torch.tensor([[3.0, 0, 0], [0, 3, 0], [2, 0, 0]])
    assert scores(logits, torch.tensor([0, 1, 0]))["auc"] == 1.0


@pytest.mark.parametrize("y", [torch.empty(0, dtype=torch.int64), torch.empty(0)])
def test_nothing_to_score_is_none_throughout(y):
    found = scores(torch.empty(0, 1), y)
    assert set(found.values()) == {None}
    assert tuple(found) == (REGRESSION if y.is_floating_point() else CLASSIFICATION)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_diverged_model_is_wrong_not_crashed(bad):
    logits = torch.tensor([[2.0, 0.0], [bad, 1.0], [0.0, 2.0]])
    found = scores(logits, torch.tensor([0, 0, 1]))
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["balanced_accuracy"] == 0.75
    assert found["macro_f1"] == pytest.approx((2 / 3 + 1) / 2)
    assert found["auc"] is found["log_loss"] is found["calibration_error"] is None
    assert set(scores(torch.tensor([[1.0], [bad]]), torch.tensor([1.0, 2.0])).values()) == {None}


def test_a_wholly_diverged_model_scores_zero():
    found = scores(torch.full((3, 2), math.nan), torch.tensor([0, 1, 1]))
    assert found["accuracy"] == found["balanced_accuracy"] == found["macro_f1"] == 0.0


def test_extreme_logits_have_a_finite_log_loss():
    found = scores(torch.tensor([[1e30, 0.0], [0.0, 1e4]]), torch.tensor([1, 1]))
    assert found["log_loss"] == pytest.approx(5e29)


def test_calibration_error_by_hand():
    """Two bins: 0.9 sure and right in 1 of 2, 0.6 sure and right in 2 of 2; so (2 * 0.4 + 2 * 0.4) / 4."""
    p = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.6, 0.4]], dtype=torch.float64)
    assert scores(p.log(), torch.tensor([0, 1, 0, 0]))["calibration_error"] == pytest.approx(0.4)


def test_certainty_that_is_right_is_calibrated():
    assert scores(torch.tensor([[1e4, 0.0], [0.0, 1e4]]), torch.tensor([0, 1]))["calibration_error"] == 0.0


def test_calibration_bins_are_fifteen_of_equal_width():
    rng = np.random.default_rng(0)
    p = torch.from_numpy(rng.dirichlet(np.ones(4), 500))
    y = torch.from_numpy(rng.integers(0, 4, 500))
    top, told = p.max(1)
    error = 0.0
    for k in range(15):
        inside = (top > k / 15) & (top <= (k + 1) / 15)
        if inside.any():
            error += inside.double().mean().item() * abs(
                (told[inside] == y[inside]).double().mean().item() - top[inside].mean().item()
            )
    assert scores(p.log(), y)["calibration_error"] == pytest.approx(error, abs=1e-12)


def test_huge_errors_are_undefined_not_infinite():
    assert scores(torch.tensor([[1e300], [0.0]], dtype=torch.float64), torch.tensor([0.0, 1.0]))["rmse"] is None


@pytest.mark.parametrize(
    ("logits", "y", "word"),
    [
        (torch.ones(2, 3), torch.tensor([0, 3]), "0 to 3"),
        (torch.ones(2, 3), torch.tensor([-1, 0]), "-1 to 0"),
        (torch.ones(2, 3), torch.tensor([0]), r"\[N, C\]"),
        (torch.ones(2), torch.tensor([0, 1]), r"\[N, C\]"),
        (torch.ones(2, 0), torch.tensor([0, 1]), r"\[N, C\]"),
        (torch.ones(2, 3), torch.tensor([0.5, 1.5]), "one output"),
    ],
)
def test_what_does_not_fit_is_refused(logits, y, word):
    with pytest.raises(DataError, match=word):
        scores(logits, y)
