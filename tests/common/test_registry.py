"""The registry that methods, data, models and the others share."""

import pytest

from fedstrata.common import plugins
from fedstrata.common.errors import ConfigError
from fedstrata.common.registry import Registry
from fedstrata.common.suggest import near, suggestion


class Entry:
    def load(self):
        return self.offered

    value = "fedother:THING"


@pytest.fixture
def numbers(monkeypatch):
    """Registered whole numbers, and the plug-in ``seven`` of a package."""
    entry = Entry()
    entry.offered = 7
    offered = {"seven": plugins.Plugin("models", "seven", "fedother", "1.2", "a number", entry)}
    monkeypatch.setattr(plugins, "installed", lambda kind: offered if kind == "models" else {})
    monkeypatch.setattr(plugins, "_loaded", {})
    registry = Registry(
        "models",
        "model",
        accepts=lambda it: isinstance(it, int),
        wanted="a whole number",
        entries={"one": 1},
        reserved=("none",),
    )
    return registry, entry, offered


def test_entries_are_found_by_name_in_the_order_of_registration(numbers):
    registry, _, _ = numbers
    assert registry.register("two", 2) == 2
    assert dict(registry.items()) == {"one": 1, "two": 2}
    assert registry.find("two") == 2
    assert registry.names() == ("none", "one", "two", "seven")
    assert "two" in registry
    assert "none" not in registry
    registry.unregister("two")
    assert "two" not in registry


def test_a_plugin_is_found_with_its_origin(numbers):
    registry, _, _ = numbers
    assert registry.find("seven") == 7
    assert "seven" in registry
    assert (registry.origin("seven"), registry.origin("one")) == ("fedother 1.2", "")


@pytest.mark.parametrize(
    ("name", "entry", "reason"),
    [
        ("one", 3, "a model 'one' is registered already; choose another name"),
        ("none", 3, "registered already"),
        ("my net", 3, "'my net' is not"),
        ("three", "3", "model 'three' is an object of type str; it must be a whole number"),
        ("three", str, "model 'three' is the class str; it must be a whole number"),
    ],
)
def test_taken_names_and_wrong_types_are_refused(numbers, name, entry, reason):
    registry, _, _ = numbers
    with pytest.raises(ConfigError, match=reason):
        registry.register(name, entry)
    assert dict(registry.items()) == {"one": 1}


def test_an_unknown_name_is_refused_with_the_nearest_and_all(numbers):
    registry, _, _ = numbers
    with pytest.raises(
        ConfigError, match=r"there is no model 'sevn'\. Did you mean 'seven'.*Known are none, one, seven\."
    ):
        registry.find("sevn")


def test_plugins_with_a_taken_name_or_a_wrong_type_are_refused(numbers):
    registry, entry, offered = numbers
    entry.offered = "7"
    with pytest.raises(
        ConfigError, match=r"fedother 1\.2: fedother:THING is an object of type str; it must be a whole"
    ):
        registry.find("seven")
    offered["one"] = plugins.Plugin("models", "one", "fedother", "1.2", "", entry)
    with pytest.raises(ConfigError, match=r"fedother 1\.2: fedstrata has a model 'one' itself"):
        registry.find("one")


def test_near_names():
    assert near("weight-decay", ["local.weight_decay", "weighting"], n=1) == ["local.weight_decay"]
    assert suggestion("metod", ["method", "model"]) == " Did you mean 'method' or 'model'?"
    assert suggestion("x", ["method"]) == ""
