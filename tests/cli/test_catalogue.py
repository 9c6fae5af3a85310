"""The index of what is built in agrees with the registries."""

from fedstrata.cli.build_index import written
from fedstrata.cli.catalogue import COLUMNS, rows
from fedstrata.common import index


def test_the_index_is_up_to_date():
    assert index.PATH.read_text(encoding="utf-8") == written(), "make it anew: python -m fedstrata.cli.build_index"


def test_every_list_has_rows_with_equal_columns():
    for what, columns in COLUMNS.items():
        assert rows(what)
        assert all(tuple(row) == columns for row in rows(what))
