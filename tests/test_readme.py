"""The table of rows in README.md is true."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", (TESTS / "README.md").read_text())))


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED}))
def test_every_test_that_the_table_of_rows_names_exists(file):
    written = {node.name for node in ast.parse((TESTS / file).read_text()).body if isinstance(node, ast.FunctionDef)}
    assert {name for of, name in NAMED if of == file} <= written
