"""Where the real data lie: FEDSTRATA_TEST_DATA, or ../shared/data beside the repository."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fedstrata.data.partition.base import LabelView

ROOT = Path(os.environ.get("FEDSTRATA_TEST_DATA") or Path(__file__).parents[2].parent / "shared" / "data")


@pytest.fixture
def real():
    """Folder of a real data set by name; skips with a reason where it is not."""

    def find(name: str) -> Path:
        if not (ROOT / name).is_dir():
            pytest.skip(f"no {name} in {ROOT}; set FEDSTRATA_TEST_DATA")
        return ROOT

    return find


@pytest.fixture(autouse=True)
def no_root(monkeypatch):
    monkeypatch.delenv("FEDSTRATA_DATA", raising=False)


@pytest.fixture
def pool():
    """A pool of n samples in c classes, equal but for the remainder, shuffled."""

    def make(n: int, c: int) -> LabelView:
        return LabelView(n, np.random.default_rng(0).permutation(np.arange(n) % c).astype(np.int64), c)

    return make
