"""Read text: news in four classes, and Shakespeare's next character; vocabularies come from training text only."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedstrata.common.errors import ConfigError, DataError
from fedstrata.data.inputs.text import Characters, Words
from fedstrata.data.io.checks import class_labels
from fedstrata.data.io.columns import arrow
from fedstrata.data.io.samples import Tensors, Windows
from fedstrata.data.location import Place
from fedstrata.data.source import Source
from fedstrata.data.types import Groups, Task

UNKNOWN, PAD = 0, 1
TOPICS = ("World", "Sports", "Business", "Sci/Tech")
_RULES = [
    (re.compile(p), r)
    for p, r in ((r"'", " ' "), (r"\"", ""), (r"([.,()!?])", r" \1 "), (r"<br />", " "), (r"[;:]", " "))
]


def tokenize(text: str) -> list[str]:
    r"""Split into basic English words: lower case, punctuation apart, quotes and colons dropped.

    Source: torchtext's ``basic_english``, which FedPart uses.

    >>> tokenize('He said: "No, it isn\'t."')
    ['he', 'said', 'no', ',', 'it', 'isn', "'", 't', '.']
    """
    text = text.lower()
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text.split()


def build_vocabulary(texts: Sequence[Sequence[str]], least: int) -> dict[str, int]:
    """Number the words that occur at least ``least`` times, the most frequent first, ties by spelling.

    0 is <unk> and 1 is <pad>.
    """
    counts = Counter(word for text in texts for word in text)
    kept = sorted((word for word, n in counts.items() if n >= least), key=lambda word: (-counts[word], word))
    return {"<unk>": UNKNOWN, "<pad>": PAD} | {word: rank + 2 for rank, word in enumerate(kept)}


def encode(texts: Sequence[Sequence[str]], vocabulary: dict[str, int], length: int) -> Tensor:
    """Encode texts as int32 tokens [N, length]: cut, or padded on the right."""
    tokens = np.full((len(texts), length), PAD, dtype=np.int32)
    for row, text in enumerate(texts):
        codes = [vocabulary.get(word, UNKNOWN) for word in text[:length]]
        tokens[row, : len(codes)] = codes
    return torch.from_numpy(tokens)


@dataclass(frozen=True)
class AgNews:
    """News items in 4 classes: title and description as words.

    Args:
        length: longest text in words; shorter where no training text is longer. One length for both sets (FedPart's may
            differ by split).
        least: a word that training texts hold less often is <unk>.
        empty: refuse a text without words, or keep it as one <unk>.
    Source: Zhang et al. 2015, from Gulli's corpus; FedPart's preparation. Files: train and test as .parquet (label,
        title, description), or the official .csv (class 1 to 4, title, description, no header).
    """

    length: int = 512
    least: int = 5
    empty: Literal["refuse", "keep"] = "refuse"

    def __post_init__(self) -> None:
        if self.length < 1 or self.least < 1:
            raise ConfigError(f"data ag_news: length is {self.length} and least {self.least}; both are at least 1.")

    def read(self, place: Place) -> Source:
        """See :class:`Reader`."""
        folder, file = place.folder("ag_news", ("ag_news", "ag_news_csv"), ("train.parquet", "train.csv"))
        suffix = Path(file).suffix
        sets = [self._words(folder / f"{part}{suffix}") for part in ("train", "test")]
        vocabulary = build_vocabulary(sets[0][0], self.least)
        length = min(self.length, max(len(text) for text in sets[0][0]))
        train, test = (Tensors(encode(texts, vocabulary, length), y) for texts, y in sets)
        task = Task("classification", (length,), len(TOPICS), TOPICS, len(vocabulary))
        preprocessor = Words(
            ("title", "description"), "label", TOPICS, vocabulary, length, tokenize, encode, empty=self.empty == "keep"
        )
        return Source(
            f"ag_news(length={length}, least={self.least}, empty={self.empty})",
            task,
            train,
            test,
            preprocessor=preprocessor,
        )

    def _words(self, path: Path) -> tuple[list[list[str]], Tensor]:
        if not path.exists():
            raise DataError(f"{path} is missing; train and test belong together.")
        labels, titles, bodies = _news(path)
        texts = [tokenize(f"{title} {body}") for title, body in zip(titles, bodies, strict=True)]
        for row, text in enumerate(texts):
            if not text and self.empty == "refuse":
                raise DataError(
                    f"{path}: row {row} has a text without words; remove the row, or use ag_news(empty=keep)."
                )
        return [text or ["<unk>"] for text in texts], class_labels(labels, len(TOPICS), str(path))


def _news(path: Path) -> tuple[np.ndarray, list[str], list[str]]:
    if path.suffix == ".parquet":
        table = arrow(path)
        for name in ("label", "title", "description"):
            if name not in table.column_names:
                raise DataError(f"{path} has no column {name!r}; it has {', '.join(table.column_names)}.")
        titles, bodies = ([str(v or "") for v in table.column(name).to_pylist()] for name in ("title", "description"))
        return np.asarray(table.column("label").to_pylist()), titles, bodies
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    for number, row in enumerate(rows):
        if len(row) != 3 or row[0] not in ("1", "2", "3", "4"):
            raise DataError(
                f"{path}: row {number} is {row[:1]} with {len(row)} values; a row holds class 1 to 4, title and"
                " description."
            )
    return np.array([int(row[0]) - 1 for row in rows]), [row[1] for row in rows], [row[2] for row in rows]


@dataclass(frozen=True)
class Shakespeare:
    """The next character of a speaking role; a client is a role in a play.

    A role's speeches are joined by line breaks and cut into windows; the label is the character after the window.
    Characters that no training speech holds are <unk>, 0. A role whose training text is too short for one window is not
    a client.

    Args:
        window: characters in a sample, 80 in LEAF.
        stride: characters from one window to the next; LEAF's is 1.
    Source: LEAF (Caldas et al. 2018). File: speeches.parquet (client, speech, text, split).
    """

    window: int = 80
    stride: int = 80

    def __post_init__(self) -> None:
        if self.window < 1 or self.stride < 1:
            raise ConfigError(
                f"data shakespeare: window is {self.window} and stride {self.stride}; both are at least 1."
            )

    def read(self, place: Place) -> Source:
        """See :class:`Reader`."""
        folder, file = place.folder("shakespeare", ("shakespeare",), ("speeches.parquet",))
        table = arrow(folder / file)
        roles, texts, splits = (table.column(name).to_pylist() for name in ("client", "text", "split"))
        parts: dict[str, dict[str, list[str]]] = {"train": {}, "test": {}}
        for row, (role, text, split) in enumerate(zip(roles, texts, splits, strict=True)):
            if split not in parts or not text:
                raise DataError(
                    f"{folder / file}: row {row} has split {split!r} and text {text!r}; split is train or test, and"
                    " text is not empty."
                )
            parts[split].setdefault(role, []).append(text)
        joined = {split: {role: "\n".join(lines) for role, lines in held.items()} for split, held in parts.items()}
        letters = sorted(set("".join(joined["train"].values())))
        codes = {letter: rank + 1 for rank, letter in enumerate(letters)}
        names = tuple(sorted(set(joined["train"]) | set(joined["test"])))
        train, test = (self._windows(joined[split], names, codes) for split in ("train", "test"))
        task = Task("classification", (self.window,), len(codes) + 1, ("<unk>", *letters), len(codes) + 1)
        groups = {"role": Groups(names, train[1], test[1])}
        name = f"shakespeare(window={self.window}, stride={self.stride})"
        return Source(name, task, train[0], test[0], groups, natural=True, preprocessor=Characters(self.window, codes))

    def _windows(
        self, held: dict[str, str], names: tuple[str, ...], codes: dict[str, int]
    ) -> tuple[Windows, np.ndarray]:
        texts = [held.get(name, "") for name in names]
        table = np.zeros(max(map(ord, "".join(texts)), default=0) + 1, dtype=np.int16)
        for letter, code in codes.items():
            if ord(letter) < len(table):
                table[ord(letter)] = code
        letters = table[np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4")]
        offsets = np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64)
        pieces = [np.arange(begin, end - self.window, self.stride, dtype=np.int64) for begin, end in pairwise(offsets)]
        starts = np.concatenate(pieces)
        owner = np.repeat(np.arange(len(names), dtype=np.int64), [len(piece) for piece in pieces])
        y = torch.from_numpy(letters[starts + self.window].astype(np.int64))
        return Windows(torch.from_numpy(letters), torch.from_numpy(starts), self.window, y), owner
