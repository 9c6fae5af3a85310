"""What a client of a round is given, and the record of a client that failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedstrata.core.params import Model
from fedstrata.core.plan import Plan
from fedstrata.core.state import ClientState, State


@dataclass(frozen=True)
class ClientTask:
    """What one client is asked to do.

    Attributes:
        cohort_index: in the cohort; client: its id; occurrence: how often the client occurs at earlier indices.
        round: zero-based.
        plan: of this client.
        sent: what the server sent: the full model; what the plan does not download is not read.
        down_payload: counted tensors beside the model, by piece.
        client_state: what the client stored, or None before its first round.
        lr: this round's local learning rate.
    """

    cohort_index: int
    client: int
    occurrence: int
    round: int
    plan: Plan
    sent: Model
    down_payload: Mapping[str, State]
    client_state: ClientState | None
    lr: float

    def with_state(self, client_state: ClientState) -> ClientTask:
        """Return this task for a client that stores another state."""
        return replace(self, client_state=client_state)


@dataclass(frozen=True)
class ClientFailure:
    """A client without a usable reply."""

    cohort_index: int
    client: int
    code: str
    message: str
