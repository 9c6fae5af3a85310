"""What a run is found by, and what becomes of damaged ones."""

import importlib
import importlib.util
import json
import shutil
import sys

import pytest

from fedstrata import Piece
from fedstrata.common.errors import StateError
from fedstrata.compare import run_cache
from fedstrata.config.config import Config
from fedstrata.engine.assembly import assemble
from fedstrata.methods import method
from helpers.comparisons import asked, make

FILES = run_cache.SEALED


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "cache" / "a-run"
    folder.mkdir(parents=True)
    for name in FILES:
        (folder / name).write_text(f"what {name} holds\n")
    return folder


def test_every_folder_of_the_package_decides_results_or_presents_them():
    folders = {path.relative_to(run_cache.PACKAGE).with_suffix("").parts[0] for path in run_cache.PACKAGE.rglob("*.py")}
    folders -= {"__init__", "__main__", "_version"}
    assert folders <= run_cache.RESULT_PACKAGES | run_cache.PRESENTATION_PACKAGES, (
        "say in compare/run_cache.py whether the new folder may change a run's result"
    )
    assert not run_cache.RESULT_PACKAGES & run_cache.PRESENTATION_PACKAGES


def test_the_code_version_changes_with_folders_that_decide_results_and_with_no_other(tmp_path):
    copy = tmp_path / "fedstrata"
    shutil.copytree(run_cache.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    before = run_cache.code_version.__wrapped__(copy)
    assert before == run_cache.code_version.__wrapped__(run_cache.PACKAGE)
    (copy / "report" / "terminal.py").write_text("# another table\n")
    (copy / "cli" / "train.py").unlink()
    assert run_cache.code_version.__wrapped__(copy) == before
    for name in ("client/update.py", "methods/fedprox.py", "data/loading.py"):
        original = (copy / name).read_text()
        (copy / name).write_text(original + "\n")
        assert run_cache.code_version.__wrapped__(copy) != before, name
        (copy / name).write_text(original)
    (copy / "models" / "new.py").write_text("")
    assert run_cache.code_version.__wrapped__(copy) != before


def test_the_key_is_of_configuration_data_and_code_but_not_of_place_and_executor(monkeypatch):
    config = Config(rounds=3)
    key = run_cache.key_of(config, "f" * 64)
    assert run_cache.key_of(config.replace(out="elsewhere", name="x", executor="threads", workers=2), "f" * 64) == key
    assert run_cache.key_of(config.replace(seed=1), "f" * 64) != key
    assert run_cache.key_of(config, "e" * 64) != key
    assert run_cache.key_of(config, "f" * 64, "outside") != key
    monkeypatch.setattr(run_cache, "code_version", lambda: "another")
    assert run_cache.key_of(config, "f" * 64) != key


def test_a_sealed_run_is_finished_and_every_changed_byte_is_seen(run):
    assert run_cache.inspect_run(run.with_name("nothing"), "k").state == "none"
    (run / "manifest.json").rename(run / "manifest")
    assert run_cache.inspect_run(run, "k").state == "damaged"
    (run / "manifest").rename(run / "manifest.json")
    assert run_cache.inspect_run(run, "k").state == "begun"
    run_cache.seal(run, "k", 3)
    assert run_cache.inspect_run(run, "k") == run_cache.CachedRun("finished")
    assert run_cache.together(run) == 3
    assert "another run" in run_cache.inspect_run(run, "other").why
    for name in FILES:
        original = (run / name).read_text()
        (run / name).write_text(original.upper())
        assert run_cache.inspect_run(run, "k").state == "damaged", name
        (run / name).unlink()
        assert "missing" in run_cache.inspect_run(run, "k").why
        (run / name).write_text(original)
    assert run_cache.inspect_run(run, "k").state == "finished"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"key": "k"}', '{"key": "k", "files": 3}', '{"key": "k", "files": {"summary.json": 1}}']
)
def test_a_damaged_seal_is_damage_and_no_crash(run, text):
    (run / run_cache.SEAL).write_text(text)
    assert run_cache.inspect_run(run, "k").state == "damaged"


def test_a_seal_cannot_point_out_of_its_folder_to_make_a_run_whole(run):
    run_cache.seal(run, "k")
    seal = json.loads((run / run_cache.SEAL).read_text())
    assert set(seal["files"]) == set(FILES)
    del seal["files"]["summary.json"]
    (run / run_cache.SEAL).write_text(json.dumps(seal))
    assert run_cache.inspect_run(run, "k").state == "damaged"


def test_what_is_set_aside_keeps_its_content(run):
    first = run_cache.set_aside(run)
    assert (first.name, (first / "summary.json").exists(), run.exists()) == ("a-run.damaged-1", True, False)
    run.mkdir()
    assert run_cache.set_aside(run).name == "a-run.damaged-2"


def test_two_cannot_hold_one_place(tmp_path):
    folder = tmp_path / "cache" / "a"
    with run_cache.hold_folder(folder):
        with pytest.raises(StateError, match="in use") as refused, run_cache.hold_folder(folder):
            pass
        assert run_cache.is_locked(refused.value)
    with run_cache.hold_folder(folder):
        pass


def test_source_of_other_packages_counts_and_ours_does_not_count_twice(tmp_path, monkeypatch):
    assert run_cache.plugin_digest(Config(), method("fedprox + fedavgm")) == ""
    file = tmp_path / "mine.py"
    text = (
        "from dataclasses import dataclass\nfrom fedstrata import Piece\n\n@dataclass(frozen=True)\nclass"
        " Mine(Piece):\n    a: float = 1.0\n"
    )
    found = []
    for more in ("", "# changed\n"):
        file.write_text(text + more)
        spec = importlib.util.spec_from_file_location("mine", file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "mine", module)
        spec.loader.exec_module(module)
        found.append(run_cache.plugin_digest(Config(), method("fedavg") + module.Mine()))
    assert all(found)
    assert found[0] != found[1]


def test_pieces_without_a_source_have_no_identity():
    space = {"Piece": Piece, "__name__": "typed_in"}
    exec("class Typed(Piece):\n    pass\n", space)
    assert run_cache.plugin_digest(Config(), method("fedavg") + space["Typed"]()) is None


def test_a_package_counts_as_a_whole(tmp_path, monkeypatch):
    package = tmp_path / "guestpack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text("A = 1\n")
    (package / "piece.py").write_text("from fedstrata import Piece\nclass Guest(Piece):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    chain = method("fedavg") + importlib.import_module("guestpack.piece").Guest()
    before = run_cache.plugin_digest(Config(), chain)
    (package / "helper.py").write_text("A = 2\n")
    assert before != run_cache.plugin_digest(Config(), chain)


def test_a_measure_of_ours_is_ours():
    parts = assemble(Config(model="logistic", measures="drift"))
    assert run_cache.plugin_digest(parts.config, parts.method, parts.measures.values()) == ""


HERE = (lambda _event: None,)


@pytest.mark.parametrize("name", ["summary.json", "sealed.json", "rounds.jsonl"])
@pytest.mark.parametrize("how", ["folder", "link"])
def test_a_finished_run_whose_file_is_no_file_is_set_aside_and_made_again(tmp_path, name, how):
    planned = asked(tmp_path, seeds=(0,), executor="loop", rounds=1)
    whole, _ = make(planned, observers=HERE)
    place = next(iter(whole.jobs.values())).folder / name
    place.rename(tmp_path / "elsewhere")
    place.mkdir() if how == "folder" else place.symlink_to(tmp_path / "elsewhere")
    again, _ = make(planned, observers=HERE)
    assert len(again.done) == 2
    assert not again.failures
    assert place.is_file()
    assert not place.is_symlink()
    assert len(list((tmp_path / "cache").glob("*.damaged-1"))) == 1
