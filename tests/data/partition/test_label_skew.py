"""Skewed splits with clients that hold nothing."""

import pytest
import torch

from fedstrata.data import DataSpec, load
from helpers import lab


@pytest.mark.parametrize("alpha", [0.01, 0.1])
def test_row_59_a_skewed_split_with_empty_clients_trains_and_names_them(alpha):
    data = load(DataSpec(data="digits", partition=f"dirichlet(alpha={alpha}, min=0)", clients=40))
    empty = {i for i in range(40) if data.partition.size(i) == 0}
    assert empty
    module = lab.filled(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4), torch.nn.ReLU(), torch.nn.Linear(4, 10))
    )
    found = lab.play(toy=(data, module), cohort=40, rounds=1, local_steps=1)
    assert {(client, code) for client, code, _ in found.rows[0]["refused"]} == {(i, "empty") for i in empty}
    assert found.rows[0]["updated"]
