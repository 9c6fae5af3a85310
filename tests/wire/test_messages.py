"""What is counted is what crosses: clients need nothing but the counted bytes, and the server applies nothing but what
they hold (T29).
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from fedstrata.core.params import Model, Params
from fedstrata.core.piece import Piece
from fedstrata.core.state import flatten_state, restore_state
from fedstrata.engine.ledger import codecs_of
from fedstrata.testing.laws import digests
from fedstrata.wire import decode, encode, messages, unpack
from helpers import lab
from helpers.examples import every_example
from helpers.tiers import tiered


@dataclass(frozen=True)
class Signs(Piece):
    """One bit an entry and one scale a client."""

    wire: ClassVar[bool] = True
    codec: ClassVar[str] = "bits"

    def upload(self, delta, own, v):
        return delta.new(torch.where(delta.flat >= 0, 1.0, -1.0)), {"scale": delta.flat.abs().mean().reshape(1)}, own

    def reduce(self, replies, weights, slot, v):
        parts = [r.delta * (float(w) * r.up_payload["signs"]["scale"]) for r, w in zip(replies, weights, strict=True)]
        return sum(parts[1:], start=parts[0]), slot


def filled(p: Params | None, tensors, prefix):
    """These names from the message; NaN where the message holds nothing."""
    if p is None:
        return None
    flat = torch.full_like(p.flat, math.nan)
    made = Params(flat, p.spec)
    for name, view in made.views.items():
        if f"{prefix}/{name}" in tensors:
            view.copy_(tensors[f"{prefix}/{name}"])
    return made


def states(before, tensors, prefix):
    """The pieces' states from the message; names and shapes as they were."""
    found = {}
    for piece, state in before.items():
        flat = {n: (tensors[f"{prefix}/{piece}/{n}"], v) for n, v in flatten_state(state).items()}
        found[piece] = restore_state(
            {n: Params(t, v.spec) if isinstance(v, Params) else t for n, (t, v) in flat.items()}
        )
        for n, value in state.items():  # statistics that are empty are not sent
            if isinstance(value, Params) and value.statistics is not None and not len(value.statistics):
                made = found[piece][n]
                found[piece][n] = Model(Params(made.flat, made.spec), value.statistics)
    return found


class Post:
    """Every work and every reply goes through bytes; what the bytes do not hold is lost."""

    def __init__(self):
        self.works, self.kit = {}, None

    def order(self, works):
        self.works = {w.place: w for w in works}
        return [self.delivered(w) for w in works]

    def delivered(self, work):
        tensors = decode(encode(messages.down(work))).tensors
        sent = filled(work.sent, tensors, "model")
        sent = Model(Params(sent.flat, sent.spec), filled(work.sent.statistics, tensors, "statistics"))
        return replace(work, sent=sent, extras=states(work.extras, tensors, "extra"))

    def change(self, replies):
        return [self.returned(r) for r in replies]

    def returned(self, reply):
        plan = self.works[reply.cohort_index].plan
        codecs = codecs_of(self.kit, plan)
        asked = {n: (tuple(t.shape), t.dtype) for n, t in messages.contents(reply).items()}
        frame = decode(encode(messages.up(reply, codecs)))
        tensors = unpack(frame.tensors, asked, codecs)
        return replace(
            reply,
            delta=filled(reply.delta, tensors, "delta"),
            statistics=filled(reply.statistics, tensors, "statistics"),
            mail=states(reply.up_payload, tensors, "mail"),
            samples=frame.fields["samples"],
            steps=frame.fields["steps"],
            loss=frame.fields.get("loss", math.nan),
        )


def posted(method, toy):
    post = Post()
    run = lab.engine(lab.parts(method, toy), order=post.order, change=post.change)
    post.kit = run.worker
    return lab.finish(run)


@every_example
@pytest.mark.parametrize("toy", tiered(["layer", "batch"], ["batch"]))
def test_a_run_over_bytes_alone_is_the_run(example, toy):
    """Clients get what the counted message holds and NaN for all else, the server likewise: not one bit changes, in
    model, slots and rows.
    """
    assert lab.differences(posted(example, toy), lab.played(example, toy)) == []


@pytest.mark.parametrize("first", ["fedavg", "fedper", "fedbn", "fedbabu(epochs=0)"])
def test_a_run_over_bytes_with_a_one_bit_codec_is_the_run(first):
    method = lab.parse(first) + Signs()
    assert lab.differences(posted(method, "batch"), lab.play(method, "batch")) == []


def test_the_post_would_notice_a_tensor_that_is_used_and_not_counted(monkeypatch):
    """The test of the test: a head that is not in the message is NaN at the client."""
    real = messages.down
    monkeypatch.setattr(
        messages,
        "down",
        lambda w: replace(real(w), tensors={n: t for n, t in real(w).tensors.items() if n != "model/head.bias"}),
    )
    assert lab.differences(posted("fedavg", "layer"), lab.played("fedavg", "layer")) != []


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
    works = run.executor.tasks[0]
    real = sum(
        len(encode(messages.up(r, codecs_of(run.worker, works[r.cohort_index].plan)))) for r in run.executor.replies[0]
    )
    assert row["bytes_up"] + row["framing_up"] == real
    assert row["framing_up"] > 0


READER = """
import hashlib, json, sys
from pathlib import Path
import torch
from fedstrata.wire import decode, unpack
folder = Path(sys.argv[1])
for number, (forms, codecs) in enumerate(json.loads((folder / "asked.json").read_text())):
    asked = {n: (tuple(s), getattr(torch, d)) for n, (s, d) in forms.items()}
    tensors = unpack(decode((folder / str(number)).read_bytes()).tensors, asked, codecs)
    form = lambda t: f"{t.dtype}{tuple(t.shape)}".encode() + t.contiguous().numpy().tobytes()
    print(json.dumps({n: hashlib.sha256(form(t)).hexdigest() for n, t in tensors.items()}))
"""


def test_packed_bytes_open_in_another_process_into_what_the_server_applied(tmp_path):
    run = lab.engine(lab.parts(lab.parse("fedper") + Signs(), "batch"))
    row = run.round()
    run.close()
    asked, applied, counted = [], [], 0
    for reply in run.executor.replies[0]:
        codecs = codecs_of(run.worker, run.executor.tasks[0][reply.cohort_index].plan)
        data = encode(messages.up(reply, codecs))
        (tmp_path / str(len(asked))).write_bytes(data)
        counted += len(data)
        contents = messages.contents(reply)
        asked.append(({n: (list(t.shape), str(t.dtype).removeprefix("torch.")) for n, t in contents.items()}, codecs))
        applied.append(digests(contents))
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    found = subprocess.run([sys.executable, "-c", READER, str(tmp_path)], capture_output=True, text=True, check=True)
    assert [json.loads(line) for line in found.stdout.splitlines()] == applied
    assert counted == row["bytes_up"] + row["framing_up"]
