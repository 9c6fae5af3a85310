"""The laws as plain functions, so that the tests over all methods and the tests that the laws bite call the same code."""

from __future__ import annotations

import ast
import hashlib
import importlib
import pkgutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

import fedstrata.methods as shelf
import lab
from fedstrata.errors import FedstrataError
from fedstrata.ledger import codecs_of
from fedstrata.methods import Limit, NoLimit, Row
from fedstrata.methods import method as parse
from fedstrata.params import Params
from fedstrata.piece import Piece, Reply
from fedstrata.wire import messages, unpack
from fedstrata.wire.frame import encode

TESTS = Path(__file__).parents[1]


# ---- (a) the registry is complete ---------------------------------------------------------------------------------------------------------


def written_pieces() -> list[type[Piece]]:
    """Every public piece that a file of the methods folder defines."""
    found = []
    for info in pkgutil.iter_modules(shelf.__path__):
        module = importlib.import_module(f"{shelf.__name__}.{info.name}")
        mine = (v for v in vars(module).values() if isinstance(v, type) and issubclass(v, Piece) and v.__module__ == module.__name__)
        found += [piece for piece in mine if not piece.__name__.startswith("_")]
    return found


def complaints(rows: Sequence[Row], pieces: Iterable[type[Piece]], tests: Path = TESTS) -> list[str]:
    """What the registry lacks, one sentence each."""
    known = {row.piece for row in rows}
    found = [f"{piece.__name__} is written but not registered" for piece in pieces if piece not in known]
    for row in rows:
        if not row.examples:
            found.append(f"{row.name} has no example")
        if not any(row.name in example for example in row.examples):
            found.append(f"{row.name}: no example shows it")
        if isinstance(row.limit, NoLimit):
            found += [f"{row.name}: {lack}" for lack in _reference(row.limit, tests)]
        elif not isinstance(row.limit, Limit):
            found.append(f"{row.name} has neither a limit nor a reason for having none")
    return found


def _reference(limit: NoLimit, tests: Path) -> list[str]:
    if len(limit.why.split()) < 3:
        return [f"the reason {limit.why!r} says nothing"]
    file, _, name = limit.reference.partition("::")
    if not (tests / file).is_file():
        return [f"the reference file {file} does not exist"]
    tree = ast.parse((tests / file).read_text(encoding="utf-8"))
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [] if name in names else [f"{file} has no test {name}"]


# ---- (b) limits -----------------------------------------------------------------------------------------------------------------------------


def limit_is_exact(limit: Limit) -> None:
    """Two chains agree bit for bit, on the server's model and on every client's own."""
    toy = "equal" if limit.uniform else "layer"
    left, right = lab.play(limit.method, toy), lab.play(limit.of, toy)
    assert lab.bits(left.params) == lab.bits(right.params), f"{limit}: server models differ by {lab.gap(left.params, right.params):.3g}"
    if not limit.shared_only:
        differing = [i for i, (a, b) in enumerate(zip(left.models, right.models, strict=True)) if lab.bits(a) != lab.bits(b)]
        assert not differing, f"{limit}: own models of clients {differing} differ"


# ---- (c, d) executors -----------------------------------------------------------------------------------------------------------------------


def batched_equals_looped(example: str, toy: str = "layer", tolerance: float = 1e-6) -> None:
    """Stacked clients give the looped model to 1e-6 of its largest entry."""
    loop, stacked = lab.played(example, toy), lab.play(example, toy, "batched", 2)
    server = lab.gap(stacked.params, loop.params)
    assert server <= tolerance, f"server models differ by {server:.3g}"
    worst = max(lab.gap(a, b) for a, b in zip(stacked.models, loop.models, strict=True))
    assert worst <= tolerance, f"clients' own models differ by {worst:.3g}"


def batched_equals_looped_or_refuses(example: str, toy: str) -> str:
    """For other models than the laws' toy: either equal, or refused with a reason.

    To 1e-5, because FedAdagrad multiplies the rounding of a small mean update by up to lr / tau = 50.
    """
    try:
        batched_equals_looped(example, toy, 1e-5)
    except FedstrataError as error:
        return "refused" if len(str(error).split()) > 5 else f"refused without a reason: {error}"
    return "equal"


def executor_changes_no_bit(example: str, executor: str, workers: int, toy: str = "layer") -> None:
    """Who trains does not matter, for the model, the slots, the clients' models and rows."""
    assert lab.same(lab.played(example, toy), lab.play(example, toy, executor, workers)) == []


# ---- (e) layers outside the plan ------------------------------------------------------------------------------------------------------------


def untouched_stays_untouched(example: str, toy: str = "layer") -> None:
    """What a round does not average does not move on the server; what clients keep for themselves does not travel."""
    run = lab.engine(lab.parts(example, toy))
    try:
        while run.server.round < 3:
            before = lab.copied(run.server).params
            run.round()
            _compare_outside(before, run.server.params, run.plan.average)
            for work, reply in zip(run.executor.works[-1], run.executor.replies[-1], strict=True):
                plan = work.plan
                sent, returned = set(messages.down(work).tensors), set(messages.up(reply, codecs_of(run.kit, plan)).tensors)
                travelled = {name.split("/", 1)[1] for name in sent | returned if name.startswith(("model/", "delta/", "statistics/"))}
                assert not travelled & (plan.keep - plan.down - plan.up)
                assert {n.split("/", 1)[1] for n in returned if n.startswith("delta/")} <= plan.up
    finally:
        run.close()


def _compare_outside(before: Params, after: Params, average: frozenset[str]) -> None:
    for old, new in ((before, after), (before.buffers, after.buffers)):
        for name, tensor in old.views.items():
            assert name in average or lab.bits(tensor) == lab.bits(new[name]), f"{name} is not averaged and moved"


# ---- (f) resume -----------------------------------------------------------------------------------------------------------------------------


def carried_over_state_is_all_state(example: str, toy: str = "layer") -> None:
    """A fresh engine that is given server and rows after round 2 ends where the uninterrupted run ends."""
    first = lab.engine(lab.parts(example, toy))
    for _ in range(2):
        first.round()
    second = lab.engine(lab.parts(example, toy))
    second.server = lab.copied(first.server)
    rows = {i: first.rows.get(i) for i in range(first.parts.federation.clients)}
    second.rows.put(1, {i: row for i, row in rows.items() if row is not None})
    first.close()
    assert lab.same(lab.played(example, toy), lab.finish(second)) == []


# ---- (g) order of replies -------------------------------------------------------------------------------------------------------------------


def reply_order_is_irrelevant(example: str, toy: str = "layer") -> None:
    """Clients may be trained, and may answer, in any order."""
    rotated = {"order": lambda works: works[::-1], "change": lambda replies: replies[1:] + replies[:1]}
    assert lab.same(lab.played(example, toy), lab.play(example, toy, wrap=rotated)) == []


# ---- (h) the bill ---------------------------------------------------------------------------------------------------------------------------


def billed_messages(example: str, toy: str = "layer") -> list[tuple[bytes, dict[str, str]]]:
    """(bytes, digest by tensor) of every message of a run, after the bill was held against their lengths."""
    run = lab.engine(lab.parts(example, toy))
    letters: list[tuple[bytes, dict[str, str]]] = []
    up = down = 0
    try:
        billed = [run.round() for _ in range(2)]
    finally:
        run.close()
    for works, replies in zip(run.executor.works, run.executor.replies, strict=True):
        for work in works:
            frame = messages.down(work)
            letters.append((encode(frame), digests(frame.tensors)))
            down += len(letters[-1][0])
        for reply in replies:
            plan = works[reply.place].plan
            frame = messages.up(reply, codecs_of(run.kit, plan))
            letters.append((encode(frame), digests(frame.tensors)))
            _unpacks_to_what_the_server_applies(frame.tensors, reply, codecs_of(run.kit, plan))
            up += len(letters[-1][0])
    assert sum(r["bytes_down"] + r["framing_down"] for r in billed) == down
    assert sum(r["bytes_up"] + r["framing_up"] for r in billed) == up
    return letters


def _unpacks_to_what_the_server_applies(packed: dict[str, torch.Tensor], reply: Reply, codecs: dict[str, str]) -> None:
    applied = messages.contents(reply)
    opened = unpack(packed, {n: (tuple(t.shape), t.dtype) for n, t in applied.items()}, codecs)
    assert digests(opened) == digests(applied)


def digests(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """sha256 by tensor, over type, shape and bytes."""
    return {n: hashlib.sha256(f"{t.dtype}{tuple(t.shape)}".encode() + lab.bits(t)).hexdigest() for n, t in tensors.items()}


# ---- (i, j) absent clients, lost rounds -----------------------------------------------------------------------------------------------------


def absent_clients_keep_their_rows(example: str, toy: str = "layer") -> None:
    """A round writes rows of its participants only."""
    run = lab.engine(lab.parts(example, toy))
    everyone = range(run.parts.federation.clients)
    try:
        for _ in range(3):
            before = [lab.bits(run.rows.get(i)) for i in everyone]
            cohort = run.round()["cohort"]
            assert [i for i in everyone if i not in cohort and lab.bits(run.rows.get(i)) != before[i]] == []
    finally:
        run.close()


def a_lost_round_changes_nothing(example: str, toy: str = "layer") -> None:
    """Where every reply is refused, model, slots and rows are what they were."""
    run = lab.engine(lab.parts(example, toy), change=lambda replies: [poisoned(r) for r in replies])
    everyone = range(run.parts.federation.clients)
    try:
        run.executor.change, poison = (lambda replies: replies), run.executor.change
        run.round()
        run.executor.change = poison
        model, slots, rows = lab.bits(run.server.params), lab.bits(dict(run.server.slots)), [lab.bits(run.rows.get(i)) for i in everyone]
        row = run.round()
        assert not row["moved"]
        assert len(row["refused"]) == len(row["cohort"])
        assert (lab.bits(run.server.params), lab.bits(dict(run.server.slots)), [lab.bits(run.rows.get(i)) for i in everyone]) == (model, slots, rows)
    finally:
        run.close()


def poisoned(reply):
    """The reply with a wrong sample count: a lie that every plan's reply can tell, also one that sends no tensor."""
    return replace(reply, samples=reply.samples + 1)


# ---- (k) text -------------------------------------------------------------------------------------------------------------------------------


def text_comes_back(text: str) -> None:
    """What a method prints, parses to an equal method."""
    made = parse(text)
    assert parse(str(made)) == made
