"""Conflict of clients' updates, by hand and in runs; and measures of updates where some clients lack a layer."""

import itertools
import math

import numpy as np
import pytest
import torch

from fedstrata.diagnostics import registry
from fedstrata.diagnostics.conflict import Conflict, conflict, products
from fedstrata.diagnostics.updates import Drift
from helpers import lab
from helpers.measured_runs import hand_made, layout, looked

PLACES = layout(a={"a.weight": (2,)}, b={"b.weight": (1,)})


def by_hand(vectors):
    """(share, mean cosine) over pairs, one pair at a time."""
    found = []
    for u, v in itertools.combinations(vectors, 2):
        lengths = math.sqrt(sum(x * x for x in u)) * math.sqrt(sum(x * x for x in v))
        if lengths:
            found.append(sum(x * y for x, y in zip(u, v, strict=True)) / lengths)
    return (sum(c < 0 for c in found) / len(found), sum(found) / len(found)) if found else (None, None)


def flat(snapshot, names, clients, *, model=False):
    """Clients' updates over some names as lists of floats: since the start, or from the server's model."""
    found = []
    for i in clients:
        one = snapshot.replies[i].delta
        parts = [
            one[n].double() + (snapshot.sent[i][n].double() - snapshot.before[n].double() if model else 0.0)
            for n in names
        ]
        found.append(torch.cat([p.reshape(-1) for p in parts]).tolist())
    return found


def test_three_updates_by_hand():
    d = [{"a.weight": torch.tensor([1.0, 0.0]), "b.weight": torch.tensor([1.0])}]
    d += [{"a.weight": torch.tensor([-1.0, 0.0]), "b.weight": torch.tensor([2.0])}]
    d += [{"a.weight": torch.tensor([0.0, 1.0]), "b.weight": torch.tensor([0.0])}]
    found = Conflict().measure(hand_made(PLACES, {"a.weight": torch.zeros(2), "b.weight": torch.zeros(1)}, d))
    assert found["a"] == found["model/a"] == 1 / 3
    assert found["cosine/a"] == pytest.approx(-1 / 3)
    assert (found["b"], found["cosine/b"]) == (0.0, 1.0), "the third client did not move there, so one pair is left"
    assert found["all"] == 0.0
    assert found["cosine/all"] == pytest.approx(1 / math.sqrt(10) / 3)


def test_updates_that_do_not_move_have_no_number_and_one_reply_has_no_series():
    still = {"a.weight": torch.zeros(2), "b.weight": torch.zeros(1)}
    assert set(Conflict().measure(hand_made(PLACES, still, [still, still])).values()) == {None}
    assert Conflict().measure(hand_made(PLACES, still, [still])) == {}


@pytest.mark.parametrize("seed", range(3))
def test_scaling_updates_changes_nothing_and_opposites_are_in_conflict(seed):
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    share, cosine = conflict(products([x[:, :3], x[:, 3:]]))
    assert (share, cosine) == pytest.approx(by_hand(x.tolist()), abs=1e-12)
    assert conflict(products([x * torch.tensor([1.0, 2.0, 4.0, 0.5, 8.0])[:, None]])) == pytest.approx(
        (share, cosine), abs=1e-12
    )
    assert conflict(products([torch.stack([x[0], -3 * x[0]])])) == pytest.approx((1.0, -1.0))
    wide = torch.randn(40, 5000, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert conflict(products([wide]))[1] == pytest.approx(0, abs=5 / math.sqrt(5000 * 780)), "independent directions"


def test_in_a_run_of_fedavg_both_views_are_the_same_and_as_by_hand():
    rounds, _ = looked("conflict")
    for snapshot, numbers in rounds:
        got = numbers["conflict"]
        parts = {"all": snapshot.layout.spec.names} | {
            name: group.names for name, group in snapshot.layout.groups.items()
        }
        for key, group in parts.items():
            share, cosine = by_hand(flat(snapshot, group, range(3)))
            assert got[key] == got[f"model/{key}"] == share
            assert got[f"cosine/{key}"] == got[f"model cosine/{key}"] == pytest.approx(cosine, abs=1e-6)


@pytest.mark.parametrize("method", ["fedphoenix(theta=0.5)", "fedphoenix(theta=0.5, share=1/3)", "fedcross"])
def test_models_of_ones_own_part_the_two_views_and_each_is_as_by_hand(method):
    rounds, _ = looked("conflict", method, "images")
    snapshot, numbers = rounds[-1]
    assert any(sent is not snapshot.before for sent in snapshot.sent)
    got, names = numbers["conflict"], snapshot.layout.groups["conv"].names
    assert (got["conv"], got["cosine/conv"]) == pytest.approx(by_hand(flat(snapshot, names, range(3))), abs=1e-6)
    assert (got["model/conv"], got["model cosine/conv"]) == pytest.approx(
        by_hand(flat(snapshot, names, range(3), model=True)), abs=1e-6
    )
    assert abs(got["cosine/conv"] - got["model cosine/conv"]) > 1e-4


def test_what_was_sent_plus_the_update_is_where_the_client_ended():
    """The server's mean of FedPhoenix is the mean of the ends, so the ends must be right."""
    rounds, _ = looked("conflict", "fedphoenix(theta=0.5)", "images", rounds=1)
    ((snapshot, _),) = rounds
    n = torch.tensor([float(r.samples) for r in snapshot.replies], dtype=torch.float64)
    mean = sum(w * snapshot.final_params(i).flat.double() for i, w in enumerate(n / n.sum()))
    assert torch.allclose(mean, snapshot.after.flat.double(), atol=1e-6)
    assert any(not torch.equal(sent.flat, snapshot.before.flat) for sent in snapshot.sent)


def test_a_start_that_only_the_client_knows_is_in_both_views():
    rounds, _ = looked("conflict", "fedphoenix(theta=0.5, side=client)", "images", rounds=1)
    ((_, numbers),) = rounds
    got = numbers["conflict"]
    assert got["cosine/conv"] == got["model cosine/conv"]


def test_private_layers_have_no_series():
    rounds, _ = looked("conflict + drift", "fedper", rounds=1)
    ((_, numbers),) = rounds
    assert "head" not in numbers["conflict"]
    assert set(numbers["drift"]) == {"all", "first", "second"}


# ---- where some clients lack a layer

BUDGETS = "fedpart(warmup=1, repeat=1) + budgets(time=[1, 0.8])"


def rms(vectors):
    """The root mean square distance from the mean, over the mean's length."""
    x = np.array(vectors)
    return math.sqrt(((x - x.mean(0)) ** 2).sum(1).mean()) / np.linalg.norm(x.mean(0))


@pytest.mark.parametrize(
    "method", [BUDGETS, "budgets(time=[1, 0.8, 1])", "fedphoenix(theta=0.5) + fedpart(warmup=1, repeat=1)"]
)
def test_drift_and_conflict_of_a_layer_are_over_those_who_sent_it(method):
    rounds, _ = looked("drift + conflict", method, rounds=4)
    lacking = 0
    for snapshot, numbers in rounds:
        sent = [set(r.delta) for r in snapshot.replies]
        for name, group in snapshot.layout.groups.items():
            who = [i for i, s in enumerate(sent) if set(group.names) <= s]
            lacking += len(who) < len(sent)
            assert (name in numbers["drift"]) == (name in numbers["conflict"]) == (len(who) > 1)
            if len(who) > 1:
                updates = flat(snapshot, group.names, who)
                assert numbers["drift"][name] == pytest.approx(rms(updates), rel=1e-4)
                assert (numbers["conflict"][name], numbers["conflict"][f"cosine/{name}"]) == pytest.approx(
                    by_hand(updates), abs=1e-6
                )
        common = [n for n in snapshot.layout.spec.names if all(n in s for s in sent)]
        assert ("all" in numbers["drift"]) == bool(common)
        if common:
            assert numbers["drift"]["all"] == pytest.approx(rms(flat(snapshot, common, range(len(sent)))), rel=1e-4)
    assert lacking, "some client lacked some layer, or nothing was tried here"


@pytest.mark.parametrize("method", [BUDGETS, "fedphoenix(theta=0.5)", "fedpart(warmup=0, repeat=1)"])
def test_step_size_is_of_what_moved_on_the_server(method):
    rounds, _ = looked("step_size", method, "images" if "phoenix" in method else "layer", rounds=3)
    for snapshot, numbers in rounds:
        for name, group in snapshot.layout.groups.items():
            moved = torch.cat([(snapshot.after[n] - snapshot.before[n]).double().reshape(-1) for n in group.names])
            assert numbers["step_size"][name] == pytest.approx(float(moved.square().mean().sqrt()), rel=1e-6, abs=1e-12)
            assert (numbers["step_size"][name] == 0) == (
                not any(n in r.delta for n in group.names for r in snapshot.replies)
            )


def test_drift_of_a_layer_that_half_a_cohort_sent_by_hand():
    d = [
        {"a.weight": torch.tensor([1.0, 1.0])},
        {"a.weight": torch.tensor([3.0, 1.0])},
        {"b.weight": torch.tensor([5.0])},
    ]
    found = Drift().measure(hand_made(PLACES, {"a.weight": torch.zeros(2), "b.weight": torch.zeros(1)}, d))
    assert found == {"a": pytest.approx(1 / math.sqrt(5))}, "one reply has no spread, and nothing was sent by all"


# ---- around


def test_the_measures_change_no_bit_and_are_the_same_twice():
    text = "drift + conflict + feature_diversity + barrier(reverse=true)"
    one, two = (looked(text, "fedphoenix(theta=0.5)", "images") for _ in range(2))
    plain = lab.engine(lab.parts("fedphoenix(theta=0.5)", "images", eval_every=1))
    lab.finish(plain)
    assert torch.equal(plain.server.model.flat, one[1].server.model.flat)
    assert [numbers for _, numbers in one[0]] == [numbers for _, numbers in two[0]]


def test_each_quantity_has_its_own_curve_and_maps():
    rows = [
        {
            "round": r,
            "measures": {
                "conflict": {"all": 0.5, "a": 0.1, "b": 0.2, "cosine/all": -0.1, "cosine/a": 0.3, "cosine/b": 0.4}
            },
        }
        for r in (0, 1)
    ]
    panels = registry.panels({"fedavg": [rows]})
    assert [(p.title, p.kind) for p in panels] == [
        ("Pairs of clients in conflict", "lines"),
        ("Pairs of clients in conflict by layer: fedavg", "heat"),
        ("Mean cosine of clients' updates", "lines"),
        ("Mean cosine of clients' updates by layer: fedavg", "heat"),
    ]
    assert [list(p.series) for p in panels] == [["fedavg"], ["a", "b"], ["fedavg"], ["a", "b"]]
    assert panels[2].series["fedavg"] == [-0.1, -0.1]
    assert panels[3].series == {"a": [0.3, 0.3], "b": [0.4, 0.4]}
    assert (panels[0].y_name, panels[2].y_name) == ("share of pairs", "cosine")
