"""MLflow: metrics, parameters and the summary of a run, in a folder or on a server."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

os.environ.setdefault(
    "MLFLOW_DISABLE_TELEMETRY", "true"
)  # before the import: nothing is sent to an address that the user did not name
os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions require it for folders, which the uri names
os.environ.setdefault(
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1"
)  # a server that is gone does not hold training up for minutes
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from fedstrata.common.events import Event, Finished, RoundDone, Started
from fedstrata.trackers.curves import Curves, numbers, settings

NAME, FOLDER = "fedstrata.run", "fedstrata.runs.folder"  # tags that identify an MLflow run
PARAMS, LENGTH = 100, 500  # how many MLflow takes at a time, and how long a text every version of its server takes
_FOREIGN = re.compile(r"[^\w\-. :/]")  # characters that MLflow does not allow in names


class MLflow:
    """One MLflow run a fedstrata run, called after its folder; steps are rounds, from 1.

    A resumed run writes on in the same MLflow run; steps that it does again, and that are there already, are not
    written twice.

    Args:
        uri: a folder, "file:..." or the address of a server.
        experiment: its name; made where there is none.
    """

    def __init__(self, uri: str, experiment: str) -> None:
        local = "://" not in uri and not uri.startswith("file:")
        self.client = MlflowClient(tracking_uri=Path(uri).absolute().as_uri() if local else uri)
        self.experiment = experiment
        self.run: str | None = None

    def __call__(self, event: Event) -> None:
        """Send what an event holds."""
        if isinstance(event, Started):
            self._start(event)
        elif isinstance(event, RoundDone) and self.run is not None:
            values = self.curves.of(event.row)
            step = event.row["round"] + 1
            if step > self.logged:
                self._log(values, step)
        elif isinstance(event, Finished) and self.run is not None:
            self._end(event)

    def _start(self, event: Started) -> None:
        self.close()
        self.curves, self.rounds, self.logged = Curves(event.folder, event.first), event.first, 0
        name = "run" if event.folder is None else event.folder.name
        tags = {NAME: name, FOLDER: "" if event.folder is None else str(event.folder.resolve())}
        known = self.client.get_experiment_by_name(self.experiment)
        experiment = self.client.create_experiment(self.experiment) if known is None else known.experiment_id
        before = self._unfinished(experiment, tags)
        if before is not None and event.first:
            self.run = before
            self.logged = max((int(m.step) for m in self.client.get_metric_history(before, "cost/seconds")), default=0)
            self.client.update_run(before, status="RUNNING")
            return
        if before is not None:  # killed before its first checkpoint: nothing of it counts
            self.client.set_terminated(before, status="KILLED")
        self.run = self.client.create_run(experiment, tags=tags, run_name=name).info.run_id
        params = [Param(key, str(value)[:LENGTH]) for key, value in settings(event.folder).items()]
        for start in range(0, len(params), PARAMS):
            self.client.log_batch(self.run, params=params[start : start + PARAMS])

    def _unfinished(self, experiment: str, tags: dict[str, str]) -> str | None:
        """Find the last MLflow run of this run's folder that has not finished."""
        wanted = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items() if "'" not in value)
        runs = self.client.search_runs(
            [experiment], filter_string=wanted, order_by=["attributes.start_time DESC"], max_results=20
        )
        return next(
            (
                run.info.run_id
                for run in runs
                if run.info.status != "FINISHED" and run.data.tags.get(NAME) == tags[NAME]
            ),
            None,
        )

    def _log(self, values: dict[str, float], step: int) -> None:
        assert self.run is not None
        self.rounds = step
        now = int(time.time() * 1000)
        self.client.log_batch(
            self.run, metrics=[Metric(_FOREIGN.sub("_", name), value, now, step) for name, value in values.items()]
        )

    def _end(self, event: Finished) -> None:
        assert self.run is not None
        self._log({f"summary/{name}": value for name, value in numbers(event.summary)}, max(self.rounds, self.logged))
        texts: dict[str, Any] = {name: value for name, value in event.summary.items() if isinstance(value, str)}
        self.client.log_batch(
            self.run, tags=[RunTag(f"summary.{name}", value[:LENGTH]) for name, value in texts.items()]
        )
        run, self.run = self.run, None
        self.client.set_terminated(run, status="FINISHED")

    def close(self) -> None:
        """End the MLflow run as stopped; it may be resumed."""
        if self.run is not None:
            run, self.run = self.run, None
            self.client.set_terminated(run, status="KILLED")
