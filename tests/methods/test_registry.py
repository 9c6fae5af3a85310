"""Every written method is registered, with an example and a limit law, or a reason and a reference test that exists."""

from dataclasses import dataclass, replace

import pytest

from fedstrata.core.piece import Piece
from fedstrata.methods import NoLimit, rows
from helpers import registry_checks


def test_the_registry_is_complete():
    assert registry_checks.complaints(rows(), registry_checks.written_pieces()) == []


def test_the_walk_finds_what_is_registered():
    assert {row.piece for row in rows()} <= set(registry_checks.written_pieces())


@dataclass(frozen=True)
class Orphan(Piece):
    """Written, not registered."""


def lacking(**changes):
    return [replace(rows()[0], **changes)]


@pytest.mark.parametrize(
    ("incomplete", "complaint"),
    [
        (lacking(examples=()), "has no example"),
        (lacking(examples=("fedavg",)), "no example shows it"),
        (lacking(limit=None), "neither a limit nor a reason"),
        (lacking(limit=NoLimit("no", "methods/test_reference.py::test_x")), "says nothing"),
        (lacking(limit=NoLimit("it cannot be said", "methods/nowhere.py::test_x")), "does not exist"),
        (lacking(limit=NoLimit("it cannot be said", "methods/test_reference.py::test_x")), "has no test test_x"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_incomplete_row_is_found(incomplete, complaint):
    assert any(complaint in found for found in registry_checks.complaints(incomplete, []))


def test_an_unregistered_piece_is_found():
    assert registry_checks.complaints(rows(), [*registry_checks.written_pieces(), Orphan]) == [
        "Orphan is written but not registered"
    ]
