"""Make the runs of a request: reuse those in the cache, and train the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from fedstrata.analysis.comparison import Screening
from fedstrata.common.errors import ConfigError
from fedstrata.compare import comparison_file, run_cache
from fedstrata.compare.entries import Competitor, pairs
from fedstrata.compare.federation_cache import FederationCache
from fedstrata.compare.in_process import InProcessRunner, external_digest
from fedstrata.compare.job import Id, Job
from fedstrata.compare.process_pool import ProcessPool
from fedstrata.compare.progress import ProgressBoard, progress_board
from fedstrata.compare.request import ComparisonRequest, Observers, needs_this_process
from fedstrata.compare.resources import Resources
from fedstrata.data.federation import Federation
from fedstrata.data.statistics.facts import Facts, facts_of
from fedstrata.storage import lock
from fedstrata.storage.atomic_files import make_folder
from fedstrata.trackers import NONE

LOG = "children.log"


class ComparisonStopped(Exception):  # not an error: somebody asked for it  # noqa: N818
    """Signals that the comparison was asked to stop; every run is kept up to its last round.

    Attributes:
        folder: of the comparison; the same call goes on with it.
        finished, runs: how many runs are done, of how many.
    """

    def __init__(self, folder: Path, finished: int, runs: int) -> None:
        super().__init__(f"stopped with {finished} of {runs} runs finished; run the same command again to continue")
        self.folder, self.finished, self.runs = folder, finished, runs


@dataclass
class RunSet:
    """Holds all runs of a comparison and their progress.

    Attributes:
        request: the comparison.
        jobs: every run, by (label, seed), whole.
        facts: of the first seed's federation.
        in_process: whether runs must stay in this process.
        done: ids of finished runs.
        failures: id -> why.
    """

    request: ComparisonRequest
    jobs: dict[Id, Job]
    facts: Facts
    in_process: bool
    done: set[Id] = field(default_factory=set)
    failures: dict[Id, str] = field(default_factory=dict)

    def write(self, state: str, screening: Screening | None = None) -> None:
        """Write comparison.json."""
        comparison_file.write(
            self.request,
            self.jobs,
            self.facts,
            state,
            failures=self.failures,
            side_by_side=self.together,
            screening=screening,
        )

    @property
    def together(self) -> int:
        """Return the largest number of runs that shared the machine, in this call or when they were made."""
        return max((run_cache.together(self.jobs[id_].folder) for id_ in self.done), default=1)

    def of(self, labels: Sequence[str]) -> list[Job]:
        """Return the runs of some competitors, seed by seed."""
        return [job for job in self.jobs.values() if job.label in labels]


# ---- before


def prepare(request: ComparisonRequest, *, in_process: bool = False) -> RunSet:
    """Load each seed's federation once, check every competitor on the first one, and name every run's folder.

    Raises:
        FedstrataError: an invalid request; nothing was trained.
    """
    federations, jobs = FederationCache(), dict[Id, Job]()
    federation = request.python_inputs.federation or federations.federation(
        request.config.replace(seed=request.seeds[0])
    )
    _refuse_accuracy(request, federation)
    parts = {competitor.entry.label: request.parts(competitor, federation) for competitor in request.competitors}
    external_digests = {
        competitor.entry.label: external_digest(
            request, parts[competitor.entry.label], from_python=competitor.from_python
        )
        for competitor in request.competitors
    }
    facts = facts_of(federation)
    for seed in request.seeds:
        federation = request.python_inputs.federation or federations.federation(request.config.replace(seed=seed))
        for competitor, _ in pairs(request.competitors, [seed]):
            job = _job(request, competitor, seed, federation, external_digests[competitor.entry.label])
            jobs[job.id] = job
    return RunSet(request, jobs, facts, in_process or needs_this_process(request, parts))


def _refuse_accuracy(request: ComparisonRequest, federation: Federation) -> None:
    """Refuse an accuracy that no run could reach: the report would call it missed by all.

    Raises:
        ConfigError: an accuracy ends runs, and there are no classes.
    """
    if request.config.stop.accuracy is not None and not federation.task.has_accuracy:
        raise ConfigError(
            f"an accuracy of {request.config.stop.accuracy} is to end runs, and {request.config.data} is a"
            f" {federation.task.kind}, which has none; leave --target-accuracy (stop.accuracy) out, or give a budget."
        )


def _job(
    request: ComparisonRequest, competitor: Competitor, seed: int, federation: Federation, plugins: str | None
) -> Job:
    """Return a run with its folder: in the cache, or below the comparison where nothing identifies the run."""
    config = competitor.config(request.config, seed)
    if plugins is None:
        key, folder = None, _free(request.folder / "runs", config.method, seed)
    else:
        key = run_cache.key_of(config, federation.fingerprint, plugins)
        folder = run_cache.folder_of(Path(config.out), config, key)
    flat = config.replace(out=str(folder.parent), name=folder.name).flat()
    return Job(competitor.entry.label, seed, flat, folder, key, federation.fingerprint, run_cache.code_version())


def _free(place: Path, method: str, seed: int) -> Path:
    stem = f"{run_cache.stem(method)}-s{seed}"
    number = 1
    while (place / f"{stem}-{number}").exists():
        number += 1
    return place / f"{stem}-{number}"


# ---- making runs


class RunExecutor:
    """Makes the missing runs of a run set, in worker processes or in this process, and records how they end."""

    def __init__(self, run_set: RunSet, board: ProgressBoard, runner: ProcessPool | InProcessRunner) -> None:
        self.run_set, self.board, self.runner = run_set, board, runner

    def make(self, jobs: Sequence[Job]) -> None:
        """Make whole runs, or runs up to their pause; finished and failed runs are skipped.

        Raises:
            ComparisonStopped: a stop was requested.
        """
        run_set = self.run_set
        ended = self.runner.run([job for job in jobs if job.id not in run_set.done and job.id not in run_set.failures])
        for id_, outcome in ended.items():
            if outcome.state == "finished":
                run_set.done.add(id_)
            elif outcome.state == "failed":
                run_set.failures[id_] = outcome.why
        if isinstance(self.runner, ProcessPool) and self.runner.resources.note:
            self.board.say(self.runner.resources.note)
        if any(outcome.state == "stopped" for outcome in ended.values()):
            run_set.write("stopped")
            raise ComparisonStopped(run_set.request.folder, len(run_set.done), len(run_set.jobs))


@contextmanager
def open_executor(
    request: ComparisonRequest,
    console: Console,
    *,
    plain: bool = False,
    stop: Callable[[], bool] = lambda: False,
    observers: Observers = (),
) -> Iterator[RunExecutor]:
    """Open everything that makes runs, and close it at the end.

    Raises:
        FedstrataError: an invalid request, or a folder that another comparison uses or is kept in; nothing was
            trained.
    """
    aside = comparison_file.refuse_another(request)
    run_set = prepare(request, in_process=bool(observers))
    make_folder(request.folder)
    with lock(request.folder):
        run_set.done = {
            job.id
            for job in run_set.jobs.values()
            if job.key is not None and run_cache.inspect_run(job.folder, job.key).state == "finished"
        }
        run_set.write("running")
        with progress_board(console, list(run_set.jobs), request.config.rounds, plain=plain) as board:
            _opening(run_set, board)
            if aside is not None:
                board.say(f"note: {comparison_file.FILE} was damaged; what was left of it is kept as {aside.name}")
            if run_set.in_process:
                yield RunExecutor(
                    run_set,
                    board,
                    InProcessRunner(request, board.notify, stop, observers, board.tick, request.folder / LOG),
                )
                return
            with ProcessPool(
                Resources(request.config, request.side_by_side), request.folder / LOG, board.notify, stop, board.tick
            ) as pool:
                board.side_by_side = pool.resources.slots
                yield RunExecutor(run_set, board, pool)


def _opening(run_set: RunSet, board: ProgressBoard) -> None:
    """Report what is compared, and which runs are cached."""
    for id_ in run_set.done:
        board.mark(id_, "reused")
    request, facts = run_set.request, run_set.facts
    runs = f"{_count(len(run_set.jobs), 'run')} of {_count(request.config.rounds, 'round')}"
    who = f"{_count(len(request.competitors), 'method')}, {_count(len(request.seeds), 'seed')}"
    board.say(f"{who} on {facts.name}, {facts.law}: {runs}")
    for note in facts.notes:
        board.say(f"note: {note}")
    if run_set.done:
        board.say(f"{len(run_set.done)} of them in the cache")
        if request.config.track != NONE:
            board.say("note: runs from the cache are not tracked again")


def _count(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"
