"""The laws of every method, as functions that raise AssertionError with what they compared.

An *example* is a method in call syntax, a *toy* a name of ``toys.TOYS``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, fields, replace

from torch import Tensor

from fedstrata.common.errors import FedstrataError
from fedstrata.core.layout import Names
from fedstrata.core.params import Model
from fedstrata.core.piece import Piece, Reply
from fedstrata.core.plan import Plan
from fedstrata.methods import Limit, NoLimit
from fedstrata.testing import toys
from fedstrata.testing.toy_runs import (
    RecordingEngine,
    Results,
    bits,
    copied,
    differences,
    engine,
    finish,
    gap,
    play,
    played,
)
from fedstrata.wire import decode, messages, unpack
from fedstrata.wire.codec import Codecs
from fedstrata.wire.frame import Frame, encode

Messages = list[tuple[bytes, dict[str, str]]]
"""The bytes of messages, and for each the digest of every tensor that was packed."""


def check(holds: object, message: str) -> None:
    """Raise AssertionError with a message, with or without python -O."""
    if not holds:
        raise AssertionError(message)


# ---- limits


def limit_is_exact(limit: Limit) -> None:
    """Check that two chains agree bit for bit, in the server's model and in every client's personal model."""
    toy = "equal" if limit.uniform else "layer"
    left, right = play(limit.method, toy), play(limit.of, toy)
    check(
        bits(left.model) == bits(right.model),
        f"{limit}: server models differ by {gap(left.model, right.model):.3g}; they must be equal bit for bit",
    )
    if not limit.shared_only:
        pairs = enumerate(zip(left.models, right.models, strict=True))
        differing = [i for i, (a, b) in pairs if bits(a) != bits(b)]
        check(
            not differing,
            f"{limit}: personal models of clients {differing} differ; if only the server's agree, write Limit(...,"
            " shared_only=True)",
        )


def no_limit_says_why(limit: NoLimit) -> None:
    """Check that a method without a limit law gives a reason."""
    check(
        len(limit.why.split()) >= 3,
        f"the reason for having no limit law is {limit.why!r}; say in a few words why no setting gives FedAvg",
    )


# ---- values


def pieces_are_values(example: str) -> None:
    """Check that pieces hold only settings: frozen, equal if their settings are, without any memory."""
    for piece in toys.parse(example).pieces:
        name = type(piece).__name__
        _check_frozen(piece)
        try:
            hash(piece)
        except TypeError as error:
            raise AssertionError(
                f"{name} has a mutable field ({error}); settings are numbers, text, None and tuples"
            ) from error
        extra = [n for n in vars(piece) if n not in {f.name for f in fields(piece)}]
        check(
            not extra,
            f"{name} keeps {', '.join(extra)} beside its settings; return what must survive as server or client state",
        )
    one, two = toys.parse(example), toys.parse(example)
    check(one == two, f"{example} built twice is not equal; a field takes no part in comparison")
    before = [dict(vars(piece)) for piece in one.pieces]
    play(one)
    check(
        [dict(vars(piece)) for piece in one.pieces] == before and one == two,
        f"{example} changed during a run; pieces never change",
    )


def _check_frozen(piece: Piece) -> None:
    name = fields(piece)[0].name if fields(piece) else "anything"
    try:
        setattr(piece, name, getattr(piece, name, None))
    except FrozenInstanceError:
        return
    raise AssertionError(f"{type(piece).__name__} can be changed; write @dataclass(frozen=True) above it")


def text_comes_back(text: str) -> None:
    """Check that the text of a method parses to an equal method."""
    method = toys.parse(text)
    try:
        again = toys.parse(str(method))
    except FedstrataError as error:
        raise AssertionError(f"{text} prints as {method}, which cannot be parsed: {error}") from error
    check(again == method, f"{text} prints as {method}, which is another method")


# ---- executors


def batched_equals_looped(example: str, toy: str = "layer") -> None:
    """Check that stacked clients give the looped model up to rounding: 1e-6 of its largest entry."""
    tolerance = rounding(example)
    loop, stacked = played(example, toy), play(example, toy, "batched", 2)
    server = gap(stacked.model, loop.model)
    check(
        server <= tolerance,
        f"{example}: batched and looped server models differ by {server:.3g}; client verbs must be pure tensor code",
    )
    worst = max(gap(a, b) for a, b in zip(stacked.models, loop.models, strict=True))
    check(worst <= tolerance, f"{example}: batched and looped personal models differ by {worst:.3g}")


def rounding(example: str) -> float:
    """Return how far two orders of the same float32 sums may separate two models, relative to the largest entry.

    The toys are smooth, so rounding grows by bounded factors: 3e-7 was the most over 20 seeds and three instruction
    sets. A server optimizer that divides by ``sqrt(second) + tau`` multiplies the rounding of a small mean update by
    up to lr / tau, 50 in the examples; 1e-6 was the most.
    """
    return 1e-5 if any(hasattr(piece, "tau") for piece in toys.parse(example).pieces) else 1e-6


def batched_equals_looped_or_refuses(example: str, toy: str) -> str:
    """Return "equal", or "refused" if the batched executor refuses the toy with a reason."""
    try:
        batched_equals_looped(example, toy)
    except FedstrataError as error:
        return "refused" if len(str(error).split()) > 5 else f"refused without a reason: {error}"
    return "equal"


def batched_serves(example: str, toy: str) -> None:
    """Check that batched equals looped; norms that use the batch may be refused, with a reason."""
    result = batched_equals_looped_or_refuses(example, toy)
    check(
        result == "equal" or (toy == "batch" and result == "refused"),
        f"{example} on the toy {toy!r}, batched: {result}",
    )


def executor_changes_no_bit(example: str, executor: str, workers: int, toy: str = "layer") -> None:
    """Check that an executor changes neither the model nor any server state, personal model or client state."""
    differing = differences(played(example, toy), play(example, toy, executor, workers))
    check(not differing, f"{example}: executor={executor} with {workers} workers changes {', '.join(differing)}")


def mapped_states_change_no_bit(example: str) -> None:
    """Check that client states in a file equal client states in memory."""
    differing = differences(played(example), play(example, client_state="mapped"))
    check(not differing, f"{example}: client_state=mapped changes {', '.join(differing)}")


# ---- layers outside the plan


def untouched_stays_untouched(example: str, toy: str = "layer") -> None:
    """Check that tensors outside ``aggregate`` do not change, and that local tensors are not sent."""
    run = engine(toys.parts(example, toy))
    try:
        while run.server.round < 3:
            before = run.server.model.clone()
            run.round()
            _check_outside(before, run.server.model, run.plan.aggregate)
            _check_sent(example, run)
    finally:
        run.close()


def _check_outside(before: Model, after: Model, aggregate: Names) -> None:
    for old, new in ((before, after), (before.statistics, after.statistics)):
        for name, tensor in old.views.items():
            check(
                name in aggregate or bits(tensor) == bits(new[name]),
                f"{name} is not aggregated by the plan, and changed on the server",
            )


def _check_sent(example: str, run: RecordingEngine) -> None:
    for task, reply in zip(run.executor.tasks[-1], run.executor.replies[-1], strict=True):
        plan = task.plan
        sent = set(messages.down_contents(task))
        returned = set(messages.contents(reply))
        crossed = {
            name.split("/", 1)[1] for name in sent | returned if name.startswith(("model/", "delta/", "statistics/"))
        }
        leaked = crossed & (plan.client_local - plan.download - plan.upload)
        check(not leaked, f"{example}: {', '.join(sorted(leaked))} stays with the client by the plan, and was sent")
        extra = {n.split("/", 1)[1] for n in returned if n.startswith("delta/")} - plan.upload
        check(not extra, f"{example}: {', '.join(sorted(extra))} is not in the plan's upload, and was returned")


# ---- state


def carried_over_state_is_all_state(example: str, toy: str = "layer") -> None:
    """Check that a run resumed after round 2, from server and client states alone, equals the uninterrupted run."""
    first = engine(toys.parts(example, toy))
    for _ in range(2):
        first.round()
    second = engine(toys.parts(example, toy))
    second.server = copied(first.server)
    stored = {i: first.states.get(i) for i in range(first.parts.federation.clients)}
    second.states.put(1, {i: state for i, state in stored.items() if state is not None})
    first.close()
    differing = differences(played(example, toy), finish(second))
    check(
        not differing,
        f"{example}: resumed after round 2, {', '.join(differing)} differ; return everything that must survive as"
        " server or client state",
    )


def reply_order_is_irrelevant(example: str, toy: str = "layer") -> None:
    """Check that clients may be trained, and may reply, in any order."""
    rotated = {"order": lambda tasks: tasks[::-1], "change": lambda replies: replies[1:] + replies[:1]}
    differing = differences(played(example, toy), play(example, toy, wrap=rotated))
    check(not differing, f"{example}: another order of clients changes {', '.join(differing)}")


def absent_clients_keep_their_state(example: str, toy: str = "layer") -> None:
    """Check that a round changes the states of its participants only."""
    run = engine(toys.parts(example, toy))
    clients = range(run.parts.federation.clients)
    try:
        for _ in range(3):
            before = [bits(run.stored(i)) for i in clients]
            cohort = run.round()["cohort"]
            touched = [i for i in clients if i not in cohort and bits(run.stored(i)) != before[i]]
            check(not touched, f"{example}: states of clients {touched} changed, who were not in the round")
    finally:
        run.close()


def a_lost_round_changes_nothing(example: str, toy: str = "layer") -> None:
    """Check that a round whose replies are all refused changes neither the model nor any state."""
    run = engine(toys.parts(example, toy))
    try:
        run.round()
        run.executor.change = poisoned
        before = _all_bits(run)
        row = run.round()
        check(not row["updated"], f"{example}: all replies of a round were refused, and the model was updated")
        check(
            len(row["refused"]) == len(row["cohort"]),
            f"{example}: {len(row['refused'])} of {len(row['cohort'])} invalid replies were refused",
        )
        check(_all_bits(run) == before, f"{example}: a round without valid replies changed the model or a state")
    finally:
        run.close()


def _all_bits(run: RecordingEngine) -> bytes:
    stored = [run.stored(i) for i in range(run.parts.federation.clients)]
    return bits([run.server.model, dict(run.server.states), stored])


def poisoned(results: Results) -> Results:
    """Return the replies with a wrong sample count, which the gate refuses even if a reply has no tensor."""
    return [replace(r, samples=r.samples + 1) if isinstance(r, Reply) else r for r in results]


# ---- cost


def counted_bytes_are_real(example: str, toy: str = "layer") -> None:
    """Check that the ledger's bytes equal the lengths of messages, which decode to what the server applies."""
    for data, packed in counted_messages(example, toy):
        check(digests(decode(data).tensors) == packed, f"{example}: a message does not decode to what was packed")


def counted_messages(example: str, toy: str = "layer") -> Messages:
    """Return every message of a run, after comparing their lengths with the ledger."""
    run = engine(toys.parts(example, toy))
    sent: Messages = []
    up = down = 0
    try:
        rows = [run.round() for _ in range(2)]
    finally:
        run.close()
    for tasks, replies in zip(run.executor.tasks, run.executor.replies, strict=True):
        for task in tasks:
            down += _append(sent, messages.down(task, _codecs(run, task.plan, up=False)))
        for reply in replies:
            codecs = _codecs(run, tasks[reply.cohort_index].plan, up=True)
            frame = messages.up(reply, codecs)
            up += _append(sent, frame)
            _check_unpacked(frame.tensors, reply, codecs)
    for direction, length in (("down", down), ("up", up)):
        counted = sum(row[f"bytes_{direction}"] + row[f"framing_{direction}"] for row in rows)
        check(counted == length, f"{example}: {counted} bytes {direction} are counted, and the messages have {length}")
    return sent


def _codecs(run: RecordingEngine, plan: Plan, *, up: bool) -> Codecs:
    return messages.codecs_of(run.parts.method, run.parts.setup.layout, plan, "up" if up else "down")


def _append(sent: Messages, frame: Frame) -> int:
    sent.append((encode(frame), digests(frame.tensors)))
    return len(sent[-1][0])


def _check_unpacked(packed: Mapping[str, Tensor], reply: Reply, codecs: Codecs) -> None:
    applied = messages.contents(reply)
    opened = unpack(packed, {n: (tuple(t.shape), t.dtype) for n, t in applied.items()}, codecs)
    check(digests(opened) == digests(applied), "a codec is lossy: what is unpacked differs from what the client sent")


def digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Compute sha256 by tensor, over type, shape and bytes."""
    return {n: hashlib.sha256(f"{t.dtype}{tuple(t.shape)}".encode() + bits(t)).hexdigest() for n, t in tensors.items()}
