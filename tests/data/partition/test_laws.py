"""Partition laws: what every law promises, and each law's own rule."""

from __future__ import annotations

import importlib.util
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.common.call_syntax import parse_call
from fedstrata.common.errors import ConfigError, DataError
from fedstrata.common.random_streams import stream
from fedstrata.data.partition.base import LabelView
from fedstrata.data.partition.laws import Dirichlet, Overlap
from fedstrata.data.registry import find_law, partitions, register_law
from fedstrata.data.types import Groups

DISJOINT = [
    "iid",
    "dirichlet(alpha=0.3, min=1)",
    "dirichlet(alpha=100.0, min=0)",
    "dirichlet_equal(alpha=0.1)",
    "classes(k=1)",
    "classes(k=2)",
]
DISJOINT += ["quantity(alpha=0.5)", "quantity(alpha=0.05, min=0)"]


def deal(law, pool, clients, seed=0):
    return find_law(parse_call(law)).deal(pool, clients, seed)


def everything(part):
    return np.concatenate([part.indices(i) for i in range(len(part))])


def labelled(seed, n, c):
    return LabelView(n, np.random.default_rng(seed).integers(0, c, n), c)


@settings(max_examples=40, deadline=None)
@given(
    law=st.sampled_from(DISJOINT),
    seed=st.integers(0, 5),
    n=st.integers(60, 300),
    c=st.integers(2, 8),
    clients=st.integers(1, 12),
)
def test_a_law_uses_every_sample_at_most_once_and_sizes_agree(law, seed, n, c, clients):
    try:
        part = deal(law, labelled(seed, n, c), clients, seed)
    except DataError:
        return  # an impossible draw is refused, never repaired in silence
    used = everything(part)
    assert len(np.unique(used)) == len(used)
    assert used.min() >= 0
    assert used.max() < n
    assert [part.size(i) for i in range(clients)] == [len(part.indices(i)) for i in range(clients)]
    assert used.dtype == np.int64


@settings(max_examples=25, deadline=None)
@given(
    alpha=st.sampled_from([0.05, 0.3, 1.0, 10.0]),
    seed=st.integers(0, 9),
    clients=st.integers(1, 15),
    least=st.integers(0, 8),
)
def test_dirichlet_covers_the_set_and_keeps_its_minimum(alpha, seed, clients, least):
    pool = labelled(seed, 400, 5)
    try:
        part = Dirichlet(alpha, min=least, tries=200).deal(pool, clients, seed)
    except DataError:
        return
    assert sorted(everything(part).tolist()) == list(range(400))
    assert part.sizes().min() >= least


@pytest.mark.parametrize("law", [*DISJOINT, "shards(s=2)", "overlap(size=9)", "overlap(size=9, alpha=0.1)"])
def test_a_law_depends_on_the_seed_and_on_nothing_else(law, pool):
    one, again, other = (deal(law, pool(500, 5), 10, seed) for seed in (3, 3, 4))
    assert all(np.array_equal(one.indices(i), again.indices(i)) for i in range(10))
    assert not all(np.array_equal(one.indices(i), other.indices(i)) for i in range(10))


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_row_59_small_alpha_gives_disjoint_parts_that_cover(alpha, seed, pool):
    part = Dirichlet(alpha, min=0).deal(pool(1000, 10), 20, seed)
    assert sorted(everything(part).tolist()) == list(range(1000))


@pytest.mark.parametrize("alpha", [0.05, 0.1])
def test_recipe_t1_many_classes_and_clients_split_validly(alpha, pool):
    part = Dirichlet(alpha).deal(pool(62 * 400, 62), 128, 0)
    assert sorted(everything(part).tolist()) == list(range(62 * 400))
    assert part.sizes().min() >= 10


@pytest.mark.parametrize("alpha", [0.001, 0.05])
def test_recipe_t1_equal_sizes_that_exhaust_a_class_stay_valid(alpha, pool):
    part = deal(f"dirichlet_equal(alpha={alpha})", pool(62 * 40, 62), 128)
    used = everything(part)
    assert len(np.unique(used)) == len(used)
    assert set(part.sizes().tolist()) == {62 * 40 // 128}


def test_equal_sizes_say_how_many_samples_went_outside_the_priors(pool):
    part = deal("dirichlet_equal(alpha=0.0001)", pool(100, 4), 5)
    assert any("used up" in note for note in part.notes)


def test_recipe_t2_a_hopeless_minimum_ends_with_numbers_and_a_remedy(pool):
    with pytest.raises(
        DataError, match=r"500 draws over 1000 clients and 60000 samples of 10 classes.*40 samples.*use a smaller min"
    ) as caught:
        Dirichlet(0.1, min=40, tries=500).deal(pool(60_000, 10), 1000, 0)
    assert "mean is 60.0" in str(caught.value)


def test_recipe_t2_an_impossible_minimum_is_seen_at_once(pool):
    with pytest.raises(
        DataError, match=r"1000 clients with at least 61 samples each need 61000, and the training set has 60000"
    ):
        Dirichlet(0.1, min=61, tries=10**9).deal(pool(60_000, 10), 1000, 0)


@pytest.mark.parametrize("seed", range(5))
def test_dirichlet_follows_the_published_loop(seed, pool):
    """The LDA loop of the FedFN harness, written plainly, on the same stream: equal counts of every class at every
    client.
    """
    train, clients, alpha, least = pool(997, 7), 6, 0.2, 10
    rng = stream(seed, "partition", "dirichlet")
    held = [0] * clients
    while min(held) < least:
        counts = np.zeros((clients, 7), dtype=int)
        held = [0] * clients
        for c in range(7):
            size = int((train.labels == c).sum())
            q = rng.dirichlet(alpha * np.ones(clients))
            q = np.array([0.0 if held[i] >= 997 / clients else q[i] for i in range(clients)])
            cuts = np.floor(np.cumsum(q / q.sum()) * size).astype(int)[:-1]
            counts[:, c] = [len(piece) for piece in np.split(np.arange(size), cuts)]
            held = (np.array(held) + counts[:, c]).tolist()
    part = Dirichlet(alpha, min=least).deal(train, clients, seed)
    assert np.array_equal([np.bincount(train.labels[part.indices(i)], minlength=7) for i in range(clients)], counts)


@pytest.mark.parametrize("law", ["iid", "dirichlet_equal(alpha=1)", "quantity(alpha=1)", "classes(k=1)"])
def test_more_clients_than_samples_is_refused(law, pool):
    with pytest.raises(DataError, match="50"):
        deal(law, pool(20, 2), 50)


def test_iid_drops_the_remainder_and_says_so(pool):
    part = deal("iid", pool(103, 3), 10)
    assert set(part.sizes().tolist()) == {10}
    assert "3 of 103" in part.notes[0]


def test_pooled_is_one_client_with_everything(pool):
    part = deal("pooled", pool(50, 2), None)
    assert len(part) == 1
    assert part.indices(0).tolist() == list(range(50))
    with pytest.raises(DataError, match="clients is 7"):
        deal("pooled", pool(50, 2), 7)


def test_shards_cut_train_and_test_with_one_class_table(pool):
    train, test = pool(5000, 10), pool(1000, 10)
    part = deal("shards(s=2)", train, 100)
    twin = part.mirror(test)
    assert set(part.sizes().tolist()) == {50}
    assert set(twin.sizes().tolist()) == {10}
    for i in range(100):
        mix, mirrored = (np.bincount(p.labels[q.indices(i)], minlength=10) for p, q in ((train, part), (test, twin)))
        assert np.count_nonzero(mix) <= 2
        assert (mix == 5 * mirrored).all()
    assert len(np.unique(everything(part))) == 5000


def test_a_shard_is_consecutive_in_its_class(pool):
    train = pool(1000, 10)
    members = train.by_class("x")
    for i in range(20):
        for run in np.split(deal("shards(s=2)", train, 20).indices(i), 2):
            place = np.searchsorted(members[train.labels[run[0]]], run)
            assert (np.diff(place) == 1).all()


@pytest.mark.parametrize(("s", "clients"), [(3, 25), (1, 15)])
def test_shards_check_both_divisibilities(s, clients, pool):
    with pytest.raises(DataError, match=r"is no multiple of 10 classes; .* s is a multiple of 2"):
        deal(f"shards(s={s})", pool(1000, 10), clients)


def test_classes_gives_exactly_k_to_everybody(pool):
    train = pool(3000, 10)
    part = deal("classes(k=3)", train, 40)
    assert all(len(np.unique(train.labels[part.indices(i)])) == 3 for i in range(40))
    assert len(everything(part)) == 3000
    holders = [sum((train.labels[part.indices(i)] == c).any() for i in range(40)) for c in range(10)]
    assert set(holders) == {12}  # 40 clients x 3 classes over 10: everybody's turn comes equally often


def test_classes_without_a_holder_are_reported(pool):
    assert "unused" in deal("classes(k=1)", pool(100, 10), 4).notes[0]


@pytest.mark.parametrize("alpha", [None, 0.1, 1.0])
def test_overlap_draws_without_replacement_inside_a_client(alpha, pool):
    part = Overlap(50, alpha).deal(pool(5000, 10), 200, 0)
    drawn = [part.indices(i) for i in range(200)]
    assert all(len(np.unique(d)) == 50 for d in drawn)
    assert len(np.unique(np.concatenate(drawn))) < 200 * 50  # clients overlap


def test_overlap_shares_are_those_of_the_test_twin(pool):
    """FedPart: 500 of 50,000 gives 100 of 10,000, by the same class shares."""
    train, test = pool(50_000, 10), pool(10_000, 10)
    part = Overlap(500, 0.1).deal(train, 40, 0)
    twin = part.mirror(test)
    for i in range(10):
        mix, mirrored = (np.bincount(p.labels[q.indices(i)], minlength=10) for p, q in ((train, part), (test, twin)))
        assert (mix.sum(), mirrored.sum()) == (500, 100)
        assert np.abs(mix / 5 - mirrored).max() <= 5  # each count is rounded, the last class takes the rest


def test_overlap_repeats_only_what_a_class_cannot_give(pool):
    part = Overlap(60, 0.01).deal(pool(100, 10), 5, 0)  # a class has 10 samples
    assert all(len(part.indices(i)) == 60 for i in range(5))


def test_overlap_of_a_million_clients_costs_nothing(pool):
    part = Overlap(20).deal(pool(1000, 10), 1_000_000, 0)
    few = Overlap(20).deal(pool(1000, 10), 100, 0)
    assert len(part) == 1_000_000
    assert len(pickle.dumps(part)) < 20_000
    assert np.array_equal(part.indices(7), few.indices(7))
    assert part.indices(999_999).shape == (20,)


def test_overlap_refuses_more_than_there_is(pool):
    with pytest.raises(DataError, match="size=100 or less"):
        Overlap(101).deal(pool(100, 2), 5, 0)


def natural_pool():
    return LabelView(
        6,
        np.zeros(6, dtype=np.int64),
        2,
        {"writer": Groups(("a", "b", "c", "d"), np.array([0, 1, 0, 3, 3, 3]), np.array([0, 0, 2]))},
    )


def test_natural_follows_the_groups_and_reuses_them_for_testing():
    part = deal("natural", natural_pool(), None)
    assert [part.indices(i).tolist() for i in range(3)] == [[0, 2], [1], [3, 4, 5]]
    assert "1 of 4 groups have no training sample" in part.notes[0]
    twin = part.mirror(LabelView(3, np.zeros(3, dtype=np.int64), 2, natural_pool().groups))
    assert [twin.indices(i).tolist() for i in range(3)] == [[0, 1], [], []]


def test_natural_chooses_some_groups_by_the_seed_and_says_so():
    part = deal("natural(by=writer)", natural_pool(), 2)
    assert len(part) == 2
    assert "chosen by the seed" in part.notes[-1]
    with pytest.raises(DataError, match="use 1 to 3"):
        deal("natural", natural_pool(), 4)


def test_natural_without_groups_names_the_way_out(pool):
    with pytest.raises(DataError, match="use iid or dirichlet"):
        deal("natural", pool(10, 2), None)
    with pytest.raises(DataError, match="Did you mean 'writer'"):
        deal("natural(by=writter)", natural_pool(), None)


@pytest.mark.parametrize("law", ["dirichlet(alpha=0.3)", "shards(s=2)", "classes(k=2)", "dirichlet_equal(alpha=1)"])
def test_class_laws_refuse_a_regression(law):
    with pytest.raises(DataError, match="no classes"):
        deal(law, LabelView(100, None, 1), 4)


@pytest.mark.parametrize(
    "law",
    [
        *[
            "dirichlet(alpha=0)",
            "dirichlet(alpha=-1)",
            "dirichlet(alpha=0.3, min=-1)",
            "dirichlet(alpha=0.3, tries=0)",
            "dirichlet(alfa=1)",
            "dirichlet",
        ],
        *[
            "dirichlet",
            "shards(s=0)",
            "classes(k=0)",
            "overlap(size=0)",
            "overlap(size=5, alpha=0)",
            "quantity(alpha=inf)",
        ],
    ],
)
def test_settings_that_cannot_be_meant_are_refused(law):
    with pytest.raises(ConfigError):
        find_law(parse_call(law))


def test_an_unknown_law_lists_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'dirichlet'"):
        find_law(parse_call("dirichlett(alpha=1)"))


def test_every_row_of_the_list_says_what_it_is():
    assert all(row.about and row.source and row.name for row in partitions())
    with pytest.raises(ConfigError, match="already"):
        register_law("iid", Overlap, about="x", source="y")


@pytest.mark.parametrize("law", ["shards(s=2)", "pooled", "iid", "overlap(size=3, alpha=1)", "dirichlet(alpha=1)"])
def test_partitions_travel_to_another_process(law, pool):
    part = pickle.loads(pickle.dumps(deal(law, pool(500, 10), 1 if law == "pooled" else 10)))
    assert part.indices(0).dtype == np.int64
    with pytest.raises(DataError, match="does not exist"):
        part.indices(len(part))


def test_a_flower_partitioner_deals_or_says_what_to_install(pool):
    law = find_law(parse_call("DirichletPartitioner(alpha=0.5)"))
    if importlib.util.find_spec("flwr_datasets") is None:
        with pytest.raises(DataError, match=r"pip install 'fedstrata\[hub\]'"):
            law.deal(pool(500, 5), 5, 0)
        return
    used = everything(law.deal(pool(500, 5), 5, 0))
    assert sorted(used.tolist()) == list(range(500))
