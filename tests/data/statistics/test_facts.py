"""Facts of a federation: exact counts, names, skew that means what it says."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.common.errors import DataError, StateError
from fedstrata.data import DataSpec, Facts, Federation, facts_of, load
from fedstrata.data.statistics.divergence import (
    between_share,
    effective_classes,
    jensen_shannon,
    missing_classes,
    quantity_skew,
)
from fedstrata.data.statistics.interpretation import SCALES, meanings, word
from fedstrata.data.statistics.survey import survey


def federation(owners, y, *, x=None, features=4, seed=0, **more):
    owners, y = np.asarray(owners), np.asarray(y)
    x = np.random.default_rng(seed).normal(size=(len(y), features)).astype(np.float32) if x is None else x
    return Federation.of(x, y, client=owners, **more)


def dealt(law, seed=0, **more):
    return facts_of(load(DataSpec(partition=law, seed=seed, **more))).skew


# ---- counts and names


def test_sizes_counts_and_names_are_those_of_the_clients():
    fed = federation(["north"] * 3 + ["south"] * 5, [0, 0, 1, 1, 1, 2, 2, 0], testing="own(share=0.01)")
    facts = facts_of(fed)
    assert (facts.clients, facts.train, facts.validation, facts.test, facts.own_test) == (2, 8, 0, 0, 0)
    assert (facts.names, facts.sizes, facts.counts) == (("north", "south"), (3, 5), ((2, 1, 0), (1, 2, 2)))
    assert facts.chance is None  # nobody has a test sample


@pytest.mark.parametrize("test", ["server", "client", "both", "own(share=0.2)"])
@pytest.mark.parametrize("validation", [0.0, 0.2])
def test_totals_are_the_sums_over_the_splits(test, validation):
    fed = load(DataSpec(partition="dirichlet(alpha=0.3)", test=test, validation=validation, heldout=0.2))
    facts = facts_of(fed)
    assert facts.train == sum(len(fed.training(i)) for i in range(20))
    assert facts.validation == sum(len(fed.validating(i)) for i in range(20))
    assert facts.own_test == (0 if test == "server" else sum(len(fed.testing(i)[1]) for i in range(20)))
    assert facts.test == (len(fed.test) if fed.test is not None else 0)
    assert facts.heldout == 4
    assert [list(row) for row in facts.counts] == [fed.counts(i).tolist() for i in range(20)]


def test_chance_is_that_of_the_commonest_class_of_whoever_tests():
    x, y = np.zeros((6, 2), dtype=np.float32), np.array([0, 1, 0, 1, 0, 1])
    late = (np.zeros((4, 2), dtype=np.float32), np.array([1, 1, 1, 0]), np.array([0, 0, 1, 1]))
    fed = Federation.of(x, y, client=np.arange(6) % 2, test=late, testing="both")
    assert facts_of(fed).chance == 0.75
    own = Federation.of(
        x, y, client=np.arange(6) % 2, test=(late[0], np.array([0, 1, 1, 1]), late[2]), testing="client"
    )
    assert (own.test, facts_of(own).chance) == (None, 0.75)


def test_more_than_two_hundred_clients_are_shown_evenly_and_counted_all():
    fed = federation(np.arange(900) % 300, np.arange(900) % 3, testing="own(share=0.4)")
    facts = facts_of(fed)
    assert len(facts.shown) == len(facts.names) == len(facts.sizes) == len(facts.counts) == 200
    assert (facts.shown[0], facts.shown[-1]) == (0, 299)
    assert facts.train == sum(len(fed.training(i)) for i in range(300))
    assert all(facts.sizes[k] == len(fed.training(i)) for k, i in enumerate(facts.shown))


def test_a_million_derived_clients_cost_what_the_shown_ones_cost():
    fed = load(DataSpec(partition="overlap(size=20)", clients=1_000_000, test="both", validation=0.1))
    before = time.perf_counter()
    facts = facts_of(fed)
    assert time.perf_counter() - before < 5  # 200 clients take a tenth of a second
    assert (facts.clients, len(facts.shown), facts.train, facts.validation) == (1_000_000, 200, 18_000_000, 2_000_000)
    assert "200 of 1,000,000 clients were surveyed" in facts.notes[-1]


def test_fifty_thousand_listed_clients_are_counted_exactly_and_at_once():
    sizes = np.random.default_rng(0).integers(1, 4, 50_000)
    fed = federation(
        np.repeat(np.arange(50_000), sizes),
        np.arange(sizes.sum()) % 3,
        features=1,
        testing="server",
        test=(np.zeros((3, 1), np.float32), [0, 1, 2]),
    )
    before = time.perf_counter()
    facts = facts_of(fed)
    assert time.perf_counter() - before < 5  # 0.2 s on an idle core
    assert (facts.train, len(facts.shown)) == (sizes.sum(), 200)
    assert facts.sizes == tuple(sizes[list(facts.shown)])
    assert not any("looked at" in note for note in facts.notes)


def test_clients_without_names_are_called_by_their_number():
    fed = load(DataSpec(clients=5))
    assert not fed.named
    assert [fed.client_name(i) for i in (0, 4)] == ["0", "4"]
    with pytest.raises(DataError, match="client 5 does not exist"):
        fed.client_name(5)


def test_names_follow_the_groups_that_the_seed_chose():
    owners = np.repeat(["ann", "bob", "cid", "dot"], 6)
    fed = federation(owners, np.arange(24) % 2, clients=2, seed=3, testing="own(share=0.2)")
    for client in range(2):
        assert set(owners[fed.partition.indices(client)]) == {fed.client_name(client)}
    assert fed.named


def test_columns_that_hold_the_numbers_themselves_are_no_names():
    fed = federation(np.arange(20) % 4, np.arange(20) % 2, testing="own(share=0.2)")
    assert not fed.named


# ---- JSON


@pytest.mark.parametrize(
    "spec", [DataSpec(), DataSpec(data="diabetes"), DataSpec(data="eeg"), DataSpec(partition="pooled")], ids=str
)
def test_facts_survive_json(spec):
    facts = facts_of(load(spec))
    assert Facts.read(json.loads(json.dumps(facts.as_dict(), allow_nan=False))) == facts


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"clients": None}, "clients is 'None', which is not a count"),
        ({"clients": True}, "clients"),
        ({"clients": -1}, "clients"),
        ({"chance": float("nan")}, "chance"),
        ({"sizes": [1.5]}, "sizes"),
        ({"names": "ann"}, "names"),
        ({"counts": [[1], 2]}, "counts"),
        ({"skew": {"label_js": "much"}}, "skew"),
        ({"colour": "red"}, "hold colour"),
    ],
)
def test_facts_that_cannot_be_meant_are_refused_by_field(change, said):
    plain = facts_of(load(DataSpec())).as_dict()
    with pytest.raises(StateError, match=said):
        Facts.read(plain | change)


def test_a_missing_field_and_another_thing_are_refused():
    plain = facts_of(load(DataSpec())).as_dict()
    for name in plain:
        with pytest.raises(StateError, match=f"lack {name}"):
            Facts.read({key: value for key, value in plain.items() if key != name})
    with pytest.raises(StateError, match="JSON object"):
        Facts.read([])


# ---- skew


def test_label_numbers_are_those_of_the_formulas():
    counts = np.array([[8, 0, 0, 0], [0, 4, 4, 0], [2, 2, 2, 2]])
    assert effective_classes(counts) == pytest.approx([1, 2, 4], abs=1e-12)
    assert missing_classes(counts) == pytest.approx([3 / 4, 2 / 4, 0], abs=1e-12)
    pooled = counts.sum(0) / counts.sum()
    for row, found in zip(counts / counts.sum(1, keepdims=True), jensen_shannon(counts), strict=True):
        middle = (row + pooled) / 2
        parts = [sum(p * np.log2(p / m) for p, m in zip(q, middle, strict=True) if p) for q in (row, pooled)]
        assert found == pytest.approx(sum(parts) / 2, abs=1e-12)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.integers(0, 30), min_size=3, max_size=3).filter(any), min_size=1, max_size=12))
def test_divergence_lies_between_0_and_1_and_is_0_for_equal_clients(rows):
    counts = np.array(rows)
    found = jensen_shannon(counts)
    assert (found > -1e-12).all()
    assert (found <= 1).all()
    assert jensen_shannon(np.repeat(counts[:1], 3, axis=0)) == pytest.approx(0, abs=1e-12)


def test_quantity_numbers_are_those_of_the_formulas():
    sizes = np.array([0, 10, 10, 10, 10, 10, 10, 10, 10, 120])
    found = quantity_skew(sizes)
    assert found["quantity_gini"] == pytest.approx(
        np.abs(sizes[:, None] - sizes[None]).sum() / (2 * 10 * sizes.sum()), abs=1e-12
    )
    assert found["quantity_max_median"] == 12
    assert found["quantity_smallest_tenth"] == 0
    assert quantity_skew(np.full(30, 7)) == {
        "quantity_gini": 0,
        "quantity_max_median": 1,
        "quantity_smallest_tenth": pytest.approx(0.1),
    }
    assert set(quantity_skew(np.zeros(3, dtype=np.int64)).values()) == {None}
    assert quantity_skew(np.full(25, 3))["quantity_smallest_tenth"] == pytest.approx(0.1)


@pytest.mark.parametrize("seed", range(5))
def test_samples_dealt_at_random_show_no_skew(seed):
    skew = dealt("iid", seed)
    assert abs(skew["label_js"] - skew["label_js_chance"]) < 0.01
    assert abs(skew["label_classes"] - skew["label_classes_chance"]) < 0.2
    assert skew["quantity_gini"] == 0
    assert abs(skew["feature_shift"]) < 0.03


def test_chance_is_passed_by_samples_dealt_at_random_about_once_in_twenty_times():
    passed = sum((skew := dealt("iid", seed))["feature_shift"] > skew["feature_shift_chance"] for seed in range(60))
    assert passed <= 9  # 3 expected; 10 or more in 60 happen once in 1,500 times


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 10_000))
def test_label_skew_grows_as_alpha_falls(seed):
    found = [dealt(f"dirichlet(alpha={alpha}, min=1)", seed)["label_js"] for alpha in (100, 1, 0.1)]
    assert found[0] < found[1] < found[2]
    assert found[2] > 0.35


def test_quantity_skew_grows_as_alpha_falls():
    gini = [
        [dealt(f"quantity(alpha={alpha}, min=0)", seed)["quantity_gini"] for seed in range(8)]
        for alpha in (100, 1, 0.1)
    ]
    assert max(gini[0]) < min(gini[1])
    assert max(gini[1]) < min(gini[2])


def test_label_skew_alone_is_no_feature_skew():
    skew = dealt("dirichlet(alpha=0.1, min=1)")
    assert skew["label_js"] > 0.35
    assert abs(skew["feature_shift"]) < 0.03


@pytest.mark.parametrize("shift", [0.0, 0.5, 1.0, 3.0])
def test_a_planted_shift_of_clients_is_measured_as_its_share_of_the_variance(shift):
    rng = np.random.default_rng(1)
    owners, y = np.arange(4000) % 40, rng.integers(0, 3, 4000)
    centres = shift * rng.normal(size=(40, 6))
    x = (rng.normal(size=(4000, 6)) + centres[owners] + 5 * y[:, None]).astype(
        np.float32
    )  # labels differ far more, and do not count
    found = facts_of(federation(owners, y, x=x, testing="own(share=0.1)")).skew["feature_shift"]
    assert found == pytest.approx(
        shift**2 / (1 + shift**2), abs=0.12
    )  # 40 clients estimate the spread of centres to about 0.1
    assert found < 0.02 or shift > 0


def test_the_share_of_a_split_into_equal_halves_is_known():
    values = np.array([[0.0], [2.0], [10.0], [12.0]])
    owners, labels = np.array([0, 0, 1, 1]), np.zeros(4, dtype=np.int64)
    inner, outer = 4 / 2, 104 / 3  # sums of squares over degrees of freedom
    assert between_share(values, labels, owners) == pytest.approx(1 - inner / outer, abs=1e-12)
    assert between_share(values, labels, np.arange(4)) is None  # a client with one sample says nothing about its spread
    assert between_share(np.ones((4, 1)), labels, owners) is None


def test_a_regression_has_shifts_of_features_and_targets_and_no_labels():
    rng = np.random.default_rng(0)
    owners = np.arange(600) % 6
    fed = federation(owners, (rng.normal(size=600) + 3 * owners).astype(np.float32), testing="own(share=0.1)")
    facts = facts_of(fed)
    assert (facts.labels, facts.chance) == ((), None)
    assert facts.skew["target_shift"] > 0.9
    assert facts.skew["target_shift"] > facts.skew["target_shift_chance"]
    assert abs(facts.skew["feature_shift"]) < 0.05
    assert "label_js" not in facts.skew


def test_tokens_that_one_client_alone_uses_are_feature_skew():
    rng = np.random.default_rng(0)
    owners, y = np.arange(800) % 8, rng.integers(0, 2, 800)
    same = rng.integers(0, 40, (800, 12))
    other = same % 5 + 5 * owners[:, None]
    alike, differ = (
        facts_of(federation(owners, y, x=tokens, vocabulary=40, testing="own(share=0.1)")).skew["feature_shift"]
        for tokens in (same, other)
    )
    assert abs(alike) < 0.03
    assert differ > 0.5


def test_one_client_differs_from_nobody():
    skew = facts_of(load(DataSpec(partition="pooled"))).skew
    assert {name for name, value in skew.items() if value is None} >= {
        "label_js",
        "label_js_chance",
        "feature_shift",
        "feature_shift_chance",
    }
    assert skew["quantity_gini"] == 0


def test_one_class_has_no_label_skew():
    skew = facts_of(federation(np.arange(40) % 4, np.zeros(40, dtype=np.int64), testing="own(share=0.2)")).skew
    assert (skew["label_js"], skew["label_classes"], skew["label_missing"]) == (0, 1, 0)


def test_empty_clients_count_as_sizes_and_not_as_labels():
    whole = federation([0] * 10 + [1] * 10, [0, 1] * 10, testing="own(share=0.01)")
    holes = replace(
        whole,
        partition=type(whole.partition).of(
            "made", [whole.partition.indices(0), np.zeros(0, np.int64), whole.partition.indices(1)]
        ),
    )
    facts = facts_of(replace(holes, own_test=None))
    assert facts.sizes == (10, 0, 10)
    assert facts.skew["label_js"] == 0
    assert facts.skew["quantity_gini"] == pytest.approx(1 / 3, abs=1e-6)


def test_nobody_with_a_sample_gives_facts_all_the_same():
    whole = federation([0] * 4 + [1] * 4, [0, 1] * 4, testing="own(share=0.01)")
    none = replace(whole, own_test=None, partition=type(whole.partition).of("made", [np.zeros(0, np.int64)] * 3))
    facts = facts_of(none)
    assert (facts.train, facts.sizes) == (0, (0, 0, 0))
    assert set(facts.skew.values()) == {None}


def test_pictures_read_from_files_are_left_alone_unless_asked(tmp_path, monkeypatch):
    fed = load(DataSpec())
    lazy = replace(fed, train=_Lazy(fed.train))
    assert "feature_shift" not in facts_of(lazy).skew
    assert facts_of(lazy, features=True).skew["feature_shift"] == facts_of(fed).skew["feature_shift"]


class _Lazy:
    lazy = True

    def __init__(self, samples):
        self.samples, self.y, self.take = samples, samples.y, samples.take

    def __len__(self):
        return len(self.samples)


def test_the_quick_way_and_the_walk_count_alike():
    fed = load(DataSpec(partition="dirichlet(alpha=0.3)", clients=30))
    quick = survey(fed)
    walked = survey(replace(fed, partition=_Walked(fed.partition)))
    assert np.array_equal(quick.training, walked.training)
    assert np.array_equal(quick.counts, walked.counts)


class _Walked:
    """A partition that only answers for single clients."""

    def __init__(self, inner):
        self.inner, self.law, self.notes, self.lazy, self.names = inner, inner.law, inner.notes, False, ()

    def __len__(self):
        return len(self.inner)

    def size(self, client):
        return self.inner.size(client)

    def indices(self, client):
        return self.inner.indices(client)

    def mirror(self, test):
        return self.inner.mirror(test)


@pytest.mark.full
def test_cifar10_with_a_hundred_clients_takes_a_moment(real):
    fed = load(DataSpec(data="cifar10", root=real("cifar10"), partition="dirichlet(alpha=0.1)", clients=100))
    before = time.perf_counter()
    facts = facts_of(fed)
    assert time.perf_counter() - before < 3  # 0.3 s on an idle core
    assert (facts.train, facts.chance, facts.skew["label_js"] > 0.5) == (50_000, 0.1, True)


@pytest.mark.parametrize(
    ("data", "law", "label", "features"),
    [
        ("mnist", "natural", "none", "strong"),  # writers write every digit, each in a hand of their own
        ("pacs", "natural", "none", "strong"),  # photographs, paintings, cartoons, sketches
        ("shakespeare", "natural", "none", "low"),  # all roles speak one English
        ("cifar10", "dirichlet(alpha=0.3)", "strong", "none"),
        ("cifar10", "dirichlet(alpha=1)", "moderate", "none"),
        ("cifar10", "iid", "none", "none"),
    ],
)
def test_words_fit_what_everybody_knows_about_these_data(real, data, law, label, features):
    fed = load(DataSpec(data=data, root=real(data), partition=law, clients=100 if data == "cifar10" else None))
    found = {meaning.name: meaning.word for meaning in meanings(facts_of(fed, features=True).skew)}
    assert (found["label_skew"], found["feature_shift"]) == (label, features)


@pytest.mark.parametrize(
    ("value", "chance", "said"),
    [(0.3, 0.01, "strong"), (0.1, 0.01, "moderate"), (0.02, 0.01, "low"), (0.02, 0.03, "none")],
)
def test_a_shift_that_chance_reaches_is_none(value, chance, said):
    scale = next(scale for scale in SCALES if scale.name == "feature_shift")
    assert word(scale, value, chance) == said
    assert word(scale, None, None) == "unknown"
