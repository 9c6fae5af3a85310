"""Settings of studies with their defaults, as the list and the page have them."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from fedstrata.studies import find, table
from fedstrata.studies.registry import settings

PAGE = (Path(__file__).parents[2] / "docs" / "studies.md").read_text()


@pytest.mark.parametrize("name", sorted(table()))
def test_settings_are_written_so_that_reading_them_gives_the_defaults(name):
    kind = table()[name]
    assert find(f"{name}({settings(kind)})")[1] == kind()
    assert settings(kind).count("=") == len(asdict(kind()))


@pytest.mark.parametrize("name", sorted(table()))
def test_the_page_has_the_defaults_of_the_code(name):
    said = settings(table()[name])
    assert (f"Defaults of `{name}`: `{said}`.\n" if said else f"`{name}` has no settings.\n") in PAGE


def test_the_list_has_settings_with_their_defaults(call):
    code, out, err = call("list", "studies", "--json")
    assert code == 0, err
    rows = {row["study"]: row["settings"] for row in json.loads(out)}
    assert rows == {name: settings(kind) or "-" for name, kind in table().items()}
    assert rows["masks"] == "samples=1000, at=[]"
