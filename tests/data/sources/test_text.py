"""Text: tokenizer, vocabulary, news, next characters, and the hub extra."""

from __future__ import annotations

import importlib
import importlib.util

import numpy as np
import pytest
import torch

from fedstrata.common.errors import ConfigError, DataError
from fedstrata.data import DataSpec, load
from fedstrata.data.sources.text import build_vocabulary, encode, tokenize


def parquet(path, **columns):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(columns).to_parquet(path)


def test_the_tokenizer_is_basic_english():
    assert tokenize("Don't stop; (really)!<br />OK.") == ["don", "'", "t", "stop", "(", "really", ")", "!", "ok", "."]


def test_a_vocabulary_counts_then_spells():
    words = build_vocabulary([["b", "a", "c"], ["b", "a"], ["b"]], 2)
    assert words == {"<unk>": 0, "<pad>": 1, "b": 2, "a": 3}
    assert encode([["b", "zzz"], ["a", "b", "a", "b"]], words, 3).tolist() == [[2, 0, 1], [3, 2, 3]]


def news(root, texts=("World peace now", "The match ended"), late=("peace match", "unheard words")):
    for part, lines in (("train", texts * 20), ("test", late)):
        parquet(
            root / f"ag_news/{part}.parquet",
            label=np.arange(len(lines)) % 4,
            title=list(lines),
            description=["and so on"] * len(lines),
        )


def test_news_is_cut_or_padded_to_the_longest_training_text_and_unknown_words_are_unknown(tmp_path):
    news(tmp_path, late=("peace match", "unheard words " * 9))
    fed = load(DataSpec(data="ag_news", root=tmp_path, clients=2))
    assert fed.task.shape == (6,)
    assert fed.task.vocabulary == 2 + 9
    x = fed.test.take(torch.tensor([0, 1]))
    assert x.dtype == torch.int64
    assert x[0, -1] == 1
    assert x[1].tolist() == [0] * 6


def test_row_62_empty_text_is_refused_or_kept_by_config(tmp_path):
    news(tmp_path)
    parquet(tmp_path / "ag_news/test.parquet", label=[0, 1], title=["a b", '"'], description=["c", ""])
    with pytest.raises(DataError, match=r"test\.parquet: row 1 has a text without words; .*empty=keep"):
        load(DataSpec(data="ag_news", root=tmp_path))
    fed = load(DataSpec(data="ag_news(empty=keep)", root=tmp_path, clients=2))
    assert fed.test.take(torch.tensor([1]))[0, 0] == 0


def test_official_news_csv(tmp_path):
    for part in ("train", "test"):
        (tmp_path / f"{part}.csv").write_text("".join(f'"{k % 4 + 1}","title {k}","some, text"\n' for k in range(20)))
    fed = load(DataSpec(data="ag_news(least=1)", root=tmp_path, clients=2))
    assert fed.train.y.tolist() == [k % 4 for k in range(20)]
    (tmp_path / "test.csv").write_text('"5","a","b"\n')
    with pytest.raises(DataError, match="row 0 is"):
        load(DataSpec(data="ag_news", root=tmp_path))


def speeches(root):
    text = [*["abcdefghij"] * 3, "xyz", "q"]
    parquet(
        root / "shakespeare/speeches.parquet",
        client=["p:A", "p:A", "p:A", "p:B", "p:C"],
        text=text,
        split=["train", "train", "test", "train", "test"],
    )


def test_the_label_is_the_next_character_of_the_same_role(tmp_path):
    speeches(tmp_path)
    fed = load(DataSpec(data="shakespeare(window=3, stride=2)", root=tmp_path, test="both"))
    letters = fed.task.labels
    said = "abcdefghij\nabcdefghij"
    rows = fed.training(0)
    x, y = fed.train.take(rows), fed.train.y[rows]
    assert fed.clients == 1
    assert len(rows) == 9
    for k in range(9):
        assert "".join(letters[c] for c in x[k]) + letters[y[k]] == said[2 * k : 2 * k + 4]
    assert any("2 of 3 groups have no training sample" in note for note in fed.notes)


def test_characters_of_the_test_only_are_unknown(tmp_path):
    parquet(
        tmp_path / "shakespeare/speeches.parquet",
        client=["r", "r"],
        text=["abababab", "abzabz"],
        split=["train", "test"],
    )
    fed = load(DataSpec(data="shakespeare(window=2, stride=1)", root=tmp_path))
    assert fed.task.labels == ("<unk>", "a", "b")
    assert fed.test.y[0] == 0


@pytest.mark.parametrize("data", ["shakespeare(window=0)", "shakespeare(stride=0)", "ag_news(length=0)"])
def test_settings_that_cannot_be_meant_are_refused(data):
    with pytest.raises(ConfigError, match="at least 1"):
        load(DataSpec(data=data))


def test_real_news(real):
    fed = load(DataSpec(data="ag_news", root=real("ag_news")))
    assert (len(fed.train), len(fed.test), fed.task.classes) == (6080, 1520, 4)
    assert fed.train.x.max() < fed.task.vocabulary


def test_real_shakespeare(real):
    fed = load(DataSpec(data="shakespeare", root=real("shakespeare"), clients=100, test="both"))
    assert fed.clients == 100
    assert fed.task.shape == (80,)
    assert fed.train.take(fed.training(0)[:3]).dtype == torch.int64


def test_the_hub_extra_says_what_to_install_or_reads_a_saved_folder(tmp_path):
    if importlib.util.find_spec("datasets") is None:
        with pytest.raises(DataError, match=r"pip install 'fedstrata\[hub\]'"):
            load(DataSpec(data="hub(path='nobody/nothing')"))
        return
    datasets = importlib.import_module("datasets")
    rows = {"text": ["one two", "two three"] * 10, "label": [0, 1] * 10, "who": ["a", "b"] * 10}
    datasets.DatasetDict(
        {"train": datasets.Dataset.from_dict(rows), "test": datasets.Dataset.from_dict(rows)}
    ).save_to_disk(str(tmp_path / "saved"))
    fed = load(DataSpec(data="hub(path=saved, text=text, client=who)", root=tmp_path))
    assert fed.clients == 2
    assert fed.task.vocabulary == 2 + 3
    words = load(DataSpec(data="hub(path=saved, client=who)", root=tmp_path))
    assert words.task.shape == (2,)
