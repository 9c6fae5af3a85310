"""Tables and time series: encoding, sums-only normalisation, what is refused (fault rows 56 and 62)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedstrata.common.errors import ConfigError, DataError
from fedstrata.data import DataSpec, load
from fedstrata.data.io.normalization import Scaling, Sums

ROWS = 60


def table(path, **columns):
    names = list(columns)
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(names), *(",".join(str(v) for v in row) for row in rows)]) + "\n")
    return path


def columns(seed=0, **more):
    rng = np.random.default_rng(seed)
    base = {
        "age": rng.integers(20, 80, ROWS),
        "weight": rng.normal(70, 9, ROWS).round(2),
        "colour": rng.choice(["red", "green"], ROWS),
        "site": np.repeat(["a", "b", "c"], ROWS // 3),
        "ill": rng.choice(["no", "yes"], ROWS),
    }
    return base | more


def spec(path, **more):
    settings = "".join(f", {k}={v}" for k, v in ({"label": "ill", "client": "site"} | more).items() if v is not None)
    return DataSpec(data=f"table(path={str(path)!r}{settings})")


def test_a_table_with_a_client_column_is_natural(tmp_path):
    fed = load(spec(table(tmp_path / "t.csv", **columns())))
    assert fed.clients == 3
    assert fed.task.labels == ("no", "yes")
    assert fed.task.shape == (4,)  # two numbers, two words
    assert (len(fed.train), len(fed.test)) == (48, 12)


def test_numbers_are_normalised_by_what_the_clients_train_on(tmp_path):
    base = replace(spec(table(tmp_path / "t.csv", **columns())), validation=0.25, heldout=0.34, test="both")
    fed = load(base)
    rows = torch.cat([fed.training(i) for i in range(3) if i not in fed.heldout])
    x = fed.train.take(rows)[:, :2].double()
    assert torch.allclose(x.mean(0), torch.zeros(2, dtype=torch.double), atol=1e-6)  # float32
    assert torch.allclose(x.var(0, unbiased=False), torch.ones(2, dtype=torch.double), atol=1e-6)
    everything = fed.train.take(torch.arange(len(fed.train)))[:, :2]
    assert everything.mean(0).abs().max() > 1e-3  # held-out clients and validation did not count
    assert torch.equal(fed.testing(0)[0].x, fed.test.x)


def test_sums_of_clients_give_what_the_pool_gives():
    values = np.random.default_rng(0).normal(1e6, 3.0, (1000, 4))
    values[::7, 1] = np.nan
    whole = Scaling.from_sums([Sums.of(values)], 4)
    parts = Scaling.from_sums([Sums.of(part) for part in np.array_split(values, 37)], 4)
    np.testing.assert_allclose(parts.mean, np.nanmean(values, 0), rtol=1e-12)
    np.testing.assert_allclose(
        parts.std, np.nanstd(values, 0), rtol=1e-3
    )  # 1e12 * 1e-16 of the squared mean against a variance of 9
    np.testing.assert_allclose(whole.mean, parts.mean, rtol=1e-12)
    added = Sums.of(values[:10]) + Sums.of(values[10:])
    np.testing.assert_allclose(added.total, Sums.of(values).total)


def test_row_62_a_constant_column_becomes_zero_and_is_named(tmp_path):
    fed = load(spec(table(tmp_path / "t.csv", **columns(weight=np.full(ROWS, 0.1)))))
    assert (fed.train.x[:, 1] == 0).all()
    assert (fed.test.x[:, 1] == 0).all()
    assert any("'weight' is constant" in note for note in fed.notes)


@pytest.mark.parametrize("gap", ["", "NA", "nan", "?"])
def test_row_62_a_missing_number_is_refused_or_imputed_by_config(gap, tmp_path):
    weight = [gap if k == 17 else k for k in range(ROWS)]
    path = table(tmp_path / "t.csv", **columns(weight=weight))
    with pytest.raises(
        DataError, match=r"column 'weight', row 17 is missing \(1 rows in all\); use missing=impute or drop=\[weight\]"
    ):
        load(spec(path))
    fed = load(spec(path, missing="impute"))
    both = torch.cat([fed.train.x, fed.test.x])
    assert int((both[:, 1] == 0).sum()) == 1  # the training mean
    assert load(spec(path, drop="[weight]")).task.shape == (3,)


def test_a_missing_word_is_a_level_of_its_own(tmp_path):
    path = table(tmp_path / "t.csv", **columns(colour=["" if k % 5 == 0 else "red" for k in range(ROWS)]))
    assert load(spec(path, missing="impute")).task.shape == (4,)


def test_a_level_of_the_test_rows_only_is_all_zeros(tmp_path):
    split = ["test" if k % 4 == 0 else "train" for k in range(ROWS)]
    colour = ["blue" if k == 0 else "red" if k % 2 else "green" for k in range(ROWS)]
    fed = load(spec(table(tmp_path / "t.csv", **columns(colour=colour, part=split)), split="part"))
    assert len(fed.test) == 15
    assert fed.test.x[0, 2:].tolist() == [0, 0]
    assert (fed.test.x[1:, 2:].sum(1) == 1).all()


def test_numbers_may_be_names(tmp_path):
    fed = load(spec(table(tmp_path / "t.csv", **columns(age=np.arange(ROWS) % 5)), categorical="[age]"))
    assert fed.task.shape == (8,)


@pytest.mark.parametrize(
    ("label", "more", "said"),
    [
        (["yes"] * 59 + [""], {}, "label 'ill', row 59 is missing"),
        ([0.5] + [1.0] * 59, {"kind": "classification"}, "row 0 is 0.5; classes are whole numbers"),
        (["no"] * 60, {}, "1 different values"),
        (["no", "yes"] * 30, {"kind": "regression"}, "a regression needs numbers"),
    ],
)
def test_row_56_labels_that_cannot_be_meant_are_refused(label, more, said, tmp_path):
    with pytest.raises(DataError, match=said):
        load(spec(table(tmp_path / "t.csv", **columns(ill=label)), **more))


@pytest.mark.parametrize(
    ("label", "kind", "classes"),
    [
        (np.arange(ROWS) % 3, "classification", 3),
        (np.arange(ROWS) / 7, "regression", 1),
        (np.arange(ROWS) % 3 == 0, "classification", 2),
    ],
)
def test_the_task_follows_from_the_label(label, kind, classes, tmp_path):
    fed = load(spec(table(tmp_path / "t.csv", **columns(ill=label))))
    assert (fed.task.kind, fed.task.classes) == (kind, classes)


def test_class_numbers_keep_their_own_order(tmp_path):
    assert load(spec(table(tmp_path / "t.csv", **columns(ill=[2, 10, 1] * 20)))).task.labels == ("1", "2", "10")


def test_regression_targets_are_in_standard_deviations_or_raw(tmp_path):
    path = table(tmp_path / "t.csv", **columns(ill=np.arange(ROWS) * 1000.5))
    fed = load(spec(path))
    assert torch.allclose(fed.train.y.std(unbiased=False), torch.tensor(1.0))
    assert fed.counts(0).tolist() == [16]
    assert any("standard deviations" in note for note in fed.notes)
    assert load(spec(path, target="raw")).train.y.max() > 50_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n3\n", "line 3 has 1 values for 2 columns"),
        ("a,a\n1,2\n", "column 'a' is named twice"),
        ("a,b\n", "there is no data row"),
        ('a,b\n"1,2\n', "cannot be read as a table"),
        ("a,ill\ninf,yes\n1,no\n", "column 'a', row 0 is infinite"),
    ],
)
def test_a_file_that_is_no_table_is_refused(text, said, tmp_path):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=said):
        load(spec(tmp_path / "t.csv", client=None))


def test_wrong_names_files_and_settings_are_refused(tmp_path):
    path = table(tmp_path / "t.csv", **columns())
    with pytest.raises(DataError, match="Did you mean 'site'"):
        load(spec(path, client="sites"))
    with pytest.raises(DataError, match=r"\.csv, \.tsv and \.parquet"):
        load(spec(path.rename(tmp_path / "t.xls")))
    with pytest.raises(DataError, match=r"set path=FILE"):
        load(spec(tmp_path / "none.csv"))
    with pytest.raises(ConfigError, match="give one"):
        load(spec(path, split="a", tested="b"))
    long = table(tmp_path / "l.csv", a=[f"id{k}" for k in range(1100)], ill=["x", "y"] * 550)
    with pytest.raises(DataError, match="looks like an identifier"):
        load(spec(long, client=None))


def test_an_identifier_as_client_column_makes_single_sample_clients_that_are_reported(tmp_path):
    fed = load(spec(table(tmp_path / "t.csv", **columns(site=[f"p{k}" for k in range(57)] + ["q"] * 3))))
    assert fed.clients == 58
    assert any("57 clients" in note and "a single sample" in note for note in fed.notes)


def test_a_second_file_is_the_test_set(tmp_path):
    one, two = table(tmp_path / "a.csv", **columns()), table(tmp_path / "b.csv", **columns(seed=1))
    fed = load(spec(one, tested=repr(str(two))))
    assert (len(fed.train), len(fed.test)) == (60, 60)


def test_parquet_and_csv_read_the_same(tmp_path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    made = columns()
    csv = load(spec(table(tmp_path / "t.csv", **made)))
    pd.DataFrame(made).to_parquet(tmp_path / "t.parquet")
    parquet = load(spec(tmp_path / "t.parquet"))
    assert torch.equal(csv.train.x, parquet.train.x)
    assert csv.task == parquet.task


def test_the_fingerprint_of_a_table_does_not_hold_its_folder(tmp_path):
    (tmp_path / "other").mkdir()
    one, two = (load(spec(table(tmp_path / place / "t.csv", **columns()))) for place in (".", "other"))
    assert one.fingerprint == two.fingerprint


def test_a_lazy_partition_normalises_by_the_whole_training_set(tmp_path):
    fed = load(replace(spec(table(tmp_path / "t.csv", **columns())), partition="overlap(size=5)", clients=10**6))
    assert fed.train.x[:, :2].mean(0).abs().max() < 1e-6


def test_own_splits_of_a_table_pool_and_normalise(tmp_path):
    fed = load(replace(spec(table(tmp_path / "t.csv", **columns())), test="own(share=0.25)"))
    rows = torch.cat([fed.training(i) for i in range(3)])
    assert len(rows) == 45
    assert fed.train.take(rows)[:, :2].mean(0).abs().max() < 1e-6


def test_the_tables_of_scikit_learn_cover_binary_multiclass_and_regression():
    kinds = {name: load(DataSpec(data=name, clients=3)).task for name in ("breast_cancer", "wine", "diabetes")}
    assert [(task.kind, task.classes) for task in kinds.values()] == [
        ("classification", 2),
        ("classification", 3),
        ("regression", 1),
    ]


def test_the_name_of_a_file_is_the_call_and_the_fingerprint_sees_its_content(tmp_path):
    made = columns()
    first = load(spec(table(tmp_path / "t.csv", **made), drop="[age]"))
    assert first.name == "table(t.csv, label=ill, client=site, drop=[age])"
    assert load(spec(table(tmp_path / "t.csv", **made), drop="[age]")).fingerprint == first.fingerprint
    made["weight"][0] += 1
    assert load(spec(table(tmp_path / "t.csv", **made), drop="[age]")).fingerprint != first.fingerprint
    line = load(DataSpec(data=series(tmp_path)))
    assert line.name == "series(s.csv, value=load, client=who, time=t, window=4, horizon=2)"
    assert load(DataSpec(data=series(tmp_path, other=np.zeros(60)))).fingerprint != line.fingerprint


def series(tmp_path, **more):
    time = np.tile(np.arange(30), 2)
    order = np.random.default_rng(0).permutation(60)
    value = np.concatenate([np.arange(30.0), 100 + np.arange(30.0)])
    path = table(tmp_path / "s.csv", t=time[order], who=np.repeat(["x", "y"], 30)[order], load=value[order], **more)
    return f"series(path={str(path)!r}, value=load, client=who, time=t, window=4, horizon=2)"


def test_a_window_forecasts_its_own_client_some_steps_ahead(tmp_path):
    fed = load(DataSpec(data=series(tmp_path), test="both"))
    assert fed.clients == 2
    assert fed.task.shape == (4,)
    assert [fed.partition.size(i) + len(fed.testing(i)[1]) for i in range(2)] == [25, 25]
    x, y = fed.train.take(fed.training(1)), fed.train.y[fed.training(1)]
    step = x[0, 1] - x[0, 0]
    assert torch.allclose(x[:, -1] + 2 * step, y, atol=1e-5)  # a straight line; float32
    late = fed.testing(1)
    assert late[0].y[late[1]].min() > y.max()  # the last fifth in time


def test_a_series_is_normalised_by_its_training_targets(tmp_path):
    fed = load(DataSpec(data=series(tmp_path)))
    assert fed.train.y.mean().abs() < 1e-6
    assert torch.allclose(fed.train.y.std(unbiased=False), torch.tensor(1.0))


def test_short_series_and_gaps_are_refused_or_reported(tmp_path):
    path = table(tmp_path / "s.csv", who=["a"] * 20 + ["b"] * 3, load=range(23))
    fed = load(DataSpec(data=f"series(path={str(path)!r}, value=load, client=who, window=5)"))
    assert fed.clients == 1
    assert any("1 of 2 series are shorter" in note for note in fed.notes)
    with pytest.raises(DataError, match="the longest series has 20 values"):
        load(DataSpec(data=f"series(path={str(path)!r}, value=load, client=who, window=20)"))
    path = table(tmp_path / "g.csv", who=["a"] * 20, load=[*range(19), ""])
    with pytest.raises(DataError, match="column 'load', row 19 is missing"):
        load(DataSpec(data=f"series(path={str(path)!r}, value=load, client=who, window=5)"))
    with pytest.raises(ConfigError, match="horizon 0"):
        load(DataSpec(data=f"series(path={str(path)!r}, value=load, client=who, horizon=0)"))


def test_the_eeg_can_be_forecast():
    """A least-squares line over 16 past values explains most of the next: the task is real."""
    fed = load(DataSpec(data="eeg"))
    x, y = fed.train.take(torch.arange(len(fed.train))).double(), fed.train.y.double()
    weights = torch.linalg.lstsq(x, y[:, None]).solution
    late = fed.test.take(torch.arange(len(fed.test))).double()
    error = ((late @ weights)[:, 0] - fed.test.y).square().mean() / fed.test.y.double().var()
    assert error < 0.3


def test_clients_of_one_row_leave_no_test_rows_and_the_way_out_is_named(tmp_path):
    path = table(tmp_path / "t.csv", **columns(site=range(ROWS)))
    with pytest.raises(DataError, match=r"has no test set; use test='own"):
        load(spec(path))
    assert load(replace(spec(path), test="own", partition="iid", clients=3)).own_test.which == "train"
