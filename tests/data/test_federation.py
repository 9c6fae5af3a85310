"""Federations: splits, test conventions, counts, fingerprints, arrays."""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedstrata.common.errors import ConfigError, DataError
from fedstrata.data import (
    DataSpec,
    Federation,
    check_spec,
    datasets,
    duplicates,
    label_table,
    load,
    partition_picture,
)
from helpers import lab


def arrays(n=200, classes=4, features=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, features)).astype(np.float32), rng.integers(0, classes, n)


def test_digits_is_the_default_and_its_test_fifth_does_not_move_with_the_seed():
    one, other = load(DataSpec()), load(DataSpec(seed=9))
    assert one.task.shape == (1, 8, 8)
    assert torch.equal(one.test.y, other.test.y)
    assert len(one.train) + len(one.test) == 1797
    x = one.train.take(torch.tensor([3, 1]))
    assert x.dtype == torch.float32
    assert x.is_contiguous()
    assert 0 <= x.min() <= x.max() <= 1
    share = one.test.y.bincount() / (one.test.y.bincount() + one.train.y.bincount())
    assert (share - 0.2).abs().max() < 0.004  # rounding of one sample in a class of about 180


def test_validation_is_taken_out_of_training_and_leaves_at_least_one():
    fed = load(DataSpec(partition="dirichlet(alpha=0.1, min=1)", clients=50, validation=0.3))
    for i in range(50):
        train, late, held = fed.training(i), fed.validating(i), fed.partition.indices(i)
        assert sorted([*train.tolist(), *late.tolist()]) == sorted(held.tolist())
        assert len(late) == min(int(0.3 * len(held) + 0.5), len(held) - 1)
        assert [v for v in held.tolist() if v in set(train.tolist())] == train.tolist()  # in the order drawn
        assert train.dtype == late.dtype == torch.int64


def test_counts_are_those_of_the_training_samples():
    fed = load(DataSpec(partition="dirichlet(alpha=0.3)", validation=0.2))
    assert torch.equal(fed.counts(3), fed.train.y[fed.training(3)].bincount(minlength=10))
    assert torch.equal(label_table(fed, [3, 4])[0], fed.counts(3))


def test_own_tests_draw_what_the_client_holds_of_each_class():
    fed = load(DataSpec(partition="dirichlet(alpha=0.1)", clients=10, test="both"))
    whole = fed.test.y.bincount(minlength=10)
    for i in range(10):
        samples, rows = fed.testing(i)
        assert samples is fed.test
        assert len(rows.unique()) == len(rows)
        held = fed.train.y[torch.from_numpy(fed.partition.indices(i).copy())].bincount(minlength=10)
        assert torch.equal(samples.y[rows].bincount(minlength=10), torch.minimum(held, whole))


def test_the_test_convention_says_who_tests():
    server, client, both, own = (load(DataSpec(test=how)) for how in ("server", "client", "both", "own(share=0.25)"))
    assert server.test is not None
    assert server.own_test is None
    assert server.testing(0) is None
    assert client.test is None
    assert client.testing(0) is not None
    assert both.test is not None
    assert both.testing(0) is not None
    assert own.test is None
    assert len(own.train) == 1797


@pytest.mark.parametrize("by", ["label", "random"])
def test_own_splits_never_meet_training_or_validation(by):
    fed = load(
        DataSpec(partition="dirichlet(alpha=0.1, min=1)", clients=40, test=f"own(share=0.25, by={by})", validation=0.2)
    )
    for i in range(40):
        samples, rows = fed.testing(i)
        parts = [set(part.tolist()) for part in (fed.training(i), fed.validating(i), rows)]
        assert samples is fed.train
        assert sum(map(len, parts)) == len(set.union(*parts)) == fed.partition.size(i)
        assert len(rows) == min(int(0.25 * fed.partition.size(i) + 0.5), fed.partition.size(i) - 1)


def test_own_splits_keep_the_class_mix():
    fed = load(DataSpec(clients=4, test="own(share=0.2)"))
    _, rows = fed.testing(0)
    held = fed.train.y[torch.from_numpy(fed.partition.indices(0).copy())].bincount(minlength=10)
    assert (fed.train.y[rows].bincount(minlength=10) - 0.2 * held).abs().max() < 1


def test_recipe_t4_one_sample_or_one_a_class_is_no_crash_and_is_reported():
    x, y = arrays(12, 4)
    client = ["single", *["each"] * 4, *["rest"] * 7]
    y[:12] = [0, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2]
    fed = Federation.of(x, y, client=client, testing="own(share=0.5)", validation=0.5)
    by_name = {len(fed.partition.indices(i)): i for i in range(3)}
    assert len(fed.training(by_name[1])) == 1
    assert len(fed.testing(by_name[1])[1]) == len(fed.validating(by_name[1])) == 0
    assert len(fed.testing(by_name[4])[1]) == 2
    assert any("a single sample" in note for note in fed.notes)


def test_row_59_clients_without_samples_are_named():
    fed = load(DataSpec(partition="dirichlet(alpha=0.01, min=0)", clients=40))
    empty = [i for i in range(40) if fed.partition.size(i) == 0]
    assert empty
    assert any(f"{len(empty)} clients ({empty[0]}" in note and "cannot train" in note for note in fed.notes)
    assert len(fed.training(empty[0])) == len(fed.validating(empty[0])) == 0
    assert fed.counts(empty[0]).tolist() == [0] * 10


def test_recipe_t6_sets_are_disjoint_the_official_test_is_untouched_and_counts_are_printed():
    fed = load(DataSpec(partition="dirichlet(alpha=0.3)", test="both", validation=0.1))
    found = duplicates(fed)
    assert (found.train_test, found.within_train, found.across_clients) == (0, 0, 0)
    told = fed.describe()
    held = sum(len(fed.training(i)) for i in range(fed.clients))
    assert f"clients hold {held} training and {1438 - held} validation samples" in told
    assert "server test 359 samples" in told


def test_row_61_planted_duplicates_are_counted():
    x, y = arrays(40)
    x[7] = x[3]
    late = np.concatenate([x[5:6], arrays(4, seed=1)[0]])
    fed = Federation.of(x, y, client=np.arange(40) % 4, test=(late, np.zeros(5, dtype=np.int64)))
    assert fed.partition.size(0) == 10
    found = duplicates(fed)
    assert (found.train_test, found.within_train, found.across_clients) == (1, 1, 0)  # 3 and 7 lie with one client
    x[8] = x[3]
    assert duplicates(Federation.of(x, y, client=np.arange(40) % 4)).across_clients == 1


def test_heldout_clients_are_a_seeded_share():
    fed = load(DataSpec(clients=20, heldout=0.25))
    assert len(fed.heldout) == 5
    assert list(fed.heldout) == sorted(set(fed.heldout))
    with pytest.raises(DataError, match="which is 0"):
        load(DataSpec(clients=20, heldout=0.01))


def test_a_million_registered_clients_cost_no_memory():
    load(DataSpec())  # imports and the digits themselves
    tracemalloc.start()
    fed = load(DataSpec(partition="overlap(size=20)", clients=1_000_000, test="both", validation=0.1))
    fed.training(123_456)
    fed.testing(999_999)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert fed.clients == 1_000_000
    assert peak < 5_000_000


def test_the_fingerprint_is_that_of_the_data_and_the_split():
    base = DataSpec(partition="dirichlet(alpha=0.3)")
    one = load(base).fingerprint
    assert one == load(replace(base, partition="dirichlet(0.3, min=10)")).fingerprint
    changed = [
        replace(base, seed=1),
        replace(base, partition="iid"),
        replace(base, clients=19),
        replace(base, validation=0.1),
        replace(base, test="both"),
    ]
    assert len({one, *(load(spec).fingerprint for spec in changed)}) == 6


@pytest.mark.full
def test_the_fingerprint_is_the_same_in_another_process_and_folder(tmp_path):
    code = "from fedstrata.data import load, DataSpec; print(load(DataSpec(data='synthetic', clients=5)).fingerprint)"
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert found == load(DataSpec(data="synthetic", clients=5)).fingerprint


def test_a_federation_travels_to_another_process():
    fed = load(DataSpec(partition="shards(s=2)", test="both", augment="flip"))
    copy = pickle.loads(pickle.dumps(fed))
    assert torch.equal(copy.training(3), fed.training(3))
    assert torch.equal(copy.testing(3)[1], fed.testing(3)[1])


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (DataSpec(data="digit"), "Did you mean 'digits'"),
        (DataSpec(data="synthetic(alpha=-1)"), "alpha is -1"),
        (DataSpec(data="cifar10(nrom=none)"), "Did you mean 'norm'"),
        (DataSpec(test="sever"), "Did you mean 'server'"),
        (DataSpec(test="own(share=1.5)"), "in \\(0, 1\\)"),
        (DataSpec(validation=1.0), "Did you mean 0.2"),
        (DataSpec(heldout=-0.1), "share"),
        (DataSpec(augment="flop"), "Did you mean 'flip'"),
        (DataSpec(partition="dirichlet(alpha=0)"), "positive"),
        (DataSpec(clients=0), "at least 1"),
    ],
)
def test_a_bad_setting_is_refused_before_any_file_is_opened(spec, said):
    with pytest.raises(ConfigError, match=said):
        check_spec(spec)


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (np.array([0, 1, -1, 0]), "row 2 has label -1"),
        (np.array([[0], [1]]), "shape"),
        (np.array(["a", "b"]), "class numbers"),
    ],
)
def test_row_56_labels_that_cannot_be_meant_name_the_row(y, said):
    with pytest.raises(DataError, match=said):
        Federation.of(np.zeros((len(y), 2), dtype=np.float32), y)


def test_row_56_labels_above_the_classes_and_float_labels_are_refused():
    x = np.zeros((4, 2), dtype=np.float32)
    with pytest.raises(DataError, match=r"row 3 has label 7 .* 0 to 1"):
        Federation.of(x, np.array([0, 1, 1, 7]), labels=("no", "yes"))
    with pytest.raises(DataError, match="not finite"):
        Federation.of(x, np.array([0.5, np.nan, 1, 1]))
    assert Federation.of(x, np.array([0.5, 0.25, 1, 1]), clients=2).task.kind == "regression"


def test_row_62_a_nan_feature_names_row_and_column():
    x, y = arrays()
    x[17, 2] = np.nan
    with pytest.raises(DataError, match="row 17, column 2 is nan"):
        Federation.of(x, y)


def test_arrays_of_images_tokens_and_shapes():
    rng = np.random.default_rng(0)
    y = np.arange(40) % 4
    images = Federation.of(rng.integers(0, 256, (40, 3, 5, 5), dtype=np.uint8), y, clients=4)
    assert images.task.shape == (3, 5, 5)
    assert images.train.take(torch.arange(40)).max() <= 1
    tokens = Federation.of(rng.integers(0, 9, (40, 7)), y, vocabulary=9, clients=4)
    assert tokens.train.take(torch.arange(2)).dtype == torch.int64
    assert tokens.task.vocabulary == 9
    with pytest.raises(DataError, match="tokens are 0 to 4"):
        Federation.of(rng.integers(0, 9, (40, 7)), y, vocabulary=5)
    with pytest.raises(DataError, match="int64"):
        Federation.of(rng.integers(0, 9, (40, 7)), y)
    with pytest.raises(DataError, match="names the holder"):
        Federation.of(rng.normal(size=(40, 2)), y, client=[1, 2])


def test_arrays_with_clients_are_natural_and_test_by_group():
    x, y = arrays(20)
    fed = Federation.of(x, y, client=["b", "a"] * 10, test=(x[:4], y[:4], ["a", "a", "b", "a"]), testing="both")
    assert fed.partition.law == "natural(by=client)"
    assert fed.testing(0)[1].tolist() == [0, 1, 3]


def test_read_only_arrays_are_copied_without_a_warning():
    x, y = arrays(20)
    x.setflags(write=False)
    assert Federation.of(x, y, clients=2).clients == 2


def test_the_list_of_data_sets_says_what_each_is():
    rows = datasets()
    assert {
        "digits",
        "mnist",
        "fashion_mnist",
        "cifar10",
        "cifar100",
        "tiny_imagenet",
        "pacs",
        "table",
        "ag_news",
        "shakespeare",
    } <= {r.name for r in rows}
    assert all(row.about and row.source for row in rows)


@pytest.mark.parametrize("name", [row.name for row in datasets() if row.offline])
def test_recipe_t34_bundled_data_need_no_network_and_no_files(name):
    fed = load(DataSpec(data=name, clients=4, partition="iid"))
    assert fed.train.take(fed.training(0)[:2]).shape[1:] == fed.task.shape


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100", "tiny_imagenet", "pacs", "ag_news", "shakespeare"])
def test_recipe_t34_missing_files_name_the_folder_and_the_remedy(name, tmp_path):
    with pytest.raises(DataError, match=r"set data.root=FOLDER .*data=digits needs no files"):
        load(DataSpec(data=name))
    with pytest.raises(DataError, match=r"nowhere does not exist; set data\.root=FOLDER"):
        load(DataSpec(data=name, root=tmp_path / "nowhere"))
    with pytest.raises(DataError, match="found none of"):
        load(DataSpec(data=name, root=tmp_path))


def test_the_environment_names_a_root_where_none_is_given(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(DataError, match="elsewhere does not exist"):
        load(DataSpec(data="mnist"))


@pytest.mark.parametrize(
    "spec",
    [
        DataSpec(partition="dirichlet(alpha=0.3)"),
        DataSpec(data="diabetes"),
        DataSpec(partition="overlap(size=9)", clients=10**6),
    ],
)
def test_the_partition_picture_is_drawn_for_any_federation(spec, tmp_path):
    partition_picture(load(spec), tmp_path / "p.png")
    assert (tmp_path / "p.png").stat().st_size > 2000


def test_the_partition_picture_has_a_bound(tmp_path):
    with pytest.raises(DataError, match="at most 100"):
        partition_picture(load(DataSpec(clients=200)), tmp_path / "p.png", range(101))


def test_synthetic_follows_the_released_rule():
    fed = load(DataSpec(data="synthetic(alpha=1, beta=1)", test="both"))
    assert fed.clients == 30
    sizes = [fed.partition.size(i) + len(fed.testing(i)[1]) for i in range(30)]
    assert min(sizes) >= 50
    assert [fed.partition.size(i) for i in range(30)] == [int(0.9 * size) for size in sizes]
    wide = load(DataSpec(data="synthetic_iid", clients=40)).train.x
    assert torch.allclose(wide.var(0), torch.arange(1, 61) ** -1.2, rtol=0.2)  # 10,000 samples or more: a few percent


def test_synthetic_does_not_move_with_the_run_seed():
    one, other = (load(DataSpec(data="synthetic", seed=s)) for s in (0, 1))
    assert torch.equal(one.train.x, other.train.x)


def test_synthetic_clients_are_made_once_and_may_be_dealt_anew():
    with pytest.raises(DataError, match=r"would take 108\.0 GB; set synthetic\(clients="):
        load(DataSpec(data="synthetic", clients=1_000_000, partition="overlap(size=20)"))
    fed = load(DataSpec(data="synthetic(clients=5)", clients=1_000_000, partition="overlap(size=20)"))
    assert fed.clients == 1_000_000


def test_overlap_tests_have_the_size_asked_for():
    fed = load(DataSpec(partition="overlap(size=30, test=9)", test="client"))
    assert len(fed.testing(0)[1]) == 9
    with pytest.raises(DataError, match="use test=359 or less"):
        load(DataSpec(partition="overlap(size=30, test=400)", test="client"))


def test_the_fingerprint_of_arrays_sees_their_features():
    x, y = torch.arange(240.0).reshape(120, 2), torch.arange(120) % 3
    same, edited = Federation.of(x.clone(), y), Federation.of(x + 1, y)
    assert Federation.of(x, y).fingerprint == same.fingerprint != edited.fingerprint
    tests = [Federation.of(x, y, test=(x + shift, y)).fingerprint for shift in (0, 1)]
    assert tests[0] != tests[1]


def test_row_56_a_label_that_the_model_has_no_output_for_never_reaches_the_loss():
    data = lab.federation()
    with pytest.raises(DataError, match="label 7"):
        Federation.of(
            data.train.x.numpy(), np.where(np.arange(54) == 9, 7, data.train.y.numpy()), labels=("a", "b", "c")
        )
    assert dataclasses.replace(data).task.classes == lab.CLASSES
