"""Samples met more than once: exact counts, and where the copies lie."""

from __future__ import annotations

import numpy as np

from fedstrata.data import Copy, DataSpec, Federation, duplicates, load


def arrays(n, seed=0):
    return np.random.default_rng(seed).normal(size=(n, 3)).astype(np.float32), np.arange(n) % 2


def test_a_copy_in_the_test_set_is_told_with_its_holder_and_both_places():
    x, y = arrays(8)
    late, targets = arrays(4, seed=1)
    late[2] = x[5]
    fed = Federation.of(x, y, client=np.repeat(["ann", "bob"], 4), test=(late, targets))
    found = duplicates(fed)
    assert (found.train_test, found.tested, found.within_train, found.across_clients, found.two_labels) == (
        1,
        4,
        0,
        0,
        0,
    )
    assert found.examples == (Copy("train-test", (1, 5), ("test set", 2)),)


def test_a_content_that_two_clients_hold_counts_once_however_often_they_hold_it():
    x = arrays(9)[0]
    x[[3, 4, 7]] = x[0]
    fed = Federation.of(x, np.zeros(9, dtype=np.int64), client=np.repeat([0, 1, 2], 3), testing="own(share=0.01)")
    found = duplicates(fed)
    assert (found.within_train, found.across_clients) == (3, 1)
    assert found.examples == (Copy("clients", (0, 0), (1, 3)),)


def test_one_content_under_two_labels_is_counted():
    x, y = arrays(8)
    x[1] = x[0]  # labels 0 and 1
    x[4] = x[2]  # labels 0 and 0
    found = duplicates(Federation.of(x, y, client=np.zeros(8, dtype=np.int64), testing="own(share=0.01)"))
    assert (found.within_train, found.two_labels) == (2, 1)
    assert found.examples == (Copy("labels", (0, 0), (0, 1)),)


def test_tests_that_clients_keep_of_their_own_samples_are_compared_with_what_is_trained_on():
    x, y = arrays(40)
    fed = Federation.of(x, y, client=np.arange(40) % 4, testing="own(share=0.25)")
    kept = fed.testing(2)[1].tolist()
    assert duplicates(fed).train_test == 0
    trained = fed.training(0).tolist()[0]
    x[kept[0]] = x[trained]
    again = duplicates(Federation.of(x, y, client=np.arange(40) % 4, testing="own(share=0.25)"))
    assert (again.train_test, again.tested) == (1, sum(len(fed.testing(i)[1]) for i in range(4)))
    assert Copy("train-test", (0, trained), (2, kept[0])) in again.examples


def test_almost_equal_is_not_equal():
    x, y = arrays(6)
    x[1] = np.nextafter(x[0], np.float32(9))
    found = duplicates(Federation.of(x, y, client=np.zeros(6, dtype=np.int64), testing="own(share=0.01)"))
    assert found.within_train == 0


def test_clients_that_overlap_by_law_are_only_compared_when_asked():
    fed = load(DataSpec(partition="overlap(size=200)", clients=1_000_000, test="both"))
    assert duplicates(fed, ()).across_clients == 0
    assert duplicates(fed, range(20)).across_clients > 500  # 20 draws of 200 out of 1,438


def test_a_regression_has_no_labels_to_contradict():
    x, y = arrays(6)
    x[1] = x[0]
    found = duplicates(
        Federation.of(x, y.astype(np.float32), client=np.zeros(6, dtype=np.int64), testing="own(share=0.01)")
    )
    assert (found.within_train, found.two_labels) == (1, 0)
