"""Update step sizes: each local step's length over a run, across averages, with the fair comparison of partial and full
training.
"""

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
from fedstrata.studies.local_step_lengths import WINDOW, Walk, What, walk
from fedstrata.studies.outputs import stem
from fedstrata.studies.retraining import plain_sgd

NAMES: Mapping[What, str] = {"steps": "step", "gradients": "gradient"}


@dataclass(frozen=True)
class Steps(Study):
    """How long local steps are, whole and over the same layer groups, and how they jump across averages.

    ``clients`` are watched, and their lengths averaged; none is all. ``window`` counts local steps on each side of an
    average. ``optimizer=sgd`` adds a control: each run again with plain SGD at ``lr`` (default the run's own rate,
    where it ran with SGD), since a fresh Adam takes first steps of about its rate whatever the gradient.

    Source: Wang et al. 2024 (FedPart), figure 1; the comparison over the same groups is from the authors' reply to
        reviewers.
    """

    title: ClassVar[str] = "Step sizes"
    text: ClassVar[str] = (
        "Euclidean length of each local step, averaged over the watched clients, in units of parameters; a jump after"
        " an average is read as layers that do not fit each other (Wang et al. 2024). Spike ratio: mean length of the"
        " first steps after an average over that of the last before it; 1 is no jump. A run that trains part of the"
        " model is compared with one that trains all of it over the same layer groups only, since a norm over fewer"
        " numbers is smaller. Gradients are what the optimiser was given."
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
            raise ConfigError("steps.lr is of the control with plain SGD; set optimizer=sgd too, or leave it out.")

    def study(self, runs: Mapping[str, Finished]) -> Outcome:
        """See :class:`Study`."""
        rounds = {label: run.rounds for label, run in runs.items()}
        walks = {label: self._walk(run.engine.parts, rounds[label]) for label, run in runs.items()}
        found = compared(walks, self.window, "")
        if self.optimizer == "sgd":
            controls = {
                label: self._walk(self._control(label, run.engine.parts), rounds[label]) for label, run in runs.items()
            }
            found = _joined(found, compared(controls, self.window, " (plain SGD)"))
        return found

    def _walk(self, parts: RunComponents, rounds: int) -> Walk:
        return walk(parts, self.clients or range(parts.federation.clients), rounds)

    def _control(self, label: str, parts: RunComponents) -> RunComponents:
        if self.lr is None and parts.setup.local.optimizer != "sgd":
            raise ConfigError(
                f"{label} ran with {parts.setup.local.optimizer}, whose rate says nothing of SGD; give one:"
                " steps(optimizer=sgd, lr=0.05)."
            )
        return plain_sgd(parts, parts.setup.local.lr if self.lr is None else self.lr)


def compared(walks: Mapping[str, Walk], window: int, tag: str) -> Outcome:
    """Everything that walks of one kind say.

    Args:
        walks: by label of the run, one or two.
        window: local steps on each side of an average.
        tag: ends titles.
    Raises:
        ConfigError: two walks that cannot be compared.
    """
    pair = _pair(walks)
    numbers: dict[str, Any] = {label + tag: _numbers(one, window) for label, one in walks.items()}
    series: dict[What, dict[str, list[Tensor]]] = {what: {n: _all(w, what) for n, w in walks.items()} for what in NAMES}
    spikes = {
        f"{label}, {key}": numbers[label + tag][key]
        for label in walks
        for key in ("whole model", "same groups", "gradient")
    }
    first = next(iter(walks.values()))
    averages = list(accumulate(len(first.sizes(i)) for i in range(len(first.rounds))))[:-1]
    if pair is not None:
        full, part = pair
        for what in NAMES:
            series[what][f"{full}, groups of {part}"] = [
                walks[full].sizes(i, groups, what) for i, groups in enumerate(walks[part].trained)
            ]
        numbers[f"{part} over {full}{tag}"] = fair = _fair(walks[full], walks[part], window)
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
    return Outcome(numbers, panels, pictures, _notes(walks, averages))


def _pair(walks: Mapping[str, Walk]) -> tuple[str, str] | None:
    """(full, partial) of two walks, after a check that they can be compared; None of one."""
    if len(walks) == 1:
        return None
    (one, a), (two, b) = walks.items()
    alike = a.groups == b.groups and a.rounds == b.rounds
    if not alike or any(x.shape[:2] != y.shape[:2] for x, y in zip(a.squares, b.squares, strict=True)):
        raise ConfigError(
            f"{one} and {two} differ in model, rounds, cohorts or local steps; a fair comparison has them equal, and"
            " the seed."
        )
    full = [label for label, w in walks.items() if all(len(groups) == len(w.groups) for groups in w.trained)]
    if not full:
        raise ConfigError(
            f"neither {one} nor {two} trains every layer group in every round; give a run of fedavg beside the partial"
            " one."
        )
    return (full[0], two if full[0] == one else one)


def _all(one: Walk, what: What) -> list[Tensor]:
    return [one.sizes(i, None, what) for i in range(len(one.rounds))]


def _numbers(one: Walk, window: int) -> dict[str, Any]:
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


def _fair(full: Walk, part: Walk, window: int) -> dict[str, Any]:
    """The partial run over the full one, both over the groups that the partial run trained, by round."""

    def ratios(what: What) -> list[float | None]:
        return [
            _number(part.sizes(i, g, what).mean() / full.sizes(i, g, what).mean()) for i, g in enumerate(part.trained)
        ]

    return {
        "step ratios": ratios("steps"),
        "gradient ratios": ratios("gradients"),
        "median step ratio": _median(ratios("steps")),
        "spikes of full": [_number(v) for v in full.spikes(window, part.trained)],
        "median spike of full": _median([_number(v) for v in full.spikes(window, part.trained)]),
    }


def _number(value: float | Tensor) -> float | None:
    found = float(value)
    return found if math.isfinite(found) else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None


# ---- what is shown
# ------------------------------------------------------------------------------------------------------------------------------


def _lines(title: str, series: Mapping[str, list[Tensor]], averages: Sequence[int]) -> Panel:
    values = {label: [_number(v) for s in sizes for v in s.tolist()] for label, sizes in series.items()}
    steps = list(range(1, 1 + max(map(len, values.values()))))
    some = ", ".join(map(str, averages[:6])) + (" and so on" if len(averages) > 6 else "")
    said = f" Averages stand behind local steps {some}." if averages else ""
    return Panel(title, Steps.text + said, "table", steps, values, x_name="local step", y_name="Euclidean length")


def _marked(panel: Panel, averages: Sequence[int]) -> Picture:
    """Every local step as it is, averages as dotted lines: thinning would lose the jumps that the picture is for."""
    base = panel_picture(replace(panel, kind="lines"), 0, PLAIN, name=stem(panel.title))
    assert base is not None, "a panel without numbers is left out before"
    return replace(base, draw=partial(_draw, panel=panel, averages=averages), note="Dotted: averages.")


def _draw(figure: Figure, *, panel: Panel, averages: Sequence[int]) -> None:
    axes = figure.subplots()
    for at in averages:
        axes.axvline(at + 0.5, color=LIGHT["edge"], linewidth=0.6, linestyle=(0, (1, 2)), zorder=0.5)
    for place, (label, values) in enumerate(panel.series.items()):
        known = [(k + 1, v) for k, v in enumerate(values) if v is not None]
        colour = stroke_of(APART + place, PLAIN).hex
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


def _notes(walks: Mapping[str, Walk], averages: Sequence[int]) -> tuple[str, ...]:
    if not averages:
        return ("the watched clients took part in one round only, so there is no average to look across.",)
    partly = [label for label, w in walks.items() if any(len(groups) < len(w.groups) for groups in w.trained)]
    return tuple(
        f"{label} trains other groups in other rounds: its ratio over the whole model compares different numbers of"
        " coordinates wherever the group changes; over the same groups there is no ratio at averages behind which a"
        " group moves that stood still before."
        for label in partly
    )


def _joined(one: Outcome, two: Outcome) -> Outcome:
    notes = dict.fromkeys((*one.notes, *two.notes))
    return Outcome(
        {**one.numbers, **two.numbers}, [*one.panels, *two.panels], [*one.pictures, *two.pictures], tuple(notes)
    )
