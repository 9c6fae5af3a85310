"""Small comparisons for tests: a few rounds of a logistic model on digits."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from fedstrata.compare.execution import open_executor
from fedstrata.compare.process_pool import ProcessPool
from fedstrata.compare.request import make_request
from fedstrata.config.config import Config

SMALL = {
    "data": "synthetic_iid",
    "model": "logistic",
    "clients": 6,
    "cohort": 3,
    "rounds": 4,
    "local.epochs": 1,
    "local.lr": 0.05,
    "validation": 0.2,
    "test": "both",
}
WORDS = [f"{key}={value}" for key, value in SMALL.items()]


def asked(out: Path, methods=("fedavg", "fedprox(mu=1)"), seeds=(0, 1), *, how=None, **settings):
    """A contest below ``out``; ``how`` goes to contest(), settings to the configuration, dots as underscores."""
    return make_request(methods, Config(**SMALL, out=str(out)).replace(**settings), seeds=seeds, **(how or {}))


def make(contest_, *, stop=lambda: False, said=None, observers=(), react=None):
    """All runs, without a report: (grid, children that were started).

    ``react`` is told every event of every job, before the board is.
    """
    console = Console(file=said, width=200, markup=False) if said is not None else Console(quiet=True)
    with open_executor(contest_, console, plain=True, stop=stop, observers=observers) as making:
        if react is not None:
            notify = making.runner.notify
            making.runner.notify = lambda job, message: (react(job, message), notify(job, message))[1]
        making.make(list(making.run_set.jobs.values()))
        making.run_set.write("finished")
        return making.run_set, making.runner.started if isinstance(making.runner, ProcessPool) else 0


def summaries(grid):
    """(label, seed) -> summary."""
    return {id_: json.loads((grid.jobs[id_].folder / "summary.json").read_text()) for id_ in sorted(grid.done)}


TIMES = ("seconds", "eval_seconds", "executor", "workers")


def without_times(found):
    """Summaries without what a clock or the machine says."""
    return {id_: {key: value for key, value in summary.items() if key not in TIMES} for id_, summary in found.items()}
