"""The vocabulary can express what other systems need: small pieces of these tests, each against its rule by hand.

Each also passes the laws of registered methods: any executor, any order of replies, state that is all state.
"""

from dataclasses import dataclass, replace

import pytest
import torch

from fedstrata.common import random_streams
from fedstrata.common.errors import FedstrataError, MethodError
from fedstrata.core.chain import Method
from fedstrata.core.params import Params, tmap, zeros
from fedstrata.core.piece import Piece, uniform_weights
from fedstrata.core.plan import ClientQuery, Phase
from helpers import lab, rules
from helpers.rules import World, against, alone, distance

C = 3  # size of the cohort


@dataclass(frozen=True)
class Clusters(Piece):
    """IFCA: two global models; every client trains the one with the lower loss on its own data; the models lie in
    the server state.

    The server's model is the plain mean of what came back.
    """

    def init_server(self, setup):
        return {"m0": setup.model, "m1": tmap(lambda w: 0.8 * w, setup.model)}

    def query(self, ctx):
        return ClientQuery((ctx.state.model("m0"), ctx.state.model("m1")), split="train")

    def send(self, model, ctx):
        return ctx.state[f"m{choice(ctx.answers, ctx.slot.client)}"], {}

    def observe(self, replies, ctx):
        moved = {}
        for k in (0, 1):
            members = [r for r in replies if choice(ctx.answers, r.client) == k]
            total = sum(r.samples for r in members)
            change = sum((r.delta * (r.samples / total) for r in members), start=zeros(ctx.model))
            moved[f"m{k}"] = ctx.state.model(f"m{k}") + change
        return moved


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


def test_clusters_by_a_query_to_all_clients():
    result, world, models = against(Clusters(), ifca)
    assert max(distance(world, result.states["clusters"][f"m{k}"], models[k]) for k in (0, 1)) <= rules.ROUNDING


@dataclass(frozen=True)
class Repeats(Piece):
    """Clustered sampling's draw: one client per distribution, the same client more than once."""

    def sample(self, eligible, ctx):
        return [1, int(ctx.rng.integers(2, 6)), 1]


def with_repeats(world):
    w = world.w0
    for t, cohort in enumerate(world.cohorts):
        ends = [
            world.descend(w, world.batches(i, t, occurrence=cohort[:index].count(i))) for index, i in enumerate(cohort)
        ]
        w = sum(p * y for p, y in zip(world.shares(cohort), ends, strict=True))
    return w, alone(world, w)


def test_a_client_drawn_twice_trains_twice_on_its_own_orders_and_counts_twice():
    result, _, _ = against(Repeats(), with_repeats)
    assert all(row["cohort"][0] == row["cohort"][2] == 1 for row in result.rows)


@dataclass(frozen=True)
class PowerOfChoice(Piece):
    """The n clients with the highest loss of the server's current model on their own training data."""

    def query(self, ctx):
        return ClientQuery((None,), split="train")

    def sample(self, eligible, ctx):
        order = ctx.answers.scores[:, 0].argsort(descending=True)[: ctx.setup.cohort]
        return [ctx.answers.clients[i] for i in order.tolist()]


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
    result = lab.finish(run)
    world = World(run, [row["cohort"] for row in result.rows])
    w, _ = rule(world)
    assert distance(world, result.model, w) <= rules.ROUNDING


@dataclass(frozen=True)
class Masks(Piece):
    """TAMUNA in short: shared masks, each entry sent by two of three clients.

    Controls move by the merged model of the same round.
    """

    def init_client(self, setup):
        return {"control": setup.model * 0, "end": setup.model * 0}

    def send(self, model, ctx):
        return model, {"mask": mask(ctx.round, ctx.slot.cohort_index, ctx.setup.seed, model.spec.total)}

    def gradient(self, gradient, ctx):
        return lambda p, b: gradient(p, b) - ctx.state["control"]

    def upload(self, delta, ctx):
        return delta.new(delta.flat * ctx.down_payload["mask"]), {}, ctx.state | {"end": ctx.trained.model}

    def weigh(self, contributions, ctx):
        return uniform_weights(contributions)

    def merge(self, step, ctx):
        return step * (len(ctx.contributions) / 2), ctx.state

    def settle(self, new, ctx):
        return ctx.state | {
            "control": ctx.state["control"]
            + 0.2 * ctx.state["control"].new((new.flat - ctx.state["end"].flat) * ctx.down_payload["mask"])
        }


def mask(t, index, seed, total):
    """[total] 1 where the client at this cohort index sends; the shift is shared by the cohort of a round."""
    shift = int(random_streams.stream(seed, "mask", t).integers(C))
    return ((torch.arange(total) + index + shift) % C < 2).float()


def tamuna(world):
    w, control = world.w0, [torch.zeros_like(world.w0) for _ in range(world.m)]
    for t, cohort in enumerate(world.cohorts):
        masks = [mask(t, index, world.seed, len(w)).double() for index in range(C)]
        ends = [world.descend(w, world.batches(i, t), lambda z, b, h=control[i]: world.grad(z, b) - h) for i in cohort]
        w = w + sum(q * (y - w) for q, y in zip(masks, ends, strict=True)) / 2
        for q, y, i in zip(masks, ends, cohort, strict=True):
            control[i] = control[i] + 0.2 * q * (w - y)
    return w, alone(world, w), control


def test_shared_masks_and_controls_of_the_same_round():
    result, world, control = against(Masks(), tamuna)
    for state, expected in zip(result.clients, control, strict=True):
        if state is not None:
            assert distance(world, Params(state["masks/control"], result.model.spec), expected) <= rules.ROUNDING


@dataclass(frozen=True)
class Budgets(Piece):
    """Odd clients are slow and take one step; client 4 is small and trains its head only."""

    def plan(self, plan, ctx):
        slow = {index: {"phases": (Phase(steps=1),)} for index, client in enumerate(plan.cohort) if client % 2}
        small = {
            index: {"train": ctx.layout.select("role:head")} for index, client in enumerate(plan.cohort) if client == 4
        }
        return replace(plan, per_client=slow | small)


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
    result, _, _ = against(Budgets(), budgeted, rounds=4)
    assert any(4 in row["cohort"] for row in result.rows)


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

    def plan(self, plan, ctx):
        head = {"upload": ctx.layout.select("role:head")}
        return replace(
            plan, per_client={index: head for index, client in enumerate(plan.cohort) if client in self.heads}
        )


def heads(world):
    w, head = world.w0, world.mask(*rules.HEAD)
    for t, cohort in enumerate(world.cohorts):
        ends = [world.descend(w, world.batches(i, t)) for i in cohort]
        everyone = sum(p * y for p, y in zip(world.shares(cohort), ends, strict=True))
        whole = [(world.n[i], y) for i, y in zip(cohort, ends, strict=True) if i not in Heads().heads]
        body = sum(n * y for n, y in whole) / sum(n for n, _ in whole)
        w = torch.where(head, everyone, body)
    return w, alone(world, w)


def test_a_tensor_is_averaged_over_the_clients_that_upload_it():
    result, _, _ = against(Heads(), heads)
    assert any(set(row["cohort"]) & set(Heads().heads) for row in result.rows)


def test_what_is_averaged_and_uploaded_by_no_client_is_refused():
    with pytest.raises(MethodError, match="which no client of the round uploads"):
        lab.play(Heads((0, 1, 2, 3, 4, 5)))


@dataclass(frozen=True)
class Beyond(Piece):
    """One client uploads more than the plan says."""

    def plan(self, plan, ctx):
        head = ctx.layout.select("role:head")
        return replace(plan, upload=head, aggregate=head, per_client={0: {"upload": plan.upload}})


def test_a_client_that_uploads_what_the_plan_does_not_name_is_refused():
    with pytest.raises(MethodError, match="upload names everything that some client sends"):
        lab.play(Beyond())


@dataclass(frozen=True)
class Mutants(Piece):
    """FedMut's idea: every client starts from another model; the mean of the results is the next model."""

    def send(self, model, ctx):
        if ctx.slot.cohort_index < 0:  # outside a round clients use the mean
            return model, {}
        return tmap(
            lambda w: w + (0.1, 0.0, -0.1)[ctx.slot.cohort_index] * torch.sign(w) * (1 + ctx.slot.client / 10), model
        ), {}


def mutated(world):
    w = world.w0
    for t, cohort in enumerate(world.cohorts):
        starts = [w + (0.1, 0.0, -0.1)[index] * torch.sign(w) * (1 + i / 10) for index, i in enumerate(cohort)]
        ends = [world.descend(s, world.batches(i, t)) for s, i in zip(starts, cohort, strict=True)]
        w = sum(p * y for p, y in zip(world.shares(cohort), ends, strict=True))
    return w, alone(world, w)


def test_each_client_may_start_from_another_model():
    against(Mutants(), mutated)


@dataclass(frozen=True)
class Median(Piece):
    """Coordinate-wise median of the updates."""

    def reduce(self, replies, weights, ctx):
        stack = torch.stack([r.delta.flat for r in replies])  # [C, P]
        return replies[0].delta.new(stack.median(0).values), ctx.state


def median(world):
    w = world.w0
    for t, cohort in enumerate(world.cohorts):
        ends = torch.stack([world.descend(w, world.batches(i, t)) for i in cohort])
        w = ends.sort(0).values[1]  # the middle one of three
    return w, alone(world, w)


def test_a_reducer_that_sees_single_replies():
    against(Median(), median)
    assert Method((Median(),)).sees_replies


@dataclass(frozen=True)
class Lion(Piece):
    """Lion with a smooth sign, so that rounding cannot flip a step."""

    def step(self, p, batch, gradient, opt_state, ctx):
        g = gradient(p, batch).flat
        m = torch.zeros_like(g) if opt_state is None else opt_state
        return p.new(p.flat - 0.3 * ctx.lr * torch.tanh(5 * (0.9 * m + 0.1 * g))), 0.99 * m + 0.01 * g


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


def test_a_custom_local_optimizer():
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
    result, _, _ = against(Temperature(), rules.fedavg, world=Scaled)
    assert float(result.model["temperature"]) != 1.5
    assert "temperature" in lab.parts(Temperature()).setup.layout.select("kind:scale")


def test_an_added_parameter_can_be_selected_and_kept_private():
    made = lab.parse("fedper(personal='name:temperature')") + Temperature()
    result = lab.play(made)
    assert float(result.model["temperature"]) == 1.5
    assert len({float(m["temperature"]) for m in result.models}) > 2


@dataclass(frozen=True)
class Normalised(Piece):
    """FedFN: features of length 1, a head without bias."""

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
    result, _, _ = against(Normalised(), rules.fedavg, world=Unit)
    assert "head.bias" not in result.model


def test_a_changed_model_holds_in_evaluation_too():
    run = lab.engine(lab.parts(Normalised()))
    result = lab.finish(run)
    world = Unit(run, [row["cohort"] for row in result.rows])
    w = torch.cat([result.model[n].double().reshape(-1) for n in world.shapes])
    test = run.parts.federation.test
    logits = world.head(world.split(w), world.features(w, test.x.double()))
    assert result.rows[-1]["accuracy"] == pytest.approx(float((logits.argmax(1) == test.y).double().mean()))


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
    assert lab.gap(stacked.model, loop.model) <= 1e-6


@every_piece
def test_replies_may_come_in_any_order(piece):
    rotated = {"order": lambda tasks: tasks[::-1], "change": lambda replies: replies[1:] + replies[:1]}
    assert lab.differences(lab.play(piece), lab.play(piece, wrap=rotated)) == []
