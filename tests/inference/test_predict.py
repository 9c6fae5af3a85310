"""Predictions: samples are prepared as in training, scores are those of the run, and what cannot be meant is refused in
one line.
"""

import csv
import dataclasses
import io
import json

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from fedstrata.common.errors import DataError, StateError
from fedstrata.data.federation import Federation
from fedstrata.inference import load, open_run, predict
from fedstrata.inference.inputs import SEEN
from helpers import lab
from helpers.finished_runs import command, digest, quick, toy_run

ROWS = 90


def table(seed=0, rows=ROWS):
    """Numbers, words, gaps, a client column and a label that follows from the numbers."""
    rng = np.random.default_rng(seed)
    age, income = rng.normal(40, 9, rows), rng.normal(3000, 700, rows)
    city = rng.choice(["Oslo", "Rome", "Cork"], rows)
    frame = pd.DataFrame(
        {
            "age": age.round(1),
            "city": city,
            "income": income.round(),
            "flat": 1.0,
            "site": rng.choice(["a", "b", "c"], rows),
        }
    )
    frame["ill"] = np.where(age + 4 * (city == "Rome") > 41, "yes", "no")
    frame["cost"] = (income / 10 + age).round(2)
    return frame


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a table; and runs on it, one for each kind of task."""
    folder = tmp_path_factory.mktemp("tables")
    frame = table()
    frame.loc[3, "age"] = np.nan
    frame.loc[5, "city"] = None
    frame.to_csv(folder / "gaps.csv", index=False)
    table().to_csv(folder / "full.csv", index=False)
    path = str(folder / "full.csv").replace("\\", "/")
    common = {"model": "logistic", "cohort": 3, "local.lr": 0.3}
    quick(folder, name="ill", data=f'table(path="{path}", label=ill, client=site, drop=[cost])', **common)
    quick(folder, name="cost", data=f'table(path="{path}", label=cost, client=site, drop=[ill])', **common)
    gaps = str(folder / "gaps.csv")
    quick(
        folder, name="gaps", data=f'table(path="{gaps}", label=ill, client=site, drop=[cost], missing=impute)', **common
    )
    return folder


@pytest.mark.parametrize("name", ["ill", "gaps"])
def test_a_table_is_encoded_and_standardised_as_in_training(place, name, tmp_path):
    found = open_run(place / name)
    frame = pd.read_csv(place / ("gaps.csv" if name == "gaps" else "full.csv"))
    shuffled = (
        frame[["ill", "income", "site", "flat", "city", "age"]].assign(note="hello").sample(frac=1, random_state=1)
    )
    shuffled.to_csv(tmp_path / "new.csv", index=False)
    told = predict(place / name, tmp_path / "new.csv")
    federation = found.federation
    everything = torch.cat([s.take(torch.arange(len(s))) for s in (federation.train, federation.official)])
    ours = found.module()(everything).softmax(1).double()
    assert torch.allclose(told.values.sort(0).values, ours.sort(0).values, atol=1e-6), (
        "the same rows, whatever their order and that of the columns"
    )
    assert told.score["accuracy"] == pytest.approx(float((told.values.argmax(1) == told.truth).double().mean()))
    assert "the columns note did not exist in training" in " ".join(told.notes)
    alone = shuffled.iloc[[4]].drop(columns=["ill", "note"])
    alone.to_csv(tmp_path / "one.csv", index=False)
    single = predict(place / name, tmp_path / "one.csv")
    assert torch.allclose(single.values[0], told.values[4], atol=1e-6), (
        "a row is read by the training rows' scale, not by its own"
    )
    assert single.score is None


def test_parquet_says_the_same_as_csv(place, tmp_path):
    frame = pd.read_csv(place / "full.csv")
    frame.to_parquet(tmp_path / "new.parquet")
    assert torch.equal(
        predict(place / "ill", tmp_path / "new.parquet").values, predict(place / "ill", place / "full.csv").values
    )


def test_a_regression_speaks_in_the_units_of_the_data(place):
    told = predict(place / "cost", place / "full.csv")
    cost = pd.read_csv(place / "full.csv")["cost"].to_numpy()
    assert np.allclose(told.truth.numpy(), cost, rtol=1e-5)
    assert told.score["rmse"] == pytest.approx(float(np.sqrt(((told.values.numpy() - cost) ** 2).mean())), rel=1e-4)
    assert told.score["rmse"] < cost.std(), "better than the mean"
    row = next(told.rows())
    assert set(row) == {"name", "predicted", "label", "error"}
    assert row["error"] == pytest.approx(row["predicted"] - row["label"])


def test_a_word_that_no_training_row_has_is_refused_or_read_as_none_of_them(place, tmp_path):
    frame = pd.read_csv(place / "full.csv")
    frame.loc[7, "city"] = "Roma"
    frame.to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(
        DataError,
        match=r"column 'city', row 7 is 'Roma', which no training row has.* Did you mean 'Rome'.*--unknown zeros",
    ):
        predict(place / "ill", tmp_path / "new.csv")
    told, known = (
        predict(place / "ill", tmp_path / "new.csv", unknown="zeros"),
        predict(place / "ill", place / "full.csv"),
    )
    assert torch.equal(told.values[6], known.values[6])
    frame.loc[7, "city"] = "Atlantis"
    frame.to_csv(tmp_path / "new.csv", index=False)
    assert torch.equal(predict(place / "ill", tmp_path / "new.csv", unknown="zeros").values, told.values), (
        "no level is set, whatever the word"
    )
    assert not torch.equal(told.values[7], known.values[7])


def change(frame, how):
    frame = frame.copy()
    match how:
        case "no column":
            return frame.drop(columns="income")
        case "gap":
            frame.loc[2, "age"] = np.nan
        case "word for a number":
            frame["age"] = frame["age"].astype(object)
            frame.loc[4, "age"] = "forty"
        case "strange label":
            frame.loc[1, "ill"] = "maybe"
        case "half labelled":
            frame.loc[1, "ill"] = None
        case "infinite":
            frame.loc[0, "income"] = np.inf
    return frame


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("no column", r"has no column 'income'"),
        ("gap", r"column 'age', row 2 is missing; the model was trained without missing values"),
        ("word for a number", r"column 'age', row 4 is 'forty'; in training it held numbers"),
        ("strange label", r"label 'ill', row 1 is 'maybe'; the model's classes are no, yes"),
        ("half labelled", r"label 'ill', row 1 is missing; label every row for a score"),
        ("infinite", r"column 'income', row 0 is infinite"),
    ],
)
def test_a_table_that_the_model_cannot_read_is_refused_by_column_and_row(place, tmp_path, how, said):
    change(pd.read_csv(place / "full.csv"), how).to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(DataError, match=said):
        predict(place / "ill", tmp_path / "new.csv")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.csv", b"", r"is empty"),
        ("head.csv", b"age,city,income,flat\n", r"there is no data row"),
        ("a.txt", b"hello\n", r"is a text; this model accepts a table"),
        ("a.xlsx", b"PK", r"the file type follows from its suffix, and '.xlsx' is none of"),
        ("a.npy", b"\x93NUMPY", r"damaged or no .npy|a.npy"),
    ],
)
def test_files_of_another_kind_are_refused(place, tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said):
        predict(place / "ill", tmp_path / name)


# ---- pictures and arrays


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return quick(
        tmp_path_factory.mktemp("digits"),
        method="fedper",
        test="both",
        clients=6,
        model="logistic",
        **{"local.lr": 0.1},
    )


@pytest.fixture(scope="module")
def painted(tmp_path_factory):
    """A run on pictures in folders of classes, and the folder."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for place, label in enumerate(("dark", "light", "red")):
        (folder / "data" / label).mkdir(parents=True)
        for number in range(10):
            colour = [(20, 20, 20), (220, 220, 220), (220, 20, 20)][place]
            pixels = np.clip(np.array(colour) + rng.integers(-20, 20, (14 + number, 18, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "data" / label / f"{number}.png")
    path = str(folder / "data")
    data = f'folder(path="{path}", size=12, resize=13)'
    run = quick(
        folder, data=data, clients=2, cohort=2, partition="iid", model="logistic", rounds=4, **{"local.lr": 0.05}
    )
    return run, folder / "data"


def test_pictures_are_cut_and_normalised_as_in_training(painted):
    run, folder = painted
    found, told = open_run(run), predict(run, folder)
    federation = found.federation
    seen = {
        str(p.relative_to(folder.resolve())): (s, i)
        for s in (federation.train, federation.official)
        for i, p in enumerate(s.paths)
    }
    for name, values in zip(told.names, told.values, strict=True):
        samples, place = seen[name]
        wanted = found.module()(samples.take(torch.tensor([place]))).softmax(1).double()[0]
        assert torch.allclose(values, wanted, atol=1e-6), name
    assert told.score["accuracy"] > 0.9
    assert [row["label"] for row in told.rows()] == [name.split("/")[0] for name in told.names]


def test_a_single_picture_of_any_size_and_a_folder_without_classes(painted, tmp_path):
    run, _ = painted
    for size in ((12, 12), (40, 25), (200, 300)):
        Image.new("RGB", size, (225, 25, 15)).save(tmp_path / f"{size[0]}.jpg")
    one = predict(run, tmp_path / "40.jpg")
    assert (one.names, one.predicted, one.score) == (("40.jpg",), ["red"], None)
    (tmp_path / "notes.md").write_text("no picture")
    told = predict(run, tmp_path)
    assert told.names == ("12.jpg", "200.jpg", "40.jpg")
    assert told.predicted == ["red"] * 3
    assert told.score is None
    assert "1 files are not images" in told.notes[0]
    (tmp_path / "red").mkdir()
    (tmp_path / "40.jpg").rename(tmp_path / "red" / "40.jpg")
    assert "2 of 3 images are in no folder named after a class" in " ".join(predict(run, tmp_path).notes)


def test_damaged_pictures_links_and_empty_folders_are_refused(painted, tmp_path):
    run, _ = painted
    with pytest.raises(DataError, match="holds no image"):
        predict(run, tmp_path)
    (tmp_path / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\nnonsense")
    with pytest.raises(DataError, match=r"bad.png: a picture cannot be read"):
        predict(run, tmp_path)
    (tmp_path / "bad.png").unlink()
    (tmp_path / "away.png").symlink_to("/etc/hostname")
    with pytest.raises(DataError, match="is a link to"):
        predict(run, tmp_path)


def test_arrays_of_bytes_are_normalised_and_floats_are_read_as_they_are(digits, tmp_path):
    test = open_run(digits).federation.official
    x = test.take(torch.arange(len(test))).numpy()
    np.savez(tmp_path / "a.npz", x=x, y=test.y.numpy())
    np.save(tmp_path / "b.npy", x)
    whole = predict(digits, "digits")
    assert torch.equal(predict(digits, tmp_path / "a.npz").values, whole.values)
    assert predict(digits, tmp_path / "a.npz").score == whole.score
    assert predict(digits, tmp_path / "b.npy").score is None
    np.save(tmp_path / "c.npy", np.round(x * 255).astype(np.uint8))
    assert torch.allclose(predict(digits, tmp_path / "c.npy").values, whole.values, atol=2e-2)
    assert torch.equal(predict(digits, x).values, whole.values)


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (np.zeros((3, 8, 8), np.float32), r"has shape \[3, 8, 8\]; this model accepts"),
        (np.zeros((0, 1, 8, 8), np.float32), r"at least one"),
        (np.full((2, 1, 8, 8), np.nan, np.float32), r"row 0, column \(0, 0, 0\) is nan"),
        (np.zeros((2, 1, 8, 8), np.int64), r"holds int64"),
        (np.array([{"a": 1}], dtype=object), r"Python objects|pickle"),
    ],
)
def test_arrays_that_the_model_cannot_read_are_refused(digits, tmp_path, x, said):
    np.save(tmp_path / "x.npy", x, allow_pickle=True)
    with pytest.raises(DataError, match=said):
        predict(digits, tmp_path / "x.npy")


def test_labels_of_another_number_or_range_are_refused(digits, tmp_path):
    x = np.zeros((3, 1, 8, 8), np.float32)
    for y, said in ((np.zeros(2, np.int64), "y has shape"), (np.full(3, 10), "labels are 0 to 9")):
        np.savez(tmp_path / "x.npz", x=x, y=y)
        with pytest.raises(DataError, match=said):
            predict(digits, tmp_path / "x.npz")


# ---- data sets by name


def test_the_runs_own_test_set_gives_the_runs_own_scores(digits):
    found = open_run(digits)
    told = predict(digits, "digits", split="test")
    for name, value in found.result.summary["metrics"].items():
        if name in told.score:
            assert told.score[name] == pytest.approx(value, abs=1e-9), name
    for client in (0, 4):
        own = predict(digits, "digits", client, split="test")
        assert own.score["accuracy"] == pytest.approx(found.result.clients[client]["personal"], abs=1e-12)
        assert len(own) == len(found.federation.testing(client)[1])
        assert len(predict(digits, "digits", client, split="train")) == len(found.federation.training(client))
    assert len(predict(digits, "digits", split="train")) == len(found.federation.train)


def test_a_score_on_what_the_run_was_trained_on_is_said_to_be_one(place, digits, tmp_path):
    for told in (
        predict(digits, "digits", split="train"),
        predict(digits, "digits", 4, split="train"),
        predict(place / "ill", place / "full.csv"),
    ):
        assert told.score is not None
        assert SEEN in told.notes
    table(1).to_csv(tmp_path / "full.csv", index=False)
    for told in (
        predict(digits, "digits", split="test"),
        predict(digits, "digits", 4),
        predict(place / "ill", tmp_path / "full.csv"),
    ):
        assert told.score is not None
        assert SEEN not in told.notes


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("synthetic", r"synthetic.* is not what the model was trained for: a sample has the shape"),
        (
            "digit",
            (
                r"digit does not exist; give a file, a folder of images, or a data set such as digits. Did you mean"
                r" 'digits'"
            ),
        ),
        ("nowhere/file.csv", r"does not exist"),
    ],
)
def test_other_data_sets_are_refused(digits, data, said):
    with pytest.raises(DataError, match=said):
        predict(digits, data)


def test_another_table_is_read_as_a_file_not_as_a_data_set(place):
    with pytest.raises(DataError, match="give the file itself"):
        predict(
            place / "ill",
            f'table(path="{place / "gaps.csv"}", label=ill, client=site, drop=[cost], missing=impute)',
            split="test",
        )


def test_a_federation_from_python_is_asked_by_its_name_and_by_arrays(tmp_path):
    x, y, client = lab.arrays()
    data = Federation.of(x.numpy(), y.numpy(), client=client.numpy(), testing="own")
    folder, live, given = toy_run(tmp_path, "fedper", (data, lab.small()), cohort=6)
    own = predict(folder, "arrays", 2, split="test", **given)
    wanted = live.evaluator.client(live.worker, live.serving.task_of(2, live.serving.model()), live.serving.model())[0]
    assert own.score["accuracy"] == pytest.approx(wanted, abs=1e-12)
    with pytest.raises(DataError, match="pooled its test set; give --client"):
        predict(folder, "arrays", split="test", **given)
    assert torch.allclose(predict(folder, x, **given).values, load(folder, **given)(x).softmax(1).double(), atol=1e-6)


def test_with_norms_of_the_batch_it_is_said_that_predictions_hang_together(tmp_path):
    folder, live, given = toy_run(tmp_path, "fedavg", "batch", bn="batch")
    x = given["federation"].test.x
    told = predict(folder, x, **given)
    wanted = live.evaluator.predict(live.worker, live.serving.model(), given["federation"].test, torch.arange(30))
    assert torch.allclose(told.values, wanted.softmax(1).double(), atol=1e-6)
    assert "norms look at the batch" in told.notes[-1]
    assert predict(folder, x[:1], **given).values.isfinite().all(), (
        "a single sample is read by running statistics, as in the run's evaluation"
    )


def test_outputs_that_are_not_finite_are_refused_by_row(tmp_path):
    folder, _, given = toy_run(tmp_path, "fedavg", "layer")
    x = given["federation"].test.x.clone()
    x[3] = 3e38
    with pytest.raises((StateError, DataError), match=r"for 3 is not finite"):
        predict(folder, x, **given)


# ---- what comes out


def test_the_command_writes_a_line_a_sample(place, tmp_path, capfd):
    assert command("predict", place / "ill", place / "full.csv", "--out", tmp_path / "p.csv") == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "p.csv").read_text())))
    told = predict(place / "ill", place / "full.csv")
    assert list(rows[0]) == ["name", "predicted", "p_no", "p_yes", "label", "correct"]
    assert [row["predicted"] for row in rows] == told.predicted
    assert np.allclose([float(row["p_yes"]) for row in rows], told.values[:, 1].numpy(), rtol=1e-5)
    assert f"score on {ROWS} samples: accuracy {told.score['accuracy']:.4f}" in capfd.readouterr().out
    capfd.readouterr()
    assert command("predict", place / "ill", place / "full.csv") == 0
    out, err = capfd.readouterr()
    assert list(csv.DictReader(io.StringIO(out))) == rows, "without --out the lines go to stdout, and nothing else does"
    assert "score on" in err


def test_the_command_tells_in_json(place, tmp_path, capfd):
    assert command("predict", place / "cost", place / "full.csv", "--json") == 0
    told = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert told["samples"] == ROWS
    assert set(told["score"]) == {"rmse", "r2"}
    assert told["predictions"][0]["name"] == "0"
    assert command("predict", place / "cost", place / "full.csv", "--json", "--out", tmp_path / "p.csv") == 0
    told = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert told["out"] == str(tmp_path / "p.csv")
    assert "predictions" not in told


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["nothing.csv"], "does not exist"),
        (["digits", "--split", "all"], "--split is 'all'"),
        (["full.csv", "--unknown", "guess"], "--unknown is 'guess'"),
    ],
)
def test_the_command_refuses_in_one_line(place, monkeypatch, capfd, more, said):
    monkeypatch.chdir(place)
    assert command("predict", place / "ill", *more) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert said in err


def test_a_disk_that_refuses_leaves_no_half_written_predictions(place, tmp_path):
    told = predict(place / "ill", place / "full.csv")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StateError, match="cannot"):
        told.write(tmp_path / "file" / "p.csv")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("file", "mine")]


def test_nothing_of_the_run_folder_is_changed(place):
    before = digest(place / "ill")
    predict(place / "ill", place / "full.csv")
    predict(place / "ill", place / "full.csv", "a")
    assert digest(place / "ill") == before


def test_a_data_set_that_does_not_say_how_it_prepares_samples_takes_arrays(tmp_path):
    data, module = lab.TOYS["layer"]()
    silent = dataclasses.replace(data, preprocessor=None)
    folder, _, given = toy_run(tmp_path, "fedavg", (silent, module))
    assert len(predict(folder, data.test.x, **given)) == 30
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"is a table; this model accepts arrays .* of shape \[N, 6\]"):
        predict(folder, tmp_path / "a.csv", **given)
