"""Choose hyper-parameters on clients' validation data only, with the same number of trials for every method."""

from __future__ import annotations

import csv
import io
import itertools
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from fedstrata.common.call_syntax import Call, parse_calls
from fedstrata.common.errors import ConfigError, MethodError
from fedstrata.common.random_streams import stream
from fedstrata.common.suggest import suggestion
from fedstrata.common.units import number
from fedstrata.compare.entries import METHOD_SETTINGS, Competitor, read_competitors
from fedstrata.compare.execution import RunExecutor, RunSet, open_executor
from fedstrata.compare.request import ComparisonRequest, Observers, differences, make_request
from fedstrata.compare.screening import best_score
from fedstrata.config.config import KEYS, Config
from fedstrata.runs.folder import as_json
from fedstrata.storage.atomic_files import write_file

FILE = "sweep.json"
ROWS = "sweep.csv"
SEEDS = 3  # of the comparison that is proposed


@dataclass(frozen=True)
class VariedSetting:
    """Describes what to try: a setting (``local.lr``), or a piece's argument (``fedprox.mu``).

    A setting is varied for all methods, an argument for those with the piece.
    """

    key: str
    values: tuple[str, ...]

    @property
    def setting(self) -> bool:
        """Return whether it is a setting of the configuration."""
        return self.key in KEYS

    def applies_to(self, competitor: Competitor) -> bool:
        """Return whether it changes this method."""
        return self.setting or any(piece.name == self.key.partition(".")[0] for piece in competitor.method.pieces)


@dataclass(frozen=True)
class Trial:
    """Describes one combination.

    Attributes:
        method: with its settings, as written after ``--methods``.
        values: by varied key.
        score: mean over seeds of the best validation score over the evaluated rounds, larger is better; None where it
            failed.
        why: it failed.
    """

    method: str
    values: Mapping[str, str]
    score: float | None
    why: str = ""


@dataclass(frozen=True)
class MethodSweep:
    """Holds all trials of one method, in the order drawn, and the best of them (None where all failed)."""

    method: str
    size: int
    trials: tuple[Trial, ...]

    @property
    def chosen(self) -> Trial | None:
        """Return the best trial; the first of equals."""
        return next(iter(self._best()), None)

    @property
    def tied(self) -> int:
        """Count the others that score as high as the chosen one."""
        return max(len(self._best()) - 1, 0)

    def _best(self) -> list[Trial]:
        highest = max((trial.score for trial in self.trials if trial.score is not None), default=None)
        return [trial for trial in self.trials if trial.score is not None and trial.score == highest]


@dataclass(frozen=True)
class Sweep:
    """Holds the results of a sweep.

    Attributes:
        methods: in the order given.
        trials: of every method.
        seeds: of every trial.
        command: that compares the chosen ones.
        folder: where sweep.json and sweep.csv are.
    """

    methods: tuple[MethodSweep, ...]
    trials: int
    seeds: tuple[int, ...]
    command: str
    folder: Path


def sweep(
    methods: Sequence[str],
    vary: Sequence[str],
    *,
    trials: int | Literal["auto"] = "auto",
    seeds: Sequence[int] = (0,),
    side_by_side: int | None = None,
    console: Console | None = None,
    observers: Observers = (),
    **settings: object,
) -> Sweep:
    """Choose settings for every method by its score on clients' validation data; test data are not used.

    Args:
        methods: texts, as for :func:`fedstrata.compare.compare`.
        vary: ``"local.lr=0.01,0.03,0.1"`` for all methods, ``"fedprox.mu=0.001,0.01"`` for those with that piece.
        trials: combinations of every method, drawn from its own grid without replacement, with the same values of what
            is varied for all methods; auto is the size of the smallest grid.
        seeds: of every trial; the comparison that is proposed has others.
        side_by_side: as for :func:`fedstrata.compare.compare`.
        console: likewise.
        observers: likewise.
        settings: of all runs.
    Raises:
        FedstrataError: an invalid request, before anything is trained; or every run failed.
        ComparisonStopped: a stop was requested.
    """
    request = SweepRequest.of(methods, vary, Config(**settings), trials=trials, seeds=seeds, side_by_side=side_by_side)
    return request.run(console or Console(quiet=True), observers=observers)


@dataclass(frozen=True)
class SweepRequest:
    """Describes a validated sweep: every method with its trials, and the request for all their runs."""

    methods: tuple[Competitor, ...]
    varied: tuple[VariedSetting, ...]
    drawn: Mapping[str, tuple[Mapping[str, str], ...]]
    sizes: Mapping[str, int]
    request: ComparisonRequest
    command_words: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        methods: Sequence[str],
        vary: Sequence[str],
        config: Config,
        *,
        trials: int | Literal["auto"] = "auto",
        seeds: Sequence[int] = (0,),
        side_by_side: int | None = None,
        command: str | None = None,
        command_words: Sequence[str] = (),
    ) -> SweepRequest:
        """Validate a sweep and draw its trials.

        ``command_words`` made the configuration on the command line, () where Python did.

        Raises:
            ConfigError: an invalid request, in one sentence.
        """
        if not config.validation:
            raise ConfigError(
                "a sweep chooses by clients' validation data, and validation is 0; set validation=0.2, so that the test"
                " is not used to choose."
            )
        for method in methods:
            if not isinstance(method, str):
                raise ConfigError(
                    f"a sweep writes settings into the text of a method, and {method!r} is an object; give its name, or"
                    " compare pieces."
                )
        competitors, varied = read_competitors(methods, config), _varied(vary)
        _check_varied(varied, competitors)
        grids = {competitor.entry.label: [v for v in varied if v.applies_to(competitor)] for competitor in competitors}
        sizes = {label: math.prod(len(v.values) for v in grid) for label, grid in grids.items()}
        count = _count(trials, sizes)
        drawn = {label: draw(grid, count, label) for label, grid in grids.items()}
        texts = [
            text_with(competitor, values) for competitor in competitors for values in drawn[competitor.entry.label]
        ]
        request = make_request(texts, config, seeds=seeds, side_by_side=side_by_side, command=command)
        return cls(competitors, varied, drawn, sizes, replace(request, verb="sweep"), tuple(command_words))

    def run(
        self,
        console: Console,
        *,
        plain: bool = False,
        stop: Callable[[], bool] = lambda: False,
        observers: Observers = (),
    ) -> Sweep:
        """Make all runs, choose, and write sweep.json and sweep.csv.

        Raises:
            FedstrataError: every single run failed.
            ComparisonStopped: ``stop`` returned True.
        """
        with open_executor(self.request, console, plain=plain, stop=stop, observers=observers) as executor:
            executor.make(list(executor.run_set.jobs.values()))
            executor.run_set.write("finished")
            if not executor.run_set.done:
                raise MethodError(
                    f"all {len(executor.run_set.failures)} runs failed; the first:"
                    f" {next(iter(executor.run_set.failures.values()))}"
                )
            outcome = self._collect(executor)
        write(outcome, self.varied)
        console.print(table(outcome, self.varied))
        for one in outcome.methods:
            if one.tied:
                console.print(
                    f"{one.method}: tied with {one.tied} other{'s' if one.tied > 1 else ''}; the first is taken",
                    soft_wrap=True,
                )
        console.print(
            f"chosen on validation data, {outcome.trials} trials a method, seeds {' '.join(map(str, outcome.seeds))};"
            " compare them with:"
        )
        console.print(outcome.command, soft_wrap=True)
        return outcome

    def _collect(self, executor: RunExecutor) -> Sweep:
        run_set = executor.run_set
        labels = iter([competitor.entry.label for competitor in self.request.competitors])
        sweeps = []
        for competitor in self.methods:
            label = competitor.entry.label
            trials = tuple(_trial(run_set, next(labels), competitor, values) for values in self.drawn[label])
            sweeps.append(MethodSweep(competitor.entry.method, self.sizes[label], trials))
        count = len(self.drawn[self.methods[0].entry.label])
        return Sweep(tuple(sweeps), count, self.request.seeds, self.command_of(sweeps), self.request.folder)

    def command_of(self, sweeps: Sequence[MethodSweep]) -> str:
        """Return the command that compares the chosen trials, on seeds that chose nothing."""
        words = self.command_words or differences(self.request.config)
        kept = [word for word in words if word.partition("=")[0] not in ("method", "seed", "name")]
        fresh = [str(seed) for seed in range(len(self.request.seeds) + SEEDS) if seed not in self.request.seeds][:SEEDS]
        methods = [one.chosen.method for one in sweeps if one.chosen is not None]
        return shlex.join(["fedstrata", "compare", *kept, "--methods", *methods, "--seeds", *fresh])


def _trial(run_set: RunSet, label: str, competitor: Competitor, values: Mapping[str, str]) -> Trial:
    """Return one trial with its score, or with the reason why it has none."""
    score = best_score(run_set, label)
    why = "a run is missing" if score is None else "" if math.isfinite(score) else "no finite score"
    why = next((text for (failed, _), text in run_set.failures.items() if failed == label), why)
    score = score if score is not None and math.isfinite(score) else None
    return Trial(text_with(competitor, values), dict(values), score, why)


# ---- what is varied


def _varied(texts: Sequence[str]) -> tuple[VariedSetting, ...]:
    result: list[VariedSetting] = []
    for text in texts:
        key, equals, rest = text.partition("=")
        key, values = key.strip(), tuple(value.strip() for value in _split(rest))
        if not equals or not key or not all(values):
            raise ConfigError(
                f"{text!r} is not key=value,value,...; write --vary local.lr=0.01,0.03,0.1 or --vary"
                " fedprox.mu=0.01,0.1."
            )
        if len(set(values)) < len(values):
            raise ConfigError(f"{text!r} has a value twice; a trial that is made twice is no second trial.")
        if key in [v.key for v in result]:
            raise ConfigError(f"{key} is varied twice; write all its values after one --vary.")
        result.append(VariedSetting(key, values))
    if not result:
        raise ConfigError('there is nothing to vary; name values to try: --vary "local.lr=0.01,0.03,0.1".')
    return tuple(result)


def _split(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "([") - (c in ")]")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return parts


def _check_varied(varied: Sequence[VariedSetting], competitors: Sequence[Competitor]) -> None:
    for vary in varied:
        if vary.setting:
            if vary.key not in METHOD_SETTINGS:
                raise ConfigError(
                    f"{vary.key} must be the same for all methods, or their runs are not paired; it cannot be varied."
                    f" These can: {', '.join(METHOD_SETTINGS)}."
                )
            for value in vary.values:
                KEYS[vary.key].read(value)
            if taken := [r.entry.label for r in competitors if vary.key in r.entry.settings]:
                raise ConfigError(
                    f"{vary.key} is varied, and {taken[0]!r} sets it too; leave it out of one of the two."
                )
        elif not any(vary.applies_to(competitor) for competitor in competitors):
            names = [f"{p.name}.{f.name}" for r in competitors for p in r.method.pieces for f in fields(p)]
            raise ConfigError(
                f"{vary.key} is neither a setting nor an argument of one of the"
                f" methods.{suggestion(vary.key, [*METHOD_SETTINGS, *names])}"
            )


def _count(trials: int | Literal["auto"], sizes: Mapping[str, int]) -> int:
    """Return the number of trials a method: equal for all, so no method is favoured."""
    smallest = min(sizes, key=lambda label: sizes[label])
    if sizes[smallest] == 1 and len(sizes) > 1:
        raise ConfigError(
            f"nothing is varied of {smallest!r}, and every method gets the same number of trials; vary local.lr too, or"
            " leave it out."
        )
    if trials == "auto":
        return sizes[smallest]
    if isinstance(trials, bool) or not isinstance(trials, int) or trials < 1:
        raise ConfigError(f"trials is {trials!r}; it is a number of at least 1, or auto.")
    if trials > sizes[smallest]:
        raise ConfigError(
            f"trials is {trials}, but {smallest!r} has {sizes[smallest]} combinations, and every method gets the same"
            f" number; use --trials {sizes[smallest]}, or vary more of it."
        )
    return trials


def draw(grid: Sequence[VariedSetting], count: int, label: str) -> tuple[Mapping[str, str], ...]:
    """Draw ``count`` combinations without replacement, the same in every call.

    Shared settings take the same values for every method, so no method is tried with a rate that others are not. Each
    value, and each combination of the method's arguments, occurs equally often, as far as ``count`` allows.
    """
    shared = _shuffled([v for v in grid if v.setting], "")
    specific = _shuffled([v for v in grid if not v.setting], label)
    period = math.lcm(len(shared), len(specific))  # the pairs would repeat after a period, so each one shifts by one
    drawn: dict[tuple[int, int], dict[str, str]] = {}
    for i in range(count):
        first, common_values = shared[i % len(shared)]
        second, method_values = specific[(i + i // period) % len(specific)]
        drawn[first, second] = common_values | method_values
    return tuple({v.key: drawn[indices][v.key] for v in grid} for indices in sorted(drawn))


def _shuffled(grid: Sequence[VariedSetting], key: str) -> list[tuple[int, dict[str, str]]]:
    """Return all combinations in random order, each with its index in the grid."""
    combinations = list(itertools.product(*(v.values for v in grid)))
    names = [v.key for v in grid]
    order = stream(0, "sweep", key).permutation(len(combinations)).tolist()
    return [(index, dict(zip(names, combinations[index], strict=True))) for index in order]


def text_with(competitor: Competitor, values: Mapping[str, str]) -> str:
    """Write these values into the method's text."""
    calls = [_call_with(call, competitor, values) for call in parse_calls(competitor.entry.method)]
    settings = {k: "none" if v is None else str(v) for k, v in competitor.entry.settings.items()} | {
        k: v for k, v in values.items() if k in KEYS
    }
    return " + ".join(calls) + (
        " | " + " ".join(f"{key}={value}" for key, value in settings.items()) if settings else ""
    )


def _call_with(call: Call, competitor: Competitor, values: Mapping[str, str]) -> str:
    piece = next((p for p in competitor.method.pieces if p.name == call.name), None)
    if piece is None:
        return call.name
    names = [f.name for f in fields(piece)]
    given = {**dict(zip(names, call.positional, strict=False)), **call.named}
    shown = {name: str(Call("x", (value,), {}))[2:-1] for name, value in given.items()}
    shown |= {
        key.partition(".")[2]: value
        for key, value in values.items()
        if key not in KEYS and key.partition(".")[0] == call.name
    }
    return f"{call.name}({', '.join(f'{k}={v}' for k, v in shown.items())})" if shown else call.name


# ---- results


def write(outcome: Sweep, varied: Sequence[VariedSetting]) -> None:
    """Write sweep.json and sweep.csv, a row a trial."""
    record = {
        "trials": outcome.trials,
        "seeds": list(outcome.seeds),
        "varied": {v.key: list(v.values) for v in varied},
        "command": outcome.command,
        "methods": [
            asdict(one) | {"chosen": None if one.chosen is None else one.chosen.method, "tied": one.tied}
            for one in outcome.methods
        ],
    }
    write_file(outcome.folder / FILE, [as_json(record)], "sweep")
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    keys = [v.key for v in varied]
    out.writerow(["method", *keys, "validation", "chosen", "failed"])
    for one in outcome.methods:
        for trial in one.trials:
            score = "" if trial.score is None else trial.score
            out.writerow(
                [one.method, *(trial.values.get(key, "") for key in keys), score, int(trial is one.chosen), trial.why]
            )
    write_file(outcome.folder / ROWS, [text.getvalue().encode()], "sweep")


def table(outcome: Sweep, varied: Sequence[VariedSetting]) -> Table:
    """Build a table with a row a trial, the chosen one marked."""
    shown = Table(
        title=f"{outcome.trials} trials a method, seeds {' '.join(map(str, outcome.seeds))}; scores on validation data",
        title_justify="left",
    )
    for name in ("method", *(v.key for v in varied), "validation", ""):
        shown.add_column(name, justify="left" if name == "method" else "right", overflow="fold")
    for one in outcome.methods:
        for trial in one.trials:
            mark = "chosen" if trial is one.chosen else "failed" if trial.score is None else ""
            shown.add_row(one.method, *(trial.values.get(v.key, "") for v in varied), number(trial.score), mark)
        shown.add_section()
    return shown
