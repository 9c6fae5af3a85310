"""Predictions on series and texts, which are cut as in training."""

import numpy as np
import pandas as pd
import pytest
import torch

from fedstrata.common.errors import DataError
from fedstrata.inference import predict
from helpers.finished_runs import quick


def test_a_series_is_read_by_its_last_window_and_told_in_its_units(tmp_path):
    rng = np.random.default_rng(0)
    long = pd.DataFrame(
        {"site": np.repeat(["a", "b"], 60), "load": 500 + 50 * np.sin(np.arange(120) / 3) + rng.normal(0, 1, 120)}
    )
    long.to_csv(tmp_path / "long.csv", index=False)
    data = f'series(path="{tmp_path / "long.csv"}", value=load, client=site, window=8)'
    run = quick(tmp_path, data=data, model="logistic", cohort=2, rounds=6, **{"local.lr": 0.1})
    told = predict(run, tmp_path / "long.csv")
    assert len(told) == 1
    window = long["load"].to_numpy()[-8:]
    assert torch.equal(predict(run, window[None]).values, told.values)
    assert 400 < float(told.values[0]) < 600
    long.iloc[:5].to_csv(tmp_path / "short.csv", index=False)
    with pytest.raises(DataError, match="has 5 rows; the model reads the last 8"):
        predict(run, tmp_path / "short.csv")


@pytest.fixture(scope="module")
def news(tmp_path_factory):
    folder = tmp_path_factory.mktemp("news")
    (folder / "ag_news").mkdir()
    words = (("world", "peace treaty"), ("sports", "late goal"), ("business", "stock price"), ("science", "new star"))
    rows = [(k, f"{w[0]} {w[1]}", f"{w[1]} and {w[0]} number {n % 3}") for n in range(12) for k, w in enumerate(words)]
    for part, chosen in (("train", rows), ("test", rows[:16])):
        frame = pd.DataFrame(chosen, columns=["label", "title", "description"])
        frame.to_parquet(folder / "ag_news" / f"{part}.parquet")
    data = {
        "data": "ag_news(length=12, least=1)",
        "data.root": str(folder),
        "model": "transformer(width=8, heads=2, feedforward=8, layers=1)",
    }
    return quick(folder, clients=2, partition="iid", cohort=2, **data), folder


def test_texts_are_cut_into_words_as_in_training(news, tmp_path):
    run, folder = news
    own = predict(run, "ag_news(length=12, least=1)")
    pd.read_parquet(folder / "ag_news" / "test.parquet").to_csv(tmp_path / "new.csv", index=False)
    told = predict(run, tmp_path / "new.csv")
    assert torch.equal(told.values, own.values)
    assert told.score == own.score
    (tmp_path / "new.txt").write_text("world peace treaty peace treaty and world number 0\na wholly unseen sentence\n")
    lines = predict(run, tmp_path / "new.txt")
    assert torch.equal(lines.values[0], own.values[0])
    assert lines.labels == ("World", "Sports", "Business", "Sci/Tech")
    (tmp_path / "bare.txt").write_text("world peace\n\nlate goal\n")
    with pytest.raises(DataError, match="row 1 has a text without words"):
        predict(run, tmp_path / "bare.txt")


def test_characters_before_the_next_one(tmp_path):
    (tmp_path / "shakespeare").mkdir()
    speech = "to be or not to be that is the question " * 4
    rows = [(role, n, speech[n:], split) for role in ("ham", "oph") for n, split in ((0, "train"), (1, "test"))]
    pd.DataFrame(rows, columns=["client", "speech", "text", "split"]).to_parquet(
        tmp_path / "shakespeare" / "speeches.parquet"
    )
    run = quick(
        tmp_path, data="shakespeare(window=10)", model="char_lstm(hidden=8)", cohort=2, **{"data.root": str(tmp_path)}
    )
    (tmp_path / "new.txt").write_text("and so to be or not\nwhere to be or not\n")
    told = predict(run, tmp_path / "new.txt")
    assert torch.equal(told.values[0], told.values[1]), "the last ten characters are the same"
    assert abs(float(told.values[0].sum()) - 1) < 1e-9
    (tmp_path / "short.txt").write_text("to be\n")
    with pytest.raises(DataError, match="5 characters in line 1; the model reads 10"):
        predict(run, tmp_path / "short.txt")


def test_data_elsewhere_are_found_by_root(news, tmp_path):
    run, folder = news
    moved = tmp_path / "moved"
    (folder / "ag_news").rename(moved)
    try:
        (tmp_path / "new.txt").write_text("late goal\n")
        with pytest.raises(DataError, match=r"data.root"):
            predict(run, tmp_path / "new.txt")
        assert len(predict(run, tmp_path / "new.txt", root=moved)) == 1
    finally:
        moved.rename(folder / "ag_news")
