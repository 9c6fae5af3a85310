"""FedPart's acceptance properties, by number."""

from collections import Counter
from fractions import Fraction
from itertools import chain

import numpy as np
import pytest
import torch

from fedstrata.client.optimizers import Optimizer
from fedstrata.client.step_cost import cost, forward
from fedstrata.client.update import ClientUpdate
from fedstrata.common import random_streams
from fedstrata.common.errors import ConfigError
from fedstrata.config.config import Config
from fedstrata.core.layout import Layout, entries_of
from fedstrata.core.network import Batch
from fedstrata.data.types import Task
from fedstrata.engine.assembly import assemble
from fedstrata.methods import method
from fedstrata.methods.parts import cycle
from fedstrata.models import build
from fedstrata.studies.local_step_lengths import StepLengths, measure_steps, restricted
from fedstrata.wire import messages
from helpers import lab
from helpers.networks import pictures, residual
from helpers.tiers import tiered

CIFAR = Task("classification", (3, 32, 32), 10, tuple("0123456789"))
NEWS = Task("classification", (20,), 5, tuple("01234"), 30_333)
RESNET8 = [9_536, 36_992, 36_992, 73_984, 147_712, 8_448, 295_424, 590_336, 33_280, 2_570]
STAGES = [
    [9_536, *[36_992] * 4],
    [73_984, 147_712, 8_448, 147_712, 147_712],
    [295_424, 590_336, 33_280, 590_336, 590_336],
    [1_180_672, 2_360_320, 132_096, 2_360_320, 2_360_320],
]
RESNET18 = [*chain.from_iterable(STAGES), 5_130]
TRANSFORMER = [6_066_600, *[160_800, 81_200] * 3, 1_005]


def model(name, task=CIFAR):
    return build(name, task, None, random_streams.torch_stream(0, "model"))


def layout(name, task=CIFAR):
    return Layout(entries_of(model(name, task), "head"))


def merged(host):
    """The 18 groups with each downsample joined to a convolution of its block."""
    found = [*STAGES[0]]
    for conv1, conv2, down, *rest in STAGES[1:]:
        found += [conv1 + down * (host == "conv1"), conv2 + down * (host == "conv2"), *rest]
    return [*found, 5_130]


def piece(text="fedpart"):
    return method(text).pieces[0]


def played_rounds(run, n):
    """(rounds' replies, rounds' works) of n rounds."""
    for _ in range(n):
        run.round()
    run.close()
    return run.executor.replies, run.executor.tasks


# ---- 1. groups


@pytest.mark.parametrize(
    ("name", "task", "wanted", "total"),
    [
        ("resnet8", CIFAR, RESNET8, 1_235_274),
        ("resnet18", CIFAR, RESNET18, 11_181_642),
        ("resnet18(down=conv2)", CIFAR, merged("conv2"), 11_181_642),
        ("resnet18(down=conv1)", CIFAR, merged("conv1"), 11_181_642),
        ("transformer", NEWS, TRANSFORMER, 6_793_605),
    ],
)
def test_1_groups_partition_the_named_parameters_with_the_published_counts(name, task, wanted, total):
    module = model(name, task)
    found = Layout(entries_of(module, "head"))
    assert [g.numel for g in found.groups.values()] == wanted
    assert len(wanted) == {"resnet8": 10, "resnet18": 21, "transformer": 8}.get(name, 18)
    members = [n for g in found.groups.values() for n in g.names]
    assert Counter(members) == Counter(n for n, _ in module.named_parameters()), (
        "each parameter lies in exactly one group"
    )
    assert sum(wanted) == total


@pytest.mark.parametrize("name", ["resnet8", "resnet18"])
def test_1_each_batch_norm_pair_sits_with_its_convolution(name):
    for group in layout(name).groups.values():
        if group.kind == "conv":
            conv, weight, bias = group.names
            assert conv.endswith("weight")
            assert conv.replace("conv", "norm") == weight
            assert bias == weight.removesuffix("weight") + "bias"


# ---- 2. schedule


def turns(text, rounds, groups=10, seed=0):
    return [piece(text).active(t, groups, seed) for t in range(rounds)]


def test_2_the_schedule_of_resnet8_is_the_published_one():
    found = turns("fedpart", 125)
    assert found[:5] == [None] * 5
    assert found[5:7] == [0, 0]
    assert found[23:25] == [9, 9]
    assert found[25:30] == [None] * 5
    assert found[30] == 0
    assert Counter(found) == {None: 25} | dict.fromkeys(range(10), 10)
    assert [t for t, g in enumerate(found) if g is not None] == [t for t in range(125) if t % 25 >= 5]


@pytest.mark.parametrize(("groups", "block", "rounds"), [(21, 47, 141), (18, 41, 123), (8, 21, 105)])
def test_2_blocks_of_the_other_models_have_the_published_lengths(groups, block, rounds):
    cycles = rounds // block
    assert piece().calendar(groups).rounds(cycles) == rounds
    assert Counter(turns("fedpart", rounds, groups)) == {None: 5 * cycles} | dict.fromkeys(range(groups), 2 * cycles)


def test_2_reverse_is_the_mirror():
    assert turns("fedpart(order=reverse)", 50) == [None if g is None else 9 - g for g in turns("fedpart", 50)]


def test_2_random_visits_each_group_alike_in_every_cycle_in_another_order():
    found = turns("fedpart(order=random)", 50)
    first, second = found[5:25], found[30:50]
    for half in (first, second):
        assert Counter(half) == dict.fromkeys(range(10), 2)
        assert half[::2] == half[1::2], "R/L rounds in a row"
    assert first != second
    assert found[:5] == found[25:30] == [None] * 5
    assert turns("fedpart(order=random)", 50, seed=1) != found


def test_2_random_a_round_draws_each_round():
    found = turns("fedpart(order=random_round)", 425)
    counts = Counter(found)
    assert counts.pop(None) == 5 * 17
    assert set(counts) == set(range(10))
    assert len(set(counts.values())) > 1, "not the same number of times"


def test_2_the_first_warm_up_may_be_longer_or_none():
    assert turns("fedpart(first=60)", 86) == [None] * 60 + turns("fedpart", 25)[5:] + [None] * 5 + [0]
    assert turns("fedpart(first=0)", 26) == turns("fedpart", 25)[5:] + [None] * 5 + [0]
    assert piece("fedpart(first=60)").calendar(10).rounds(1) == 80


def test_2_a_run_is_held_to_whole_cycles_where_asked():
    with pytest.raises(ConfigError, match=r"fedpart\(cycles=2\) with 3 layer groups takes 8 rounds, and rounds is 7"):
        lab.parts("fedpart(warmup=1, repeat=1, cycles=2)", rounds=7)
    lab.parts("fedpart(warmup=1, repeat=1, cycles=2)", rounds=8)


# ---- 3. what stands still, what moves


@pytest.mark.parametrize("turn", tiered(range(10), (7,)))
def test_3_a_partial_round_moves_the_active_group_and_nothing_else_on_server_and_clients(turn):
    run = residual("fedpart(warmup=0, repeat=1)")
    run.server = lab.copied(run.server).__class__(turn, run.server.model, run.server.states)
    before = run.server.model.clone()
    run.round()
    active = list(run.parts.setup.layout.groups.values())[turn].names
    ends = []
    for work in run.executor.tasks[0]:
        session = ClientUpdate(run.worker, work)
        ends.append(session.train(session.begin()).model.clone())
    run.close()
    for model in (run.server.model, *ends):
        for name in before:
            same = torch.equal(model[name], before[name])
            assert same == (name not in active), name


# ---- 4. the average


def test_4_the_aggregate_is_the_weighted_mean_of_the_participants():
    run = lab.engine(lab.parts("fedpart(warmup=0, repeat=1)", local_optimizer="adam", local_lr=0.01))
    for _ in range(3):
        before = run.server.model.clone()
        run.round()
        replies = run.executor.replies[-1]
        total = sum(r.samples for r in replies)
        assert len(replies) == 3
        for name in replies[0].delta:
            mean = sum(r.samples * (before[name] + r.delta[name]).double() for r in replies) / total
            assert torch.allclose(run.server.model[name].double(), mean, rtol=0, atol=1e-6 * float(mean.abs().max()))
    run.close()


def test_4_those_who_do_not_take_part_have_no_influence():
    def end(shift):
        x, y, _ = lab.arrays()
        absent = [i for i in range(6) if i not in cohort]
        starts = np.concatenate([[0], np.cumsum(lab.SIZES)])
        for i in absent if shift else []:
            x[starts[i] : starts[i + 1]] += 10
        run = lab.engine(
            lab.parts(
                "fedpart(warmup=0, repeat=1)",
                (lab.listed(x, y, lab.SIZES, test=(x.numpy(), y.numpy())), lab.small("layer")),
            )
        )
        seen = run.round()["cohort"]
        run.close()
        return seen, run.server.model

    cohort = []
    cohort, plain = end(shift=False)
    again, shifted = end(shift=True)
    assert again == cohort
    assert len(cohort) == 3
    assert lab.bits(plain) == lab.bits(shifted)


# ---- 5. messages


@pytest.mark.full
def test_5_a_partial_message_holds_the_active_groups_names_and_four_bytes_a_number():
    run = residual("fedpart(warmup=0, repeat=1)")
    groups = list(run.parts.setup.layout.groups.values())
    replies, works = played_rounds(run, 10)
    for turn, (answers, asked) in enumerate(zip(replies, works, strict=True)):
        for reply, work in zip(answers, asked, strict=True):
            frame = messages.up(reply)
            assert set(frame.tensors) == {f"delta/{n}" for n in groups[turn].names}
            assert sum(t.numel() * t.element_size() for t in frame.tensors.values()) == 4 * groups[turn].numel
            assert messages.size_up(reply).payload == 4 * groups[turn].numel
            down = messages.down(work).tensors
            assert all(n.startswith("model/") for n in down), "no mask is sent: what is active follows from the round"


def test_5_random_layers_of_clients_are_one_group_each_averaged_over_those_who_sent_it():
    run = residual("fedpart(warmup=0, order=random_client)")
    groups = {frozenset(f"delta/{n}" for n in group.names): group for group in run.parts.setup.layout.groups.values()}
    drawn = []
    for _ in range(6):
        before = run.server.model
        run.round()
        replies, moved = run.executor.replies[-1], set()
        for reply in replies:
            group = groups[frozenset(messages.up(reply).tensors)]
            drawn.append(group.name)
            moved |= set(group.names)
            senders = [r for r in replies if group.names[0] in r.delta]
            for name in group.names:
                mean = sum(r.samples * r.delta[name].double() for r in senders) / sum(r.samples for r in senders)
                torch.testing.assert_close(
                    run.server.model[name].double() - before[name].double(), mean, atol=1e-6, rtol=1e-4
                )
        assert {n for n in before if not torch.equal(before[n], run.server.model[n])} == moved
    run.close()
    assert len(set(drawn)) > 5, "clients draw for themselves"


# ---- 6. costs


@pytest.mark.parametrize("cycles", tiered([1, 2], [1]))
def test_6_uplink_over_whole_cycles_of_resnet8_is_seven_twenty_fifths(cycles):
    """From the payloads of real replies; all rounds of FedAvg weigh the same."""
    federation = pictures(clients=(3, 2))
    part = residual(f"fedpart(cycles={cycles})", federation, rounds=25 * cycles, **{"local.batch": 3})
    rows = [part.round() for _ in range(25 * cycles)]
    part.close()
    paid = sum(
        messages.up(r).tensors[n].numel() * 4
        for answers in part.executor.replies
        for r in answers
        for n in messages.up(r).tensors
    )
    assert paid == sum(row["bytes_up"] for row in rows)
    full = residual("fedavg", federation, **{"local.batch": 3})
    row = full.round()
    full.close()
    assert row["bytes_up"] == 2 * 4 * 1_233_475, "the model has three classes here"
    assert Fraction(paid, 25 * cycles * row["bytes_up"]) == Fraction(7, 25)


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        (RESNET8, Fraction(7, 25)),
        (RESNET18, Fraction(7, 47)),
        (merged("conv2"), Fraction(7, 41)),
        (TRANSFORMER, Fraction(7, 21)),
    ],
)
def test_6_uplink_by_formula(sizes, wanted):
    for cycles in (1, 3):
        rounds = piece().calendar(len(sizes)).rounds(cycles)
        assert cycle.share(turns("fedpart", rounds, len(sizes)), cycle.sent(sizes)) == wanted


@pytest.mark.parametrize(("groups", "wanted"), [(10, Fraction(11, 15)), (21, Fraction(33, 47))])
def test_6_the_idealised_compute_ratio_is_the_published_one(groups, wanted):
    for cycles in (1, 5):
        rounds = piece().calendar(groups).rounds(cycles)
        assert cycle.share(turns("fedpart", rounds, groups), cycle.idealised(groups)) == wanted


@pytest.fixture(scope="module")
def macs():
    """Multiply-adds of the forward pass of one 32 x 32 picture, by layer group."""

    def count(name):
        federation = pictures(32, (2, 2))
        run = residual("fedavg", federation, name)
        batch = Batch(federation.train.take(torch.arange(2)), federation.train.y[:2])
        found = forward(run.worker, batch), cost(run.worker, batch, run.parts.setup.layout.parameters).flops
        groups = {
            n: cost(run.worker, batch, frozenset(g.names)).flops for n, g in run.parts.setup.layout.groups.items()
        }
        run.close()
        return found[0], found[1], groups

    return {name: count(name) for name in ("resnet8", "resnet18")}


@pytest.mark.parametrize(("name", "millions"), [("resnet8", 14.47), ("resnet18", 37.01)])
def test_6_forward_passes_take_the_published_multiply_adds(macs, name, millions):
    assert sum(macs[name][0].values()) / 2e6 == pytest.approx(millions, abs=0.01)  # two digits are published


@pytest.mark.parametrize(
    ("name", "exact", "whole_exact", "suffix"), [("resnet8", 0.499, 0.40, 0.61), ("resnet18", 0.503, 0.44, 0.65)]
)
def test_6_the_other_formulas_give_the_known_ratios(macs, name, exact, whole_exact, suffix):
    flops = list(macs[name][0].values())
    groups = len(flops)
    active = turns("fedpart", piece().calendar(groups).rounds(1), groups)
    assert float(sum(cycle.exact([[n] for n in flops])) / groups) == pytest.approx(exact, abs=0.0006)
    assert float(sum(cycle.suffix2x(flops)) / groups) == pytest.approx(suffix, abs=0.006)
    assert 1 - float(cycle.share(active, cycle.exact([[n] for n in flops]))) == pytest.approx(whole_exact, abs=0.006)


@pytest.mark.parametrize("name", ["resnet8", "resnet18"])
def test_6_frozen_layers_cost_no_backward_work(macs, name):
    """Measured FLOPs of each group's step are the exact count, less a shortcut's input gradient where a convolution
    beside it is active, which the
    real graph does not need."""
    flops, whole, measured = macs[name]
    assert whole == 3 * sum(flops.values()) - flops["conv1"], (
        "neither does a full step take the gradient of the picture"
    )
    for (group, found), counted in zip(measured.items(), cycle.exact([[n] for n in flops.values()]), strict=True):
        block, _, layer = group.rpartition(".")
        spared = flops.get(f"{block}.down.conv", 0) if layer in ("conv1", "conv2") else 0
        assert found == counted * int(whole) - spared, group


# ---- 7. the optimiser


def test_7_the_optimizers_state_is_empty_at_the_first_step_of_each_round(monkeypatch):
    counts = []
    plain = Optimizer.step

    def spied(self, values, gradients, lr):
        counts.append((self.count, len(self.state)))
        plain(self, values, gradients, lr)

    monkeypatch.setattr(Optimizer, "step", spied)
    run = lab.engine(lab.parts("fedpart(warmup=1, repeat=1)", local_optimizer="adam", local_lr=0.01, rounds=4))
    for _ in range(4):
        counts.clear()
        run.round()
        firsts = [state for count, state in counts if count == 0]
        assert set(firsts) == {0}
        assert 3 <= len(firsts) <= 4, "once for each client, and once for the bill of a plan that is new"
        assert len(counts) - len(firsts) == sum(r.steps for r in run.executor.replies[-1]) - 3
    run.close()


def test_7_runs_that_differ_in_earlier_optimizer_history_only_agree():
    settings = {"local_optimizer": "adam", "local_lr": 0.01, "rounds": 4}
    long, fresh = (lab.engine(lab.parts("fedpart(warmup=1, repeat=1)", **settings)) for _ in range(2))
    for _ in range(3):
        long.round()
    fresh.server = lab.copied(long.server)
    long.round(), fresh.round()
    long.close(), fresh.close()
    assert lab.bits(long.server.model) == lab.bits(fresh.server.model)


# ---- 8. limits


@pytest.mark.parametrize("text", ["fedpart(warmup=0, together=3)", "fedpart(warmup=3)", "fedpart(warmup=0, first=100)"])
def test_8_one_group_or_a_warm_up_without_end_is_fedavg_bit_for_bit(text):
    settings = {"local_optimizer": "adam", "local_lr": 0.01}
    plain, found, other = (lab.play(t, "batch", **settings) for t in ("fedavg", text, "fedpart(warmup=1)"))
    assert lab.bits(found.model) == lab.bits(plain.model) != lab.bits(other.model)
    assert [lab.bits(m) for m in found.models] == [lab.bits(m) for m in plain.models]
    assert [r["flops"] for r in found.rows] == [r["flops"] for r in plain.rows]


# ---- 9. gradients


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_9_gradients_of_the_active_group_are_those_of_the_full_backward_pass(norm):
    federation = pictures(16)
    config = Config(method="fedavg", cohort=2, norm=norm, executor="loop")
    worker = assemble(
        config, federation, build("resnet8", federation.task, norm, random_streams.torch_stream(0, "model"))
    ).make_worker()
    batch = Batch(federation.train.take(torch.arange(5)), federation.train.y[:5])

    def gradients(names):
        bound = worker.bound
        bound.mode(training=True)
        bound.train_only(frozenset(names))
        worker.features.clear()
        return dict(zip(names, bound.gradients(worker.plain_loss(bound.model, batch), names)[0], strict=True))

    whole = gradients(list(worker.bound.spec.names))
    for group in worker.setup.layout.groups.values():
        for name, grad in gradients(list(group.names)).items():
            assert grad.abs().max() > 0
            assert (grad - whole[name]).abs().max() <= 1e-6 * whole[name].abs().max()


# ---- 10. step sizes


def walked(text, **settings):
    return measure_steps(lab.parts(text, cohort=6, **({"rounds": 5} | settings)), 0)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_10_the_restricted_norm_of_full_training_is_at_most_the_full_one_and_equal_for_the_whole_model(optimizer):
    settings = {"local_optimizer": optimizer, "local_lr": 0.05 if optimizer == "sgd" else 0.01}
    full, part = walked("fedavg", **settings), walked("fedpart(warmup=1, repeat=1)", **settings)
    assert part.trained == (frozenset(part.groups), *(frozenset({g}) for g in part.groups), frozenset(part.groups))
    for place, (partial, fair) in enumerate(restricted(full, part)):
        whole = full.lengths(place)
        assert len(partial) == len(fair) == len(whole) == 10, "17 samples in batches of 4, twice"
        assert (fair <= whole).all()
        assert torch.equal(fair, whole) == (len(part.trained[place]) == 3)
        assert torch.equal(partial, part.lengths(place)), "frozen groups do not move"
        assert (partial > 0).all()
    assert torch.equal(full.lengths(0), part.lengths(0)), "the warm-up is FedAvg"


def test_10_step_sizes_are_those_of_the_weights():
    """Plain SGD on the whole model: the steps add up to where the client ends."""
    parts = lab.parts("fedavg", cohort=6, rounds=1, local_epochs=None, local_steps=1)
    run = lab.engine(lab.parts("fedavg", cohort=6, rounds=1, local_epochs=None, local_steps=1))
    run.round()
    run.close()
    delta = next(r for r in run.executor.replies[0] if r.client == 2).delta
    assert float(measure_steps(parts, 2).lengths(0)[0]) == pytest.approx(float(delta.flat.double().norm()), rel=1e-6)


def test_10_spikes_compare_the_same_coordinates_on_both_sides_of_an_average():
    squares = (torch.tensor([[[1.0, 4.0], [1.0, 4.0]]]), torch.tensor([[[9.0, 0.0], [9.0, 0.0]]]))
    found = StepLengths(("a", "b"), (0, 1), squares, squares, (frozenset("ab"), frozenset("a")))
    assert found.spikes(window=1) == pytest.approx([3 / 5**0.5])
    assert found.spikes(window=2, groups=found.trained) == pytest.approx([3.0])


def test_10_a_client_that_never_trains_cannot_be_watched():
    with pytest.raises(ConfigError, match="client 5 took part in no round"):
        measure_steps(lab.parts("fedavg", cohort=1, rounds=1), 5)


# ---- 11. combinations


@pytest.mark.parametrize("other", ["fedprox(mu=0)", "fedprox(mu=0, distance=plain)", "moon(mu=0)"])
@pytest.mark.parametrize("order", ["sequential", "random"])
def test_11_without_weight_the_combinations_are_fedpart(other, order):
    plain = f"fedpart(warmup=1, repeat=1, order={order})"
    with_it, without = (lab.play(text, "batch", rounds=5) for text in (f"{other} + {plain}", plain))
    assert lab.bits(with_it.model) == lab.bits(without.model)
    assert [lab.bits(m) for m in with_it.models] == [lab.bits(m) for m in without.models]


@pytest.mark.parametrize("distance", ["squared", "plain"])
def test_11_the_proximal_term_of_frozen_groups_is_exactly_zero(distance):
    """In every step of a partial round: what fedprox adds is 0 outside the active group, and not 0 inside once that has
    moved.
    """
    text = f"fedprox(mu=0.7, distance={distance}) + fedpart(warmup=0, repeat=1)"
    run = lab.engine(lab.parts(text))
    run.round()
    run.round()
    active = frozenset(list(run.parts.setup.layout.groups.values())[1].names)
    work = run.executor.tasks[-1][0]
    session = ClientUpdate(run.worker, work)
    end = session.train(session.begin()).model.clone()
    run.close()
    assert session.steps > 1
    added = run.parts.method.pieces[0].gradient(lambda p, b: p * 0, session.at("fedprox"))(end, None)
    for name, term in added.items():
        assert bool(term.any()) == (name in active), name


def test_11_the_combinations_do_something():
    plain = lab.play("fedpart(warmup=1, repeat=1)", rounds=4).model
    for other in ("fedprox(mu=0.5)", "fedprox(mu=0.5, distance=plain)", "moon(mu=5)"):
        assert lab.gap(lab.play(f"{other} + fedpart(warmup=1, repeat=1)", rounds=4).model, plain) > 1e-4
