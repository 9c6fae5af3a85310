"""How long each local step of a client is: its jumps after an average are read as a sign of layers that do not fit each other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedstrata.build import Parts
from fedstrata.engine import Engine
from fedstrata.errors import ConfigError
from fedstrata.layout import Layout
from fedstrata.net import Batch
from fedstrata.piece import Reply
from fedstrata.round import Failure, Session, Work, why_not

WINDOW = 5  # local steps before and after an average


@dataclass(frozen=True)
class Walk:
    """The local steps of one client over the rounds that it took part in.

    Attributes:
        groups: layer groups, shallow to deep.
        rounds: zero-based rounds of the walk.
        squares: for each of these, [steps, groups] float64: squared length of every local step, by layer group.
        trained: for each, the layer groups that the client trained.
    """

    groups: tuple[str, ...]
    rounds: tuple[int, ...]
    squares: tuple[Tensor, ...]
    trained: tuple[frozenset[str], ...]

    def sizes(self, place: int, groups: Collection[str] | None = None) -> Tensor:
        """[steps] length of the local steps of the ``place``-th round, over these layer groups alone; None is the whole model."""
        chosen = [i for i, name in enumerate(self.groups) if groups is None or name in groups]
        return self.squares[place][:, chosen].sum(1).sqrt()

    def spikes(self, window: int = WINDOW, groups: Sequence[Collection[str] | None] | None = None) -> list[float]:
        """At each average: mean length of the first ``window`` steps after it over that of the last before it. INFERRED from the paper's figure 1.

        ``groups``, by round: whose coordinates count; on both sides those of the round after the average. A norm over fewer coordinates is smaller.
        """
        found = []
        for place in range(1, len(self.squares)):
            over = None if groups is None else groups[place]
            found.append(float(self.sizes(place, over)[:window].mean() / self.sizes(place - 1, over)[-window:].mean()))
        return found


def walk(parts: Parts, client: int) -> Walk:
    """Train a run in memory and measure the local steps of one client.

    Args:
        parts: of the run; ``fedstrata.build.assemble`` makes them.
        client: who is watched; it needs to take part in the first round.
    Raises:
        ConfigError: the client took part in no round.
    """
    run = Engine(parts, "loop", 1)
    watch = _Watch(parts, client)
    run.executor = watch
    for _ in run.rounds():
        pass
    if not watch.rounds:
        raise ConfigError(f"client {client} took part in no round, so it took no step; set cohort to all clients, or watch another one.")
    return Walk(parts.setup.layout.names(), tuple(watch.rounds), tuple(watch.squares), tuple(watch.trained))


def restricted(full: Walk, part: Walk) -> list[tuple[Tensor, Tensor]]:
    """The fair comparison: by round, [steps] of the partial run over the groups that it trained, and of the full run over the very same groups."""
    return [(part.sizes(i, groups), full.sizes(i, groups)) for i, groups in enumerate(part.trained)]


class _Watch:
    """An executor that trains clients in turn, one of them watched."""

    name, workers = "loop", 1

    def __init__(self, parts: Parts, client: int) -> None:
        self.kit, self.client = parts.make(), client
        self.rounds: list[int] = []
        self.squares: list[Tensor] = []
        self.trained: list[frozenset[str]] = []

    def train(self, works: Sequence[Work]) -> Iterator[Reply | Failure]:
        for work in works:
            refused = why_not(self.kit, work)
            if refused is not None:
                yield refused
                continue
            session = _Session(self.kit, work)
            loss, steps = session.train(session.begin())
            if work.client == self.client:
                layout = self.kit.setup.layout
                self.rounds.append(work.round)
                self.squares.append(torch.stack(session.squares))
                self.trained.append(frozenset(layout.entries[n].group for n in work.plan.train & layout.parameters))
            yield session.reply(session.end(), loss, steps)

    def close(self) -> None:
        """Nothing to release."""


class _Session(Session):
    """A client's turn that looks at its own weights whenever the next batch is asked for."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.squares: list[Tensor] = []

    def batches(self, purpose: str, **options: Any) -> Iterator[Batch]:
        flat = self.kit.bound.flat.detach()
        before = flat.clone()
        for batch in super().batches(purpose, **options):
            yield batch
            self.squares.append(by_group(flat - before, self.kit.setup.layout))
            before.copy_(flat)


def by_group(flat: Tensor, layout: Layout) -> Tensor:
    """[groups] float64: squared length of a flat vector, by layer group."""
    runs = [layout.spec.runs(group.names) for group in layout.groups.values()]
    return torch.stack([torch.stack([flat[a:b].double().square().sum() for a, b in found]).sum() for found in runs])
