"""Settling: distances and linear CKA against formulas of their own, the pooled training, rounds, and what is
refused.
"""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import softplus

from fedstrata.backends.loop import Loop
from fedstrata.common.errors import ConfigError
from fedstrata.config.config import Config
from fedstrata.engine.assembly import assemble
from fedstrata.studies import find
from fedstrata.studies.retraining import SampleCounter, pooled, pooled_federation, retrain
from fedstrata.studies.settling import Settling, distances, settled_by
from fedstrata.studies.similarity import alignment, output_kernels, unit_gram
from helpers import lab
from helpers.networks import pictures
from helpers.trained_runs import ended, toy

PART = "fedpart(warmup=1, repeat=1)"


@pytest.fixture(scope="module")
def outcome():
    torch.set_num_threads(1)
    run = toy(PART, "batch", bn="local")
    return run, Settling(looks=6, samples=30).study({"run": run})


# ---- linear CKA


def cka(x, y):
    """Kornblith et al. 2019, eq. 3 and the linear HSIC, by cross products of centred columns."""
    x, y = (a.reshape(len(a), -1).astype(np.float64) for a in (x, y))
    x, y = x - x.mean(0), y - y.mean(0)
    return np.linalg.norm(y.T @ x) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y))


@pytest.mark.parametrize(("one", "two"), [((7, 3), (7, 5)), ((40, 2), (40, 2)), ((6, 2, 3, 3), (6, 40))])
def test_linear_cka_is_the_published_formula(one, two):
    rng = np.random.default_rng(0)
    x, y = (rng.normal(2.0, 1.0, shape).astype(np.float32) for shape in (one, two))
    found = alignment(unit_gram(torch.from_numpy(x)), unit_gram(torch.from_numpy(y)))
    assert found == pytest.approx(cka(x, y), rel=1e-12)
    assert 0 <= found <= 1


def test_linear_cka_does_not_see_rotations_shifts_and_one_scale_but_other_linear_maps():
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.normal(size=(30, 4)))
    turn = torch.from_numpy(np.linalg.qr(rng.normal(size=(4, 4)))[0])
    assert alignment(unit_gram(x), unit_gram(3 * x @ turn + 5)) == pytest.approx(1.0, abs=1e-12)
    assert alignment(unit_gram(x), unit_gram(x * torch.tensor([1.0, 1.0, 9.0, 9.0]))) < 0.95


def test_linear_cka_of_features_that_do_not_vary_is_not_defined():
    assert unit_gram(torch.ones(5, 3)) is None
    assert alignment(None, unit_gram(torch.eye(5))) is None


# ---- outputs of layer groups


def test_the_output_of_a_group_is_that_of_its_norm_in_evaluation_mode():
    parts = lab.parts("fedavg", "batch", cohort=6)
    kit, x = parts.make_worker(), parts.federation.test.take(torch.arange(30))
    found = output_kernels(kit, parts.setup.model, x, batch_statistics=False)
    _, module = lab.TOYS["batch"]()
    module.eval()
    with torch.no_grad():
        first = module.norm(module.first(x))
        second = module.second(softplus(first))
        wanted = {"first": first, "second": second, "head": module.head(softplus(second))}
    assert list(found) == list(wanted)
    for group, features in wanted.items():
        assert torch.allclose(found[group], unit_gram(features), atol=1e-6), group


@pytest.mark.parametrize("name", ["resnet8", "transformer"])
def test_every_group_of_the_published_networks_has_an_output(name):
    if name == "resnet8":
        federation = pictures()
    else:
        rng = np.random.default_rng(0)
        words, labels = rng.integers(2, 30, (12, 8)), np.arange(12) % 3
        federation = lab.federation().of(words, labels, client=labels, vocabulary=30, test=(words, labels))
    parts = assemble(Config(model=name, cohort=federation.clients, executor="loop"), federation)
    x = federation.test.take(torch.arange(3))
    assert all(
        k is not None
        for k in output_kernels(parts.make_worker(), parts.setup.model, x, batch_statistics=False).values()
    )


def test_watching_leaves_no_hooks_behind():
    kit = (parts := lab.parts()).make_worker()
    output_kernels(kit, parts.setup.model, parts.federation.test.take(torch.arange(4)), batch_statistics=False)
    assert all(not m._forward_hooks for root in (kit.bound.body, kit.bound.head) for m in root.modules())


# ---- distances and rounds


def test_distances_are_shares_of_the_way_by_group():
    layout = lab.parts().setup.layout
    rng = np.random.default_rng(2)
    flats = [torch.from_numpy(rng.normal(size=layout.spec.total).astype(np.float32)) for _ in range(3)]
    flats[0][slice(*layout.spec.runs(layout.groups["head"].names)[0])] = flats[2][
        slice(*layout.spec.runs(layout.groups["head"].names)[0])
    ]
    found = distances(flats, layout)
    assert found["head"] == [None, None, None], "it ends where it began"
    for group in ("first", "second"):
        at = np.concatenate([np.arange(a, b) for a, b in layout.spec.runs(layout.groups[group].names)])
        w0, w1, w2 = (f.numpy().astype(np.float64)[at] for f in flats)
        assert found[group] == pytest.approx([1.0, np.linalg.norm(w1 - w2) / np.linalg.norm(w0 - w2), 0.0], rel=1e-6)


def test_a_group_has_settled_with_the_first_round_from_which_on_it_stays_near():
    assert settled_by([0, 4, 9], [False, True, True]) == 4
    assert settled_by([0, 4, 9], [True, False, True]) is None, "at the last round every group is at its end"
    assert settled_by([0, 4, 9], [False, False, True]) is None
    assert settled_by([0, 4, 9], [True, True, True]) == 0
    assert settled_by([0, 4, 9], [None, None, None]) is None


def test_the_study_follows_the_run_to_its_own_end(outcome):
    run, found = outcome
    told = found.numbers["run"]
    assert told["rounds"] == [0, 1, 2, 3, 4, 5]
    late = [g for g, one in told["settled"].items() if one["distance"] is None]
    assert late
    assert f"run: not settled before the end by distance: {', '.join(late)}." in found.notes
    models = [engine.server.model.flat.clone() for engine in retrain(run.engine.parts, 5)]
    assert torch.equal(models[-1], run.engine.server.model.flat)
    assert told["distance"] == distances(models, run.engine.parts.setup.layout)
    for group in ("first", "second", "head"):
        assert told["similarity"][group][-1] == pytest.approx(1.0, abs=1e-12)
        limit = told["settled"][group]["distance"]
        assert limit != 5
        near = [d <= 0.1 for d in told["distance"][group]]
        assert (limit is None) == (not near[-2])
        assert limit is None or all(near[limit:])
    frozen = told["distance"]["second"]
    assert frozen[1] == frozen[2] != frozen[3], "round 2 trains the first group alone"


def test_features_are_those_of_the_model_that_is_evaluated(outcome):
    """Under bn=local that is the server's with the norms of one client; the server's own statistics never move."""
    run, found = outcome
    engines = retrain(run.engine.parts, 5)
    kept = []
    for engine in engines:
        x = engine.parts.federation.test.take(torch.arange(30))
        kept.append(output_kernels(engine.worker, engine.serving.model(), x, batch_statistics=False)["second"])
    assert found.numbers["run"]["similarity"]["second"] == pytest.approx(
        [alignment(k, kept[-1]) for k in kept], abs=1e-12
    )


def test_another_end_of_the_training_again_is_told():
    run = toy(rounds=2)
    run.engine.server.model.flat[0] += 1e-3
    assert (
        "retrained in one thread, the final model differs"
        in Settling(against="none", samples=5).study({"run": run}).notes[0]
    )


# ---- pooled


def test_the_pooled_run_is_one_client_with_all_samples_trained_plainly():
    """Against a loop of its own in PyTorch: the same batches, a fresh SGD with momentum each round."""
    settings = {"cohort": 6, "rounds": 2, "local_epochs": 1, "local_momentum": 0.9}
    parts = lab.parts("fedprox(mu=1)", "layer", **settings)
    engine = list(retrain(pooled(parts, [54, 54]), 2))[-1]
    _, module = lab.TOYS["layer"]()
    x, y, _ = lab.arrays()
    from fedstrata.common import random_streams  # the order of samples is the library's own  # noqa: PLC0415

    for t in range(2):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        order = torch.from_numpy(random_streams.stream(7, "order", "local", t, 0, 0).permutation(54))
        for part in torch.split(order, 4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x[part]), y[part]).backward()
            optimizer.step()
    wanted = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    assert torch.allclose(engine.server.model.flat, wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "settings", "wanted"),
    [
        ("fedavg", {"cohort": 6}, [(2, None)] * 3),
        (PART, {"cohort": 6}, [(2, None)] * 3),
        ("fedavg", {"cohort": 6, "local_steps": 5}, [(None, None)] * 3),
        ("fedavg", {"cohort": 2}, [(None, None)] * 3),
    ],
)
def test_the_pooled_run_reads_as_many_samples_a_round_as_the_participants_together(text, settings, wanted):
    parts = lab.parts(text, **settings)
    counted = SampleCounter(Loop(parts.make_worker))
    engines = list(retrain(parts, 3, counted))
    read = counted.read
    central = pooled(parts, read)
    lengths = central.method.pieces[0].lengths
    own = SampleCounter(Loop(central.make_worker))
    list(retrain(central, 3, own))
    if wanted[0][0]:
        assert lengths == tuple(wanted)
        assert own.read == read == [2 * 54] * 3
    else:
        assert all(epochs is None for epochs, _ in lengths)
        assert all(abs(a - b) <= 4 for a, b in zip(own.read, read, strict=True))
    assert len(engines) == 4


def test_the_union_leaves_out_tests_validation_and_held_out_clients():
    x, y, _ = lab.arrays()
    federation = lab.listed(x, y, lab.SIZES, testing="own(share=0.2)", validation=0.2, heldout=0.2)
    one = pooled_federation(federation)
    wanted = [federation.training(i).tolist() for i in range(6) if i not in federation.heldout]
    assert len(federation.heldout) == 1
    assert one.training(0).tolist() == [p for part in wanted for p in part]
    assert one.clients == 1


def test_the_pooled_run_keeps_the_network_and_start_of_the_method_and_is_free_of_the_run_s_cohort():
    run = toy("fedphoenix", rounds=2, quorum=6)
    central = pooled(run.engine.parts, [54, 54])
    engine = next(iter(retrain(central, 2)))
    assert torch.equal(engine.server.model.flat, run.engine.parts.setup.model.flat)
    list(retrain(central, 2))


def test_without_a_pooled_run_none_is_told():
    told = Settling(against="none", samples=5).study({"run": toy(rounds=2)})
    assert "pooled" not in told.numbers["run"]
    assert [p.title for p in told.panels] == [
        "Distance to the final weights: run",
        "Similarity of outputs to the final ones: run",
        "Rounds until settled: run",
    ]


def test_the_table_has_the_pooled_run_beside_the_federated_one(outcome):
    table = outcome[1].panels[-1]
    assert list(table.x) == ["distance", "similarity", "distance, pooled", "similarity, pooled"]
    settled = outcome[1].numbers["run"]["settled"]["first"]
    assert table.series["first"][:2] == [settled["distance"], settled["similarity"]]
    json.dumps(outcome[1].numbers, allow_nan=False)


# ---- what is refused


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("settling(samples=1)", "settling.samples is 1"),
        ("settling(samples=501)", "from 2 to 500"),
        ("settling(looks=1)", "the start and the end"),
        ("settling(within=1.0)", r"in \(0, 1\)"),
        ("settling(against=central)", "it is one of pooled, none"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        find(text)


@pytest.mark.parametrize(("clients", "fits"), [(40, True), (10_001, False)])
def test_clients_that_are_derived_when_asked_for_are_pooled_unless_they_are_very_many(clients, fits):
    x, y, _ = lab.arrays()
    federation = lab.federation().of(
        x.numpy(), y.numpy(), partition="overlap(size=5)", clients=clients, testing="own(share=0.2)"
    )
    assert federation.partition.lazy
    if fits:
        assert len(pooled_federation(federation).training(0)) == sum(
            len(federation.training(i)) for i in range(clients)
        )
    else:
        with pytest.raises(ConfigError, match="the lazy partition has 10,001 clients, too many to pool"):
            pooled_federation(federation)


def test_a_stopped_run_is_followed_to_where_it_stopped():
    run = ended(lab.parts("fedavg", cohort=6, rounds=5, **{"stop.bytes": 10_000}))
    rounds = len(run.result.rounds)
    assert rounds < 5
    told = Settling(against="none", samples=5).study({"run": run})
    assert told.numbers["run"]["rounds"][-1] == rounds
    assert not any("last bits" in note for note in told.notes)
