"""End a run before its last round: a budget is used up, or an accuracy is reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedstrata.config.config import Config
from fedstrata.engine.ledger import Cost


@dataclass(frozen=True)
class StopRule:
    """The settings ``stop.*``; None is off.

    The round that reaches an amount is the last one, so a run overshoots by less than a round.
    """

    bytes: int | None = None
    flops: float | None = None
    seconds: float | None = None
    accuracy: float | None = None

    @classmethod
    def of(cls, config: Config) -> StopRule:
        """Return the configured rule."""
        s = config.stop
        return cls(s.bytes, s.flops, s.seconds, s.accuracy)

    def spent(self, cost: Cost, seconds: float) -> str | None:
        """Return the setting whose budget is used up, or None."""
        for name, limit, amount in (
            ("stop.bytes", self.bytes, cost.up.payload + cost.down.payload),
            ("stop.flops", self.flops, cost.flops),
            ("stop.seconds", self.seconds, seconds),
        ):
            if limit is not None and amount >= limit:
                return name
        return None

    def reached(self, scores: Mapping[str, Any]) -> str | None:
        """Return ``stop.accuracy`` where an evaluated round reaches it, or None.

        Validation data count where there are some, otherwise test data.
        """
        if self.accuracy is None:
            return None
        values = [scores.get(key) for key in ("validation", "accuracy", "shared_on_clients")]
        known = [value for value in values if value is not None]
        return "stop.accuracy" if known and known[0] >= self.accuracy else None
