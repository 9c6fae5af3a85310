"""One client's local update: what it reads, in which order, by which randomness, and what it sends."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from fedstrata.client.batch_order import Order
from fedstrata.client.update import ClientFailure, ClientUpdate, train_client
from fedstrata.common.errors import MethodError
from fedstrata.core.chain import chain
from fedstrata.core.piece import Piece
from fedstrata.core.plan import Phase
from fedstrata.core.state import ClientState
from fedstrata.engine.ledger import Cost
from fedstrata.engine.server import plan_round
from helpers import lab
from helpers.examples import every_example, finite
from helpers.tiers import tiered


def order(n, batch=4, draw="cycle", merge=False, key=("local", 0, 0, 0)):
    return Order(0, key, n, batch, draw, merge)


def sizes(made, **length):
    return [len(positions) for _, positions in made.batches(**{"epochs": None, "steps": None} | length)]


# ---- order


@pytest.mark.parametrize("n", [1, 3, 4, 5, 9, 17])
def test_an_epoch_reads_every_sample_once(n):
    for epoch in (0, 1):
        read = [p for e, positions in order(n).batches(epochs=2, steps=None) for p in positions.tolist() if e == epoch]
        assert sorted(read) == list(range(n))


def test_epochs_are_shuffled_anew():
    first, second = (
        torch.cat([p for e, p in order(9).batches(epochs=2, steps=None) if e == epoch]) for epoch in (0, 1)
    )
    assert not torch.equal(first, second)


def test_the_last_batch_is_partial():
    assert sizes(order(9), epochs=1) == [4, 4, 1]


def test_a_single_last_sample_is_merged_where_a_norm_looks_at_the_batch():
    assert sizes(order(9, merge=True), epochs=1) == [4, 5]
    assert sizes(order(8, merge=True), epochs=1) == [4, 4]
    assert sizes(order(1, merge=True), epochs=1) == [1], "there is nothing to merge it into"


def test_steps_go_on_through_epochs_and_stop_in_the_middle():
    assert sizes(order(9), steps=7) == [4, 4, 1, 4, 4, 1, 4]
    assert sizes(order(9), steps=2) == [4, 4]


def test_fresh_batches_hold_no_sample_twice_and_replace_may():
    fresh = [p for _, p in order(5, draw="fresh").batches(steps=50, epochs=None)]
    assert all(len(set(p.tolist())) == 4 for p in fresh)
    drawn = [p for _, p in order(5, draw="replace").batches(steps=50, epochs=None)]
    assert any(len(set(p.tolist())) < 4 for p in drawn)
    counts = Counter(torch.cat(drawn).tolist())
    assert min(counts.values()) > 20, "200 draws of 5 samples: 40 each, and 20 is four standard deviations away"


@pytest.mark.parametrize("other", [("local", 1, 0, 0), ("local", 0, 1, 0), ("local", 0, 0, 1), ("private", 0, 0, 0)])
def test_round_client_occurrence_and_purpose_each_have_another_order(other):
    flat = lambda made: torch.cat([p for _, p in made.batches(epochs=1, steps=None)]).tolist()
    assert flat(order(17)) == flat(order(17))
    assert flat(order(17)) != flat(order(17, key=other))


def test_a_batch_larger_than_the_data_is_the_data():
    assert sizes(order(10, batch=64), epochs=2) == [10, 10]
    assert sizes(order(10, batch=64, draw="fresh"), steps=2) == [10, 10]


# ---- one client


def turn(method="fedavg", toy="layer", **settings):
    """Return a worker and the tasks of round 0."""
    made = lab.parts(method, toy, **settings)
    run = lab.engine(made)
    planned = plan_round(run.server, made.rules, made.lr(0), lambda *_: None, lambda _: None)
    run.close()
    return made.make_worker(), planned.tasks


def test_a_reply_records_what_was_done():
    worker, tasks = turn()
    reply = train_client(worker, tasks[0])
    n = lab.SIZES[tasks[0].client]
    assert (reply.cohort_index, reply.client, reply.samples) == (0, tasks[0].client, n)
    assert reply.steps == 2 * -(-n // 4)
    assert sum(reply.cost_by_phase.values()) == 2 * n
    assert reply.client_state == ClientState()


def test_training_touches_neither_what_was_sent_nor_torch_s_generator():
    worker, tasks = turn(toy="dropout")
    before, state = tasks[0].sent.flat.clone(), torch.get_rng_state()
    train_client(worker, tasks[0])
    assert torch.equal(tasks[0].sent.flat, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_worker_s_past_does_not_matter():
    worker, tasks = turn(toy="dropout")
    first = train_client(worker, tasks[0])
    for task in tasks:
        train_client(worker, task)
    assert lab.bits(train_client(worker, tasks[0]).delta) == lab.bits(first.delta)


def test_dropout_masks_differ_by_client_round_and_occurrence():
    worker, tasks = turn(toy="dropout")
    base = train_client(worker, tasks[0]).delta
    twice = replace(tasks[0], occurrence=1)
    assert lab.bits(train_client(worker, twice).delta) != lab.bits(base)
    masks = [
        torch.rand(3, generator=ClientUpdate(worker, w).dropout).tolist()
        for w in (tasks[0], tasks[1], twice, replace(tasks[0], round=1))
    ]
    assert len({tuple(m) for m in masks}) == 4


def test_learning_rate_factors_of_phases_count():
    @dataclass(frozen=True)
    class Slow(Piece):
        def plan(self, plan, ctx):
            return replace(plan, phases=(Phase(lr=0.5),))

    assert lab.bits(lab.play(Slow(), local_lr=0.1).model) == lab.bits(lab.play(local_lr=0.05).model)


def test_noise_is_derived_from_client_round_piece_and_name():
    seen = {}

    @dataclass(frozen=True)
    class Noisy(Piece):
        def upload(self, delta, ctx):
            u, again, z = ctx.noise("a", (50,)), ctx.noise("a", (50,)), ctx.noise("b", (50,), "normal")
            assert torch.equal(u, again)
            assert 0 <= u.min() <= u.max() < 1
            assert z.min() < 0
            seen[ctx.round, ctx.samples] = u  # sizes name the clients; the ledger's probe draws the same numbers again
            return delta, {}, ctx.state

    lab.play(Noisy())
    assert len({tuple(u.tolist()) for u in seen.values()}) == len(seen) == 9


@dataclass(frozen=True)
class Shaky(Piece):
    """Shakes the gradient by noise of the step and by noise of the whole stretch, drawn before it.

    The loss by a second name.
    """

    def objective(self, loss, ctx):
        push = ctx.noise("push", (5,)).mean()
        return lambda p, b: loss(p, b) + 0.1 * (push + b.mean(ctx.noise("pull", (len(b.y),)))) * p["head.bias"].sum()

    def gradient(self, gradient, ctx):
        return lambda p, b: gradient(p, b) + p.new(0.01 * ctx.noise("shake", p.flat.shape, "normal"))


@pytest.mark.parametrize("toy", ["layer", "dropout", "equal"])
def test_noise_of_a_local_step_is_the_same_when_clients_are_stacked(toy):
    looped, stacked = lab.play(Shaky(), toy), lab.play(Shaky(), toy, "batched", 2)
    assert lab.gap(stacked.model, looped.model) <= 1e-6
    assert lab.bits(looped.model) != lab.bits(lab.play("fedavg", toy).model)


def test_noise_differs_between_local_steps():
    seen = {}

    @dataclass(frozen=True)
    class Noisy(Piece):
        def objective(self, loss, ctx):
            outside = ctx.noise("a", (4,))

            def within(p, b):
                u = ctx.noise("a", (4,))
                assert torch.equal(u, ctx.noise("a", (4,)))
                assert torch.equal(u[:3], ctx.noise("a", (3,)))
                seen.setdefault((ctx.round, ctx.samples), []).append(tuple(u.tolist()))
                return loss(p, b)

            seen.setdefault((ctx.round, ctx.samples), []).append(tuple(outside.tolist()))
            return within

    rows = lab.play(Noisy(), rounds=2).rows
    steps = sum(1 + 2 * -(-lab.SIZES[i] // 4) for row in rows for i in row["cohort"])
    assert len({u for found in seen.values() for u in found}) == steps, (
        "the ledger's probe draws numbers of the first step again"
    )


def test_private_fits_leave_the_start_alone_and_read_another_order():
    @dataclass(frozen=True)
    class Private(Piece):
        def receive(self, model, ctx):
            before = model.flat.clone()
            fitted = ctx.fit(model, "private")
            assert torch.equal(model.flat, before)
            assert not torch.equal(fitted.flat, before)
            assert torch.equal(ctx.fit(model, "private").flat, fitted.flat)
            frozen = ctx.fit(model, "private", train=ctx.layout.select("role:head"))
            assert torch.equal(frozen["first.weight"], model["first.weight"])
            assert not torch.equal(frozen["head.weight"], model["head.weight"])
            return model, ctx.state

    assert lab.bits(lab.play(Private()).model) == lab.bits(lab.play().model), "a private fit changes nothing else"


def test_scan_reads_the_client_s_samples_once():
    @dataclass(frozen=True)
    class Means(Piece):
        def upload(self, delta, ctx):
            total, count = ctx.scan(
                lambda c, b: (c[0] + b.x.sum(0), c[1] + len(b.y)), (torch.zeros(lab.FEATURES), 0), "means"
            )
            return delta, {"total": total, "count": torch.tensor([count])}, ctx.state

    run = lab.engine(lab.parts(Means(), cohort=6))
    run.round()
    run.close()
    for reply in run.executor.replies[0]:
        data = run.parts.federation
        assert reply.up_payload["means"]["count"].item() == reply.samples
        assert torch.allclose(
            reply.up_payload["means"]["total"], data.train.x[data.training(reply.client)].sum(0), atol=1e-5
        )


def test_a_client_that_raises_is_left_out_and_named():
    @dataclass(frozen=True)
    class Breaks(Piece):
        def upload(self, delta, ctx):
            if ctx.samples == 17:
                raise RuntimeError("out of memory")
            return delta, {}, ctx.state

    run = lab.engine(lab.parts(Breaks(), cohort=6))
    row = run.round()
    run.close()
    assert row["refused"] == [[0, "raised", "RuntimeError: out of memory"]]
    assert row["updated"]
    assert row["replies"] == 5


def test_a_refusal_by_a_piece_ends_the_run():
    @dataclass(frozen=True)
    class Refuses(Piece):
        def upload(self, delta, ctx):
            raise MethodError("this is invalid")

    with pytest.raises(MethodError, match="this is invalid"):
        lab.play(Refuses())


def test_lazy_samples_give_the_same_bits():
    data, module = lab.TOYS["layer"]()

    class Lazy:
        lazy = True
        y = data.train.y
        x = data.train.x
        __len__ = lambda self: len(data.train)
        take = lambda self, index: data.train.take(index)

    assert lab.differences(lab.play("ditto", (replace(data, train=Lazy()), module)), lab.play("ditto")) == []


def test_augmentation_depends_on_the_sample_not_on_its_company():
    """u has one row for each sample, keyed by client, round, epoch and sample."""
    seen = []

    class Spy:
        draws = 2

        def __call__(self, x, u):
            seen.extend(zip(x[:, 0].tolist(), u[:, 0].tolist(), strict=True))
            return x

    data, module = lab.TOYS["layer"]()
    lab.play(toy=(replace(data, augment=Spy()), module), local_batch=4, cohort=1, rounds=1, local_epochs=1)
    small, seen[:] = dict(seen[: len(seen) - 4]), []
    lab.play(toy=(replace(data, augment=Spy()), module), local_batch=100, cohort=1, rounds=1, local_epochs=1)
    assert small.items() <= dict(seen).items()


def test_bfloat16_trains_and_keeps_float32_parameters():
    found = lab.play(local_precision="bfloat16")
    assert found.model.flat.dtype == torch.float32
    assert 0 < lab.gap(found.model, lab.play().model) < 0.1


# ---- odd clients


def test_why_a_client_cannot_train_is_named():
    toy = lab.federation((8, 0, 1)), lab.small("batch")
    worker, tasks = turn(toy=toy, cohort=3)
    found = {w.client: train_client(worker, w) for w in tasks}
    assert (found[1].code, found[2].code) == ("empty", "single")
    assert "client 1 has no training sample" in found[1].message
    assert not isinstance(found[0], ClientFailure)


def test_a_client_with_one_sample_trains_where_no_norm_looks_at_the_batch():
    toy = lab.federation((8, 1)), lab.small()
    worker, tasks = turn(toy=toy, cohort=2)
    assert all(not isinstance(train_client(worker, w), ClientFailure) for w in tasks)


def test_ten_samples_and_a_batch_of_64_train_on_the_ten():
    run = lab.engine(lab.parts(toy=(lab.federation((10, 80)), lab.small("batch")), cohort=2, local_batch=64))
    run.round()
    run.close()
    reply = next(r for r in run.executor.replies[0] if r.client == 0)
    assert (reply.samples, reply.steps, sum(reply.cost_by_phase.values())) == (10, 2, 20)


@every_example
def test_k_batches_and_one_sample_train_under_batch_norm_in_every_method(example):
    found = lab.play(
        example, (lab.federation((9, 5, 17, 13, 9)), lab.small("batch")), cohort=3, rounds=2
    )  # no client holds more than a third
    assert all(row["refused"] == [] and row["updated"] for row in found.rows)
    assert np.isfinite(found.model.flat.numpy()).all()


def test_steps_of_a_merged_tail_are_the_steps_that_were_taken():
    """9 samples in batches of 4 with batch norm: two steps an epoch.

    SCAFFOLD and FedNova divide by this number.
    """
    counted = []

    @dataclass(frozen=True)
    class Counts(Piece):
        def gradient(self, gradient, ctx):
            def count(p, b):
                counted.append(len(b.y))
                return gradient(p, b)

            return count

    for length in ({"local_epochs": 3}, {"local_steps": 7}):
        counted.clear()
        run = lab.engine(lab.parts(Counts(), (lab.federation((9,)), lab.small("batch")), cohort=1, **length))
        run.ledger.of_reply = lambda task, reply: Cost()  # whose probe would count too
        run.round()
        run.close()
        reply = run.executor.replies[0][0]
        assert reply.steps == len(counted) == (6 if "local_epochs" in length else 7)
        assert sum(reply.cost_by_phase.values()) == sum(counted)


def test_a_gradient_middleware_may_call_twice_and_the_context_s_gradient_is_that_of_the_chain_s_loss():
    @dataclass(frozen=True)
    class Halves(Piece):
        def gradient(self, gradient, ctx):
            def both(p, b):
                one, two = gradient(p, b), ctx.gradient(p, b)
                assert torch.allclose(one.flat, two.flat, atol=1e-7)
                return one / 2 + two / 2

            return both

    assert lab.gap(lab.play(chain(Halves())).model, lab.play().model) < 1e-6


@every_example
@pytest.mark.parametrize("toy", tiered(["layer", "batch"], ["batch"]))
def test_row_71_uploads_hold_exactly_what_the_plan_uploads(example, toy):
    made = lab.engine(lab.parts(example, toy))
    lab.finish(made)
    layout = made.parts.setup.layout
    for tasks, replies in zip(made.executor.tasks, made.executor.replies, strict=True):
        for reply in replies:
            up = tasks[reply.cohort_index].plan.upload
            assert set(reply.delta) == up & layout.parameters
            assert set(reply.statistics) == up - layout.parameters


@pytest.mark.parametrize(
    "optimizer",
    [{"local_weight_decay": 0.1}, {"local_optimizer": "adamw", "local_weight_decay": 0.1, "local_lr": 0.01}],
)
def test_row_71_weight_decay_does_not_move_a_frozen_head(optimizer):
    @dataclass(frozen=True)
    class Looks(Piece):
        def upload(self, delta, ctx):
            head = ctx.layout.select("role:head")
            assert lab.bits(ctx.trained.model.pick(head)) == lab.bits(ctx.received.pick(head)), (
                "not in local training either"
            )
            return delta, {}, ctx.state

    made = lab.engine(lab.parts(lab.parse("fedbabu(epochs=0)") + Looks(), **optimizer))
    head, start = made.parts.setup.layout.select("role:head"), made.parts.setup.model
    for _ in range(3):
        assert made.round()["refused"] == []
        assert lab.bits(made.server.model.pick(head)) == lab.bits(start.pick(head))
        for client in range(6):
            assert lab.bits(lab.client_model(made, client).pick(head)) == lab.bits(start.pick(head))
    made.close()
    assert lab.bits(made.server.model) != lab.bits(start)


class Tied(torch.nn.Module):
    """Two layers that share a weight, a norm, and a head."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6), torch.nn.Linear(6, 3)
        self.second.weight = self.first.weight
        self.norm = torch.nn.LayerNorm(6)
        self.exits = {"first": 6, "norm": 6}

    def forward(self, x, exits=None):
        x = torch.relu(self.first(x))
        if exits == 1:
            return x
        x = torch.relu(self.norm(self.second(x)))
        return self.head(x) if exits is None else x


@every_example
def test_row_71_tied_weights_are_trained_sent_and_stored_once_by_every_method(example):
    toy = lab.federation(), lab.filled(Tied())
    made = lab.engine(lab.parts(example, toy))
    found = lab.finish(made)
    assert [n for n in found.model if n.startswith("second")] == ["second.bias"]
    assert all("second.weight" not in reply.delta for replies in made.executor.replies for reply in replies)
    assert finite(found.model)
    made.worker.bound.load(found.model)
    assert made.worker.bound.body.second.weight is made.worker.bound.body.first.weight
