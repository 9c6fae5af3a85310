"""The laws of methods, for tests of your own.

In a test file beside your method:

    import pytest
    from fedstrata.testing import laws
    from mymethod import ROW

    @pytest.mark.parametrize("law", laws(ROW), ids=str)
    def test_my_method_keeps(law):
        law()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from fedstrata.diagnostics.base import Measure
from fedstrata.methods import Limit, Row
from fedstrata.testing.laws import (
    a_lost_round_changes_nothing,
    absent_clients_keep_their_rows,
    batched_equals_looped,
    batched_serves,
    carried_over_state_is_all_state,
    claim,
    counted_bytes_are_real,
    executor_changes_no_bit,
    limit_is_exact,
    mapped_rows_change_no_bit,
    no_limit_says_why,
    pieces_are_values,
    reply_order_is_irrelevant,
    text_comes_back,
    untouched_stays_untouched,
)
from fedstrata.testing.toy_runs import engine, finish, play, played, same
from fedstrata.testing.toys import know, parts

__all__ = ["Law", "laws", "measurements"]


@dataclass(frozen=True)
class Law:
    """One law over one method.

    Attributes:
        name: what is claimed, and of what.
        check: raises AssertionError, in words, where it does not hold.
    """

    name: str
    check: Callable[[], None]

    def __call__(self) -> None:
        """Hold the method to the law."""
        self.check()

    def __str__(self) -> str:
        return self.name


def laws(row: Row) -> list[Law]:
    """All laws over a method: its limit, and for each of its examples what holds for every method.

    Args:
        row: of the method; it need not be registered or installed.
    Returns:
        checks to call one by one; each takes a fraction of a second.
    """
    if know(row.piece):
        played.cache_clear()
    limit = row.limit
    held = [Law(f"{limit}, bit for bit", partial(limit_is_exact, limit))] if isinstance(limit, Limit) else []
    held += (
        []
        if isinstance(limit, Limit)
        else [Law("without a limit law, and says why", partial(no_limit_says_why, limit))]
    )
    for example in row.examples:
        held += [Law(f"{example}: {name}", partial(check, example)) for name, check in _every()]
    return held


def _every() -> list[tuple[str, Callable[[str], None]]]:
    """Name and check of every law over an example."""
    return [
        ("pieces are values", pieces_are_values),
        ("text comes back", text_comes_back),
        ("batched equals looped", batched_equals_looped),
        *_on("batched equals looped, or is refused with a reason", batched_serves, "batch", "dropout", "images"),
        ("two threads change no bit", partial(executor_changes_no_bit, executor="threads", workers=2)),
        ("two processes change no bit", partial(executor_changes_no_bit, executor="processes", workers=2)),
        *_on(
            "two threads change no bit",
            partial(executor_changes_no_bit, executor="threads", workers=2),
            "batch",
            "dropout",
        ),
        ("mapped rows change no bit", mapped_rows_change_no_bit),
        *_on("untouched stays untouched", untouched_stays_untouched, "layer", "batch"),
        *_on("resumed equals uninterrupted", carried_over_state_is_all_state, "layer", "batch"),
        ("the order of clients is irrelevant", reply_order_is_irrelevant),
        ("absent clients keep their rows", absent_clients_keep_their_rows),
        ("a lost round changes nothing", a_lost_round_changes_nothing),
        ("counted bytes are real", counted_bytes_are_real),
    ]


def _on(name: str, check: Callable[..., None], *names: str) -> list[tuple[str, Callable[[str], None]]]:
    """A law on several toys."""
    return [(f"{name} ({toy})", partial(check, toy=toy)) for toy in names]


def measurements(measure: Measure) -> list[Mapping[str, float | None]]:
    """Return the numbers of a measure in three rounds of a toy.

    Raises:
        AssertionError: the run with the measure is not, bit for bit, the run without it.
    """
    run = finish(engine(replace(parts(eval_every=1), measures={"measured": measure})))
    differing = same(play(eval_every=1), run)
    claim(not differing, f"{type(measure).__name__} changes {', '.join(differing)}; a measure must not change a run")
    return [row["measures"]["measured"] for row in run.rows]
