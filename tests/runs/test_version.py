"""A run folder of another version gets one clear sentence and exit code 2 from every command that reads it."""

import json

import pytest

from fedstrata import __version__
from helpers.finished_runs import quick


@pytest.mark.parametrize("command", [["resume"], ["report"], ["predict"], ["export"]], ids=lambda c: c[0])
def test_a_folder_of_version_0_1_is_refused_in_one_sentence(command, tmp_path, call):
    folder = quick(tmp_path)
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "fedstrata": "0.1.0"}))
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    extra = ["data=digits"] if command == ["predict"] else []
    code, _, err = call(*command, folder, *extra)
    assert code == 2
    assert f"made by fedstrata 0.1.0, and {__version__} does not read it" in err
    assert "Traceback" not in err
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_a_folder_of_a_patch_release_is_read(tmp_path, call):
    folder = quick(tmp_path)
    path = folder / "manifest.json"
    patch = ".".join([*__version__.split(".")[:2], "99"])
    path.write_text(json.dumps({**json.loads(path.read_text()), "fedstrata": patch}))
    code, _, _ = call("report", folder)
    assert code == 0
