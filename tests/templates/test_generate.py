"""`fedstrata new` writes a package that installs, runs and passes its own tests as it is, and refuses names that cannot
be one.
"""

import ast
import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedstrata
from fedstrata import ConfigError, StateError
from fedstrata.cli import main
from fedstrata.cli.catalogue import rows
from fedstrata.common import plugins
from fedstrata.templates.generate import new
from fedstrata.templates.texts import KINDS

LOOSE = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST")}


def run(command, folder, **more):
    found = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, env=LOOSE | more, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


QUIET = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """One package of each kind, installed by pip into a folder of its own."""
    home, site = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("site")
    made = [new("method", "FedMine", home), new("dataset", "Rings", home), new("measure", "Length", home)]
    run(["-m", "pip", "install", *QUIET, "--target", str(site), *map(str, made)], home)
    return site


@pytest.fixture
def here(installed, monkeypatch):
    """The same in this process."""
    monkeypatch.syspath_prepend(installed)
    monkeypatch.setattr(plugins, "_found", {})
    monkeypatch.setattr(plugins, "_loaded", {})
    yield
    for name in ("fedmine", "rings", "length"):
        sys.modules.pop(name, None)


@pytest.mark.full
def test_its_own_tests_pass_where_it_was_written(tmp_path):
    folders = [str(new(kind, f"Fresh{kind}", tmp_path)) for kind in KINDS]
    printed = run(["-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", *folders], tmp_path)
    assert re.search(r"^\d+ passed in", printed, re.MULTILINE), "nothing failed, nothing was skipped"


@pytest.mark.full
def test_the_command_runs_what_is_installed(installed, tmp_path):
    given = ["method=fedmine(reach=0.8) + fedprox(mu=0.1)", "data=rings(classes=4)", "partition=iid", "measures=length"]
    settings = ["rounds=2", "clients=6", "executor=loop", "local.epochs=1", "eval.every=1"]
    printed = run(["-m", "fedstrata", "run", *given, *settings, "--json"], tmp_path, PYTHONPATH=str(installed))
    assert json.loads(printed.splitlines()[-1])["method"] == "fedmine(reach=0.8) + fedprox(mu=0.1)"
    [folder] = (tmp_path / "runs").iterdir()
    assert {"fedmine": "0.1.0", "rings": "0.1.0", "length": "0.1.0"}.items() <= json.loads(
        (folder / "manifest.json").read_text()
    )["versions"].items()
    found = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert all(row["measures"]["length"]["all"] > 0 for row in found)


def test_a_method_at_its_limit_is_fedavg_in_a_real_run(here, tmp_path):
    settings = {"rounds": 2, "clients": 6, "executor": "loop", "local_epochs": 1, "out": str(tmp_path)}
    mine, plain = fedstrata.run("fedmine(reach=1)", **settings), fedstrata.run("fedavg", **settings)
    assert mine.summary["model_sha256"] == plain.summary["model_sha256"]


@pytest.mark.parametrize(("kind", "name"), [("methods", "fedmine"), ("datasets", "rings"), ("measures", "length")])
def test_lists_show_what_is_installed(kind, name, here):
    assert f"{name} 0.1.0" in str(rows(kind)[-1])


def test_the_list_says_of_a_method_what_its_row_says(here):
    from fedmine import ROW  # noqa: PLC0415

    assert rows("methods")[-1]["what it does"] == ROW.summary


def test_a_method_is_written_with_public_names_only_and_refuses_like_ours(here):
    from fedmine import FedMine  # noqa: PLC0415

    with pytest.raises(ConfigError, match=r"fedmine\.reach is 0; it is the factor on the mean update"):
        FedMine(reach=0)
    for node in ast.walk(ast.parse(Path(sys.modules["fedmine"].__file__).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("fedstrata"):
            assert {alias.name for alias in node.names} <= set(importlib.import_module(node.module).__all__)


@pytest.mark.slow
def test_an_editable_install_serves_a_run_and_its_tests(tmp_path):
    """As README.md of the package says it, into a virtual environment of its own that sees ours."""
    folder = new("method", "FedMine", tmp_path)
    run(["-m", "venv", "--system-site-packages", str(tmp_path / "venv")], tmp_path)
    python = str(tmp_path / "venv" / "bin" / "python")
    more = LOOSE | {
        "PYTHONPATH": os.pathsep.join(
            [str(Path(fedstrata.__file__).parents[1]), *(p for p in sys.path if "site-packages" in p)]
        )
    }
    for command in (
        ["-m", "pip", "install", *QUIET, "-e", "."],
        ["-m", "fedstrata", "run", "method=fedmine", "rounds=2"],
        ["-m", "pytest", "-q", "-p", "no:cacheprovider"],
    ):
        found = subprocess.run([python, *command], cwd=folder, capture_output=True, text=True, env=more, check=False)
        assert found.returncode == 0, found.stdout + found.stderr
    assert "passed" in found.stdout


def test_a_method_file_serves_from_python_without_packaging(tmp_path, monkeypatch):
    folder = new("method", "FedLoose", tmp_path)
    monkeypatch.syspath_prepend(folder)
    from fedloose import FedLoose  # noqa: PLC0415

    result = fedstrata.run(FedLoose(reach=0.5), rounds=1, clients=4, executor="loop", out=str(tmp_path / "runs"))
    assert result.summary["method"] == "fedloose(reach=0.5)"


def test_a_method_has_under_thirty_lines_and_an_entry_point(tmp_path):
    folder = new("method", "FedMine", tmp_path)
    [piece] = [node for node in ast.parse((folder / "fedmine.py").read_text()).body if isinstance(node, ast.ClassDef)]
    assert piece.end_lineno - piece.lineno + 1 < 30
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["entry-points"] == {"fedstrata.methods": {"fedmine": "fedmine:ROW"}}
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "fedmine.py",
        "pyproject.toml",
        "test_fedmine.py",
    ]
    assert not any("$" in path.read_text() for path in folder.iterdir())


def test_what_is_written_passes_ruff(tmp_path):
    for kind in KINDS:
        new(kind, f"Fed{kind}", tmp_path)
    run(["-m", "ruff", "check", "--isolated", "--no-cache", "--line-length", "150", str(tmp_path)], tmp_path)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "cannot be the name"),
        ("../evil", "cannot be the name"),
        ("/tmp/evil", "cannot be the name"),
        ("fed mine", "cannot be the name"),
        ("fed-mine", "cannot be the name"),
        ("3fed", "cannot be the name"),
        ("fédé", "cannot be the name"),
        ("a" * 99, "cannot be the name"),
        ("lambda", "a word of Python"),
        ("None", "a word of Python or of our call syntax"),
        ("match", "a word of Python"),
        ("FedAvg", "there is a method 'fedavg' already"),
        ("scaffold", "there is a method 'scaffold' already"),
        ("JSON", "a Python module 'json' is installed"),
        ("torch", "a Python module 'torch' is installed"),
    ],
)
def test_names_that_cannot_be_one_are_refused(name, reason, tmp_path):
    with pytest.raises(ConfigError, match=reason):
        new("method", name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_names_of_other_kinds_are_free():
    with pytest.raises(ConfigError, match="there is a dataset 'digits'"):
        new("dataset", "Digits")
    with pytest.raises(ConfigError, match="there is a measure 'drift'"):
        new("measure", "Drift")


def test_a_name_of_an_installed_plugin_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(plugins, "installed", lambda kind: {"fedother": None})
    with pytest.raises(ConfigError, match="there is a method 'fedother' already"):
        new("method", "FedOther", tmp_path)


def test_what_exists_is_not_touched(tmp_path):
    (tmp_path / "fedmine").mkdir()
    (tmp_path / "fedmine" / "mine.txt").write_text("mine")
    with pytest.raises(StateError, match="exists; nothing was written"):
        new("method", "FedMine", tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["fedmine", "mine.txt"]


def test_half_a_package_is_never_left(tmp_path, monkeypatch):
    monkeypatch.setattr("fedstrata.templates.generate.FILES", {"method": {"one.txt": "one", "two.txt": "$nothing"}})
    with pytest.raises(KeyError):
        new("method", "FedMine", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_kind_names_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match="Did you mean 'method'"):
        new("metod", "FedMine", tmp_path)


def test_the_command_says_what_comes_next(tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["new", "method", "FedMine", "--folder", str(tmp_path / "deep" / "er")])
    assert exit_.value.code == 0
    printed = capsys.readouterr().out
    assert "pip install -e . && fedstrata run method=fedmine && pytest" in printed
    assert (tmp_path / "deep" / "er" / "fedmine" / "fedmine.py").is_file()


def test_the_command_refuses_in_one_line(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["new", "method", "class"])
    assert exit_.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
