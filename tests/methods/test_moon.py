"""Features without a direction."""

import pytest
import torch

from helpers import lab
from helpers.examples import finite


@pytest.mark.parametrize("example", ["moon(mu=1)", "moon(references=eval)"])
def test_row_71_features_that_are_all_zero_have_no_direction_and_do_no_harm(example):
    module = lab.small()
    with torch.no_grad():
        module.second.bias.fill_(-1e3)
    found = lab.play(example, (lab.federation(), module), cohort=6)
    assert finite(found.model)
    assert all(row["updated"] and row["refused"] == [] for row in found.rows)
