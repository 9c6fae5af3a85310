"""A method says its difference from FedAvg in few lines."""

import statistics

from fedstrata.methods import rows
from helpers.count_lines import pieces

ONE = '''
"""A file."""

import x


@dataclass(frozen=True)
class One(Piece):
    """A class.

    More.
    """

    mu: float = 1.0  # why

    # alone
    def step(self):
        """A verb."""
        return (
            "a"
        )


ROW = Row(One)
'''


def test_every_method_is_counted():
    assert set(pieces()) == {row.piece.__name__ for row in rows() if row.piece.__module__.startswith("fedstrata.")}


def test_half_of_the_methods_take_at_most_fifteen_lines():
    counts = pieces()
    assert statistics.median(counts.values()) <= 15
    assert counts["FedProx"] <= 8
    assert counts["Scaffold"] <= 22
    assert counts["FedPart"] <= 35


def test_docstrings_comments_blank_lines_and_what_surrounds_the_class_do_not_count(tmp_path):
    folder = tmp_path / "src/fedstrata/methods"
    folder.mkdir(parents=True)
    (folder / "one.py").write_text(ONE)
    assert pieces(tmp_path) == {"One": 7}
