"""The vocabulary says what other systems need: small pieces, known to these tests only, each against its rule written
out by hand.

Each also passes the laws of registered methods: any executor, any order of replies, state that is all state.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from fedstrata.common import random_streams
from fedstrata.common.errors import FedstrataError, MethodError
from fedstrata.core.chain import Method
from fedstrata.core.params import Params, tmap
from fedstrata.core.piece import Piece, uniform_weights
from fedstrata.core.plan import ClientQuery, Phase
from helpers import lab, rules
from helpers.rules import World, against, alone, distance

C = 3  # places of the cohort


@dataclass(frozen=True)
class Clusters(Piece):
    """IFCA: two global models; every client trains the one with the lower loss on its own data; the better half of the
    server's slot moves.

    The server's own model is the plain mean of what came back.
    """

    def init(self, setup):
        return {"m0": setup.model, "m1": tmap(lambda w: 0.8 * w, setup.model)}

    def ask(self, slot, round, setup):  # noqa: A002
        return ClientQuery((slot["m0"], slot["m1"]), split="train")

    def send(self, params, slot, seat, rng, setup):
        return slot[f"m{choice(seat.answers, seat.client)}"], {}

    def merge(self, step, slot, v):
        moved = {}
        for k in (0, 1):
            members = [r for r in v.replies if choice(v.answers, r.client) == k]
            total = sum(r.samples for r in members)
            change = sum((r.delta * (r.samples / total) for r in members), start=step * 0)
            moved[f"m{k}"] = slot[f"m{k}"] + change
        return step, moved


def choice(answers, client):
    return int(answers.scores[answers.clients.index(client)].argmin())


def ifca(world):
    models, w = [world.w0, 0.8 * world.w0], world.w0
    for t, cohort in enumerate(world.cohorts):
        ends, moved = {}, list(models)
        groups = {0: [], 1: []}
        for i in cohort:
            k = min((0, 1), key=lambda k, i=i: whole_loss(world, models[k], i))
            groups[k].append(i)
            ends[i] = world.descend(models[k], world.batches(i, t))
        for k, members in groups.items():
            if members:
                moved[k] = sum(p * ends[i] for p, i in zip(world.shares(members), members, strict=True))
        models = moved
        w = sum(p * ends[i] for p, i in zip(world.shares(cohort), cohort, strict=True))
    assert all(groups.values()), "both clusters have members"
    return w, [min(models, key=lambda m, i=i: whole_loss(world, m, i)) for i in range(len(world.index))], models


def whole_loss(world, model, i):
    return float(
        world.loss(model, (world.federation.train.x[world.index[i]].double(), world.federation.train.y[world.index[i]]))
    )


def test_clusters_by_a_question_to_all_clients():
    found, world, models = against(Clusters(), ifca)
    assert max(distance(world, found.slots["clusters"][f"m{k}"], models[k]) for k in (0, 1)) <= rules.ROUNDING


@dataclass(frozen=True)
class Repeats(Piece):
    """Clustered sampling's draw: one client per distribution, the same client more than once."""

    def sample(self, eligible, slot, answers, rng, cohort):
        return [1, int(rng.integers(2, 6)), 1]


def with_repeats(world):
    w = world.w0
    for t, cohort in enumerate(world.cohorts):
        ends = [
            world.descend(w, world.batches(i, t, occurrence=cohort[:place].count(i))) for place, i in enumerate(cohort)
        ]
        w = sum(p * y for p, y in zip(world.shares(cohort), ends, strict=True))
    return w, alone(world, w)


def test_a_client_drawn_twice_trains_twice_on_its_own_orders_and_counts_twice():
    found, _, _ = against(Repeats(), with_repeats)
    assert all(row["cohort"][0] == row["cohort"][2] == 1 for row in found.rows)


@dataclass(frozen=True)
class PowerOfChoice(Piece):
    """The n clients with the highest loss of the server's current model on their own training data."""

    def ask(self, slot, round, setup):  # noqa: A002
        return ClientQuery((None,), split="train")

    def sample(self, eligible, slot, answers, rng, cohort):
        order = answers.scores[:, 0].argsort(descending=True)[:cohort]
        return [answers.clients[i] for i in order.tolist()]


def test_power_of_choice_takes_the_highest_losses_of_the_current_model():
    def rule(world):
        w = world.w0
        for t, cohort in enumerate(world.cohorts):
            losses = [
                float(world.loss(w, (world.federation.train.x[index].double(), world.federation.train.y[index])))
                for index in world.index
            ]
            assert cohort == sorted(range(world.m), key=lambda i: -losses[i])[:C]
            ends = [world.descend(w, world.batches(i, t)) for i in cohort]
            w = sum(p * y for p, y in zip(world.shares(cohort), ends, strict=True))
        return w, alone(world, w)

    run = lab.engine(lab.parts(PowerOfChoice()))
    found = lab.finish(run)
    world = World(run, [row["cohort"] for row in found.rows])
    w, _ = rule(world)
    assert distance(world, found.params, w) <= rules.ROUNDING


@dataclass(frozen=True)
class Masks(Piece):
    """TAMUNA in short: shared masks, each entry sent by two of three places.

    Controls move by the merged model of the same round.
    """

    def init_client(self, setup):
        return {"control": setup.model * 0, "end": setup.model * 0}

    def send(self, params, slot, seat, rng, setup):
        return params, {"mask": mask(seat.round, seat.place, setup.seed, params.spec.total)}

    def gradient(self, gradient, v):
        return lambda p, b: gradient(p, b) - v.own["control"]

    def upload(self, delta, own, v):
        return delta.new(delta.flat * v.extras["mask"]), {}, own | {"end": v.end}

    def weigh(self, replies, slot, v):
        return uniform_weights(replies)

    def merge(self, step, slot, v):
        return step * (len(v.replies) / 2), slot

    def settle(self, own, new, v):
        return own | {
            "control": own["control"] + 0.2 * own["control"].new((new.flat - own["end"].flat) * v.extras["mask"])
        }


def mask(t, place, seed, total):
    """[total] 1 where this place sends; the shift is shared by the cohort of a round."""
    shift = int(random_streams.stream(seed, "mask", t).integers(C))
    return ((torch.arange(total) + place + shift) % C < 2).float()


def tamuna(world):
    w, control = world.w0, [torch.zeros_like(world.w0) for _ in range(world.m)]
    for t, cohort in enumerate(world.cohorts):
        masks = [mask(t, place, world.seed, len(w)).double() for place in range(C)]
        ends = [world.descend(w, world.batches(i, t), lambda z, b, h=control[i]: world.grad(z, b) - h) for i in cohort]
        w = w + sum(q * (y - w) for q, y in zip(masks, ends, strict=True)) / 2
        for q, y, i in zip(masks, ends, cohort, strict=True):
            control[i] = control[i] + 0.2 * q * (w - y)
    return w, alone(world, w), control


def test_shared_masks_and_controls_of_the_same_round():
    found, world, control = against(Masks(), tamuna)
    for row, expected in zip(found.clients, control, strict=True):
        if row is not None:
            assert distance(world, Params(row["masks/control"], found.params.spec), expected) <= rules.ROUNDING


@dataclass(frozen=True)
class Budgets(Piece):
    """Odd clients are slow and take one step; client 4 is small and trains its head only."""

    def plan(self, plan, slot, answers, round, setup):  # noqa: A002
        slow = {place: {"phases": (Phase(steps=1),)} for place, client in enumerate(plan.cohort) if client % 2}
        small = {
            place: {"train": setup.layout.select("role:head")}
            for place, client in enumerate(plan.cohort)
            if client == 4
        }
        return replace(plan, places=slow | small)


def budgeted(world):
    w = world.w0
    for t, cohort in enumerate(world.cohorts):
        ends = [
            world.descend(
                w,
                world.batches(i, t, steps=1) if i % 2 else world.batches(i, t),
                moves=world.mask(*rules.HEAD) if i == 4 else None,
            )
            for i in cohort
        ]
        w = sum(p * y for p, y in zip(world.shares(cohort), ends, strict=True))
    return w, alone(world, w)


def test_budgets_of_single_clients():
    found, _, _ = against(Budgets(), budgeted, rounds=4)
    assert any(4 in row["cohort"] for row in found.rows)


def test_fewer_local_steps_cost_fewer_flops():
    run = lab.engine(lab.parts(Budgets()))
    run.round()
    run.close()
    for reply in run.executor.replies[0]:
        assert (reply.steps == 1) == (reply.client % 2 == 1)
        assert sum(reply.cost_by_phase.values()) == (min(4, reply.samples) if reply.client % 2 else 2 * reply.samples)


@dataclass(frozen=True)
class Heads(Piece):
    """Some clients send their head only; ``heads`` names those."""

    heads: tuple[int, ...] = (1, 2, 4)

    def plan(self, plan, slot, answers, round, setup):  # noqa: A002
        head = {"up": setup.layout.select("role:head")}
        return replace(plan, places={place: head for place, client in enumerate(plan.cohort) if client in self.heads})


def heads(world):
    w, head = world.w0, world.mask(*rules.HEAD)
    for t, cohort in enumerate(world.cohorts):
        ends = [world.descend(w, world.batches(i, t)) for i in cohort]
        everyone = sum(p * y for p, y in zip(world.shares(cohort), ends, strict=True))
        whole = [(world.n[i], y) for i, y in zip(cohort, ends, strict=True) if i not in Heads().heads]
        body = sum(n * y for n, y in whole) / sum(n for n, _ in whole)
        w = torch.where(head, everyone, body)
    return w, alone(world, w)


def test_a_tensor_is_averaged_over_those_who_send_it():
    found, _, _ = against(Heads(), heads)
    assert any(set(row["cohort"]) & set(Heads().heads) for row in found.rows)


def test_what_is_averaged_and_sent_by_nobody_is_refused():
    with pytest.raises(MethodError, match="which no client of the round sends"):
        lab.play(Heads((0, 1, 2, 3, 4, 5)))


@dataclass(frozen=True)
class Beyond(Piece):
    """One place sends more than the plan says."""

    def plan(self, plan, slot, answers, round, setup):  # noqa: A002
        head = setup.layout.select("role:head")
        return replace(plan, up=head, average=head, places={0: {"up": plan.upload}})


def test_a_place_that_sends_what_the_plan_does_not_name_is_refused():
    with pytest.raises(MethodError, match="up names all that some client sends"):
        lab.play(Beyond())


@dataclass(frozen=True)
class Mutants(Piece):
    """FedMut's idea: every place starts from a model of its own; the mean of the results is the next model."""

    def send(self, params, slot, seat, rng, setup):
        if seat.place < 0:  # outside a round clients use the mean
            return params, {}
        return tmap(lambda w: w + (0.1, 0.0, -0.1)[seat.place] * torch.sign(w) * (1 + seat.client / 10), params), {}


def mutated(world):
    w = world.w0
    for t, cohort in enumerate(world.cohorts):
        starts = [w + (0.1, 0.0, -0.1)[place] * torch.sign(w) * (1 + i / 10) for place, i in enumerate(cohort)]
        ends = [world.descend(s, world.batches(i, t)) for s, i in zip(starts, cohort, strict=True)]
        w = sum(p * y for p, y in zip(world.shares(cohort), ends, strict=True))
    return w, alone(world, w)


def test_each_client_may_start_from_a_model_of_its_own():
    against(Mutants(), mutated)


@dataclass(frozen=True)
class Median(Piece):
    """Coordinate-wise median of the updates."""

    needs: ClassVar = "individuals"

    def reduce(self, replies, weights, slot, v):
        stack = torch.stack([r.delta.flat for r in replies])  # [C, P]
        return replies[0].delta.new(stack.median(0).values), slot


def median(world):
    w = world.w0
    for t, cohort in enumerate(world.cohorts):
        ends = torch.stack([world.descend(w, world.batches(i, t)) for i in cohort])
        w = ends.sort(0).values[1]  # the middle one of three
    return w, alone(world, w)


def test_a_reducer_that_sees_single_replies():
    against(Median(), median)
    assert Method((Median(),)).needs == "individuals"


@dataclass(frozen=True)
class Lion(Piece):
    """Lion with a smooth sign, so that rounding cannot flip a step."""

    def step(self, p, batch, gradient, carry, v):
        g = gradient(p, batch).flat
        m = torch.zeros_like(g) if carry is None else carry
        return p.new(p.flat - 0.3 * v.lr * torch.tanh(5 * (0.9 * m + 0.1 * g))), 0.99 * m + 0.01 * g


def lion(world):
    w = world.w0
    for t, cohort in enumerate(world.cohorts):
        ends = []
        for i in cohort:
            y, m = w, torch.zeros_like(w)
            for batch in world.batches(i, t):
                g = world.grad(y, batch)
                y = y - 0.3 * world.lr * torch.tanh(5 * (0.9 * m + 0.1 * g))
                m = 0.99 * m + 0.01 * g
            ends.append(y)
        w = sum(p * y for p, y in zip(world.shares(cohort), ends, strict=True))
    return w, alone(world, w)


def test_a_local_optimiser_of_its_own():
    against(Lion(), lion)


@dataclass(frozen=True)
class Temperature(Piece):
    """One more parameter: logits are scaled by a learned number."""

    def model(self, net):
        wider = net.with_parameter("temperature", torch.tensor([1.5]), kind="scale", role="head")
        return replace(wider, head=lambda p, z: p["temperature"] * net.head(p, z))


class Scaled(World):
    def __init__(self, run, cohorts):
        super().__init__(run, cohorts)
        self.shapes |= {"temperature": torch.Size([1])}
        self.w0 = torch.cat([self.w0, torch.tensor([1.5], dtype=torch.float64)])

    def head(self, p, z):
        return p["temperature"] * super().head(p, z)


def test_a_piece_may_add_a_parameter():
    found, _, _ = against(Temperature(), rules.fedavg, world=Scaled)
    assert float(found.params["temperature"]) != 1.5
    assert "temperature" in lab.parts(Temperature()).setup.layout.select("kind:scale")


def test_an_added_parameter_can_be_selected_and_kept_private():
    made = lab.parse("fedper(personal='name:temperature')") + Temperature()
    found = lab.play(made)
    assert float(found.params["temperature"]) == 1.5
    assert len({float(m["temperature"]) for m in found.models}) > 2


@dataclass(frozen=True)
class Normalised(Piece):
    """FedFN: features of length 1, a head without bias."""

    head: ClassVar = True

    def model(self, net):
        def unit(p, x):
            return torch.nn.functional.normalize(net.features(p, x), dim=-1)

        bare = net.without_parameter("head.bias")
        return replace(bare, features=unit, head=lambda p, z: z @ p["head.weight"].T)


class Unit(World):
    def __init__(self, run, cohorts):
        super().__init__(run, cohorts)
        keep = ~self.mask("head.bias")
        self.shapes.pop("head.bias")
        self.w0 = self.w0[keep]

    def features(self, w, x):
        z = super().features(w, x)
        return z / z.norm(dim=1, keepdim=True).clamp(min=1e-12)

    def head(self, p, z):
        return z @ p["head.weight"].T


def test_a_piece_may_change_features_and_drop_a_parameter():
    found, _, _ = against(Normalised(), rules.fedavg, world=Unit)
    assert "head.bias" not in found.params


def test_a_changed_model_holds_in_evaluation_too():
    run = lab.engine(lab.parts(Normalised()))
    found = lab.finish(run)
    world = Unit(run, [row["cohort"] for row in found.rows])
    w = torch.cat([found.params[n].double().reshape(-1) for n in world.shapes])
    test = run.parts.federation.test
    logits = world.head(world.split(w), world.features(w, test.x.double()))
    assert found.rows[-1]["accuracy"] == pytest.approx(float((logits.argmax(1) == test.y).double().mean()))


# ---- the laws of registered methods hold for them, too

PIECES = (
    Clusters(),
    Repeats(),
    PowerOfChoice(),
    Masks(),
    Budgets(),
    Mutants(),
    Median(),
    Lion(),
    Temperature(),
    Normalised(),
)
every_piece = pytest.mark.parametrize("piece", PIECES, ids=str)


@every_piece
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_no_executor_changes_a_bit(piece, executor):
    assert lab.differences(lab.play(piece), lab.play(piece, executor=executor, workers=2)) == []


@every_piece
def test_batched_equals_looped_or_is_refused(piece):
    loop = lab.play(piece)
    try:
        stacked = lab.play(piece, executor="batched", workers=2)
    except FedstrataError as error:
        pytest.fail(f"no norm here looks at the batch, yet: {error}")
    assert lab.gap(stacked.params, loop.params) <= 1e-6


@every_piece
def test_replies_may_come_in_any_order(piece):
    rotated = {"order": lambda works: works[::-1], "change": lambda replies: replies[1:] + replies[:1]}
    assert lab.differences(lab.play(piece), lab.play(piece, wrap=rotated)) == []
