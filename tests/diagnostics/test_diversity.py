"""Effective rank of features and likeness of kernels, against rules written out and spectra that are known."""

import itertools
import math

import numpy as np
import pytest
import torch

from fedstrata.common.errors import ConfigError
from fedstrata.core.layout import Layout, entries_of
from fedstrata.diagnostics.diversity import _weights, cosines, effective_rank
from fedstrata.diagnostics.registry import build_measures
from helpers.measured_runs import looked


def with_spectrum(values, rows=40, seed=0):
    """Centred [rows, d] features with these singular values."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, len(values)))
    u = np.linalg.qr(x - x.mean(0))[0]  # columns with mean 0
    v = np.linalg.qr(rng.normal(size=(len(values), len(values))))[0]
    return torch.from_numpy(u @ np.diag(values) @ v.T)


@pytest.mark.parametrize("values", [[1.0, 1.0, 1.0], [3.0, 1.0], [5.0, 0.0, 0.0], [4.0, 2.0, 1.0, 1e-9]])
def test_effective_rank_is_the_exponential_entropy_of_the_spectrum(values):
    p = [v / sum(values) for v in values]
    expected = math.exp(-sum(q * math.log(q) for q in p if q > 0))
    assert effective_rank(with_spectrum(values)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_effective_rank_is_one_to_d_and_does_not_see_scale_shift_or_rotation(seed):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(50, 6)) * rng.uniform(0.1, 2, size=6)
    found = effective_rank(torch.from_numpy(z))
    assert 1 <= found <= 6
    turned = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    assert effective_rank(torch.from_numpy(7 * z @ turned + rng.normal(size=6))) == pytest.approx(found, rel=1e-9)
    line = torch.from_numpy(np.outer(z[:, 0], z[0]))
    assert effective_rank(line) == pytest.approx(1, abs=1e-6)


def test_features_that_are_all_alike_or_not_finite_have_no_rank():
    assert effective_rank(torch.full((9, 3), 0.1)) is None
    assert effective_rank(torch.zeros(5, 2)) is None
    assert effective_rank(torch.tensor([[1.0], [math.inf]])) is None


def by_hand(weight, *, signed):
    """Sum and number over pairs, one pair at a time."""
    rows = [np.asarray(r, dtype=np.float64).reshape(-1) for r in weight.tolist()]
    rows = [r for r in rows if np.linalg.norm(r) > 0]
    found = [float(u @ v / np.linalg.norm(u) / np.linalg.norm(v)) for u, v in itertools.combinations(rows, 2)]
    return sum(found if signed else map(abs, found)), len(found)


@pytest.mark.parametrize("shape", [(7, 3, 3, 3), (5, 4), (1, 9), (2, 1)])
@pytest.mark.parametrize("signed", [True, False])
def test_cosines_are_those_of_all_pairs_of_kernels(shape, signed, monkeypatch):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    weight[0] *= 5
    for block in (1024, 2):  # kernels are taken in blocks of any size
        monkeypatch.setattr("fedstrata.diagnostics.diversity._BLOCK", block)
        assert cosines(weight, signed=signed) == pytest.approx(by_hand(weight, signed=signed), abs=1e-9)


def test_orthogonal_kernels_are_unlike_opposite_ones_alike_in_size_only_and_zero_ones_do_not_count():
    assert cosines(torch.eye(4), signed=False) == (0.0, 6)
    opposite = torch.tensor([[1.0, 2.0], [-1.0, -2.0], [0.0, 0.0]])
    assert cosines(opposite, signed=False) == (pytest.approx(1.0), 1)
    assert cosines(opposite, signed=True) == (pytest.approx(-1.0), 1)


def test_random_kernels_have_the_mean_that_the_panel_names():
    weight = torch.randn(300, 400, generator=torch.Generator().manual_seed(0))
    total, pairs = cosines(weight, signed=False)
    assert total / pairs == pytest.approx(0.8 / math.sqrt(400), rel=0.02)


@pytest.mark.parametrize("cosine", ["absolute", "signed"])
def test_in_a_run_a_layer_is_the_mean_over_its_pairs_and_all_the_mean_over_layers(cosine):
    rounds, run = looked(f"feature_diversity(cosine={cosine})", toy="images")
    for snapshot, numbers in rounds:
        got = numbers["feature_diversity"]
        means = {}
        for name in ("conv", "head"):
            total, pairs = by_hand(snapshot.after[f"{name}.weight"], signed=cosine == "signed")
            means[name] = total / pairs
            assert got[f"kernels/{name}"] == pytest.approx(means[name], abs=1e-9)
        assert got["kernels/all"] == pytest.approx(sum(means.values()) / 2, abs=1e-9)
        assert set(got) == {"all", "kernels/all", "kernels/conv", "kernels/head"}
        z = run.evaluator.features(snapshot.after, 1000)[0].double()
        values = np.linalg.svd((z - z.mean(0)).numpy(), compute_uv=False)
        p = values[values > 0] / values.sum()
        assert got["all"] == pytest.approx(math.exp(-(p * np.log(p)).sum()), rel=1e-6)


def test_no_more_samples_are_looked_at_than_asked_for():
    rounds, run = looked("feature_diversity(samples=4)", rounds=1)
    ((snapshot, numbers),) = rounds
    assert len(run.evaluator.features(snapshot.after, 4)[0]) == 4
    assert 1 <= numbers["feature_diversity"]["all"] <= 3, "four samples, centred, span three directions"


def test_norms_that_stay_with_clients_are_those_that_the_server_is_tested_with():
    rounds, run = looked("feature_diversity", toy="batch", bn="local")
    snapshot, numbers = rounds[-1]
    assert not torch.equal(snapshot.served.statistics.flat, snapshot.after.statistics.flat)
    assert lab_bits(snapshot.served) == lab_bits(run.serving.model())
    assert numbers["feature_diversity"]["all"] == effective_rank(run.evaluator.features(run.serving.model(), 1000)[0])


def lab_bits(p):
    return p.flat.numpy().tobytes() + p.statistics.flat.numpy().tobytes()


def test_kernels_are_weights_of_convolutions_linear_attention_and_recurrent_layers_only():
    module = torch.nn.ModuleDict(
        {
            "words": torch.nn.Embedding(9, 4),
            "mixed": torch.nn.MultiheadAttention(4, 2),
            "norm": torch.nn.LayerNorm(4),
            "conv": torch.nn.Conv1d(4, 3, 2),
            "past": torch.nn.GRU(3, 2),
            "head": torch.nn.Linear(2, 2),
        }
    )
    names = [name for _, name in _weights(Layout(entries_of(module, "head")))]
    assert names == [
        "mixed.in_proj_weight",
        "mixed.out_proj.weight",
        "conv.weight",
        "past.weight_ih_l0",
        "past.weight_hh_l0",
        "head.weight",
    ]


@pytest.mark.parametrize(("text", "said"), [("samples=1", "at least 2"), ("cosine=both", "cosine")])
def test_settings_that_cannot_be_meant_are_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        build_measures(f"feature_diversity({text})")
