"""A finished run, opened to be used: its models as its evaluation formed them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from fedstrata.common.errors import ConfigError, StateError, nearest
from fedstrata.core.chain import Method, chain
from fedstrata.core.params import Model
from fedstrata.core.piece import Piece
from fedstrata.data.federation import Federation
from fedstrata.engine.rounds import Engine
from fedstrata.inference.module import plain
from fedstrata.runs.restore import restored
from fedstrata.runs.result import Result
from fedstrata.runs.summary import fingerprint

MANY = 12  # names of clients that a message lists
Who = int | str | None
"""A client: its number, its name as text, "#7" for a number that is also a name; None is the shared model."""


@dataclass(frozen=True)
class Finished:
    """A finished run.

    Attributes:
        result: its summary, rounds and clients' scores.
        engine: as it stood at the end.
        notes: what a user must be told.
    """

    result: Result
    engine: Engine
    notes: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Of the run."""
        assert self.result.folder is not None, "a result that was read has a folder"
        return self.result.folder

    @property
    def federation(self) -> Federation:
        """That it ran on."""
        return self.engine.parts.federation

    @property
    def rounds(self) -> int:
        """How many it had, after a check that rounds.jsonl holds each of them.

        Raises:
            StateError: it does not.
        """
        done, found = self.engine.server.round, [row.get("round") for row in self.result.rounds]
        if found != list(range(done)):
            told = (
                f"has {len(found)} lines" if len(found) != done else "has lines that are not its rounds in their order"
            )
            raise StateError(
                f"{self.folder / 'rounds.jsonl'} is damaged: it {told}, and the run had {done} rounds; put the whole"
                " file back."
            )
        return done

    @cached_property
    def served(self) -> Model:
        """The server's model, as the run's evaluation served it."""
        return self.engine.serving.model().clone()

    @property
    def looks_at_batches(self) -> bool:
        """Whether norms look at the batch in hand in evaluation, so that an output hangs on the other samples."""
        return self.engine.evaluator.batch_statistics or any(
            norm.running_mean is None for norm in self.engine.worker.bound.norms
        )

    def number(self, client: Who) -> int | None:
        """The number of a client that is given by number or name.

        Raises:
            ConfigError: there is no such client, or the text means two.
        """
        if client is None:
            return None
        federation = self.federation
        names = federation.partition.names if federation.named else ()
        text = str(client).strip()
        by_name = names.index(text) if isinstance(client, str) and text in names else None
        digits = text.removeprefix("#")
        by_number = (
            int(digits) if digits.isdecimal() and len(digits) < 19 and int(digits) < federation.clients else None
        )
        if by_name is not None and by_number not in (None, by_name):
            raise ConfigError(
                f"client {text!r} is the name of client #{by_name} and the number of {names[by_number or 0]!r}; write"
                f" #{by_name} or #{text}."
            )
        found = by_number if by_name is None else by_name
        if found is None:
            some = f" Their names: {', '.join(names[:MANY])}{', ...' if len(names) > MANY else ''}." if names else ""
            raise ConfigError(
                f"there is no client {text!r}; clients are 0 to {federation.clients - 1}.{nearest(text, names)}{some}"
            )
        return found

    def params(self, client: int | None = None) -> Model:
        """The model's values: the shared ones, or a client's own exactly as the run's evaluation formed them.

        Raises:
            StateError: they are not finite.
        """
        if client is None:
            return self.served
        task = self.engine.serving.task_of(client, self.served)
        values = self.engine.evaluator.model(self.engine.worker, task).clone()
        if not bool(values.flat.isfinite().all()):
            raise StateError(
                f"{self.folder}: the model of client {client} is not finite: its private training diverged. Use the"
                " shared model."
            )
        return values

    def told(self, client: int | None) -> tuple[str, ...]:
        """What a user must know of the model of a client."""
        if client is None:
            whose = self.engine.serving.norm_source_client
            return (
                ()
                if whose is None
                else (
                    (
                        f"norm layers stay with clients; the shared model has those of client {whose}, as it was"
                        " evaluated."
                    ),
                )
            )
        name = self.name(client)
        if client in self.federation.heldout:
            return (
                (
                    f"client {name} was held out of training: its model is what the method makes of the shared one for"
                    " a client never seen."
                ),
            )
        if not any(client in row.get("cohort", ()) for row in self.result.rounds):
            return (
                (
                    f"client {name} never took part: its model is what the method makes of the shared one, with nothing"
                    " stored of its own."
                ),
            )
        return ()

    def name(self, client: int) -> str:
        """Number, and name where it has one."""
        return f"{client} ({self.federation.client_name(client)})" if self.federation.named else str(client)

    def module(self, client: int | None = None) -> nn.Module:
        """The model as a plain module; see :func:`load`."""
        return plain(
            self.engine.worker,
            self.params(client),
            self.federation.task,
            batch_statistics=self.engine.evaluator.batch_statistics,
        )


def finished(
    run: str | Path,
    *,
    root: str | Path | None = None,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    method: Piece | Method | None = None,
) -> Finished:
    """Open a finished run; its folder is only read.

    Args:
        run: the run folder.
        root: folder of the data, where they are not where the run had them.
        federation: again, where the run was given one.
        module: again, where the run was given one.
        method: again, where the run was given pieces instead of text.
    Raises:
        StateError: no run there, one that is not finished or is damaged, or another run's data, model or method.
        DataError: the data of the run are not here.
    """
    folder = Path(run)
    engine, notes = restored(
        folder, root=root, federation=federation, module=module, method=None if method is None else chain(method)
    )
    result = Result.read(folder)
    if result.summary.get("model_sha256") != fingerprint(engine.server.model):
        raise StateError(
            f"{folder}: summary.json speaks of another model than the checkpoint holds; write it anew: fedstrata resume"
            f" {folder}"
        )
    return Finished(result, engine, (*notes, *result.notes))


def load(
    run: str | Path,
    client: Who = None,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    *,
    method: Piece | Method | None = None,
    root: str | Path | None = None,
) -> nn.Module:
    """The model of a finished run as a plain ``nn.Module`` in evaluation mode: [B, *shape] -> [B, classes].

    What the method changes in the model holds in it; its dropout is torch's; parameters have the names of the network's
    own state_dict. With ``bn=batch`` its norms look at the batch in hand, as the run's evaluation did.

    Args:
        run: the run folder.
        client: None for the shared model; a client's number or name for the model that it uses itself, as the run's
            evaluation formed it.
        federation: again, where the run was given one.
        module: again, where the run was given one.
        method: again, where the run was given pieces instead of text.
        root: folder of the data, where they are not where the run had them.
    Raises:
        ConfigError: there is no such client.
        StateError: no run there, one that is not finished or is damaged, or another run's data, model or method.

    >>> model = load("runs/one", client=3)  # doctest: +SKIP
    >>> model(torch.zeros(1, 1, 8, 8)).argmax(1)  # doctest: +SKIP
    """
    with threads_kept():
        found = finished(run, root=root, federation=federation, module=module, method=method)
        return found.module(found.number(client))


@contextmanager
def threads_kept() -> Iterator[None]:
    """The engine sets the number of intra-op threads; afterwards it is what it was."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
