"""The public names are the documented ones, no more and no fewer."""

import inspect
import re
from importlib import metadata
from pathlib import Path

import pytest

import fedstrata

DOCUMENTED = re.findall(
    r"^\| `(\w+)` \| (.+) \|$", (Path(__file__).parents[1] / "docs" / "names.md").read_text(), re.MULTILINE
)


def test_public_names_are_exactly_the_documented_ones_in_their_order():
    assert fedstrata.__all__ == [name for name, _ in DOCUMENTED]
    assert all(meaning for _, meaning in DOCUMENTED)


@pytest.mark.parametrize("name", fedstrata.__all__)
def test_a_public_name_has_a_docstring_of_its_own(name):
    thing = getattr(fedstrata, name)
    text = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    assert text
    assert not text.startswith(f"{name}(")  # what dataclass writes where nobody wrote anything


def test_version_is_that_of_the_package():
    assert fedstrata.__version__ == metadata.version("fedstrata")


def test_run_and_resume_from_python(tmp_path):
    from fedstrata.runs.run import Stopped  # noqa: PLC0415

    settings = {"rounds": 3, "cohort": 3, "executor": "loop", "local": {"epochs": 1}, "out": str(tmp_path)}
    whole = fedstrata.run("fedprox(mu=0.1)", name="whole", **settings)
    assert whole.summary["rounds"] == len(whole.rounds) == 3
    assert (whole.folder / "clients.csv").is_file()
    with pytest.raises(Stopped):
        fedstrata.run("fedprox(mu=0.1)", name="cut", stop=lambda: True, **settings)
    again = fedstrata.resume(tmp_path / "cut")
    assert again.summary["model_sha256"] == whole.summary["model_sha256"]
    assert "rounds=" not in repr(whole)


def test_a_misspelt_setting_in_python_names_the_right_one():
    with pytest.raises(fedstrata.ConfigError, match=r"'local\.lr'"):
        fedstrata.run(local_rl=0.1)
