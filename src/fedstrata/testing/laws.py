"""The laws that every method keeps, as functions that raise AssertionError in words; each names what it compares.

An *example* is a method in call syntax, a *toy* a name of ``toys.TOYS``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, fields, replace

from torch import Tensor

from fedstrata.common.errors import FedstrataError
from fedstrata.core.params import Model
from fedstrata.core.piece import Direction, Piece, Reply
from fedstrata.core.plan import Plan
from fedstrata.methods import Limit, NoLimit
from fedstrata.testing import toys
from fedstrata.testing.toy_runs import Outcomes, Recorded, bits, copied, engine, finish, gap, play, played, same
from fedstrata.wire import decode, messages, unpack
from fedstrata.wire.codec import Codecs
from fedstrata.wire.frame import encode

Letters = list[tuple[bytes, dict[str, str]]]


def claim(holds: object, words: str) -> None:
    """Raise AssertionError in words, with or without python -O."""
    if not holds:
        raise AssertionError(words)


# ---- limits
# ---------------------------------------------------------------------------------------------------------------------------------


def limit_is_exact(limit: Limit) -> None:
    """Two chains agree bit for bit, on the server's model and on every client's own."""
    toy = "equal" if limit.uniform else "layer"
    left, right = play(limit.method, toy), play(limit.of, toy)
    claim(
        bits(left.model) == bits(right.model),
        f"{limit}: server models differ by {gap(left.model, right.model):.3g}, not a bit is allowed",
    )
    if not limit.shared_only:
        differing = [i for i, (a, b) in enumerate(zip(left.models, right.models, strict=True)) if bits(a) != bits(b)]
        claim(
            not differing,
            f"{limit}: own models of clients {differing} differ; where only the server's agree, say Limit(...,"
            " shared_only=True)",
        )


def no_limit_says_why(limit: NoLimit) -> None:
    """A method without a limit says why."""
    claim(
        len(limit.why.split()) >= 3,
        f"the reason for having no limit law is {limit.why!r}; say in a few words why no setting gives FedAvg",
    )


# ---- values
# ---------------------------------------------------------------------------------------------------------------------------------


def pieces_are_values(example: str) -> None:
    """Pieces hold settings and nothing else: frozen, equal where their settings are, without a field that could
    remember something.
    """
    for piece in toys.parse(example).pieces:
        name = type(piece).__name__
        _is_frozen(piece)
        try:
            hash(piece)
        except TypeError as error:
            raise AssertionError(
                f"{name} has a field that can change ({error}); settings are numbers, text, None and tuples"
            ) from error
        missing = [n for n in vars(piece) if n not in {f.name for f in fields(piece)}]
        claim(
            not missing,
            f"{name} keeps {', '.join(missing)} beside its settings; what must survive is returned as slot or row",
        )
    one, two = toys.parse(example), toys.parse(example)
    claim(one == two, f"{example} made twice is not equal; a field takes no part in comparison")
    before = [dict(vars(piece)) for piece in one.pieces]
    play(one)
    claim(
        [dict(vars(piece)) for piece in one.pieces] == before and one == two,
        f"{example} changed while it ran; pieces never change",
    )


def _is_frozen(piece: Piece) -> None:
    name = fields(piece)[0].name if fields(piece) else "anything"
    try:
        setattr(piece, name, getattr(piece, name, None))
    except FrozenInstanceError:
        return
    raise AssertionError(f"{type(piece).__name__} can be changed; write @dataclass(frozen=True) above it")


def text_comes_back(text: str) -> None:
    """What a method prints, parses to an equal method."""
    made = toys.parse(text)
    try:
        again = toys.parse(str(made))
    except FedstrataError as error:
        raise AssertionError(f"{text} prints as {made}, which cannot be read back: {error}") from error
    claim(again == made, f"{text} prints as {made}, which means another method")


# ---- executors
# ------------------------------------------------------------------------------------------------------------------------------


def batched_equals_looped(example: str, toy: str = "layer") -> None:
    """Stacked clients give the looped model to rounding: 1e-6 of its largest entry."""
    tolerance = rounding(example)
    loop, stacked = played(example, toy), play(example, toy, "batched", 2)
    server = gap(stacked.model, loop.model)
    claim(
        server <= tolerance,
        f"{example}: batched and looped server models differ by {server:.3g}; client verbs must be pure tensor code",
    )
    worst = max(gap(a, b) for a, b in zip(stacked.models, loop.models, strict=True))
    claim(worst <= tolerance, f"{example}: batched and looped own models of clients differ by {worst:.3g}")


def rounding(example: str) -> float:
    """How far two orders of the same float32 sums may leave two models apart, as a part of the largest entry.

    The toys are smooth, so rounding grows by bounded factors: 3e-7 was the most over 20 seeds and three instruction
    sets. A server optimizer that divides by ``sqrt(second) + tau`` multiplies the rounding of a small mean update by
    up to lr / tau, 50 in the examples; 1e-6 was the most.
    """
    return 1e-5 if any(hasattr(piece, "tau") for piece in toys.parse(example).pieces) else 1e-6


def batched_equals_looped_or_refuses(example: str, toy: str) -> str:
    """For other models than the laws' toy: either equal, or refused with a reason."""
    try:
        batched_equals_looped(example, toy)
    except FedstrataError as error:
        return "refused" if len(str(error).split()) > 5 else f"refused without a reason: {error}"
    return "equal"


def batched_serves(example: str, toy: str) -> None:
    """Batched equals looped with dropout and with images.

    Norms that look at the batch may be refused, with the reason.
    """
    found = batched_equals_looped_or_refuses(example, toy)
    claim(
        found == "equal" or (toy == "batch" and found == "refused"), f"{example} on the toy {toy!r}, batched: {found}"
    )


def executor_changes_no_bit(example: str, executor: str, workers: int, toy: str = "layer") -> None:
    """Who trains does not matter, for the model, the slots, the clients' models and rows."""
    differing = same(played(example, toy), play(example, toy, executor, workers))
    claim(not differing, f"{example}: executor={executor} with {workers} workers changes {', '.join(differing)}")


def mapped_rows_change_no_bit(example: str) -> None:
    """Rows in a file serve as rows in memory do."""
    differing = same(played(example), play(example, rows="mapped"))
    claim(not differing, f"{example}: rows=mapped changes {', '.join(differing)}")


# ---- layers outside the plan
# ----------------------------------------------------------------------------------------------------------------


def untouched_stays_untouched(example: str, toy: str = "layer") -> None:
    """What a round does not average does not move on the server; what clients keep for themselves does not travel."""
    run = engine(toys.parts(example, toy))
    try:
        while run.server.round < 3:
            before = copied(run.server).model
            run.round()
            _compare_outside(before, run.server.model, run.plan.aggregate)
            for work, reply in zip(run.executor.works[-1], run.executor.replies[-1], strict=True):
                plan = work.plan
                sent, returned = (
                    set(messages.down(work).tensors),
                    set(
                        messages.up(
                            reply, messages.codecs_of(run.parts.method, run.parts.setup.layout, plan, "up")
                        ).tensors
                    ),
                )
                travelled = {
                    name.split("/", 1)[1]
                    for name in sent | returned
                    if name.startswith(("model/", "delta/", "statistics/"))
                }
                leaked = travelled & (plan.client_local - plan.download - plan.upload)
                claim(
                    not leaked,
                    f"{example}: {', '.join(sorted(leaked))} stays with the client by the plan, and travelled",
                )
                extra = {n.split("/", 1)[1] for n in returned if n.startswith("delta/")} - plan.upload
                claim(not extra, f"{example}: {', '.join(sorted(extra))} is not sent up by the plan, and was returned")
    finally:
        run.close()


def _compare_outside(before: Model, after: Model, average: frozenset[str]) -> None:
    for old, new in ((before, after), (before.statistics, after.statistics)):
        for name, tensor in old.views.items():
            claim(
                name in average or bits(tensor) == bits(new[name]),
                f"{name} is not averaged by the plan, and moved on the server",
            )


# ---- state
# ----------------------------------------------------------------------------------------------------------------------------------


def carried_over_state_is_all_state(example: str, toy: str = "layer") -> None:
    """Resume: a fresh engine that is given server and rows after round 2 ends where the uninterrupted run ends."""
    first = engine(toys.parts(example, toy))
    for _ in range(2):
        first.round()
    second = engine(toys.parts(example, toy))
    second.server = copied(first.server)
    rows = {i: first.states.get(i) for i in range(first.parts.federation.clients)}
    second.states.put(1, {i: row for i, row in rows.items() if row is not None})
    first.close()
    differing = same(played(example, toy), finish(second))
    claim(
        not differing,
        f"{example}: resumed after round 2, {', '.join(differing)} differ; all that must survive is returned as slot"
        " or row",
    )


def reply_order_is_irrelevant(example: str, toy: str = "layer") -> None:
    """Clients may be trained, and may answer, in any order."""
    rotated = {"order": lambda works: works[::-1], "change": lambda replies: replies[1:] + replies[:1]}
    differing = same(played(example, toy), play(example, toy, wrap=rotated))
    claim(not differing, f"{example}: another order of clients changes {', '.join(differing)}")


def absent_clients_keep_their_rows(example: str, toy: str = "layer") -> None:
    """A round writes rows of its participants only."""
    run = engine(toys.parts(example, toy))
    everyone = range(run.parts.federation.clients)
    try:
        for _ in range(3):
            before = [bits(run.states.get(i)) for i in everyone]
            cohort = run.round()["cohort"]
            touched = [i for i in everyone if i not in cohort and bits(run.states.get(i)) != before[i]]
            claim(not touched, f"{example}: rows of clients {touched} changed, who were not in the round")
    finally:
        run.close()


def a_lost_round_changes_nothing(example: str, toy: str = "layer") -> None:
    """Where every reply is refused, model, slots and rows are what they were."""
    run = engine(toys.parts(example, toy))
    everyone = range(run.parts.federation.clients)
    try:
        run.round()
        run.executor.change = poisoned
        model, slots, rows = (
            bits(run.server.model),
            bits(dict(run.server.states)),
            [bits(run.states.get(i)) for i in everyone],
        )
        row = run.round()
        claim(not row["updated"], f"{example}: all replies of a round were refused, and the model moved")
        claim(
            len(row["refused"]) == len(row["cohort"]),
            f"{example}: {len(row['refused'])} of {len(row['cohort'])} wrong replies were refused",
        )
        now = bits(run.server.model), bits(dict(run.server.states)), [bits(run.states.get(i)) for i in everyone]
        claim(
            now == (model, slots, rows), f"{example}: a round without good replies changed the model, the slots or rows"
        )
    finally:
        run.close()


def poisoned(answers: Outcomes) -> Outcomes:
    """The replies with a wrong sample count: a lie that every plan's reply can tell, also one that sends no tensor."""
    return [replace(answer, samples=answer.samples + 1) if isinstance(answer, Reply) else answer for answer in answers]


# ---- the bill
# -------------------------------------------------------------------------------------------------------------------------------


def counted_bytes_are_real(example: str, toy: str = "layer") -> None:
    """The ledger's bytes are the lengths of the packed messages, which decode to what the server applies."""
    for data, sent in billed_messages(example, toy):
        claim(digests(decode(data).tensors) == sent, f"{example}: a message does not decode into what was packed")


def billed_messages(example: str, toy: str = "layer") -> Letters:
    """(bytes, digest by tensor) of every message of a run, after the bill was held against their lengths."""
    run = engine(toys.parts(example, toy))
    letters: Letters = []
    up = down = 0
    try:
        billed = [run.round() for _ in range(2)]
    finally:
        run.close()
    for works, replies in zip(run.executor.works, run.executor.replies, strict=True):
        for work in works:
            frame = messages.down(work, _codecs(run, work.plan, "down"))
            letters.append((encode(frame), digests(frame.tensors)))
            down += len(letters[-1][0])
        for reply in replies:
            codecs = _codecs(run, works[reply.cohort_index].plan, "up")
            frame = messages.up(reply, codecs)
            letters.append((encode(frame), digests(frame.tensors)))
            _unpacks_to_what_the_server_applies(frame.tensors, reply, codecs)
            up += len(letters[-1][0])
    for way, packed in (("down", down), ("up", up)):
        counted = sum(r[f"bytes_{way}"] + r[f"framing_{way}"] for r in billed)
        claim(counted == packed, f"{example}: {counted} bytes {way} are billed, and the messages have {packed}")
    return letters


def _codecs(run: Recorded, plan: Plan, direction: Direction) -> Codecs:
    return messages.codecs_of(run.parts.method, run.parts.setup.layout, plan, direction)


def _unpacks_to_what_the_server_applies(packed: Mapping[str, Tensor], reply: Reply, codecs: Codecs) -> None:
    applied = messages.contents(reply)
    opened = unpack(packed, {n: (tuple(t.shape), t.dtype) for n, t in applied.items()}, codecs)
    claim(
        digests(opened) == digests(applied), "the codec loses something: what is unpacked is not what the client sent"
    )


def digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """sha256 by tensor, over type, shape and bytes."""
    return {n: hashlib.sha256(f"{t.dtype}{tuple(t.shape)}".encode() + bits(t)).hexdigest() for n, t in tensors.items()}
