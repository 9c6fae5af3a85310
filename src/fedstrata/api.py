"""Training from Python: what ``fedstrata run`` and ``fedstrata resume`` do, as two functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from fedstrata.common.events import Observer
from fedstrata.config.config import Config
from fedstrata.core.chain import Method, chain
from fedstrata.core.piece import Piece
from fedstrata.data.federation import Federation
from fedstrata.report.files import write
from fedstrata.report.progress import shown
from fedstrata.report.views import Result
from fedstrata.runs.result import Result as ResultRecord
from fedstrata.runs.run import resume as _resume
from fedstrata.runs.run import run as _run


def run(
    method: str | Piece | Method = "fedavg",
    *,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    observers: Sequence[Observer] = (),
    stop: Callable[[], bool] | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Result:
    """Train a federation into a new run folder.

    Args:
        method: in call syntax, "fedprox(mu=0.01) + fedavgm"; or your pieces, one or a chain of them.
        federation: your own data instead of the configured ones; see :meth:`fedstrata.Federation.of`.
        module: your own model instead of the configured one, [B, *shape] -> [B, classes]; it is copied.
        observers: called with every event.
        stop: asked after every round; True ends the run, which can be resumed.
        progress: None shows it in notebooks only, True also elsewhere (on stderr), False never.
        settings: the keys of ``fedstrata run --help``; a dot is written as an underscore (``local_lr=0.05``) or as a
            table (``local={"lr": 0.05}``).
    Raises:
        FedstrataError: invalid settings, before anything is written.
        fedstrata.runs.run.Stopped: ``stop`` said so.

    >>> result = run("fedprox(mu=0.01)", rounds=2, local_epochs=1, seed=1)  # doctest: +SKIP
    >>> result.summary["accuracy"]["final"]  # doctest: +SKIP
    """
    own = None if isinstance(method, str) else chain(method)
    config = Config(method=str(method), **settings)
    with shown(progress) as more:
        result = _run(
            config, federation=federation, module=module, method=own, observers=(*observers, *more), stop=stop
        )
    return _written(result, config, federation)


def resume(
    folder: str | Path,
    *,
    previous: bool = False,
    executor: str | None = None,
    workers: int | None = None,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    method: Piece | Method | None = None,
    observers: Sequence[Observer] = (),
    stop: Callable[[], bool] | None = None,
    progress: bool | None = None,
) -> Result:
    """Continue an interrupted run, to the same model bit for bit on the same kind of processor.

    Args:
        folder: the run folder.
        previous: go on from the checkpoint before the last one, where that is damaged.
        executor: instead of the run's own.
        workers: instead of the run's own.
        federation: again, where the run was given one.
        module: again, where the run was given one.
        method: again, where the run was given pieces instead of text.
        observers: as in :func:`run`.
        stop: as in :func:`run`.
        progress: as in :func:`run`.
    Raises:
        StateError: no run there, a damaged checkpoint, or another run's configuration, data or model.
    """
    with shown(progress) as more:
        result = _resume(
            folder,
            previous=previous,
            executor=executor,
            workers=workers,
            federation=federation,
            module=module,
            method=None if method is None else chain(method),
            observers=(*observers, *more),
            stop=stop,
        )
    return _written(result, Config.read(Path(folder) / "config.toml"), federation)


def _written(result: ResultRecord, config: Config, federation: Federation | None) -> Result:
    """Write the tables and pictures of a run, and return its result."""
    write(result, federation or result.federation or config.federation())
    return Result.of(result)
