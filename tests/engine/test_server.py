"""One server update: who takes part, the plan, batch-norm policies by exact equality, weights, quorum."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from fedstrata.common.errors import ConfigError, MethodError
from fedstrata.core.piece import Piece, draw_without_replacement
from fedstrata.engine.server import fedavg_plan
from helpers import lab
from helpers.examples import finite, in_folder

POLICIES = ("share", "local", "server", "trained", "batch")


def one_round(bn="share", method="fedavg", sizes=lab.EQUAL, cohort=2, **settings):
    """An engine after one round of two equal clients with batch norm, so that the mean of two is exact."""
    run = lab.engine(
        lab.parts(method, (lab.federation(sizes), lab.small("batch")), bn=bn, cohort=cohort, rounds=1, **settings)
    )
    row = run.round()
    run.close()
    return run, row


# ---- batch-norm policies


@pytest.mark.parametrize("bn", ["share", "trained"])
def test_shared_statistics_are_the_mean_of_the_clients(bn):
    run, _ = one_round(bn)
    first, second = (r.statistics.flat for r in run.executor.replies[0])
    assert not torch.equal(first, second)
    assert torch.equal(run.server.model.statistics.flat, first * 0.5 + second * 0.5)


def test_shared_statistics_have_the_weights_of_the_clients():
    run, row = one_round(sizes=(4, 12, 8), cohort=3)
    total = sum(r.statistics.flat.double() * r.samples for r in run.executor.replies[0]) / 24
    assert row["replies"] == 3
    assert torch.allclose(run.server.model.statistics.flat.double(), total, rtol=1e-6)  # a float32 sum of three


def test_local_statistics_stay_with_each_client():
    shared, row = one_round("share")
    run, _ = one_round("local")
    trained = {r.client: r.statistics.flat for r in shared.executor.replies[0]}
    assert torch.equal(run.server.model.statistics.flat, run.parts.setup.model.statistics.flat), (
        "the server's never move"
    )
    assert all(len(r.statistics.flat) == 0 for r in run.executor.replies[0]), "and are not sent"
    for client in range(6):
        expected = trained.get(client, run.parts.setup.model.statistics.flat)
        assert torch.equal(lab.client_model(run, client).statistics.flat, expected)
    assert sorted(trained) == sorted(row["cohort"])


def test_under_local_statistics_the_server_test_uses_those_of_the_lowest_client_that_has_trained():
    run, row = one_round("local")
    served = run.serving.model()
    assert torch.equal(served.statistics.flat, lab.client_model(run, min(row["cohort"])).statistics.flat)
    assert torch.equal(served.flat, run.server.model.flat)


@pytest.mark.parametrize("bn", ["server", "batch"])
def test_untouched_statistics_are_the_initial_ones_everywhere(bn):
    run, _ = one_round(bn)
    initial = run.parts.setup.model.statistics.flat
    assert torch.equal(run.server.model.statistics.flat, initial)
    assert all(torch.equal(lab.client_model(run, i).statistics.flat, initial) for i in range(6))
    assert all(len(r.statistics.flat) == 0 and not r.client_state for r in run.executor.replies[0])


def test_only_statistics_of_trained_layers_are_averaged():
    @dataclass(frozen=True)
    class HeadOnly(Piece):
        def plan(self, plan, ctx):
            return replace(plan, train=ctx.layout.select("role:head"))

    run, _ = one_round("trained", HeadOnly())
    assert torch.equal(run.server.model.statistics.flat, run.parts.setup.model.statistics.flat)
    assert all(len(r.statistics.flat) == 0 for r in run.executor.replies[0])
    shared, _ = one_round("share", HeadOnly())
    assert not torch.equal(shared.server.model.statistics.flat, shared.parts.setup.model.statistics.flat)


def test_batch_statistics_hold_at_test_time():
    run, row = one_round("batch")
    module = lab.small("batch").train()
    torch.nn.utils.vector_to_parameters(run.server.model.flat, module.parameters())
    test = run.parts.federation.test
    with torch.no_grad():
        accuracy = (module(test.x).argmax(1) == test.y).double().mean().item()
    assert row["accuracy"] == pytest.approx(accuracy)
    assert one_round("server")[1]["metrics"] != row["metrics"]


def test_the_first_round_s_parameters_do_not_depend_on_the_policy():
    """Training looks at the batch under every policy; statistics are only carried."""
    flats = [one_round(bn)[0].server.model.flat for bn in POLICIES]
    assert all(torch.equal(flats[0], other) for other in flats)


@pytest.mark.parametrize("bn", POLICIES)
def test_every_policy_trains_with_partial_updates(bn):
    result = lab.play("fedrep", "batch", bn=bn)
    assert all(row["updated"] for row in result.rows)
    assert np.isfinite(result.model.flat.numpy()).all()


def test_a_policy_without_batch_norm_is_refused():
    with pytest.raises(ConfigError, match="no batch norm"):
        lab.parts(bn="local")


def test_counters_of_batches_are_neither_averaged_nor_sent():
    run, _ = one_round()
    assert all(t.is_floating_point() for t in (*run.server.model.values(), *run.server.model.statistics.values()))


# ---- plans


def planned(**changes):
    @dataclass(frozen=True)
    class Plans(Piece):
        def plan(self, plan, ctx):
            return replace(plan, **changes)

    return Plans()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": frozenset({"head.wait"})}, "train names .*head.wait.*layout.select"),
        ({"upload": frozenset()}, "averages .*, which clients do not upload"),
        ({"phases": ()}, "no phase"),
        ({"phases": ("local",)}, "no phase"),
    ],
)
def test_an_invalid_plan_is_refused(changes, message):
    with pytest.raises(MethodError, match=message):
        lab.play(planned(**changes))


def test_a_phase_that_trains_nothing_is_refused():
    with pytest.raises(MethodError, match="phase 'head' of local training moves no parameter"):
        lab.play("fedrep + fedbabu")
    logistic = lab.filled(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 3)))
    with pytest.raises(MethodError, match="a model that is all head"):
        lab.play("fedbabu", (lab.federation(), logistic))


def test_private_and_without_take_names_out_of_every_set():
    layout = lab.parts(toy="batch").setup.layout
    plan = fedavg_plan(layout, "share")
    head = layout.select("role:head")
    private, absent = plan.private(head), plan.without(head)
    assert private.client_local == head
    assert private.train == plan.train
    for field in ("download", "upload", "aggregate"):
        assert getattr(private, field) == getattr(absent, field) == layout.all - head
    assert absent.train == layout.parameters - head
    assert absent.client_local == frozenset()


def test_a_tensor_that_is_sent_down_but_not_averaged_stays_the_server_s():
    head = lab.parts().setup.layout.select("role:head")
    result = lab.play(planned(aggregate=lab.parts().setup.layout.all - head))
    assert torch.equal(result.model["head.weight"], lab.small().head.weight)
    assert not torch.equal(result.model["first.weight"], lab.small().first.weight)


# ---- sampling and weights


def test_a_cohort_has_no_repeats_and_is_uniform():
    rng = np.random.default_rng(0)
    draws = [draw_without_replacement(rng, 10, 3) for _ in range(4000)]
    assert all(len(set(d)) == 3 for d in draws)
    for index in range(3):  # each cohort index by itself, because budgets and mutations depend on it
        counts = Counter(d[index] for d in draws)
        assert max(abs(counts[i] - 400) for i in range(10)) < 5 * np.sqrt(4000 * 0.09), "five standard deviations"


def test_drawing_costs_the_cohort_not_the_population():
    assert len(set(draw_without_replacement(np.random.default_rng(0), 10**12, 10))) == 10


def test_cohorts_change_from_round_to_round_and_with_the_seed():
    a, b = lab.play(seed=1), lab.play(seed=2)
    cohorts = [tuple(r["cohort"]) for r in (*a.rows, *b.rows)]
    assert len(set(cohorts)) > 3


def test_heldout_clients_never_train():
    data = lab.federation()
    run = lab.engine(lab.parts(toy=(replace(data, heldout=(0, 3)), lab.small()), rounds=6))
    seen = {i for row in run.rounds() for i in row["cohort"]}
    run.close()
    assert seen == {1, 2, 4, 5}


@dataclass(frozen=True)
class Draws(Piece):
    """A cohort of our choice; by default a random, possibly empty one."""

    clients: tuple = ()

    def sample(self, eligible, ctx):
        return self.clients or [i for i in eligible if ctx.rng.random() < 0.1]


@pytest.mark.parametrize("client", [3, 6, -1])
def test_a_piece_that_samples_who_may_not_take_part_is_refused(client):
    toy = replace(lab.federation(), heldout=(3,)), lab.small()
    with pytest.raises(MethodError, match=r"draws sampled .* who may not take part"):
        lab.play(Draws((0, client)), toy)


@pytest.mark.parametrize("executor", ["loop", "threads", "processes", "batched"])
def test_a_cohort_of_random_size_may_be_empty(executor):
    result = lab.play(Draws(), executor=executor, rounds=6)
    assert {len(row["cohort"]) > 0 for row in result.rows} == {True, False}
    assert all(row["updated"] is bool(row["cohort"]) for row in result.rows)


def test_weights_for_several_models_need_a_piece_that_merges_them():
    @dataclass(frozen=True)
    class Soft(Piece):
        def weigh(self, contributions, ctx):
            return torch.full((len(contributions), 2), 0.5)

    with pytest.raises(MethodError, match="gives weights for 2 models, and no piece's `merge` makes one move"):
        lab.play(Soft())


def test_all_clients_take_part_where_the_cohort_is_all_of_them():
    assert sorted(lab.play(cohort=6).rows[0]["cohort"]) == list(range(6))


def test_uniform_weighting_is_the_plain_mean():
    run = lab.engine(lab.parts(weighting="uniform"))
    run.round()
    run.close()
    mean = sum(r.delta.flat.double() for r in run.executor.replies[0]) / 3
    moved = run.server.model.flat.double() - run.parts.setup.model.flat.double()
    assert torch.allclose(moved, mean, atol=1e-6)  # float32 rounding of a weight of size 1


def test_sample_weighting_is_the_mean_over_samples():
    run = lab.engine(lab.parts())
    run.round()
    run.close()
    replies = run.executor.replies[0]
    mean = sum(r.delta.flat.double() * r.samples for r in replies) / sum(r.samples for r in replies)
    assert torch.allclose(run.server.model.flat.double() - run.parts.setup.model.flat.double(), mean, atol=1e-6)


@pytest.mark.parametrize(("quorum", "updated"), [(2, True), (3, False), (0.5, True), (0.9, False)])
def test_a_round_below_its_quorum_leaves_the_model(quorum, updated):
    run = lab.engine(
        lab.parts(quorum=quorum), change=lambda replies: [*replies[1:], replace(replies[0], samples=10**6)]
    )
    row = run.round()
    run.close()
    assert row["updated"] is updated
    assert (lab.bits(run.server.model) == lab.bits(run.parts.setup.model)) is not updated
    assert run.server.round == 1, "the round is over all the same"


@pytest.mark.parametrize("bn", ["share", "local", "server", "trained", "batch"])
def test_t15_partial_training_runs_under_every_policy_and_the_summary_names_it(tmp_path, bn):
    result = in_folder(tmp_path, lab.TOYS["batch"](), method="fedrep", bn=bn)
    assert result.summary["bn"] == bn
    assert result.summary["rounds_without_update"] == 0
    assert finite(result.params)


def test_t12_shared_statistics_are_exactly_the_weighted_mean():
    """4, 4 and 8 samples: shares that are powers of two, so that the sum is exact in any order of its products."""
    made = lab.engine(lab.parts(toy=(lab.federation((4, 4, 8)), lab.small("batch")), cohort=3, rounds=1))
    made.round()
    made.close()
    replies = made.executor.replies[0]
    mean = torch.zeros_like(replies[0].statistics.flat)
    for reply in replies:
        mean += reply.statistics.flat * (reply.samples / 16)
    assert len({lab.bits(r.statistics) for r in replies}) == 3
    assert torch.equal(made.server.model.statistics.flat, mean)
