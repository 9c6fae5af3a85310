"""What the documents say holds: commands exist, settings are settings, examples in docstrings run."""

import doctest
import importlib
import pkgutil
import re
import shlex
from pathlib import Path

import pytest

import fedstrata
from fedstrata.cli import app, read_settings
from fedstrata.methods import method

ROOT = Path(__file__).parents[1]
OPTIONAL = ("ray", "flower")  # backends whose libraries are extras
MODULES = [m.name for m in pkgutil.walk_packages(fedstrata.__path__, "fedstrata.") if m.name.rsplit(".", 1)[-1] not in (*OPTIONAL, "__main__")]


def blocks(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


def commands():
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        for block in blocks(path, "bash"):
            for line in block.splitlines():
                words = shlex.split(line, comments=True)
                if words:
                    yield pytest.param(words, id=f"{path.name}: {' '.join(words)}")


@pytest.mark.parametrize("words", list(commands()))
def test_a_documented_command_exists_and_its_settings_are_read(words):
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif words[0] == ".venv/bin/fedstrata":
        assert words[1] in {c.name or c.callback.__name__ for c in app.registered_commands}
        settings = [w for w in words[2:] if re.match(r"[a-z.]+=", w)]
        assert method(read_settings(settings).method)
        if words[1] == "describe":
            assert method(words[2])
    else:
        assert words == ["git", "push"]


@pytest.mark.parametrize("source", [pytest.param(b, id=b.strip().splitlines()[-1][:40]) for b in blocks(ROOT / "README.md", "python")])
def test_python_examples_parse_and_name_what_exists(source):
    compile(source, "README.md", "exec")
    for name in re.findall(r"fedstrata\.(\w+)", source):
        assert hasattr(fedstrata, name)


def test_the_readme_opens_with_the_two_commands():
    first, second = (line.split("#")[0].strip() for line in blocks(ROOT / "README.md", "bash")[0].splitlines())
    assert (first, second) == ("make demo", "make test")


def test_links_in_documents_lead_somewhere():
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
            assert target.startswith("https://") or (path.parent / target).exists(), f"{path.name}: {target}"


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.failed == 0


def test_constraints_pin_every_dependency():
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    for line in re.findall(r'^  "([A-Za-z0-9_-]+)[<>=]', (ROOT / "pyproject.toml").read_text(), re.MULTILINE):
        assert line.lower() in pinned, line
