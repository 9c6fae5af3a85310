"""Every method against its rule written out by hand: three rounds, three of six clients of unequal sizes, in
float64.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from fedstrata.core.params import Params
from fedstrata.core.piece import Piece
from fedstrata.methods import method
from fedstrata.methods.fedcross import FedCross
from helpers import lab, rules
from helpers.rules import against, distance


def states_agree(found, world, expected, piece, name_server, name_client):
    """Compare states of server and clients with the written-out ones; clients that never took part have none."""
    assert distance(world, found.states[piece][name_server], expected["server"]) <= rules.ROUNDING
    for row, control in zip(found.clients, expected["clients"], strict=True):
        if row is None:
            assert not control.any()
        else:
            flat = row[f"{piece}/{name_client}"]
            assert distance(world, Params(flat, found.model.spec), control) <= rules.ROUNDING


def test_fedavg_equals_the_written_out_rule():
    against("fedavg", rules.fedavg)


def test_fedavg_with_momentum_equals_the_written_out_rule():
    against("fedavg", rules.fedavg, local_momentum=0.9, local_lr=0.02)


def test_fedprox_equals_the_written_out_rule():
    against("fedprox(mu=0.5)", lambda w: rules.fedprox(w, 0.5))


def test_fedprox_with_plain_distances_equals_the_written_out_rule():
    against("fedprox(mu=0.05, distance=plain)", lambda w: rules.fedprox_plain(w, 0.05))


def test_fedpart_equals_the_written_out_rule():
    """One full round, then each group once; the order reversed; two rounds a group."""
    turns = [None, 0, 1, 2, None]
    against("fedpart(warmup=1, repeat=1)", lambda w: rules.fedpart(w, turns.__getitem__), rounds=5)
    against(
        "fedpart(warmup=1, repeat=1, order=reverse)",
        lambda w: rules.fedpart(w, [None, 2, 1, 0, None].__getitem__),
        rounds=5,
    )
    against("fedpart(warmup=0, repeat=2)", lambda w: rules.fedpart(w, [0, 0, 1, 1, 2].__getitem__), rounds=5)


def test_fedpart_with_a_proximal_term_equals_the_written_out_rule():
    against(
        "fedprox(mu=0.5) + fedpart(warmup=1, repeat=1)",
        lambda w: rules.fedpart(w, [None, 0, 1, 2].__getitem__, prox=0.5),
        rounds=4,
    )


def test_budgets_equal_the_written_out_rule():
    """Odd clients may spend 0.7 of a whole step's FLOPs. A step of group g takes, forward F = 206, (F + flops from g
    on) / (3 F - 96) of it:
    0.79, 0.61 and 0.45. So they train the second layer and the head."""

    def able(client):
        return [1, 2] if client % 2 else None

    against(
        "fedpart(warmup=1, repeat=1) + budgets(time=[1, 0.7])",
        lambda w: rules.fedpart(w, [None, 0, 1, 2].__getitem__, able),
        rounds=4,
    )
    against("budgets(time=[1, 0.7])", lambda w: rules.fedpart(w, lambda _: None, able), rounds=4)


def test_fedphoenix_equals_the_written_out_rule():
    """Rows of linear layers for two of three rounds."""
    names = ("first.weight", "second.weight", "head.weight")
    against("fedphoenix(theta=0.5, stop=2, layers=both)", lambda w: rules.fedphoenix(w, 0.5, 2, (), names))


class TwoConvs(nn.Module):
    """What ``rules.Pictures`` writes out."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.head = (
            nn.Conv2d(1, 6, 3, padding=1),
            nn.Conv2d(6, 5, 3, padding=1),
            nn.Linear(45, lab.CLASSES),
        )

    def forward(self, x):
        h = torch.nn.functional.avg_pool2d(torch.relu(self.conv1(x)), 2)
        return self.head(torch.relu(self.conv2(h)).flatten(1))


def pictures():
    return lab.federation(shape=(1, 6, 6)), lab.filled(TwoConvs())


def test_fedphoenix_on_convolutions_equals_the_written_out_stair():
    """Both layers in rounds 0 and 1, the second alone in round 2 and none in round 3."""
    convs = ("conv1.weight", "conv2.weight")
    against(
        "fedphoenix(theta=0.5, stop=3)",
        lambda w: rules.fedphoenix(w, 0.5, 3, convs),
        world=rules.Pictures,
        toy=pictures(),
        rounds=4,
    )


def test_fedphoenix_with_a_proximal_term_pulls_towards_what_was_sent():
    names = ("first.weight", "second.weight", "head.weight")

    def pulled(world, start):
        return lambda y, b: world.grad(y, b) + 0.5 * (y - start)

    against(
        "fedphoenix(theta=0.5, layers=fc) + fedprox(mu=0.5)",
        lambda w: rules.fedphoenix(w, 0.5, 1000, (), names, pulled),
    )


@pytest.mark.parametrize("cohort", [2, 3, 4])
def test_fedmut_equals_the_written_out_rule(cohort):
    """Even and odd cohorts; the bias fades over two rounds."""
    against("fedmut(alpha=0.5, bias=0.3, fade=2)", lambda w: rules.fedmut(w, 0.5, 0.3, 2), cohort=cohort, rounds=4)


@pytest.mark.parametrize("partner", ["order", "unlike"])
def test_fedcross_equals_the_written_out_rule(partner):
    found, world, models = against(
        f"fedcross(alpha=0.8, partner={partner})",
        lambda w: rules.fedcross(w, 0.8, unlike=partner == "unlike"),
        cohort=4,
        rounds=4,
    )
    assert all(
        distance(world, found.states["fedcross"][f"model/{j}"], w) <= rules.ROUNDING for j, w in enumerate(models)
    )


def test_fedcross_models_move_between_clients_and_each_meets_all_others():
    """All six clients in each round: alpha=1 never crosses, so where a model has been shows in what it was sent as."""
    run = lab.engine(lab.parts("fedcross(alpha=1)", cohort=6))
    for _ in range(3):
        run.round()
    run.close()
    works, replies = run.executor.tasks, run.executor.replies
    for t in (0, 1):
        ends = {r.client: w.sent.flat + r.delta.flat for w, r in zip(works[t], replies[t], strict=True)}
        came_from = {
            w.client: next(i for i, end in ends.items() if torch.equal(end, w.sent.flat)) for w in works[t + 1]
        }
        assert sorted(came_from.values()) == sorted(came_from)
        assert any(before != now for now, before in came_from.items())
    models = {j: Params(torch.tensor([float(j)]), Params.of({"w": torch.zeros(1)}).spec) for j in range(5)}
    assert all({FedCross()._partner(j, models, t) for t in range(4)} == set(range(5)) - {j} for j in range(5))


@pytest.mark.parametrize("shares", ["sample", "mean"])
def test_fedgen_equals_the_written_out_rule(shares):
    """Three rounds: the generator is taught in all of them, and teaches in rounds 1 and 2."""
    settings = {"latent": 4, "hidden": 6, "batch": 7, "steps": 4, "lr": 0.01}
    text = ", ".join(f"{n}={v}" for n, v in settings.items())
    found, _, made = against(
        f"fedgen(alpha=0.7, beta=0.9, {text}, decay=0.01, diversity=0.5, shares={shares})",
        lambda w: rules.fedgen(w, 0.7, 0.9, *settings.values(), decay=0.01, diversity=0.5, product=shares == "mean"),
    )
    own = found.states["fedgen"]["generator"]
    names = {
        "first.weight": made.first,
        "last.weight": made.last,
        "last.bias": made.bias,
        "norm.mean": made.mean,
        "norm.var": made.var,
    }
    assert all((own[n].double() - t).abs().max() <= 1e-5 for n, t in names.items())


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("tree", ["rows", "condensed"])
def test_clusteredsampling_equals_the_written_out_rule(tree, weighting):
    found, world, expected = against(
        f"clusteredsampling(tree={tree})",
        lambda w: rules.clusteredsampling(w, uniform=weighting == "uniform"),
        weighting=weighting,
        rounds=4,
        seed=3,
    )
    slot, scale = found.states["clusteredsampling"], world.w0.abs().max()
    apart = [(slot[f"update/{i}"].double() - u).abs().max() / scale for i, u in enumerate(expected["updates"])]
    assert max(apart) <= rules.ROUNDING
    assert (slot["distances"] - expected["distances"]).abs().max() <= rules.ROUNDING * expected["distances"].max()
    assert torch.equal(slot["distances"], slot["distances"].T)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_scaffold_equals_the_written_out_rule(momentum):
    found, world, state = against("scaffold", rules.scaffold, local_momentum=momentum, local_lr=0.05)
    states_agree(found, world, state, "scaffold", "control", "control")


def test_scaffold_with_a_server_step_equals_the_written_out_rule():
    against("scaffold(lr=0.5)", lambda w: rules.scaffold(w, 0.5))


def test_fedavgm_equals_the_written_out_rule():
    found, world, memory = against("fedavgm(beta=0.8, lr=0.7)", lambda w: rules.fedavgm(w, 0.8, 0.7))
    assert distance(world, found.states["fedavgm"]["velocity"], memory["v"]) <= rules.ROUNDING


def adaptive_agrees(name):
    found, world, memory = against(f"fed{name}(lr=0.05)", lambda w: rules.adaptive(w, name, 0.05))
    assert distance(world, found.states[f"fed{name}"]["second"], memory["v"]) <= rules.ROUNDING
    assert distance(world, found.states[f"fed{name}"]["mean"], memory["m"]) <= rules.ROUNDING


def test_fedadagrad_equals_the_written_out_rule():
    adaptive_agrees("adagrad")


def test_fedyogi_equals_the_written_out_rule():
    adaptive_agrees("yogi")


def test_fedadam_equals_the_written_out_rule():
    adaptive_agrees("adam")


def test_fednova_equals_the_written_out_rule():
    against("fednova", rules.fednova)


def test_fednova_with_momentum_equals_the_written_out_rule():
    against("fednova", rules.fednova, local_momentum=0.9, local_lr=0.02)


def test_fednova_with_a_proximal_term_equals_the_written_out_rule():
    against("fednova(mu=0.3) + fedprox(mu=0.3)", lambda w: rules.fednova(w, 0.3))


def test_feddyn_equals_the_written_out_rule():
    found, world, state = against("feddyn(alpha=0.1)", lambda w: rules.feddyn(w, 0.1))
    states_agree(found, world, state, "feddyn", "drift", "dual")


def test_moon_equals_the_written_out_rule():
    against("moon(mu=2, tau=0.5)", lambda w: rules.moon(w, 2.0, 0.5))


def test_ditto_equals_the_written_out_rule():
    against("ditto(mu=0.5)", lambda w: rules.ditto(w, 0.5))


def test_perfedavg_equals_the_written_out_rule():
    against("perfedavg", lambda w: rules.perfedavg(w, w.lr))
    against("perfedavg(alpha=0.03)", lambda w: rules.perfedavg(w, 0.03))


def test_perfedavg_without_hessians_equals_the_written_out_rule():
    """A difference of 0.05, where float32 leaves the quotient 1e-6 exact.

    The quotient's own error is the same on both sides.
    """
    against("perfedavg(variant=hessian_free, delta=0.05)", lambda w: rules.perfedavg(w, w.lr, 0.05), tolerance=3e-5)


def test_pfedme_equals_the_written_out_rule():
    against("pfedme(lam=5, inner=3, lr=0.05, beta=0.5)", lambda w: rules.pfedme(w, 5, 3, 0.05, 0.001, 0.5))


def test_fedper_equals_the_written_out_rule():
    against("fedper", rules.fedper)


def test_lgfedavg_equals_the_written_out_rule():
    against("lgfedavg", rules.lgfedavg)


def test_fedrep_equals_the_written_out_rule():
    against("fedrep(head_epochs=2)", lambda w: rules.fedrep(w, 2))


@pytest.mark.parametrize("tune", ["all", "head"])
def test_fedbabu_equals_the_written_out_rule(tune):
    against(f"fedbabu(epochs=2, tune={tune})", lambda w: rules.fedbabu(w, 2, tune == "head"))


def test_fedbn_equals_the_written_out_rule():
    against("fedbn", rules.fedbn)


def test_local_equals_the_written_out_rule():
    against("local", rules.local)


def test_finetune_equals_the_written_out_rule():
    against("finetune(steps=3, lr=0.02)", lambda w: rules.finetune(w, 3, 0.02))


# ---- identities


@pytest.mark.parametrize("cohort", [3, 6])
@pytest.mark.parametrize("lr", [0.1, 0.01])
def test_scaffold_mean_of_client_controls_is_the_server_control(cohort, lr):
    """Unequal data, K > 1 steps; to float32 rounding of six controls whose entries are a gradient's size."""
    found = lab.play("scaffold", cohort=cohort, local_lr=lr)
    controls = [row["scaffold/control"].double() for row in found.clients if row is not None]
    server = found.states["scaffold"]["control"].flat.double()
    assert (sum(controls) / 6 - server).abs().max() <= 1e-6 * max(c.abs().max() for c in controls)


@pytest.mark.parametrize("cohort", [3, 6])
def test_feddyn_mean_of_client_duals_is_the_server_drift(cohort):
    found = lab.play("feddyn(alpha=0.1)", cohort=cohort)
    duals = [row["feddyn/dual"].double() for row in found.clients if row is not None]
    assert (sum(duals) / 6 - found.states["feddyn"]["drift"].flat.double()).abs().max() <= 1e-6 * max(
        d.abs().max() for d in duals
    )


def test_fedbabu_and_fedrep_freeze_what_they_say():
    seen = []

    @dataclass(frozen=True)
    class Spy(Piece):
        def gradient(self, gradient, ctx):
            def look(p, b):
                seen.append((ctx.phase.name, ctx.round, {n: t.detach().clone() for n, t in p.views.items()}))
                return gradient(p, b)

            return look

    lab.play(method("fedrep(head_epochs=2)") + Spy(), cohort=1, rounds=1)
    seen = seen[:-2]  # the ledger's probe runs one batch of each phase after the round
    phases = [name for name, _, _ in seen]
    assert phases == sorted(phases), "all of the head phase, then all of the body phase"
    assert set(phases) == {"head", "local"}
    for phase, frozen in (("head", ("first.weight", "second.bias")), ("local", ("head.weight", "head.bias"))):
        values = [p for name, _, p in seen if name == phase]
        assert all(torch.equal(values[0][n], values[-1][n]) for n in frozen)
    moved = [p for name, _, p in seen if name == "local"]
    assert not torch.equal(moved[0]["first.weight"], moved[-1]["first.weight"])

    babu = lab.play("fedbabu(epochs=0)")
    assert torch.equal(babu.model["head.weight"], lab.small().head.weight)
    assert not torch.equal(babu.model["first.weight"], lab.small().first.weight)
