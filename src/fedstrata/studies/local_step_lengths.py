"""Measure the length of each local step of clients; jumps after an average indicate layers that do not fit."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedstrata.client.local_steps import LocalSteps
from fedstrata.client.task import ClientFailure, ClientTask
from fedstrata.client.update import ClientUpdate, reason_left_out
from fedstrata.common.errors import ConfigError
from fedstrata.core.layout import Layout
from fedstrata.core.params import Spec
from fedstrata.core.piece import Reply
from fedstrata.engine.assembly import RunComponents
from fedstrata.studies.retraining import retrain

WINDOW = 5  # local steps before and after an average
Quantity = Literal["steps", "gradients"]


@dataclass(frozen=True)
class StepLengths:
    """The lengths of the local steps of some clients, over the rounds that they took part in.

    Attributes:
        groups: layer groups, shallow to deep.
        rounds: zero-based rounds.
        squares: for each round, [clients, steps, groups] float64: squared length of every local step, by layer group;
            NaN after a client's last step.
        gradients: likewise of the gradient that the optimiser received; NaN where a method defines the local step.
        trained: for each round, the layer groups that these clients trained.
    """

    groups: tuple[str, ...]
    rounds: tuple[int, ...]
    squares: tuple[Tensor, ...]
    gradients: tuple[Tensor, ...]
    trained: tuple[frozenset[str], ...]

    def lengths(self, index: int, groups: Collection[str] | None = None, what: Quantity = "steps") -> Tensor:
        """Return [steps] the mean length over clients in the ``index``-th round, in these layer groups (None: all)."""
        chosen = [i for i, name in enumerate(self.groups) if groups is None or name in groups]
        squares = (self.squares if what == "steps" else self.gradients)[index]
        return squares[..., chosen].sum(-1).sqrt().nanmean(0)

    def spikes(
        self, window: int = WINDOW, groups: Sequence[Collection[str] | None] | None = None, what: Quantity = "steps"
    ) -> list[float]:
        """Compute, at each average, the mean length of the first ``window`` steps after it over that of the last ones.

        INFERRED from the paper's figure 1.

        ``groups``, by round: whose coordinates count, on both sides those of the round after the average, as a norm
        over fewer coordinates is smaller. None takes the whole model on both sides. NaN if one of these groups was not
        trained before the average: a jump from fewer to more coordinates is not caused by training.
        """
        ratios = []
        for i in range(1, len(self.squares)):
            over = None if groups is None else groups[i]
            same = over is None or self.trained[i - 1].issuperset(over)
            after = self.lengths(i, over, what)[:window].mean()
            before = self.lengths(i - 1, over, what)[-window:].mean()
            ratios.append(float(after / before) if same else float("nan"))
        return ratios


def measure_steps(parts: RunComponents, clients: int | Collection[int], rounds: int | None = None) -> StepLengths:
    """Train a run in memory and measure the local steps of some clients.

    Args:
        parts: of the run; see :func:`fedstrata.engine.assembly.assemble`.
        clients: whose steps are measured.
        rounds: how many; None is all that were planned.
    Raises:
        ConfigError: an unknown client, or clients that took part in no round.
    """
    watched = {clients} if isinstance(clients, int) else set(clients)
    unknown = [i for i in sorted(watched) if not 0 <= i < parts.federation.clients]
    if unknown:
        raise ConfigError(f"there is no client {unknown[0]}; clients are 0 to {parts.federation.clients - 1}.")
    watch = _WatchingLoop(parts, watched)
    for _ in retrain(parts, parts.config.rounds if rounds is None else rounds, watch):
        pass
    if not watch.rounds:
        listed = ", ".join(str(i) for i in sorted(watched))
        raise ConfigError(
            f"client {listed} took part in no round, so it took no step; set cohort to all clients, or choose another"
            " client."
        )
    groups = parts.setup.layout.names()
    return StepLengths(groups, tuple(watch.rounds), tuple(watch.squares), tuple(watch.gradients), tuple(watch.trained))


def restricted(full: StepLengths, part: StepLengths, what: Quantity = "steps") -> list[tuple[Tensor, Tensor]]:
    """Return, by round, [steps] of the partial and of the full run, over the groups that the partial run trained."""
    return [(part.lengths(i, groups, what), full.lengths(i, groups, what)) for i, groups in enumerate(part.trained)]


class _WatchingLoop:
    """An executor that trains clients one by one and measures the steps of some of them."""

    name, workers = "loop", 1

    def __init__(self, parts: RunComponents, clients: Collection[int]) -> None:
        self.worker, self.clients = parts.make_worker(), clients
        self.rounds: list[int] = []
        self.squares: list[Tensor] = []
        self.gradients: list[Tensor] = []
        self.trained: list[frozenset[str]] = []

    def train(self, tasks: Sequence[ClientTask]) -> Iterator[Reply | ClientFailure]:
        """See :class:`fedstrata.backends.protocol.Executor`."""
        layout = self.worker.setup.layout
        watched: list[tuple[ClientTask, _StepLog]] = []
        for task in tasks:
            left_out = reason_left_out(self.worker, task)
            if left_out is not None:
                yield left_out
                continue
            log = _StepLog(layout)
            update = ClientUpdate(self.worker, task, observer=log)
            outcome = update.train(update.begin())
            if task.client in self.clients:
                watched.append((task, log))
            yield update.reply(outcome)
        if watched:
            self.rounds.append(tasks[0].round)
            self.squares.append(_padded([log.squares for _, log in watched]))
            self.gradients.append(_padded([log.gradients for _, log in watched]))
            names = {n for task, _ in watched for n in task.plan.train & layout.parameters}
            self.trained.append(frozenset(layout.entries[n].group for n in names))

    def close(self) -> None:
        """Release nothing."""


def _padded(each: Sequence[Sequence[Tensor]]) -> Tensor:
    """Stack to [clients, steps, groups] from clients with different numbers of steps."""
    return torch.nn.utils.rnn.pad_sequence(
        [torch.stack(list(one)) for one in each], batch_first=True, padding_value=float("nan")
    )


class _StepLog:
    """Squared lengths of a client's steps and of their gradients, by layer group; it observes local steps."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.squares: list[Tensor] = []
        self.gradients: list[Tensor] = []
        self.before: Tensor | None = None

    def before_step(self, steps: LocalSteps, gradients: Sequence[Tensor] | None) -> None:
        """Note the gradient, and where the step begins."""
        self.before = steps.worker.bound.flat.detach().clone()
        spec = self.layout.spec.only(steps.names)
        self.gradients.append(
            torch.full((len(self.layout.groups),), torch.nan, dtype=torch.float64)
            if gradients is None
            else squares_by_group(torch.cat([g.reshape(-1) for g in gradients]), spec, self.layout)
        )

    def after_step(self, steps: LocalSteps) -> None:
        """Note how far the step went."""
        assert self.before is not None, "a step begins before it ends"
        moved = steps.worker.bound.flat.detach() - self.before
        self.squares.append(squares_by_group(moved, self.layout.spec, self.layout))


def squares_by_group(flat: Tensor, spec: Spec, layout: Layout) -> Tensor:
    """Compute [groups] float64: the squared length of a flat vector by layer group; 0 for an absent group.

    Args:
        flat: [numbers] of the names of ``spec``, in its order.
        spec: names and positions.
        layout: the groups.
    """
    squares = torch.zeros(len(layout.groups), dtype=torch.float64)
    for i, group in enumerate(layout.groups.values()):
        for a, b in spec.runs(group.names):
            squares[i] += flat[a:b].double().square().sum()
    return squares
