"""Assumption 3's k: the accumulators against two passes over stored gradients, what gradients are of, when it is looked
at.
"""

import json

import numpy as np
import pytest
import torch

from fedstrata.common.errors import ConfigError
from fedstrata.core.layout import Entry, Layout
from fedstrata.core.network import Batch
from fedstrata.studies import find
from fedstrata.studies.masks import Masks, Variances, Welford, batches, ends, estimate
from fedstrata.studies.retraining import retrain
from helpers import lab
from helpers.trained_runs import toy


def layout_of(**sizes):
    return Layout([Entry(name, torch.Size([n]), "linear", "body", name, "linear") for name, n in sizes.items()])


# ---- the estimator


def test_accumulated_deviations_are_those_of_two_passes_over_everything():
    rng = np.random.default_rng(0)
    sizes = {"a": 3, "b": 5, "c": 2}
    vectors = (1000.0 + rng.normal(size=(57, 10)) * np.repeat([1.0, 2.0, 5.0], list(sizes.values()))).astype(np.float32)
    seen = Welford(layout_of(**sizes))
    for vector in vectors:
        seen.add(torch.from_numpy(vector))
    wide = vectors.astype(np.float64)
    squares = ((wide - wide.mean(0)) ** 2).mean(0)
    assert seen.variances().tolist() == pytest.approx(
        [squares[:3].sum(), squares[3:8].sum(), squares[8:].sum()], rel=1e-10
    )
    assert seen.mean.numpy() == pytest.approx(wide.mean(0), rel=1e-12)
    assert seen.mean.numel() + seen.sums.numel() == 13, "no vector is kept"


def test_k_divides_variances_a_number_and_the_share_does_not_divide_by_sizes():
    found = Variances(("a", "b"), (3, 1), torch.tensor([6.0, 6.0], dtype=torch.float64))
    assert found.k == pytest.approx({"a": (6 / 3) / (12 / 4), "b": (6 / 1) / (12 / 4)})
    assert found.share == pytest.approx({"a": 2 * 6 / 12, "b": 2 * 6 / 12})


def test_equal_noise_in_every_number_gives_a_k_of_one_whatever_the_sizes():
    generator = torch.Generator().manual_seed(0)
    layout = layout_of(a=1000, b=10, c=300)
    seen = Welford(layout)
    for _ in range(2000):
        seen.add(torch.randn(1310, generator=generator))
    found = Variances(layout.names(), (1000, 10, 300), seen.variances())
    assert found.k == pytest.approx(dict.fromkeys("abc", 1.0), rel=0.04)
    assert found.share == pytest.approx({"a": 3 * 1000 / 1310, "b": 3 * 10 / 1310, "c": 3 * 300 / 1310}, rel=0.04)


def test_gradients_that_do_not_vary_have_no_k():
    found = Variances(("a",), (3,), torch.zeros(1, dtype=torch.float64))
    assert found.k == {"a": None}
    assert ends([None]) == {"min": None, "median": None, "max": None}


@pytest.mark.parametrize("kind", ["layer", "batch"])
def test_the_study_is_the_variance_of_the_gradients_of_local_steps(kind):
    """Against stored gradients of a module of PyTorch's own, in training mode, on the same batches."""
    parts = lab.parts("fedavg", kind, cohort=6)
    found = estimate(parts.make_worker(), parts.setup.model, batches(parts, 40))
    _, module = lab.TOYS[kind]()
    stored = []
    for batch in batches(parts, 40):
        module.zero_grad()
        torch.nn.functional.cross_entropy(module.train()(batch.x), batch.y).backward()
        stored.append(torch.cat([p.grad.reshape(-1) for p in module.parameters()]).double().numpy())
    squares = ((np.array(stored) - np.mean(stored, 0)) ** 2).mean(0)
    for name, total in zip(found.groups, found.sums.tolist(), strict=True):
        places = np.concatenate(
            [np.arange(a, b) for a, b in parts.setup.layout.spec.runs(parts.setup.layout.groups[name].names)]
        )
        assert total == pytest.approx(squares[places].sum(), rel=1e-5), name
        assert found.k[name] == pytest.approx(squares[places].mean() / squares.mean(), rel=1e-5)


def test_the_same_model_and_batches_give_the_same_again_whatever_the_worker_held_before():
    parts = lab.parts("fedavg", "batch", cohort=6)
    kit = parts.make_worker()
    first = estimate(kit, parts.setup.model, batches(parts, 20)).sums
    with torch.no_grad():
        kit.bound.flat.add_(1.0)
    assert torch.equal(estimate(kit, parts.setup.model, batches(parts, 20)).sums, first)


def test_batches_are_of_the_union_of_clients_without_repeats_inside_and_the_same_at_every_call():
    parts = lab.parts("fedavg", cohort=6)
    drawn = list(batches(parts, 300))
    assert all(isinstance(b, Batch) and len(b.y) == 4 for b in drawn)
    rows = [tuple(x) for b in drawn for x in b.x.tolist()]
    assert {*rows} == {tuple(x) for x in lab.arrays()[0].tolist()}
    assert all(len({tuple(x) for x in b.x.tolist()}) == 4 for b in drawn)
    assert all(torch.equal(a.x, b.x) for a, b in zip(drawn, batches(parts, 300), strict=True))


def test_batches_are_augmented_as_in_training():
    x, y, _ = lab.arrays(shape=(1, 6, 6))
    module = lab.TOYS["images"]()[1]
    plain, turned = (
        lab.parts("fedavg", (lab.listed(x, y, lab.SIZES, testing="own(share=0.2)", augment=a), module))
        for a in (None, "flip")
    )
    pairs = [(a.x, b.x) for a, b in zip(batches(plain, 20), batches(turned, 20), strict=True)]
    same = [torch.equal(p, q) or torch.equal(p.flip(-1), q) for a, b in pairs for p, q in zip(a, b, strict=True)]
    assert all(same)
    assert any(not torch.equal(a, b) for a, b in pairs)


# ---- when


@pytest.mark.parametrize(
    ("text", "rounds", "study", "wanted"),
    [
        ("fedavg", 2, Masks(samples=2), ["start", "end"]),
        ("fedpart(warmup=1, repeat=1)", 6, Masks(samples=2), ["start", "after warm-up", "after one cycle", "end"]),
        ("fedpart(warmup=1, repeat=1)", 4, Masks(samples=2), ["start", "after warm-up", "after one cycle"]),
        ("fedpart(warmup=1, repeat=1, first=2)", 3, Masks(samples=2), ["start", "after warm-up", "end"]),
        ("fedpart(warmup=0, repeat=1)", 3, Masks(samples=2), ["start", "after one cycle"]),
        (
            "fedbabu(epochs=0) + fedpart(warmup=1, repeat=1)",
            3,
            Masks(samples=2),
            ["start", "after warm-up", "after one cycle"],
        ),
        ("fedavg", 3, Masks(samples=2, at=(0, 2)), ["start", "after round 2"]),
    ],
)
def test_moments_are_the_start_the_warm_up_a_cycle_and_the_end(text, rounds, study, wanted):
    told = study.study({"run": toy(text, rounds=rounds)}).numbers["run"]
    assert [name for name in told if name not in ("samples", "batch")] == wanted


def test_each_moment_is_the_model_of_that_round():
    run = toy("fedpart(warmup=1, repeat=1)", "batch", bn="local", rounds=4)
    told = Masks(samples=30).study({"run": run})
    models = [engine.serving.model().clone() for engine in retrain(run.engine.parts, 4)]
    parts = run.engine.parts
    for name, done in (("start", 0), ("after warm-up", 1), ("after one cycle", 4)):
        found = estimate(parts.make_worker(), models[done], batches(parts, 30))
        assert told.numbers["run"][name]["k"] == found.k
        assert told.numbers["run"][name]["k over groups"] == ends(list(found.k.values()))
    assert told.numbers["run"]["start"]["k"] != told.numbers["run"]["after warm-up"]["k"]
    json.dumps(told.numbers, allow_nan=False)
    assert [p.kind for p in told.panels] == ["heat", "heat", "table"]


@pytest.mark.parametrize(
    ("text", "said"), [("masks(samples=1)", r"published: 10,000"), ("masks(at=[0, -1])", "masks.at is -1")]
)
def test_a_setting_that_cannot_be_meant_is_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        find(text)


def test_a_round_behind_the_end_is_refused():
    with pytest.raises(ConfigError, match=r"masks\.at is 9, but run has 2 rounds"):
        Masks(at=(0, 9)).study({"run": toy(rounds=2)})
