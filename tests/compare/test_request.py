"""Comparisons that cannot be asked for."""

import pandas as pd
import pytest

from fedstrata import compare
from fedstrata.common.errors import ConfigError


def small(out, **more):
    return {
        "data": "synthetic_iid",
        "model": "logistic",
        "clients": 4,
        "rounds": 2,
        "local.epochs": 1,
        "executor": "loop",
        "out": str(out),
    } | more


def test_an_accuracy_to_reach_is_refused_where_there_are_no_classes(tmp_path):
    pd.DataFrame({"x": range(60), "y": [0.5 * x for x in range(60)], "who": list("abc") * 20}).to_csv(
        tmp_path / "r.csv", index=False
    )
    with pytest.raises(
        ConfigError, match=r"an accuracy of 0\.5 is to end runs, and .* is a regression, which has none"
    ):
        compare(
            ["fedavg", "scaffold"],
            target=0.5,
            **small(tmp_path, data=f"table(path='{tmp_path / 'r.csv'}', label=y, client=who)", clients=3),
        )
    assert not list(tmp_path.rglob("rounds.jsonl"))
