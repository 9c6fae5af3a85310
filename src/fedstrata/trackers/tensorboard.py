"""TensorBoard: scalars, settings and the summary as event files.

The files are written in this thread, record by record, so that a failing disk is noticed here and written records
are on the disk.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event as Record
from tensorboard.compat.proto.event_pb2 import SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.summary import hparams, text

from fedstrata.common.events import Event, Finished, RoundDone, Started
from fedstrata.trackers.curves import Curves, numbers, settings

_STAMP = re.compile(r"events\.out\.tfevents\.(\d{10})\.(\d{9})\.")


class TensorBoard:
    """Event files in ``folder/NAME``, NAME being that of the run's folder; steps are rounds, from 1.

    A resumed run continues in the same folder, and repeated steps replace the old ones.
    """

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.file: EventFile | None = None

    def __call__(self, event: Event) -> None:
        """Write what an event holds."""
        if isinstance(event, Started):
            self._start(event)
        elif isinstance(event, RoundDone) and self.file is not None:
            self.step = event.row["round"] + 1
            self.file.write(self.step, _scalars(self.curves.of(event.row)))
        elif isinstance(event, Finished) and self.file is not None:
            shown = "\n".join(f"    {line}" for line in json.dumps(event.summary, indent=2).splitlines())
            summary = {f"summary/{name}": value for name, value in numbers(event.summary)}
            self.file.write(self.step, _scalars(summary), _text("summary", shown), self.ending)
            self.close()

    def _start(self, event: Started) -> None:
        self.close()
        self.curves, self.step = Curves(event.folder, event.first), event.first
        name = "run" if event.folder is None else event.folder.name
        self.file = EventFile(self.folder / name, event.first + 1)
        given = settings(event.folder)
        experiment, start, self.ending = hparams(given, {"accuracy": 0.0})
        self.file.write(
            event.first,
            experiment,
            start,
            _text("settings", "\n".join(f"    {n} = {value}" for n, value in given.items())),
        )

    def close(self) -> None:
        """Close the event file."""
        if self.file is not None:
            file, self.file = self.file, None
            file.close()


class EventFile:
    """One event file.

    Args:
        folder: of the TensorBoard run; made where there is none.
        step: records of older files from this step on are discarded.
    """

    def __init__(self, folder: Path, step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = (folder / _after(path.name for path in folder.iterdir())).open("xb")
        self.records = RecordWriter(self.file)
        self._put(Record(wall_time=time.time(), file_version="brain.Event:2"))
        self._put(Record(wall_time=time.time(), step=step, session_log=SessionLog(status=SessionLog.START)))

    def write(self, step: int, *summaries: Any) -> None:
        """Summaries of one step, on the disk when this returns."""
        for summary in summaries:
            self._put(Record(wall_time=time.time(), step=step, summary=summary))
        self.file.flush()

    def _put(self, record: Any) -> None:
        self.records.write(record.SerializeToString())

    def close(self) -> None:
        """Close the file; what could not be written is lost with an OSError."""
        self.file.close()


def _after(names: Iterable[str]) -> str:
    """Return a name that sorts after those of a folder, the order that TensorBoard reads; clocks may go back."""
    stamps = [int(match[1] + match[2]) + 1 for name in names if (match := _STAMP.match(name))]
    seconds, rest = divmod(max([time.time_ns(), *stamps]), 10**9)
    return f"events.out.tfevents.{seconds:010d}.{rest:09d}.{socket.gethostname()}.{os.getpid()}"


def _scalars(values: Mapping[str, float]) -> Any:
    return Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])


def _text(tag: str, content: str) -> Any:
    return text(tag, content)
