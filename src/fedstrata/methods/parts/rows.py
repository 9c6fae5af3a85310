"""The row of a method in the registry: what lists, laws, citations and the doctor know of it beside its class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from fedstrata.core.piece import Piece
from fedstrata.methods.parts.advice import Rule

Family: TypeAlias = Literal[
    "averaging", "drift", "contrast", "resets", "partial", "private-layers", "private-models", ""
]
REFERENCE = "methods/test_reference.py::test_{}_equals_the_written_out_rule"


@dataclass(frozen=True)
class Limit:
    """Two chains that agree bit for bit, on the server's model and on the model of every client.

    Attributes:
        method, of: in call syntax.
        shared_only: only the server's model agrees (the method adds private models).
        uniform: needs equal numbers of local steps on all clients.
    """

    method: str
    of: str
    shared_only: bool = False
    uniform: bool = False

    def __str__(self) -> str:
        return f"{self.method} is {self.of}"


@dataclass(frozen=True)
class NoLimit:
    """Why a method has no limit law, and the test against an independent reference that replaces it.

    Attributes:
        why: the reason.
        reference: "file::test", below tests/.
    """

    why: str
    reference: str


@dataclass(frozen=True)
class Row:
    """One registered method, which its file holds as ``ROW``, or in ``ROWS`` where it has several.

    Attributes:
        piece: the class; its ``name`` is the method's.
        summary: one line.
        examples: in call syntax, settings at which the laws test it.
        limit: the law, or why there is none.
        cite: keys of ``fedstrata.citations``, or BibTeX entries.
        uncited: why there is nothing to cite.
        source: the publication, in short.
        family: the page of docs/families that explains it.
        measures: diagnostics that its runs record.
        advice: what the doctor says for and against it.
        advised_as: what the doctor proposes to run, in call syntax; "" is the name.
        rank: where the doctor lists it among methods of equal verdict; low numbers come first.
    """

    piece: type[Piece]
    summary: str
    examples: tuple[str, ...]
    limit: Limit | NoLimit
    cite: tuple[str, ...] = ()
    uncited: str = ""
    source: str = ""
    family: Family = ""
    measures: tuple[str, ...] = ()
    advice: tuple[Rule, ...] = ()
    advised_as: str = ""
    rank: int = 1000

    @property
    def name(self) -> str:
        """What users write."""
        return self.piece.name


def no_limit(why: str, name: str) -> NoLimit:
    """Return why one of our methods has no limit law; its reference test has the usual name."""
    return NoLimit(why, REFERENCE.format(name))
