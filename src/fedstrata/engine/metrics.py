"""Metrics from predictions. What is undefined on the data at hand is None: never a crash, a NaN, or a polite 0.5."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstrata.common.errors import DataError

Scores: TypeAlias = dict[str, float | None]

CLASSIFICATION = ("accuracy", "balanced_accuracy", "macro_f1", "auc", "log_loss", "calibration_error")
REGRESSION = ("rmse", "r2")
BINS = 15  # of the calibration error

_NO_ANSWER = -1  # the prediction of a sample whose logits are not finite: wrong, whatever the class


def scores(logits: Tensor, y: Tensor) -> Scores:
    """Metrics of a classifier or of a regression, after the type of ``y``.

    Args:
        logits: [N, C] float, one sample a row; [N, 1] for a regression.
        y: [N] int64 classes in [0, C), or [N] float targets.

    Returns:
        name -> value, always the same names for a kind of task (:data:`CLASSIFICATION` or :data:`REGRESSION`); None
        where undefined.
        balanced_accuracy: mean recall over the classes present. macro_f1: mean over classes present or predicted. auc:
            one class against
        the rest by softmax probability, mean over the classes present; None with fewer than two. log_loss: in nats.
        calibration_error: 15 equal-width bins of the top class's probability, weighted by samples. rmse: in units of y.
        r2: None for fewer than two samples or a constant y. A sample with a non-finite logit counts as a wrong answer
        and leaves auc, log_loss, calibration_error, rmse and r2 undefined.

    Raises:
        DataError: shapes that do not match, or a class outside [0, C).

    Source: scikit-learn's definitions, against which the tests hold them; its own functions take 12 ms for a client of
        100 samples and 10
    classes, most of it checks of their input, and these take 0.3 ms. Calibration error: Guo et al. 2017, sec. 2.
    """
    if logits.ndim != 2 or y.ndim != 1 or len(logits) != len(y) or not logits.shape[1]:
        raise DataError(f"scores of logits {tuple(logits.shape)} and y {tuple(y.shape)}; [N, C] and [N] are wanted.")
    logits = logits.detach().cpu()
    y = y.detach().cpu()
    return _regression(logits, y) if y.is_floating_point() else _classification(logits, y)


def _regression(predictions: Tensor, y: Tensor) -> Scores:
    if predictions.shape[1] != 1:
        raise DataError(f"a regression gives one number a sample; the model gives {predictions.shape[1]}.")
    told, truth = predictions[:, 0].double().numpy(), y.double().numpy()
    if not len(truth) or not np.isfinite(told).all():
        return dict.fromkeys(REGRESSION)
    defined = len(truth) > 1 and bool((truth != truth[0]).any())
    with np.errstate(over="ignore"):  # errors beyond 1e154 have no square
        mse = float(np.square(told - truth).mean())
        spread = float(np.square(truth - truth.mean()).mean()) if defined else math.nan
    return {"rmse": _number(math.sqrt(mse)), "r2": _number(1 - mse / spread)}


def _classification(logits: Tensor, y: Tensor) -> Scores:
    classes = logits.shape[1]
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise DataError(f"classes from {int(y.min())} to {int(y.max())}; the model tells 0 to {classes - 1} apart.")
    if not len(y):
        return dict.fromkeys(CLASSIFICATION)
    truth = y.long().numpy()
    answered = torch.isfinite(logits).all(dim=1)  # [N]
    told = torch.where(answered, logits.argmax(dim=1), _NO_ANSWER).numpy()
    found: Scores = {
        "accuracy": float((told == truth).mean()),
        **_by_class(truth, told, classes),
    }
    if not bool(answered.all()):
        return found | {"auc": None, "log_loss": None, "calibration_error": None}
    log_p = logits.double().log_softmax(dim=1)  # [N, C]
    p = log_p.exp().numpy()
    nll = -log_p.gather(1, y.long()[:, None]).mean().item()
    return found | {"auc": _auc(p, truth), "log_loss": nll, "calibration_error": _calibration(p, told == truth)}


def _by_class(truth: NDArray[np.int64], told: NDArray[np.int64], classes: int) -> Scores:
    """Mean recall over the classes present, mean F1 over the classes present or predicted.

    Unanswered samples are only missed.
    """
    hits = np.bincount(truth[told == truth], minlength=classes)  # [C]
    present = np.bincount(truth, minlength=classes)
    claimed = np.bincount(told[told != _NO_ANSWER], minlength=classes)
    named = present + claimed > 0
    recall = hits[present > 0] / present[present > 0]
    return {
        "balanced_accuracy": float(recall.mean()),
        "macro_f1": float((2 * hits[named] / (present + claimed)[named]).mean()),
    }


def _auc(p: NDArray[np.float64], truth: NDArray[np.int64]) -> float | None:
    """Mean area over the classes present; each against the rest, so a client with three of ten classes has one, too."""
    present = np.unique(truth)
    if len(present) < 2:
        return None
    areas = []
    for label in present:
        mine = truth == label
        rest = np.sort(p[~mine, label])
        # Mann-Whitney: the share of pairs in the right order, ties counted half.
        below = np.searchsorted(rest, p[mine, label], "left") + np.searchsorted(rest, p[mine, label], "right")
        areas.append(below.mean() / 2 / len(rest))
    return float(np.mean(areas))


def _calibration(p: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    top = p.max(axis=1)
    bins = np.clip(np.ceil(top * BINS).astype(int) - 1, 0, BINS - 1)  # (k/15, (k+1)/15]
    gaps = np.bincount(bins, weights=right - top, minlength=BINS)  # per bin: samples x (accuracy - confidence)
    return float(np.abs(gaps).sum() / len(top))


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
