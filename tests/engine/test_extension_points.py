"""What the vocabulary has room for, each as a small working example: a line in ADR 0001 names it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import nn

from fedstrata.common.errors import MethodError, StateError, WireError
from fedstrata.config.config import Config
from fedstrata.core.chain import Method, chain
from fedstrata.core.params import Model, Params
from fedstrata.core.piece import Batching, Piece, move_of, setting, uniform_weights
from fedstrata.core.plan import ClientQuery
from fedstrata.core.state import State
from fedstrata.engine.aggregation import weighted_sum
from fedstrata.runs.run import resume, run
from fedstrata.testing import toys
from fedstrata.testing.toy_runs import bits, engine, finish, play
from fedstrata.wire import decode, encode, messages, pack, packed_shapes, unpack
from fedstrata.wire.codec import Bits

# ---- a codec with settings, whose sizes depend on the values


@dataclass(frozen=True)
class Sparse:
    """Send the entries that are not zero: int32 positions and values; nothing is lost."""

    width: int = 4  # bytes of a position, 2 or 4
    name: ClassVar[str] = "sparse"

    @property
    def kind(self) -> torch.dtype:
        return torch.int32 if self.width == 4 else torch.uint8

    def packed_shapes(self, shapes):
        return None

    def pack(self, tensors):
        flat = torch.cat([tensors[n].reshape(-1) for n in sorted(tensors)])
        at = flat.nonzero().reshape(-1)
        return {"@sparse.at": at.to(self.kind), "@sparse.values": flat[at]}

    def unpack(self, packed, shapes):
        total = sum(math.prod(shape) for shape, _ in shapes.values())
        at, values = packed["@sparse.at"].long(), packed["@sparse.values"]
        if len(at) != len(values) or (len(at) and not 0 <= int(at.min()) <= int(at.max()) < total):
            raise WireError("sparse: positions and values do not match.")
        flat = torch.zeros(total, dtype=values.dtype)
        flat[at] = values
        names = sorted(shapes)
        parts = torch.split(flat, [math.prod(shapes[n][0]) for n in names])
        return {n: part.reshape(shapes[n][0]) for n, part in zip(names, parts, strict=True)}


@dataclass(frozen=True)
class TopK(Piece):
    """Send the largest entries of an update: lossy in ``compress``, packed without loss by a codec."""

    share: float = setting(0.1, "a share of the entries, in (0, 1]", above=0, most=1)

    def compress(self, delta, ctx):
        kept = max(1, round(self.share * delta.spec.total))
        bound = delta.flat.abs().topk(kept).values[-1]
        return delta.new(torch.where(delta.flat.abs() >= bound, delta.flat, torch.zeros_like(delta.flat)))

    def codec(self, direction, layout):
        return {"all": Sparse()} if direction == "up" else {}


@dataclass(frozen=True)
class ErrorFeedback(Piece):
    """Add what earlier compressions lost: works round any piece that compresses."""

    def init_client(self, setup):
        return State(error=Params(torch.zeros_like(setup.model.flat), setup.model.spec))

    def upload(self, delta, ctx):
        return delta + ctx.state.params("error").pick(delta), State(), ctx.state

    def feedback(self, intended, sent, ctx):
        old = ctx.state.params("error")
        return State(error=old | (intended - sent))


def test_sizes_of_a_content_dependent_codec_come_from_the_payload():
    run = engine(toys.parts(Method((TopK(0.1),))))
    row = run.round()
    run.close()
    frames = [
        messages.up(r, messages.codecs_of(run.parts.method, run.parts.setup.layout, run.plan, "up"))
        for r in run.executor.replies[0]
    ]
    assert row["bytes_up"] + row["framing_up"] == sum(len(encode(f)) for f in frames)
    dense = play("fedavg").rows[0]
    assert row["bytes_up"] < 0.35 * dense["bytes_up"]  # a tenth of the entries, each with its position
    for frame, reply in zip(frames, run.executor.replies[0], strict=True):
        shapes = {n: (tuple(t.shape), t.dtype) for n, t in messages.contents(reply).items()}
        codecs = {n: Sparse() for n in shapes if n.startswith("delta/")}
        opened = unpack(decode(encode(frame)).tensors, shapes, codecs)
        assert {n: bits(t) for n, t in opened.items()} == {n: bits(t) for n, t in messages.contents(reply).items()}


def test_each_group_of_tensors_may_have_its_codec_and_settings():
    tensors = {
        "delta/a": torch.tensor([1.0, -1.0]),
        "delta/b": torch.tensor([0.0, 3.0]),
        "delta/c": torch.ones(3),
        "delta/d": torch.tensor([5.0, 0.0]),
    }
    codecs = {"delta/a": Bits(), "delta/b": Sparse(4), "delta/d": Sparse(1)}
    packed = pack(tensors, codecs)
    assert set(packed) == {"@bits", "@sparse.at", "@sparse.values", "@sparse.at#1", "@sparse.values#1", "delta/c"}
    shapes = {n: (tuple(t.shape), t.dtype) for n, t in tensors.items()}
    assert packed_shapes(shapes, codecs) is None
    opened = unpack(packed, shapes, codecs)
    assert {n: bits(t) for n, t in opened.items()} == {n: bits(t) for n, t in tensors.items()}


@dataclass(frozen=True)
class SignDown(Piece):
    """The server sends the signs of the biases only: a codec on the way down, for one group of tensors."""

    def send(self, model, ctx):
        signs = {n: torch.where(t >= 0, 1.0, -1.0) for n, t in model.items() if n.endswith("bias")}
        return model | Params.of(signs), State()

    def codec(self, direction, layout):
        return {"name:*.bias": Bits()} if direction == "down" else {}


def test_a_codec_on_the_way_down_is_counted_as_it_is_packed():
    run = engine(toys.parts(Method((SignDown(),))))
    row = run.round()
    run.close()
    codecs = messages.codecs_of(run.parts.method, run.parts.setup.layout, run.plan, "down")
    assert set(codecs) == {f"model/{n}" for n in run.parts.setup.layout.spec.names if n.endswith("bias")}
    sizes = [len(encode(messages.down(task, codecs))) for task in run.executor.tasks[0]]
    assert row["bytes_down"] + row["framing_down"] == sum(sizes)


def test_error_feedback_goes_round_any_compression_and_loses_nothing():
    """What was sent plus what is kept is what was to be sent: over rounds, nothing of an update is lost."""
    run = engine(toys.parts(chain(ErrorFeedback(), TopK(0.1)), rounds=1))
    run.round()
    for task, reply in zip(run.executor.tasks[0], run.executor.replies[0], strict=True):
        alone = engine(toys.parts("fedavg", rounds=1))
        plain = next(iter(alone.executor.inner.train([task])))
        alone.close()
        kept = reply.client_state.pieces["errorfeedback"]["error"]
        torch.testing.assert_close(reply.delta.flat + kept, plain.delta.flat, rtol=0, atol=1e-7)
    run.close()
    assert play(chain(ErrorFeedback(), TopK(1.0))).model.flat.equal(play("fedavg").model.flat)


def test_two_compressions_in_one_chain_are_refused():
    @dataclass(frozen=True)
    class Half(Piece):
        def compress(self, delta, ctx):
            return 0.5 * delta

    with pytest.raises(MethodError, match="compress"):
        chain(TopK(), Half())


# ---- replies screened before they are reduced


@dataclass(frozen=True)
class Clip(Piece):
    """Scale every update to a norm of at most ``most``."""

    most: float = setting(1.0, "the largest norm of an update, above 0", above=0)

    def screen(self, replies, ctx):
        factors = [min(1.0, self.most / max(float(r.delta.flat.norm()), 1e-12)) for r in replies]
        return [replace(r, delta=f * r.delta) for r, f in zip(replies, factors, strict=True)]


@dataclass(frozen=True)
class DropFar(Piece):
    """Leave out the update that is farthest from the mean of all."""

    def screen(self, replies, ctx):
        moves = [move_of(r, s, ctx.model).flat for r, s in zip(replies, ctx.sent, strict=True)]
        mean = torch.stack(moves).mean(0)
        far = max(range(len(replies)), key=lambda i: float((moves[i] - mean).norm()))
        return [r for i, r in enumerate(replies) if i != far]


@dataclass(frozen=True)
class Median(Piece):
    """Reduce to the median of each coordinate."""

    def reduce(self, replies, weights, ctx):
        assert len(weights) == len(replies)
        moves = torch.stack([move_of(r, s, ctx.model).flat for r, s in zip(replies, ctx.sent, strict=True)])
        return Params(moves.median(0).values, replies[0].delta.spec), ctx.state


def test_screens_nest_before_one_reducing_owner():
    run = engine(toys.parts(chain(Clip(0.05), DropFar(), Median()), rounds=1))
    run.round()
    sent = run.executor.tasks[0]
    clipped = [r.delta.flat * min(1.0, 0.05 / float(r.delta.flat.norm())) for r in run.executor.replies[0]]
    far = max(range(len(clipped)), key=lambda i: float((clipped[i] - torch.stack(clipped).mean(0)).norm()))
    expected = torch.stack([c for i, c in enumerate(clipped) if i != far]).median(0).values
    moved = run.server.model.flat - sent[0].sent.flat
    run.close()
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-7)


def test_a_screen_before_plain_averaging_keeps_weights_and_replies_together():
    run = engine(toys.parts(chain(DropFar()), rounds=1))
    run.round()
    replies, start = run.executor.replies[0], run.executor.tasks[0][0].sent
    mean = torch.stack([r.delta.flat for r in replies]).mean(0)
    far = max(range(len(replies)), key=lambda i: float((replies[i].delta.flat - mean).norm()))
    left = [r for i, r in enumerate(replies) if i != far]
    total = sum(r.samples for r in left)
    expected = sum(r.samples / total * r.delta.flat for r in left)
    moved = run.server.model.flat - start.flat
    run.close()
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-6)


def test_a_screen_that_lets_nothing_pass_is_an_error():
    @dataclass(frozen=True)
    class Nothing(Piece):
        def screen(self, replies, ctx):
            return []

    with pytest.raises(MethodError, match="nothing let no reply"):
        play(Method((Nothing(),)))


# ---- K server models, weights [clients, models]


@dataclass(frozen=True)
class HardClusters(Piece):
    """K server models; each client trains the one with its lowest loss, and each is averaged over its clients."""

    models: int = setting(2, "a number of server models, at least 1", least=1)

    def init_server(self, setup):
        draw = torch.Generator().manual_seed(7)
        starts = [
            setup.model.flat + (k > 0) * 0.3 * torch.randn(setup.model.flat.shape, generator=draw)
            for k in range(self.models)
        ]
        return State({f"model/{k}": Params(flat, setup.model.spec) for k, flat in enumerate(starts)})

    def query(self, ctx):
        return ClientQuery(tuple(ctx.state.params(f"model/{k}") for k in range(self.models)), "train", "loss")

    def choice(self, client, ctx):
        scores = dict(zip(ctx.answers.clients, ctx.answers.scores, strict=True))
        return int(scores[client].argmin())

    def send(self, model, ctx):
        if ctx.answers is None:
            return model, State()
        return Model(ctx.state.params(f"model/{self.choice(ctx.slot.client, ctx)}"), model.statistics), State()

    def weigh(self, contributions, ctx):
        weights = torch.zeros(len(contributions), self.models, dtype=torch.float64)
        for row, contribution in enumerate(contributions):
            weights[row, self.choice(contribution.client, ctx)] = contribution.samples
        return weights / weights.sum(0).clamp(min=1)

    def merge(self, step, ctx):
        """``step`` has a row for each model: weighted moves from the server's own model."""
        models = [ctx.state.params(f"model/{k}") for k in range(self.models)]
        used = {self.choice(c.client, ctx) for c in ctx.contributions}
        moved = [
            Params(ctx.model.flat + step.flat[k], models[k].spec) if k in used else models[k]
            for k in range(self.models)
        ]
        mean = torch.stack([m.flat for m in moved]).mean(0)
        return Params(mean - ctx.model.flat, step.spec), State({f"model/{k}": m for k, m in enumerate(moved)})


def test_k_server_models_are_averaged_over_their_own_clients():
    run = engine(toys.parts(Method((HardClusters(2),)), rounds=2))
    run.round()
    before = {k: run.server.states["hardclusters"].params(f"model/{k}").flat.clone() for k in range(2)}
    answers = run.answers["hardclusters"]
    run.round()
    scores = run.answers["hardclusters"].scores
    clients = run.answers["hardclusters"].clients
    replies = run.executor.replies[-1]
    run.close()
    assert answers.scores.shape == (len(clients), 2)
    for k in range(2):
        mine = [
            (r, t) for r, t in zip(replies, run.executor.tasks[-1], strict=True) if bits(t.sent.flat) == bits(before[k])
        ]
        if not mine:
            continue
        total = sum(r.samples for r, _ in mine)
        expected = sum(r.samples / total * (t.sent.flat + r.delta.flat) for r, t in mine)
        after = run.server.states["hardclusters"].params(f"model/{k}").flat
        torch.testing.assert_close(after, expected, rtol=0, atol=1e-6)
    assert scores.isfinite().all()


def test_one_server_model_of_k_is_fedavg():
    plain, one = play("fedavg", rounds=2), play(Method((HardClusters(1),)), rounds=2)
    torch.testing.assert_close(one.model.flat, plain.model.flat, rtol=1e-5, atol=1e-6)


def test_weights_for_several_models_that_no_piece_merges_are_refused():
    @dataclass(frozen=True)
    class Forgetful(Piece):
        def weigh(self, contributions, ctx):
            return uniform_weights(contributions).unsqueeze(1).repeat(1, 3)

    with pytest.raises(MethodError, match="weights for 3 models"):
        play(Method((Forgetful(),)))


def test_sums_with_weights_for_several_models_are_those_of_each():
    moves = [torch.randn(5) for _ in range(3)]
    weights = torch.rand(3, 2, dtype=torch.float64)
    both = weighted_sum(iter(moves), weights)
    for k in range(2):
        torch.testing.assert_close(both[k], sum(float(w) * m for w, m in zip(weights[:, k], moves, strict=True)))


# ---- a frozen base outside the vector


class Adapted(nn.Module):
    """A frozen linear map of 2 M numbers with a low-rank adapter, and a trained head: 2 k numbers are trained."""

    def __init__(self, width: int = 1414, rank: int = 1) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.inp = nn.Linear(toys.FEATURES, width, bias=False)
        self.base = nn.Linear(width, width, bias=False)
        for layer in (self.inp, self.base):
            layer.weight.data = torch.randn(layer.weight.shape, generator=draw) / layer.weight.shape[1] ** 0.5
            layer.weight.requires_grad_(False)
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, 96, bias=False)
        self.head = nn.Linear(96, toys.CLASSES)
        for layer in (self.down, self.up, self.head):
            layer.weight.data = 0.1 * torch.randn(layer.weight.shape, generator=draw)
        self.head.bias.data.zero_()

    def forward(self, x):
        z = torch.tanh(self.inp(x))
        return self.head(torch.tanh(self.base(z)[:, :96] + self.up(self.down(z))))


def test_a_frozen_base_is_outside_the_vector_and_in_memory_once_for_four_workers():
    module = Adapted()
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    frozen = sum(p.numel() for p in module.parameters() if not p.requires_grad)
    assert frozen > 2_000_000
    assert trained < 2_500
    parts = toys.parts("scaffold", (toys.federation(), module), rounds=2)
    assert parts.setup.layout.spec.total == trained
    run = engine(parts, "threads", 4)
    workers = [run.worker, *(run.executor.inner.idle.get() for _ in range(4))]
    held = {dict(w.bound.body.named_parameters())["base.weight"].data_ptr() for w in workers}
    assert held == {module.base.weight.data_ptr()}
    for worker in workers[1:]:
        run.executor.inner.idle.put(worker)
    start = module.base.weight.clone()
    outcome = finish(run)
    assert torch.equal(module.base.weight, start)
    row = outcome.rows[0]
    assert row["bytes_up"] == row["bytes_down"] == 2 * 4 * trained * len(row["cohort"])  # update or model, and control
    assert outcome.clients[0]["scaffold/control"].numel() == trained
    assert outcome.model.flat.numel() == trained
    assert all(
        bits(a) == bits(b)
        for a, b in zip(outcome.models, play("scaffold", (toys.federation(), Adapted()), rounds=2).models, strict=True)
    )


def test_a_checkpoint_and_a_served_model_hold_what_is_trained_only(tmp_path):
    module = Adapted()
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    settings = {
        "rounds": 2,
        "local.epochs": 1,
        "local.batch": 4,
        "out": str(tmp_path),
        "method": "scaffold",
        "test": "server",
    }
    result = run(Config(**settings), federation=toys.federation(), module=module)
    assert (result.folder / "model.safetensors").stat().st_size < 4 * trained + 2_000
    states = list((result.folder / "checkpoints").glob("*.safetensors"))
    server = 2 * 4 * trained  # the model and its control
    rows = 4 * trained * len(toys.SIZES)
    assert sum(f.stat().st_size for f in states) < 2 * (server + rows) + 20_000  # the last two checkpoints
    other = Adapted()
    other.base.weight.data = -other.base.weight.data
    with pytest.raises(StateError, match="frozen base"):
        resume(result.folder, federation=toys.federation(), module=other)


# ---- batching


def test_one_field_says_how_steps_may_be_stacked():
    assert Piece.batching == "any"

    @dataclass(frozen=True)
    class Shrink(Piece):
        batching: ClassVar[Batching] = "elementwise"

        def gradient(self, gradient, ctx):
            return lambda p, b: 0.5 * gradient(p, b)

    looped = play(Method((Shrink(),)))
    for workers in (1, 2):  # one stack holds a client with less than a batch
        stacked = play(Method((Shrink(),)), executor="batched", workers=workers)
        torch.testing.assert_close(stacked.model.flat, looped.model.flat, rtol=1e-5, atol=1e-6)
