"""What all tests share: one intra-op thread, the folder of helpers, and pages in a browser."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode puts nothing on the path, and tests share helpers/

from helpers.browser import chromium, page  # noqa: F401  # fixtures


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to stand in, and none of the variables that commands look at."""
    monkeypatch.chdir(tmp_path)
    for name in ("FEDSTRATA_DATA", "COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def call(here, capfd):
    """Run the command in this process, in an empty folder: (exit code, stdout, stderr)."""
    from fedstrata.cli import main  # only those who call it  # noqa: PLC0415

    def run(*arguments):
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(a) for a in arguments])
        out, err = capfd.readouterr()
        return left.value.code or 0, out, err

    return run
