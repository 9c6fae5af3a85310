"""Data or code that change while a comparison runs: no run is sealed that the others could not be compared with."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from fedstrata.compare.execution import open_executor
from helpers.comparisons import asked, make

HERE = [lambda event: None]


def write(path, cell=0.5, rows=60):
    """A table; ``cell`` is a number of its first row, whose label does not hang on it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=rows).round(3)
    labels = np.where(x > 0, "yes", "no")
    x[0] = cell
    pd.DataFrame({"x": x, "site": rng.choice(["a", "b", "c"], rows), "ill": labels}).to_csv(path, index=False)


def on_table(tmp_path, **more):
    data = {
        "data": f"table(path='{tmp_path / 'mine.csv'}', label=ill, client=site)",
        "clients": 3,
        "cohort": 2,
        "rounds": 2,
    }
    return asked(tmp_path / "runs", seeds=(0,), **data, **more)


@pytest.mark.full
@pytest.mark.parametrize("observers", [(), HERE], ids=["children", "here"])
def test_a_table_edited_between_the_look_and_the_training_is_a_failure_and_no_run_is_kept(tmp_path, observers):
    write(tmp_path / "mine.csv")
    planned = on_table(tmp_path)
    with open_executor(planned, Console(quiet=True), observers=observers) as making:
        write(tmp_path / "mine.csv", cell=0.777)
        making.make(list(making.run_set.jobs.values()))
        failures = making.run_set.failures
    assert set(failures) == {("fedavg", 0), ("fedprox(mu=1)", 0)}
    assert all(why.startswith("the data changed while the comparison ran") for why in failures.values())
    assert not list((tmp_path / "runs").rglob("sealed.json"))
    again, _ = make(on_table(tmp_path))
    assert len(again.done) == 2, "the same call looks at the data as they are by now"


@pytest.mark.full
def test_a_run_by_other_code_than_the_comparison_was_asked_with_is_a_failure(tmp_path):
    write(tmp_path / "mine.csv")
    with open_executor(on_table(tmp_path), Console(quiet=True)) as making:
        job = making.run_set.jobs["fedavg", 0]
        making.make([dataclasses.replace(job, code="f" * 64)])
        assert making.run_set.failures["fedavg", 0].startswith("the code changed while the comparison ran")
        assert not (job.folder / "sealed.json").exists()
