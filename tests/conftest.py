"""What all tests share: one intra-op thread, and `lab` (small federations, models and runs) as an importable module."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode puts nothing on the path, and tests share lab.py and laws/


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
