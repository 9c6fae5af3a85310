"""Compare the lengths of local steps over runs, across averages, of partial and of full training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar, Literal

from matplotlib.figure import Figure
from torch import Tensor

from fedstrata.common.errors import ConfigError
from fedstrata.core.piece import require
from fedstrata.diagnostics.panel import Panel
from fedstrata.engine.assembly import RunComponents
from fedstrata.inference.finished_run import Finished
from fedstrata.report.page.drawing import Picture, faint_grid
from fedstrata.report.page.panels import APART, PLAIN, panel_picture, stroke_of
from fedstrata.report.page.theme import LIGHT
from fedstrata.studies.base import Outcome, Study
from fedstrata.studies.local_step_lengths import WINDOW, Quantity, StepLengths, measure_steps
from fedstrata.studies.outputs import stem
from fedstrata.studies.retraining import plain_sgd

NAMES: Mapping[Quantity, str] = {"steps": "step", "gradients": "gradient"}


@dataclass(frozen=True)
class Steps(Study):
    """Measure lengths of local steps, whole and over the same layer groups, and their jumps across averages.

    The lengths of ``clients`` are averaged; none means all clients. ``window`` counts local steps on each side of an
    average. ``optimizer=sgd`` adds a control: each run again with plain SGD at ``lr`` (default: the run's rate, if it
    used SGD), since the first steps of a fresh Adam have about the length of its rate for any gradient.

    Source: Wang et al. 2024 (FedPart), figure 1; the comparison over the same groups is from the authors' reply to
    reviewers.
    """

    title: ClassVar[str] = "Step sizes"
    text: ClassVar[str] = (
        "Euclidean length of each local step, averaged over the chosen clients, in units of parameters; a jump after an"
        " average indicates layers that do not fit each other (Wang et al. 2024). Spike ratio: mean length of the first"
        " steps after an average over that of the last before it; 1 is no jump. A run that trains part of the model is"
        " compared with one that trains all of it over the same layer groups only, since a norm over fewer numbers is"
        " smaller. Gradients are those that the optimiser received."
    )
    least: ClassVar[int] = 1
    most: ClassVar[int | None] = 2
    clients: tuple[int, ...] = (0,)
    window: int = WINDOW
    optimizer: Literal["own", "sgd"] = "own"
    lr: float | None = None

    def __post_init__(self) -> None:
        require(self.window >= 1, "steps.window", self.window, "local steps on each side of an average, at least 1")
        require(self.lr is None or self.lr > 0, "steps.lr", self.lr, "the learning rate of the control, above 0")
        if self.lr is not None and self.optimizer == "own":
            raise ConfigError(
                "steps.lr is the rate of the control with plain SGD; set optimizer=sgd too, or leave it out."
            )

    def study(self, runs: Mapping[str, Finished]) -> Outcome:
        """See :class:`Study`."""
        rounds = {label: run.rounds for label, run in runs.items()}
        measured = {label: self._measure(run.engine.parts, rounds[label]) for label, run in runs.items()}
        outcome = compare_steps(measured, self.window, "")
        if self.optimizer == "sgd":
            controls = {
                label: self._measure(self._control(label, run.engine.parts), rounds[label])
                for label, run in runs.items()
            }
            outcome = _joined(outcome, compare_steps(controls, self.window, " (plain SGD)"))
        return outcome

    def _measure(self, parts: RunComponents, rounds: int) -> StepLengths:
        return measure_steps(parts, self.clients or range(parts.federation.clients), rounds)

    def _control(self, label: str, parts: RunComponents) -> RunComponents:
        if self.lr is None and parts.setup.local.optimizer != "sgd":
            raise ConfigError(
                f"{label} ran with {parts.setup.local.optimizer}, whose rate does not apply to SGD; give one:"
                " steps(optimizer=sgd, lr=0.05)."
            )
        return plain_sgd(parts, parts.setup.local.lr if self.lr is None else self.lr)


def compare_steps(measured: Mapping[str, StepLengths], window: int, tag: str) -> Outcome:
    """Build the numbers, panels and figures of step lengths of one kind.

    Args:
        measured: by label of the run, one or two.
        window: local steps on each side of an average.
        tag: appended to titles.
    Raises:
        ConfigError: two runs that are not comparable.
    """
    pair = _pair(measured)
    numbers: dict[str, Any] = {label + tag: _numbers(one, window) for label, one in measured.items()}
    series: dict[Quantity, dict[str, list[Tensor]]] = {
        what: {n: _all(w, what) for n, w in measured.items()} for what in NAMES
    }
    spikes = {
        f"{label}, {key}": numbers[label + tag][key]
        for label in measured
        for key in ("whole model", "same groups", "gradient")
    }
    first = next(iter(measured.values()))
    averages = list(accumulate(len(first.lengths(i)) for i in range(len(first.rounds))))[:-1]
    if pair is not None:
        full, part = pair
        for what in NAMES:
            series[what][f"{full}, groups of {part}"] = [
                measured[full].lengths(i, groups, what) for i, groups in enumerate(measured[part].trained)
            ]
        numbers[f"{part} over {full}{tag}"] = fair = _fair(measured[full], measured[part], window)
        spikes[f"{full}, groups of {part}"] = fair["spikes of full"]
    panels = [_lines(f"Local {NAMES[what]} size{tag}", lines, averages) for what, lines in series.items()]
    panels = [panel for panel in panels if any(v is not None for values in panel.series.values() for v in values)]
    pictures = [_marked(panel, averages) for panel in panels]
    rounds = [r + 1 for r in first.rounds[1:]]
    panels.append(
        Panel(
            f"Spike ratio{tag}",
            Steps.text,
            "lines",
            rounds,
            spikes,
            x_name="round after the average",
            y_name="after over before",
        )
    )
    panels.append(_medians(spikes, tag))
    if pair is not None:
        ratios = {"step size": fair["step ratios"], "gradient": fair["gradient ratios"]}
        title = f"Partial over full training, same groups{tag}"
        panels.append(
            Panel(
                title,
                Steps.text,
                "lines",
                [r + 1 for r in first.rounds],
                ratios,
                y_name=f"mean size, {part} over {full}",
            )
        )
    return Outcome(numbers, panels, pictures, _notes(measured, averages))


def _pair(measured: Mapping[str, StepLengths]) -> tuple[str, str] | None:
    """Return (full, partial) of two comparable runs; None of one run."""
    if len(measured) == 1:
        return None
    (one, a), (two, b) = measured.items()
    alike = a.groups == b.groups and a.rounds == b.rounds
    if not alike or any(x.shape[:2] != y.shape[:2] for x, y in zip(a.squares, b.squares, strict=True)):
        raise ConfigError(
            f"{one} and {two} differ in model, rounds, cohorts or local steps; a fair comparison needs them equal,"
            " and the seed."
        )
    full = [label for label, w in measured.items() if all(len(groups) == len(w.groups) for groups in w.trained)]
    if not full:
        raise ConfigError(
            f"neither {one} nor {two} trains every layer group in every round; give a run of fedavg beside the partial"
            " one."
        )
    return (full[0], two if full[0] == one else one)


def _all(one: StepLengths, what: Quantity) -> list[Tensor]:
    return [one.lengths(i, None, what) for i in range(len(one.rounds))]


def _numbers(one: StepLengths, window: int) -> dict[str, Any]:
    ratios = {
        "whole model": one.spikes(window),
        "same groups": one.spikes(window, one.trained),
        "gradient": one.spikes(window, one.trained, "gradients"),
    }
    return {
        "rounds": list(one.rounds),
        "trained": [[g for g in one.groups if g in groups] for groups in one.trained],
        "mean step": [_number(s.mean()) for s in _all(one, "steps")],
        "mean gradient": [_number(s.mean()) for s in _all(one, "gradients")],
        **{name: [_number(v) for v in values] for name, values in ratios.items()},
        "median": {name: _median([_number(v) for v in values]) for name, values in ratios.items()},
    }


def _fair(full: StepLengths, part: StepLengths, window: int) -> dict[str, Any]:
    """Compute the partial run over the full one, both over the groups that the partial run trained, by round."""

    def ratios(what: Quantity) -> list[float | None]:
        return [
            _number(part.lengths(i, g, what).mean() / full.lengths(i, g, what).mean())
            for i, g in enumerate(part.trained)
        ]

    return {
        "step ratios": ratios("steps"),
        "gradient ratios": ratios("gradients"),
        "median step ratio": _median(ratios("steps")),
        "spikes of full": [_number(v) for v in full.spikes(window, part.trained)],
        "median spike of full": _median([_number(v) for v in full.spikes(window, part.trained)]),
    }


def _number(value: float | Tensor) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None


# ---- panels


def _lines(title: str, series: Mapping[str, list[Tensor]], averages: Sequence[int]) -> Panel:
    values = {label: [_number(v) for s in sizes for v in s.tolist()] for label, sizes in series.items()}
    steps = list(range(1, 1 + max(map(len, values.values()))))
    listed = ", ".join(map(str, averages[:6])) + (" and so on" if len(averages) > 6 else "")
    text = f" Averages follow local steps {listed}." if averages else ""
    return Panel(title, Steps.text + text, "table", steps, values, x_name="local step", y_name="Euclidean length")


def _marked(panel: Panel, averages: Sequence[int]) -> Picture:
    """Draw every local step, with averages as dotted lines; a selection of steps would hide the jumps."""
    base = panel_picture(replace(panel, kind="lines"), 0, PLAIN, name=stem(panel.title))
    assert base is not None, "panels without numbers are left out"
    return replace(base, draw=partial(_draw, panel=panel, averages=averages), note="Dotted: averages.")


def _draw(figure: Figure, *, panel: Panel, averages: Sequence[int]) -> None:
    axes = figure.subplots()
    for at in averages:
        axes.axvline(at + 0.5, color=LIGHT["edge"], linewidth=0.6, linestyle=(0, (1, 2)), zorder=0.5)
    for i, (label, values) in enumerate(panel.series.items()):
        known = [(k + 1, v) for k, v in enumerate(values) if v is not None]
        colour = stroke_of(APART + i, PLAIN).hex
        axes.plot([k for k, _ in known], [v for _, v in known], color=colour, linewidth=0.9, label=label)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"{panel.x_name}; dotted: averages")
    axes.set_ylabel(panel.y_name)
    axes.margins(x=0.02)
    faint_grid(axes)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9.5)


def _medians(spikes: Mapping[str, Sequence[float | None]], tag: str) -> Panel:
    rows = {
        label: (_median(values), *_ends(values), sum(v is not None for v in values)) for label, values in spikes.items()
    }
    return Panel(
        f"Spike ratio over all averages{tag}",
        Steps.text,
        "table",
        ("median", "smallest", "largest", "averages"),
        rows,
        x_name="",
    )


def _ends(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    known = [v for v in values if v is not None]
    return (min(known), max(known)) if known else (None, None)


def _notes(measured: Mapping[str, StepLengths], averages: Sequence[int]) -> tuple[str, ...]:
    if not averages:
        return ("the chosen clients took part in one round only, so there is no average between their rounds.",)
    partly = [label for label, w in measured.items() if any(len(groups) < len(w.groups) for groups in w.trained)]
    return tuple(
        f"{label} trains different groups in different rounds: its ratio over the whole model compares different"
        " numbers of coordinates where the group changes; over the same groups there is no ratio at averages after"
        " which a group trains that did not train before."
        for label in partly
    )


def _joined(one: Outcome, two: Outcome) -> Outcome:
    notes = dict.fromkeys((*one.notes, *two.notes))
    return Outcome(
        {**one.numbers, **two.numbers}, [*one.panels, *two.panels], [*one.pictures, *two.pictures], tuple(notes)
    )
