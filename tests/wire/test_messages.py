"""Counted bytes are what crosses: clients need nothing else, and the server applies nothing else (T29)."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
import torch

from fedstrata.core.params import Model, Params
from fedstrata.core.piece import Piece
from fedstrata.core.state import fill_state, state_tensors
from fedstrata.testing.laws import digests
from fedstrata.wire import Bits, decode, encode, messages, unpack
from helpers import lab
from helpers.examples import every_example
from helpers.tiers import tiered


@dataclass(frozen=True)
class Signs(Piece):
    """One bit an entry and one scale a client."""

    def upload(self, delta, ctx):
        return delta, {"scale": delta.flat.abs().mean().reshape(1)}, ctx.state

    def compress(self, delta, ctx):
        return delta.new(torch.where(delta.flat >= 0, 1.0, -1.0))

    def codec(self, direction, layout):
        return {"all": Bits()} if direction == "up" else {}

    def reduce(self, replies, weights, ctx):
        scales = [r.up_payload["signs"].tensor("scale") for r in replies]
        parts = [r.delta * (float(w) * scale) for r, w, scale in zip(replies, weights, scales, strict=True)]
        return sum(parts[1:], start=parts[0]), ctx.state


def filled(p, tensors, prefix):
    """Return parameters with values from the message; NaN where the message holds nothing."""
    made = Params(torch.full_like(p.flat, math.nan), p.spec)
    for name, view in made.views.items():
        if f"{prefix}/{name}" in tensors:
            view.copy_(tensors[f"{prefix}/{name}"])
    return made


def states(before, tensors, prefix):
    """Return the pieces' payloads from the message; names and shapes are those from before."""
    return {
        piece: fill_state(state, {name: tensors[f"{prefix}/{piece}/{name}"] for name in state_tensors(state)})
        for piece, state in before.items()
    }


class Post:
    """Every task and every reply goes through bytes; what the bytes do not hold is lost."""

    def __init__(self):
        self.tasks, self.parts = {}, None

    def codecs(self, cohort_index, direction):
        plan = self.tasks[cohort_index].plan
        return messages.codecs_of(self.parts.method, self.parts.setup.layout, plan, direction)

    def order(self, tasks):
        self.tasks = {task.cohort_index: task for task in tasks}
        return [self.delivered(task) for task in tasks]

    def delivered(self, task):
        codecs = self.codecs(task.cohort_index, "down")
        shapes = {n: (tuple(t.shape), t.dtype) for n, t in messages.down_contents(task).items()}
        tensors = unpack(decode(encode(messages.down(task, codecs))).tensors, shapes, codecs)
        sent = Model(filled(task.sent, tensors, "model"), filled(task.sent.statistics, tensors, "statistics"))
        return replace(task, sent=sent, down_payload=states(task.down_payload, tensors, "extra"))

    def change(self, replies):
        return [self.returned(r) for r in replies]

    def returned(self, reply):
        codecs = self.codecs(reply.cohort_index, "up")
        shapes = {n: (tuple(t.shape), t.dtype) for n, t in messages.contents(reply).items()}
        frame = decode(encode(messages.up(reply, codecs)))
        tensors = unpack(frame.tensors, shapes, codecs)
        return replace(
            reply,
            delta=filled(reply.delta, tensors, "delta"),
            statistics=filled(reply.statistics, tensors, "statistics"),
            up_payload=states(reply.up_payload, tensors, "mail"),
            samples=frame.fields["samples"],
            steps=frame.fields["steps"],
            loss=frame.fields.get("loss", math.nan),
        )


def posted(method, toy):
    post = Post()
    post.parts = lab.parts(method, toy)
    return lab.finish(lab.engine(post.parts, order=post.order, change=post.change))


@every_example
@pytest.mark.parametrize("toy", tiered(["layer", "batch"], ["batch"]))
def test_a_run_over_bytes_alone_is_the_run(example, toy):
    """Clients get what the counted message holds and NaN for all else, the server likewise: not one bit changes, in
    model, server states and client states.
    """
    assert lab.differences(posted(example, toy), lab.played(example, toy)) == []


@pytest.mark.parametrize("first", ["fedavg", "fedper", "fedbn", "fedbabu(epochs=0)"])
def test_a_run_over_bytes_with_a_one_bit_codec_is_the_run(first):
    method = lab.parse(first) + Signs()
    assert lab.differences(posted(method, "batch"), lab.play(method, "batch")) == []


def without(frame, name):
    return replace(frame, tensors={n: t for n, t in frame.tensors.items() if n != name})


def test_the_post_would_notice_a_tensor_that_is_used_and_not_counted(monkeypatch):
    """The test of the test: a head that is not in the message is NaN at the client."""
    real = messages.down
    monkeypatch.setattr(
        messages,
        "down",
        lambda task, codecs=None: without(real(task, codecs), "model/head.bias"),
    )
    assert lab.differences(posted("fedavg", "layer"), lab.played("fedavg", "layer")) != []


def codecs_up(run, reply):
    plan = run.executor.tasks[0][reply.cohort_index].plan
    return messages.codecs_of(run.parts.method, run.parts.setup.layout, plan, "up")


HEAD, BODY, STATISTICS, NORM = 18, 117, 16, 16


@pytest.mark.parametrize(
    ("first", "toy", "signs", "dense"),
    [
        ("fedavg", "layer", HEAD + BODY, 0),
        ("fedper", "layer", BODY, 0),
        ("lgfedavg", "layer", HEAD, 0),
        ("fedavg", "batch", HEAD + BODY, STATISTICS),
        ("fedbn", "batch", HEAD + BODY - NORM, 0),
    ],
)
def test_t29_one_bit_and_a_scale_weigh_their_formula(first, toy, signs, dense):
    """ceil(d / 8) bytes of signs over the layers that are sent, 4 of scale, statistics as they are.

    Framing is what is left of the real length.
    """
    run = lab.engine(lab.parts(lab.parse(first) + Signs(), toy))
    row = run.round()
    run.close()
    assert row["bytes_up"] == 3 * (-(-signs // 8) + 4 + 4 * dense)
    real = sum(len(encode(messages.up(r, codecs_up(run, r)))) for r in run.executor.replies[0])
    assert row["bytes_up"] + row["framing_up"] == real
    assert row["framing_up"] > 0


READER = """
import hashlib, json, sys
from pathlib import Path
import torch
from fedstrata.wire import CODECS, decode, unpack
folder = Path(sys.argv[1])
for number, (forms, names) in enumerate(json.loads((folder / "shapes.json").read_text())):
    codecs = {tensor: CODECS.find(name)() for tensor, name in names.items()}
    shapes = {n: (tuple(s), getattr(torch, d)) for n, (s, d) in forms.items()}
    tensors = unpack(decode((folder / str(number)).read_bytes()).tensors, shapes, codecs)
    form = lambda t: f"{t.dtype}{tuple(t.shape)}".encode() + t.contiguous().numpy().tobytes()
    print(json.dumps({n: hashlib.sha256(form(t)).hexdigest() for n, t in tensors.items()}))
"""


def test_packed_bytes_open_in_another_process_into_what_the_server_applied(tmp_path):
    run = lab.engine(lab.parts(lab.parse("fedper") + Signs(), "batch"))
    row = run.round()
    run.close()
    shapes, applied, counted = [], [], 0
    for reply in run.executor.replies[0]:
        codecs = codecs_up(run, reply)
        data = encode(messages.up(reply, codecs))
        (tmp_path / str(len(shapes))).write_bytes(data)
        counted += len(data)
        contents = messages.contents(reply)
        forms = {n: (list(t.shape), str(t.dtype).removeprefix("torch.")) for n, t in contents.items()}
        shapes.append((forms, {tensor: codec.name for tensor, codec in codecs.items()}))
        applied.append(digests(contents))
    (tmp_path / "shapes.json").write_text(json.dumps(shapes))
    read = subprocess.run([sys.executable, "-c", READER, str(tmp_path)], capture_output=True, text=True, check=True)
    assert [json.loads(line) for line in read.stdout.splitlines()] == applied
    assert counted == row["bytes_up"] + row["framing_up"]
