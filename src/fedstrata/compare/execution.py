"""From what was asked for to all its runs: those in the cache are reused, the others are made."""

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
from fedstrata.compare.in_process import InProcessRunner, outside
from fedstrata.compare.job import Id, Job
from fedstrata.compare.process_pool import ProcessPool
from fedstrata.compare.progress import ProgressBoard, board
from fedstrata.compare.request import ComparisonRequest, Observers, only_here
from fedstrata.compare.resources import Room
from fedstrata.data.federation import Federation
from fedstrata.data.statistics.facts import Facts, facts_of
from fedstrata.storage import lock
from fedstrata.storage.atomic_files import make_folder
from fedstrata.trackers import NONE

LOG = "children.log"


class ComparisonStopped(Exception):  # not an error: somebody asked for it  # noqa: N818
    """The comparison was asked to stop; every run is kept up to its last round.

    Attributes:
        folder: of the comparison; the same call goes on with it.
        finished, runs: how many runs are done, of how many.
    """

    def __init__(self, folder: Path, finished: int, runs: int) -> None:
        super().__init__(f"stopped with {finished} of {runs} runs finished; call the same command again to go on")
        self.folder, self.finished, self.runs = folder, finished, runs


@dataclass
class Grid:
    """All runs of a contest and how far they are.

    Attributes:
        asked: the contest.
        jobs: every run, by (label, seed), whole.
        facts: of the first seed's federation.
        here: whether runs must stay in this process.
        done: ids of finished runs.
        failures: id -> why.
    """

    asked: ComparisonRequest
    jobs: dict[Id, Job]
    facts: Facts
    here: bool
    done: set[Id] = field(default_factory=set)
    failures: dict[Id, str] = field(default_factory=dict)

    def write(self, state: str, screening: Screening | None = None) -> None:
        """Keep it in comparison.json."""
        comparison_file.write(
            self.asked,
            self.jobs,
            self.facts,
            state,
            failures=self.failures,
            side_by_side=self.together,
            screening=screening,
        )

    @property
    def together(self) -> int:
        """The largest number of runs that shared the machine, in this call or in the one that made them."""
        return max((run_cache.together(self.jobs[id_].folder) for id_ in self.done), default=1)

    def of(self, labels: Sequence[str]) -> list[Job]:
        """The runs of some competitors, a seed after the other."""
        return [job for job in self.jobs.values() if job.label in labels]


# ---- before
# -----------------------------------------------------------------------------------------------------------------------------------


def prepare(asked: ComparisonRequest, *, here: bool = False) -> Grid:
    """Load each seed's federation once, check every competitor on the first one, and find every run's place.

    Raises:
        FedstrataError: what cannot be meant; nothing was trained.
    """
    shelf, jobs = FederationCache(), dict[Id, Job]()
    federation = asked.own.federation or shelf.federation(asked.config.replace(seed=asked.seeds[0]))
    _refuse_accuracy(asked, federation)
    parts = {rival.entry.label: asked.parts(rival, federation) for rival in asked.rivals}
    outsides = {
        rival.entry.label: outside(asked, parts[rival.entry.label], given=rival.given) for rival in asked.rivals
    }
    facts = facts_of(federation)
    for seed in asked.seeds:
        federation = asked.own.federation or shelf.federation(asked.config.replace(seed=seed))
        for rival, _ in pairs(asked.rivals, [seed]):
            job = _job(asked, rival, seed, federation, outsides[rival.entry.label])
            jobs[job.id] = job
    return Grid(asked, jobs, facts, here or only_here(asked, parts))


def _refuse_accuracy(asked: ComparisonRequest, federation: Federation) -> None:
    """An accuracy that no run could reach would be told as one that all have missed.

    Raises:
        ConfigError: an accuracy ends runs, and there are no classes.
    """
    if asked.config.stop.accuracy is not None and not federation.task.has_accuracy:
        raise ConfigError(
            f"an accuracy of {asked.config.stop.accuracy} is to end runs, and {asked.config.data} is a"
            f" {federation.task.kind}, which has none; leave --target-accuracy (stop.accuracy) out, or give a budget."
        )


def _job(asked: ComparisonRequest, rival: Competitor, seed: int, federation: Federation, guests: str | None) -> Job:
    """A run with its place: in the cache, or where nothing identifies it, below the comparison."""
    config = rival.config(asked.config, seed)
    if guests is None:
        key, folder = None, _free(asked.folder / "runs", config.method, seed)
    else:
        key = run_cache.key_of(config, federation.fingerprint, guests)
        folder = run_cache.folder_of(Path(config.out), config, key)
    flat = config.replace(out=str(folder.parent), name=folder.name).flat()
    return Job(rival.entry.label, seed, flat, folder, key, federation.fingerprint, run_cache.code_version())


def _free(place: Path, method: str, seed: int) -> Path:
    stem = f"{run_cache.stem(method)}-s{seed}"
    number = 1
    while (place / f"{stem}-{number}").exists():
        number += 1
    return place / f"{stem}-{number}"


# ---- making runs
# --------------------------------------------------------------------------------------------------------------------------------


class RunExecutor:
    """Makes the runs of a grid that are not there yet, by children or in this process, and keeps the grid's account."""

    def __init__(self, grid: Grid, shown: ProgressBoard, maker: ProcessPool | InProcessRunner) -> None:
        self.grid, self.shown, self.maker = grid, shown, maker

    def make(self, jobs: Sequence[Job]) -> None:
        """Whole runs, or runs up to their pause; those that are finished or have failed are left alone.

        Raises:
            Halted: it was asked to stop.
        """
        grid = self.grid
        ended = self.maker.run([job for job in jobs if job.id not in grid.done and job.id not in grid.failures])
        for id_, outcome in ended.items():
            if outcome.state == "finished":
                grid.done.add(id_)
            elif outcome.state == "failed":
                grid.failures[id_] = outcome.why
        if isinstance(self.maker, ProcessPool) and self.maker.room.note:
            self.shown.say(self.maker.room.note)
        if any(outcome.state == "stopped" for outcome in ended.values()):
            grid.write("stopped")
            raise ComparisonStopped(grid.asked.folder, len(grid.done), len(grid.jobs))


@contextmanager
def works(
    asked: ComparisonRequest,
    console: Console,
    *,
    plain: bool = False,
    stop: Callable[[], bool] = lambda: False,
    observers: Observers = (),
) -> Iterator[RunExecutor]:
    """Everything that makes runs, for as long as they are made.

    Raises:
        FedstrataError: what cannot be meant, or a folder that another comparison uses or is kept in; nothing was
            trained.
    """
    aside = comparison_file.refuse_another(asked)
    grid = prepare(asked, here=bool(observers))
    make_folder(asked.folder)
    with lock(asked.folder):
        grid.done = {
            job.id
            for job in grid.jobs.values()
            if job.key is not None and run_cache.look(job.folder, job.key).state == "finished"
        }
        grid.write("running")
        with board(console, list(grid.jobs), asked.config.rounds, plain=plain) as shown:
            _opening(grid, shown)
            if aside is not None:
                shown.say(f"note: {comparison_file.FILE} was damaged; what was left of it is kept as {aside.name}")
            if grid.here:
                yield RunExecutor(
                    grid, shown, InProcessRunner(asked, shown.tell, stop, observers, shown.tick, asked.folder / LOG)
                )
                return
            with ProcessPool(
                Room(asked.config, asked.side_by_side), asked.folder / LOG, shown.tell, stop, shown.tick
            ) as pool:
                shown.side_by_side = pool.room.slots
                yield RunExecutor(grid, shown, pool)


def _opening(grid: Grid, shown: ProgressBoard) -> None:
    """Say what is compared and what is there already."""
    for id_ in grid.done:
        shown.mark(id_, "reused")
    asked, facts = grid.asked, grid.facts
    runs = f"{_count(len(grid.jobs), 'run')} of {_count(asked.config.rounds, 'round')}"
    who = f"{_count(len(asked.rivals), 'method')}, {_count(len(asked.seeds), 'seed')}"
    shown.say(f"{who} on {facts.name}, {facts.law}: {runs}")
    for note in facts.notes:
        shown.say(f"note: {note}")
    if grid.done:
        shown.say(f"{len(grid.done)} of them in the cache")
        if asked.config.track != NONE:
            shown.say("note: runs from the cache are not tracked again")


def _count(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"
