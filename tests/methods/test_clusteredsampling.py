"""Clustered sampling: exact distributions over clients, and FedMut's pairs of mutations."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist

from fedstrata.common.errors import MethodError
from fedstrata.engine.server import Server, context
from fedstrata.methods.clusteredsampling import cut, distributions, draw
from fedstrata.methods.fedmut import FedMut
from helpers import lab


def distances(clients, seed):
    """L1, of random updates."""
    points = np.random.default_rng(seed).normal(size=(clients, 5))
    return np.abs(points[:, None] - points[None]).sum(-1)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(0, 14), st.sampled_from(["rows", "condensed"]))
def test_distributions_sum_to_1_and_clients_to_their_share_of_the_cohort(seed, cohort, more, tree):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(5, 10, size=2 * cohort + more).tolist()  # at most twice the mean, so none is above 1 / cohort
    found = distributions(distances(len(sizes), seed), sizes, cohort, tree, rng)
    assert len(found) == cohort
    assert [sum(one.values()) for one in found] == [1] * cohort
    total = sum(sizes)
    assert [sum(one.get(i, 0) for one in found) for i in range(len(sizes))] == [
        Fraction(cohort * n, total) for n in sizes
    ]
    assert all(share > 0 for one in found for share in one.values())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(0, 9), st.sampled_from(["rows", "condensed"]))
def test_heavy_clients_have_distributions_to_themselves_and_all_sums_stay(seed, cohort, more, tree):
    rng = np.random.default_rng(seed)
    sizes = [int(rng.integers(100, 1000)), *rng.integers(1, 60, size=cohort + more).tolist()]
    found = distributions(distances(len(sizes), seed), sizes, cohort, tree, rng)
    share = Fraction(cohort * sizes[0], sum(sizes))
    assert sum(one == {0: 1} for one in found) >= int(share)
    assert len(found) == cohort
    assert [sum(one.values()) for one in found] == [1] * cohort
    assert [sum(one.get(i, 0) for one in found) for i in range(len(sizes))] == [
        Fraction(cohort * n, sum(sizes)) for n in sizes
    ]


def test_the_heaviest_clusters_become_distributions_from_light_to_heavy():
    """Three tight groups of 2, 3 and 4 clients, and a loner.

    K = 2 of 20 equal samples: no group may weigh above 5 clients.
    """
    place = np.array([0, 0.1, 10, 10.1, 10.2, 20, 20.1, 20.2, 20.3, 50.0])
    apart = np.abs(place[:, None] - place[None])
    clusters = cut(apart, [Fraction(1, 5)] * 10, "condensed")
    assert sorted(clusters) == [[0, 1, 2, 3, 4], [5, 6, 7, 8], [9]]
    light, heavy = distributions(apart, [2] * 10, 2, "condensed", np.random.default_rng(0))
    assert list(heavy) == [0, 1, 2, 3, 4]
    assert list(light) == [5, 6, 7, 8, 9], "the loner fills up the lightest of the kept ones"


def test_a_client_is_split_where_a_distribution_is_full():
    """Masses 1/2, 1/2, 2/3, 2/3, 2/3 for K = 3: no two of 2/3 fit together."""
    place = np.array([0, 0.1, 10, 20, 30.0])
    apart = np.abs(place[:, None] - place[None])
    found = distributions(apart, [3, 3, 4, 4, 4], 3, "condensed", np.random.default_rng(0))
    assert [sum(one.values()) for one in found] == [1, 1, 1]
    assert sorted(len(one) for one in found) == [2, 2, 2]
    split = [i for i in range(5) if sum(i in one for one in found) == 2]
    assert len(split) == 1
    assert [one[split[0]] for one in found if split[0] in one] == [Fraction(1, 3), Fraction(1, 3)]


@pytest.mark.parametrize("seed", range(5))
def test_the_row_form_cuts_as_the_released_code_does(seed):
    """There the heights of the tree are replaced by weights in integers, and SciPy cuts at 1 / K."""
    sizes = np.random.default_rng(seed).integers(5, 10, size=20)
    apart, cohort = distances(20, seed), 4
    tree = linkage(pdist(apart), "ward")
    weights = list(sizes)
    for row in tree:
        weights.append(weights[int(row[0])] + weights[int(row[1])])
        row[2] = weights[-1] * cohort
    labels = fcluster(tree, sizes.sum(), criterion="distance")
    by_scipy = {frozenset(np.flatnonzero(labels == k).tolist()) for k in set(labels)}
    assert {
        frozenset(c) for c in cut(apart, [Fraction(cohort * int(n), int(sizes.sum())) for n in sizes], "rows")
    } == by_scipy


def test_rows_and_condensed_distances_give_different_trees_somewhere():
    mass = [Fraction(1, 5)] * 20
    cuts = [
        {tree: {tuple(c) for c in cut(distances(20, seed), mass, tree)} for tree in ("rows", "condensed")}
        for seed in range(5)
    ]
    assert any(c["rows"] != c["condensed"] for c in cuts)


def test_a_draw_follows_the_masses_exactly():
    class At:
        def __init__(self, u):
            self.u = u

        def random(self):
            return self.u

    one = {4: Fraction(1, 3), 2: Fraction(2, 3)}
    assert [draw(one, At(u)) for u in (0.0, 0.3333, 0.3334, 0.999999999)] == [4, 4, 2, 2]


def test_each_client_is_drawn_as_often_as_its_share_says():
    """1,000 cohorts of a federation before its first update; five standard errors."""
    made = lab.parts("clusteredsampling")
    piece, setup = made.method.pieces[0], made.setup
    server, counts = Server.start(made.method, setup), np.zeros(6)
    for t in range(1000):
        ctx = context(replace(server, round=t), made.rules, piece, "sample")
        for i in piece.sample(setup.eligible, ctx):
            counts[i] += 1
    shares = np.array(lab.SIZES) / sum(lab.SIZES)
    assert np.abs(counts / 3000 - shares).max() <= 5 * np.sqrt(0.25 / 3000)


def test_a_client_that_is_drawn_twice_trains_twice_and_counts_twice():
    found = lab.play("clusteredsampling", seed=1, rounds=12)
    twice = [row for row in found.rows if len(set(row["cohort"])) < len(row["cohort"])]
    assert twice, "some cohort of these rounds repeats a client"
    assert all(row["replies"] == 3 for row in twice)


def test_a_client_heavier_than_one_part_in_the_cohort_is_refused_with_the_way_out():
    with pytest.raises(
        MethodError,
        match=r"client 0 holds 17 of 54 samples, more than one part in 4.*Set heavy=own, .*or cohort to 3 or less",
    ):
        lab.parts("clusteredsampling", cohort=4)


def test_updates_that_no_memory_holds_are_refused_with_the_arithmetic(monkeypatch):
    import psutil  # noqa: PLC0415

    monkeypatch.setattr(psutil, "virtual_memory", type("Memory", (), {"total": 1000}))
    with pytest.raises(MethodError, match="an update of 135 numbers for each of 6 clients"):
        lab.parts("clusteredsampling")


# ---- FedMut


@pytest.mark.parametrize(("t", "mean"), [(0, 0.15), (25, 0.075), (50, 0.0), (80, 0.0)])
def test_the_mean_of_the_next_models_is_the_global_one_and_half_the_bias_along_its_step(t, mean):
    controls = FedMut().controls(7, 10, t, np.random.default_rng(0))
    assert np.allclose(controls.mean(1), mean, atol=1e-7)
    assert all(sorted(row) == sorted(controls[0]) for row in controls)
    assert (controls[:, :] == 1).sum() == 7 * 5
    assert len({tuple(row) for row in controls}) > 1, "each tensor has an order of its own"


def test_an_odd_cohort_leaves_its_last_place_the_plain_model():
    controls = FedMut().controls(4, 5, 3, np.random.default_rng(0))
    assert not controls[:, 4].any()
    assert (controls[:, :4] != 0).all()


def test_mutations_leave_norm_statistics_alone():
    run = lab.engine(lab.parts("fedmut", "batch"))
    run.round()
    run.round()
    run.close()
    works, params = run.executor.tasks[1], run.executor.tasks[0]
    assert len({lab.bits(w.sent.flat) for w in works}) == 3
    assert len({lab.bits(w.sent.statistics) for w in works}) == 1
    assert not torch.equal(works[0].sent.statistics.flat, params[0].sent.statistics.flat)
