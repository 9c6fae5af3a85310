"""Prepare texts: as words, or as the characters before the next one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedstrata.common.errors import DataError
from fedstrata.common.suggest import suggestion
from fedstrata.data.inputs.base import InputPreprocessor, Numbers, PreparedInputs, Unknown, prepare
from fedstrata.data.io.columns import Column, Columns, column


@dataclass(frozen=True)
class Words(InputPreprocessor):
    """Texts, split into words of the training vocabulary.

    Attributes:
        columns: of a table, joined by a space.
        label: its column of classes: names, or numbers.
        labels: class names.
        vocabulary: word to token.
        length: words in a sample; longer texts are cut, shorter ones padded.
        tokenize, encode: functions of the data set.
        empty: whether a text without words is kept as one unknown word.
    """

    columns: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    vocabulary: Mapping[str, int] = field(repr=False)
    length: int
    tokenize: Callable[[str], list[str]] = field(repr=False)
    encode: Callable[[Sequence[Sequence[str]], dict[str, int], int], Tensor] = field(repr=False)
    empty: bool = False

    @property
    def accepts(self) -> str:
        """Describe the accepted input."""
        return (
            "texts: a .txt file with one a line, or a table (.csv, .tsv, .parquet) with the column"
            f" {' and '.join(self.columns)}"
        )

    def texts(self, lines: Sequence[str], where: str) -> PreparedInputs:
        """See :meth:`InputPreprocessor.texts`."""
        return self._prepare(lines, None, where)

    def table(self, columns: Columns, where: str, *, unknown: Unknown = "refuse") -> PreparedInputs:
        """See :meth:`InputPreprocessor.table`."""
        parts = [column(columns, name, where).text() for name in self.columns]
        lines = [" ".join(map(str, row)) for row in zip(*parts, strict=True)]
        return self._prepare(lines, self._classes(columns[self.label], where) if self.label in columns else None, where)

    def array(self, x: NDArray[Any], y: NDArray[Any] | None, where: str) -> PreparedInputs:
        """See :meth:`InputPreprocessor.array`: tokens."""
        return Numbers((self.length,), len(self.labels), len(self.vocabulary)).array(x, y, where)

    def _prepare(self, lines: Sequence[str], y: NDArray[Any] | None, where: str) -> PreparedInputs:
        if not lines:
            raise DataError(f"{where} holds no text.")
        words = [self.tokenize(text) for text in lines]
        empty = next((row for row, text in enumerate(words) if not text), None)
        if empty is not None and not self.empty:
            raise DataError(f"{where}: row {empty} has a text without words; remove it.")
        encoded = self.encode([text or ["<unk>"] for text in words], dict(self.vocabulary), self.length)
        long = sum(len(text) > self.length for text in words)
        notes = (
            (f"{where}: {long} texts have more than {self.length} words and were cut, as in training.",) if long else ()
        )
        prepared = prepare(encoded, y, len(self.labels), where)
        return PreparedInputs(prepared.samples, prepared.names, prepared.labelled, notes)

    def _classes(self, values: Column, where: str) -> NDArray[Any] | None:
        if values.missing.all():
            return None
        by_name = {label: number for number, label in enumerate(self.labels)}
        by_number = {str(number): number for number in range(len(self.labels))}
        texts = [str(text) for text in values.text()]
        for row, text in enumerate(texts):
            if text not in by_name and text not in by_number:
                raise DataError(
                    f"{where}: label {self.label!r}, row {row} is {text!r}; the model's classes are"
                    f" {', '.join(self.labels)}.{suggestion(text, self.labels)}"
                )
        return np.array([by_name.get(text, by_number.get(text)) for text in texts], dtype=np.int64)

    def facts(self) -> dict[str, Any]:
        """See :meth:`InputPreprocessor.facts`."""
        return {
            "kind": "words",
            "takes": self.accepts,
            "length": self.length,
            "normalisation": {
                "rule": "basic English words, lower case; unknown words are token 0, padding on the right is token 1"
            },
            "vocabulary": dict(self.vocabulary),
        }


@dataclass(frozen=True)
class Characters(InputPreprocessor):
    """The last characters of a text, which predict the next one.

    Attributes:
        window: characters in a sample.
        codes: character to token; 0 is any other character.
    """

    window: int
    codes: Mapping[str, int] = field(repr=False)

    @property
    def accepts(self) -> str:
        """Describe the accepted input."""
        return f"texts: a .txt file with one a line, of which the last {self.window} characters are read"

    def texts(self, lines: Sequence[str], where: str) -> PreparedInputs:
        """See :meth:`InputPreprocessor.texts`."""
        short = next((row for row, line in enumerate(lines) if len(line) < self.window), None)
        if short is not None or not lines:
            content = "no text" if short is None else f"{len(lines[short])} characters in line {short + 1}"
            raise DataError(
                f"{where} holds {content}; the model reads {self.window} characters to predict the next one."
            )
        x = np.array([[self.codes.get(letter, 0) for letter in line[-self.window :]] for line in lines], dtype=np.int64)
        return self.array(x, None, where)

    def array(self, x: NDArray[Any], y: NDArray[Any] | None, where: str) -> PreparedInputs:
        """See :meth:`InputPreprocessor.array`: tokens."""
        return Numbers((self.window,), len(self.codes) + 1, len(self.codes) + 1).array(x, y, where)

    def facts(self) -> dict[str, Any]:
        """See :meth:`InputPreprocessor.facts`."""
        return {
            "kind": "characters",
            "takes": self.accepts,
            "length": self.window,
            "normalisation": {"rule": "one token a character; an unknown one is token 0"},
            "vocabulary": dict(self.codes),
        }
