"""Open a finished run for use: its models as its evaluation formed them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from fedstrata.common.errors import ConfigError, StateError
from fedstrata.common.suggest import suggestion
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
ClientRef = int | str | None
"""A client: its number, its name as text, or "#7" for a number that is also a name; None is the shared model."""


@dataclass(frozen=True)
class Finished:
    """A finished run with its engine restored.

    Attributes:
        result: its summary, rounds and clients' scores.
        engine: in the state after the last round.
        notes: for the user.
    """

    result: Result
    engine: Engine
    notes: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """The run folder."""
        assert self.result.folder is not None, "a result that was read has a folder"
        return self.result.folder

    @property
    def federation(self) -> Federation:
        """The data of the run."""
        return self.engine.parts.federation

    @property
    def rounds(self) -> int:
        """The number of rounds; checks that rounds.jsonl holds each of them.

        Raises:
            StateError: a round is missing or out of order.
        """
        done, logged = self.engine.server.round, [row.get("round") for row in self.result.rounds]
        if logged != list(range(done)):
            problem = f"has {len(logged)} lines" if len(logged) != done else "does not list its rounds in order"
            raise StateError(
                f"{self.folder / 'rounds.jsonl'} is damaged: it {problem}, and the run had {done} rounds; restore the"
                " whole file."
            )
        return done

    @cached_property
    def served(self) -> Model:
        """The server's model, as the run's evaluation served it."""
        return self.engine.serving.model().clone()

    @property
    def uses_batch_statistics(self) -> bool:
        """Whether norms use batch statistics in evaluation: an output then depends on its whole batch."""
        return self.engine.evaluator.batch_statistics or any(
            norm.running_mean is None for norm in self.engine.worker.bound.norms
        )

    def client_number(self, client: ClientRef) -> int | None:
        """Find the number of a client that is given by number or name.

        Raises:
            ConfigError: there is no such client, or the text is ambiguous.
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
        number = by_number if by_name is None else by_name
        if number is None:
            some = f" Their names: {', '.join(names[:MANY])}{', ...' if len(names) > MANY else ''}." if names else ""
            raise ConfigError(
                f"there is no client {text!r}; clients are 0 to {federation.clients - 1}.{suggestion(text, names)}"
                f"{some}"
            )
        return number

    def params(self, client: int | None = None) -> Model:
        """Return the parameters of the shared model, or of a client's personal model as the run's evaluation formed it.

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

    def notes_for(self, client: int | None) -> tuple[str, ...]:
        """Return what the user must know about the model of a client, or about the shared one."""
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
        name = self.client_label(client)
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
                    f"client {name} never took part: its model is what the method makes of the shared one, without"
                    " state that the client stored."
                ),
            )
        return ()

    def client_label(self, client: int) -> str:
        """Return the client's number, with its name where it has one."""
        return f"{client} ({self.federation.client_name(client)})" if self.federation.named else str(client)

    def module(self, client: int | None = None) -> nn.Module:
        """Return the model as a plain module; see :func:`load`."""
        return plain(
            self.engine.worker,
            self.params(client),
            self.federation.task,
            batch_statistics=self.engine.evaluator.batch_statistics,
        )


def open_run(
    run: str | Path,
    *,
    root: str | Path | None = None,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    method: Piece | Method | None = None,
) -> Finished:
    """Open a finished run; its folder is read, not changed.

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
            f"{folder}: summary.json describes another model than the checkpoint holds; write it again: fedstrata"
            f" resume {folder}"
        )
    return Finished(result, engine, (*notes, *result.notes))


def load(
    run: str | Path,
    client: ClientRef = None,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    *,
    method: Piece | Method | None = None,
    root: str | Path | None = None,
) -> nn.Module:
    """Load the model of a finished run as a plain ``nn.Module`` in evaluation mode: [B, *shape] -> [B, classes].

    The module includes the method's changes to the model; its dropout is torch's; parameters have the names of the
    network's state_dict. With ``bn=batch`` its norms use the statistics of the batch, as the run's evaluation did.

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
    with keep_threads():
        finished = open_run(run, root=root, federation=federation, module=module, method=method)
        return finished.module(finished.client_number(client))


@contextmanager
def keep_threads() -> Iterator[None]:
    """Restore the number of intra-op threads, which the engine sets."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
