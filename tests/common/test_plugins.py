"""Plug-ins by entry point: found from metadata, imported when named, and refused in words that name their package."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import fedstrata
from fedstrata import ConfigError
from fedstrata.citations.cite import cite
from fedstrata.cli.catalogue import rows
from fedstrata.common import plugins
from fedstrata.config.config import Config
from fedstrata.data.registry import find_dataset, find_partition
from fedstrata.data.types import Task
from fedstrata.diagnostics.registry import MEASURES
from fedstrata.methods import find, method
from fedstrata.models.registry import build
from fedstrata.models.registry import find as find_model

SOURCE = '''
from dataclasses import dataclass
import numpy as np
from torch import nn
from fedstrata import Piece
from fedstrata.data import Place, source_of
from fedstrata.data.partition.laws import Iid
from fedstrata.diagnostics.base import Measure
from fedstrata.methods import Limit, Row

@dataclass(frozen=True)
class FedHalf(Piece):
    """Half steps."""
    share: float = 0.5
    def merge(self, step, ctx):
        return self.share * step, ctx.state

ENTRY = "@misc{half2026, author = {H}, title = {H}, year = {2026}}"
ROW = Row(FedHalf, "half steps", ("fedhalf",), Limit("fedhalf(share=1)", "fedavg"), cite=(ENTRY,))

@dataclass(frozen=True)
class Dots:
    each: int = 30
    def read(self, place):
        y = np.arange(self.each) % 2
        x = np.stack([y, 1 - y], axis=1).astype(np.float32)
        return source_of(x, y, test=(x[:8], y[:8]), name=f"dots(each={self.each})")

@dataclass(frozen=True)
class Fair(Iid):
    """Another name for iid."""

def tiny(task, width: int = 4):
    return nn.Sequential(nn.Flatten(), nn.Linear(task.shape[0], width), nn.ReLU(), nn.Linear(width, task.classes))

@dataclass(frozen=True)
class Sum(Measure):
    title = "Sum"
    text = "Sum of all parameters."
    def measure(self, snapshot):
        return {"all": float(snapshot.after.flat.sum())}
'''

ENTRIES = {
    "methods": {"fedhalf": "ROW"},
    "datasets": {"dots": "Dots"},
    "partitions": {"fair": "Fair"},
    "models": {"tiny": "tiny"},
    "measures": {"total": "Sum"},
}


def install(folder: Path, package: str, module: str, source: str, entries, version="1.2") -> None:
    """What pip leaves behind: a module, and a dist-info folder with metadata and entry points."""
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\nSummary: for tests\n")
    lines = [
        f"[fedstrata.{kind}]\n" + "".join(f"{name} = {module}:{value}\n" for name, value in found.items())
        for kind, found in entries.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture
def site(tmp_path, monkeypatch):
    """An empty folder on the path; what was loaded from it is forgotten afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(plugins, "_found", {})
    monkeypatch.setattr(plugins, "_loaded", {})
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(folder) in sys.modules[name].__file__:
            del sys.modules[name]


@pytest.fixture
def package(site):
    install(site, "fed-extra", "fedextra", SOURCE, ENTRIES)
    return site


def test_every_kind_of_plugin_serves_a_run(package, tmp_path):
    result = fedstrata.run(
        "fedhalf(share=0.25) + fedprox(mu=0.1)",
        data="dots(each=40)",
        partition="fair",
        model="tiny(width=6)",
        measures="total",
        clients=4,
        rounds=2,
        eval_every=1,
        executor="loop",
        out=str(tmp_path / "runs"),
    )
    assert result.summary["rounds"] == 2
    assert all("all" in row["measures"]["total"] for row in result.rounds)
    manifest = json.loads((result.folder / "manifest.json").read_text())
    assert manifest["versions"]["fed-extra"] == "1.2"


def test_a_run_without_plugins_names_none(package, tmp_path):
    method("fedhalf")  # loaded, but not of this run
    result = fedstrata.run(rounds=1, clients=4, executor="loop", out=str(tmp_path / "runs"))
    assert "fed-extra" not in json.loads((result.folder / "manifest.json").read_text())["versions"]


def test_a_resume_says_that_a_plugin_has_changed(package, tmp_path):
    settings = {"rounds": 2, "clients": 4, "executor": "loop", "out": str(tmp_path / "runs"), "checkpoint_every": 1}
    with pytest.raises(Exception, match="stopped"):
        fedstrata.run("fedhalf", stop=lambda: True, **settings)
    [folder] = (tmp_path / "runs").iterdir()
    key = ("methods", "fedhalf")
    plugin, row = plugins._loaded[key]
    plugins._loaded[key] = replace(plugin, version="1.3"), row
    result = fedstrata.resume(folder)
    assert any("fed-extra was 1.2 and is 1.3" in note for note in result.notes)


def test_listing_shows_the_package_and_imports_nothing(package):
    (package / "fedextra.py").write_text("raise RuntimeError('imported')")
    assert rows("methods")[-1] == {"method": "fedhalf", "what it does": "for tests", "source": "plug-in: fed-extra 1.2"}
    for kind in ("datasets", "partitions", "models", "measures"):
        assert any("fed-extra 1.2" in str(row) for row in rows(kind))
    assert "fedextra" not in sys.modules


def test_nothing_is_imported_because_it_is_installed(package):
    (package / "fedextra.py").write_text("raise RuntimeError('imported')")
    assert str(method("fedprox + fedavgm")) == "fedprox + fedavgm"
    find_dataset("digits"), find_partition("iid"), find_model("mlp"), MEASURES.find("drift")
    assert "fedextra" not in sys.modules


def test_its_own_entry_is_cited(package):
    assert cite("fedhalf")[1].key == "half2026"


def test_an_unknown_name_is_told_the_nearest_plugin(package):
    with pytest.raises(ConfigError, match="Did you mean 'fedhalf'"):
        method("fedhafl")
    with pytest.raises(ConfigError, match="'dots'"):
        find_dataset("dot")


@pytest.mark.parametrize(
    ("kind", "name", "look"),
    [
        ("methods", "fedprox", method),
        ("methods", "fedavg", find),
        ("datasets", "digits", find_dataset),
        ("partitions", "iid", find_partition),
        ("models", "mlp", find_model),
        ("measures", "drift", MEASURES.find),
    ],
)
def test_a_name_of_ours_is_refused_with_the_package(site, kind, name, look):
    install(site, "fed-thief", "fedthief", "raise RuntimeError('imported')", {kind: {name: "X"}})
    with pytest.raises(ConfigError, match=rf"'{name}' of the package fed-thief 1.2: fedstrata has a .* itself"):
        look(name)
    assert "fedthief" not in sys.modules


def test_two_packages_with_one_name_are_refused(package):
    install(package, "fed-other", "fedother", "", {"methods": {"fedhalf": "ROW"}})
    with pytest.raises(
        ConfigError, match=r"fed-(extra|other) 1\.2 and fed-(extra|other) 1\.2 both offer method 'fedhalf'"
    ):
        method("fedhalf")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import nothing_of_that_name", "ModuleNotFoundError"),
        ("1 / 0", "ZeroDivisionError"),
        ("x = 1", "AttributeError"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_a_broken_import_names_the_package(site, source, reason):
    install(site, "fed-broken", "fedbroken", source, {"methods": {"fedbroken": "ROW"}})
    with pytest.raises(
        ConfigError,
        match=rf"method 'fedbroken' of the package fed-broken 1.2: importing fedbroken:ROW fails with {reason}",
    ):
        method("fedbroken")


WRONG = """
from dataclasses import dataclass
from fedstrata import Piece
from fedstrata.methods import NoLimit, Row
THING = 3
class Bare(Piece):
    x: float = 1.0
@dataclass(frozen=True)
class Named(Piece):
    x: float = 1.0
ROW = Row(Named, "", ("named",), NoLimit("a test of names", ""))
def no_task(width): ...
"""


@pytest.mark.parametrize(
    ("kind", "name", "value", "look", "reason"),
    [
        (
            "methods",
            "thing",
            "THING",
            method,
            "is an object of type int; it must be a fedstrata.methods.Row, or a subclass",
        ),
        ("methods", "bare", "Bare", method, "no dataclass of settings"),
        ("methods", "other", "ROW", method, "the entry point must be called 'named'"),
        (
            "datasets",
            "thing",
            "THING",
            find_dataset,
            "is an object of type int; it must be a dataclass of settings with read",
        ),
        ("datasets", "bare", "Bare", find_dataset, "is the class Bare; it must be a dataclass of settings with read"),
        (
            "partitions",
            "bare",
            "Bare",
            find_partition,
            "is the class Bare; it must be a dataclass of settings with deal",
        ),
        ("models", "thing", "THING", find_model, "must be a function"),
        ("models", "bare", "Bare", find_model, "must be a function"),
        ("models", "notask", "no_task", find_model, "needs a parameter called task"),
        ("measures", "bare", "Bare", MEASURES.find, "must be a subclass of fedstrata.diagnostics.base.Measure"),
    ],
)
def test_an_object_of_a_wrong_type_names_the_package(site, kind, name, value, look, reason):
    install(site, "fed-wrong", "fedwrong", WRONG, {kind: {name: value}})
    with pytest.raises(ConfigError, match=r"of the package fed-wrong 1.2: ") as found:
        look(name)
    assert reason in str(found.value)


def test_a_bare_piece_serves_as_a_method(site):
    install(site, "fed-plain", "fedplain", WRONG, {"methods": {"named": "Named"}})
    assert str(method("named(x=2.0)")) == "named(x=2.0)"
    assert find("named").summary == "for tests"


def test_settings_of_a_plugin_are_checked_as_ours_are(package):
    with pytest.raises(ConfigError, match=r"method fedhalf has no setting 'shar'\. Did you mean 'share'"):
        method("fedhalf(shar=1)")
    with pytest.raises(ConfigError, match="model tiny has no setting"):
        build("tiny(depth=1)", Task("classification", (2,), 2), None, None)
    with pytest.raises(ConfigError, match="data dots has no setting"):
        Config(data="dots(every=1)").federation()


def test_a_package_installed_in_a_running_process_is_found_after_refresh(site):
    with pytest.raises(ConfigError, match="no method"):
        method("fedhalf")
    install(site, "fed-extra", "fedextra", SOURCE, ENTRIES)
    plugins.refresh()
    assert str(method("fedhalf")) == "fedhalf"


def test_the_command_names_the_package_in_one_line(site):
    install(site, "fed-broken", "fedbroken", "1 / 0", {"methods": {"fedbroken": "ROW"}})
    command = [sys.executable, "-m", "fedstrata", "check", "method=fedbroken"]
    found = subprocess.run(
        command, capture_output=True, text=True, env={"PYTHONPATH": str(site), "PATH": ""}, check=False
    )
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1
    assert "fed-broken 1.2" in found.stderr
