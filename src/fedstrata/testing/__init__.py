"""The laws of methods as a library, for the tests of packages.

In a test file beside a method:

    import pytest
    from fedstrata.testing import laws
    from mymethod import ROW

    @pytest.mark.parametrize("law", laws(ROW), ids=str)
    def test_my_method_obeys(law):
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
    absent_clients_keep_their_state,
    batched_equals_looped,
    batched_serves,
    carried_over_state_is_all_state,
    check,
    counted_bytes_are_real,
    executor_changes_no_bit,
    limit_is_exact,
    mapped_states_change_no_bit,
    no_limit_says_why,
    pieces_are_values,
    reply_order_is_irrelevant,
    text_comes_back,
    untouched_stays_untouched,
)
from fedstrata.testing.toy_runs import differences, engine, finish, play, played
from fedstrata.testing.toys import know, parts

__all__ = ["Law", "laws", "measurements"]


@dataclass(frozen=True)
class Law:
    """One law applied to one method.

    Attributes:
        name: the law and the method.
        check: raises AssertionError with what it compared, if the law does not hold.
    """

    name: str
    check: Callable[[], None]

    def __call__(self) -> None:
        """Check the law."""
        self.check()

    def __str__(self) -> str:
        return self.name


def laws(row: Row) -> list[Law]:
    """Return all laws of a method: its limit, and for each of its examples the laws of every method.

    Args:
        row: of the method; it need not be registered or installed.
    Returns:
        checks to call one by one; each takes a fraction of a second.
    """
    if know(row.piece):
        played.cache_clear()
    limit = row.limit
    if isinstance(limit, Limit):
        chosen = [Law(f"{limit}, bit for bit", partial(limit_is_exact, limit))]
    else:
        chosen = [Law("a reason for having no limit law", partial(no_limit_says_why, limit))]
    for example in row.examples:
        chosen += [Law(f"{example}: {name}", partial(law, example)) for name, law in _every()]
    return chosen


def _every() -> list[tuple[str, Callable[[str], None]]]:
    """Return the name and the check of every law of an example."""
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
        ("mapped client states change no bit", mapped_states_change_no_bit),
        *_on("untouched stays untouched", untouched_stays_untouched, "layer", "batch"),
        *_on("resumed equals uninterrupted", carried_over_state_is_all_state, "layer", "batch"),
        ("the order of clients is irrelevant", reply_order_is_irrelevant),
        ("absent clients keep their state", absent_clients_keep_their_state),
        ("a lost round changes nothing", a_lost_round_changes_nothing),
        ("counted bytes are real", counted_bytes_are_real),
    ]


def _on(name: str, law: Callable[..., None], *names: str) -> list[tuple[str, Callable[[str], None]]]:
    """Return a law on several toys."""
    return [(f"{name} ({toy})", partial(law, toy=toy)) for toy in names]


def measurements(measure: Measure) -> list[Mapping[str, float | None]]:
    """Return the numbers of a measure in three rounds of a toy.

    Raises:
        AssertionError: the run with the measure is not, bit for bit, the run without it.
    """
    run = finish(engine(replace(parts(eval_every=1), measures={"measured": measure})))
    differing = differences(play(eval_every=1), run)
    check(not differing, f"{type(measure).__name__} changes {', '.join(differing)}; a measure must not change a run")
    return [row["measures"]["measured"] for row in run.rows]
