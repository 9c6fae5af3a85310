"""Loss barriers of averaging: closed forms, partial rounds, private layers, norms."""

import math

import numpy as np
import pytest
import torch

from fedstrata.client.update import ClientUpdate
from fedstrata.common.errors import ConfigError
from fedstrata.diagnostics.barrier import Barrier, average
from fedstrata.diagnostics.registry import build_measures, panels
from helpers import lab
from helpers.measured_runs import hand_made, layout, looked

# ---- a quadratic, by hand

PLACES = layout(a={"a.weight": (2,)}, b={"b.weight": (3,)})
A, B = slice(0, 2), slice(2, 5)


def quadratic(seed, clients=4):
    """Return (snapshot, ends [C, 5], H [C, 5, 5], sizes): client i ends in the minimum t_i of its quadratic loss.

    The loss is 1/2 (x - t_i)' H_i (x - t_i).
    """
    rng = np.random.default_rng(seed)
    ends, roots = rng.normal(size=(clients, 5)), rng.normal(size=(clients, 5, 5))
    bends, sizes = roots @ roots.transpose(0, 2, 1), rng.integers(1, 9, size=clients).tolist()
    start = rng.normal(size=5)

    def split(x):
        return {"a.weight": torch.from_numpy(x[A].copy()), "b.weight": torch.from_numpy(x[B].copy())}

    def loss(client, params, most):
        assert most == 17
        apart = params.flat.numpy() - ends[client]
        return float(apart @ bends[client] @ apart / 2)

    snapshot = hand_made(PLACES, split(start), [split(end - start) for end in ends], sizes=sizes, loss=loss)
    return snapshot, ends, bends, np.array(sizes)


@pytest.mark.parametrize("seed", range(3))
def test_at_minima_of_quadratics_the_barrier_is_half_the_distance_in_the_hessian_of_the_group(seed):
    snapshot, ends, bends, sizes = quadratic(seed)
    apart = (sizes[:, None] * ends).sum(0) / sizes.sum() - ends  # [C, 5]
    got = Barrier(most=17, reverse=True).measure(snapshot)
    for key, part in {"all": slice(0, 5), "a": A, "b": B}.items():
        expected = [d[part] @ h[part, part] @ d[part] / 2 for d, h in zip(apart, bends, strict=True)]
        assert got[key] == pytest.approx(np.mean(expected), rel=1e-9)
    # With a given back, what is left of the whole is b alone.
    assert got["local/a"] == pytest.approx(got["b"] - got["all"], rel=1e-9)
    assert got["local/b"] == pytest.approx(got["a"] - got["all"], rel=1e-9)
    assert list(got) == ["all", "a", "b", "local/a", "local/b"]


def test_losses_can_be_taken_of_the_first_clients_only_while_the_average_is_of_all():
    snapshot, ends, bends, sizes = quadratic(0)
    apart = (sizes[:, None] * ends).sum(0) / sizes.sum() - ends
    got = Barrier(most=17, clients=2).measure(snapshot)
    assert got["all"] == pytest.approx(
        np.mean([d @ h @ d / 2 for d, h in zip(apart[:2], bends[:2], strict=True)]), rel=1e-9
    )


def test_clients_that_lack_a_layer_are_out_of_its_average_and_of_its_barrier():
    ends = [2.0, 4.0, 100.0]
    deltas = [{"a.weight": torch.tensor([x, 0.0], dtype=torch.float64)} for x in ends[:2]] + [
        {"b.weight": torch.ones(3, dtype=torch.float64)}
    ]
    before = {"a.weight": torch.zeros(2, dtype=torch.float64), "b.weight": torch.zeros(3, dtype=torch.float64)}
    snapshot = hand_made(
        PLACES, before, deltas, sizes=[3, 1, 9], loss=lambda client, p, _: float((p["a.weight"][0] - ends[client]) ** 2)
    )
    assert average(snapshot)["a.weight"].tolist() == [2.5, 0.0]
    got = Barrier().measure(snapshot)
    assert got["a"] == pytest.approx((0.5**2 + 1.5**2) / 2)
    assert got["b"] == 0.0, "one sender is its own average"
    assert got["all"] == pytest.approx((0.5**2 + 1.5**2 + (97.5**2 - 100**2)) / 3), (
        "the third gets the average of a that others made"
    )


def test_equal_clients_have_barriers_of_exactly_zero():
    step = {"a.weight": torch.tensor([0.1, 0.7]), "b.weight": torch.tensor([0.3, 1e-8, 3.3])}
    before = {"a.weight": torch.tensor([1.1, 0.2]), "b.weight": torch.tensor([0.3, 5.0, 1.7])}
    snapshot = hand_made(
        PLACES, before, [step] * 3, sizes=[3, 7, 11], loss=lambda _, p, __: float(p.flat.double().square().sum())
    )
    assert set(Barrier(reverse=True).measure(snapshot).values()) == {0.0}


def test_a_loss_that_is_not_finite_has_no_barrier():
    snapshot, *_ = quadratic(0)
    broken = hand_made(
        PLACES, dict(snapshot.before), [dict(r.delta) for r in snapshot.replies], loss=lambda *_: math.nan
    )
    assert set(Barrier().measure(broken).values()) == {None}


# ---- a linear network in a run


class Linear(torch.nn.Module):
    """Two linear layers and nothing between them: the output is linear in each layer alone."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 4)
        self.head = torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.first(x))


def line():
    x, _, client = lab.arrays()
    y = x.sum(1) * (1 + client) / 3 + 0.5
    return lab.listed(x, y, lab.SIZES, testing="server", test=(x.numpy(), y.numpy())), lab.filled(Linear())


def numbers(p):
    """(A, a, h, c) in float64."""
    return tuple(p[n].double().numpy() for n in ("first.weight", "first.bias", "head.weight", "head.bias"))


def closed_form(snapshot, run):
    """Mean over clients of 2 m' d + d' S d, with S = mean z z' and m = mean r z, z what enters the layer and r the
    residuals.
    """
    replies, data = snapshot.replies, run.parts.federation
    weights = np.array([r.samples for r in replies]) / sum(r.samples for r in replies)
    ends = [numbers(snapshot.final_params(i)) for i in range(len(replies))]
    mean = [sum(w * end[k] for w, end in zip(weights, ends, strict=True)) for k in range(4)]
    found = {"all": [], "first": [], "head": []}
    for reply, (big, a, h, c) in zip(replies, ends, strict=True):
        rows = data.training(reply.client)
        x, y = data.train.take(rows).double().numpy(), data.train.y[rows].double().numpy()
        ones = np.ones((len(x), 1))
        x1, z1 = np.hstack([x, ones]), np.hstack([x @ big.T + a, ones])
        r = z1 @ np.append(h[0], c) - y
        d = np.append(mean[2][0] - h[0], mean[3] - c)
        found["head"].append(2 * d @ (z1.T @ r) / len(x) + d @ (z1.T @ z1) @ d / len(x))
        d = np.append(h[0] @ (mean[0] - big), h[0] @ (mean[1] - a))  # of the output, by inputs
        found["first"].append(2 * d @ (x1.T @ r) / len(x) + d @ (x1.T @ x1) @ d / len(x))
        whole = (x @ mean[0].T + mean[1]) @ mean[2][0] + mean[3] - y
        found["all"].append((whole**2).mean() - (r**2).mean())
    return {key: np.mean(values) for key, values in found.items()}


def test_in_a_linear_network_trained_by_fedavg_the_barriers_are_their_closed_forms():
    rounds, run = looked("barrier(most=1000)", toy=line(), local_lr=0.02)
    for snapshot, row in rounds:
        expected = closed_form(snapshot, run)
        assert expected["all"] > 1e-3
        assert row["barrier"] == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_in_partial_rounds_the_active_layer_alone_has_a_barrier_and_is_all_of_it():
    rounds, run = looked("barrier(most=1000)", "fedpart(warmup=1, repeat=1)", line(), rounds=3, local_lr=0.02)
    assert [sorted(row["barrier"]) for _, row in rounds] == [
        ["all", "first", "head"],
        ["all", "first"],
        ["all", "head"],
    ]
    for snapshot, row in rounds:
        expected = closed_form(snapshot, run)
        assert row["barrier"] == pytest.approx({key: expected[key] for key in row["barrier"]}, rel=1e-3, abs=1e-6)
    assert all(
        row["barrier"]["all"] == row["barrier"][key]
        for (_, row), key in zip(rounds[1:], ("first", "head"), strict=True)
    )


def test_with_resets_the_clients_model_holds_its_own_start_outside_of_what_is_averaged():
    rounds, _ = looked("barrier", "fedphoenix(theta=0.5) + fedpart(warmup=0, repeat=1)", "images", rounds=2)
    snapshot, row = rounds[1]
    assert set(row["barrier"]) == {"all", "head"}
    assert row["barrier"]["all"] == row["barrier"]["head"]
    ends = [snapshot.final_params(i)["conv.weight"] for i in range(len(snapshot.replies))]
    assert all(torch.equal(end, sent["conv.weight"]) for end, sent in zip(ends, snapshot.sent, strict=True))
    assert not torch.equal(ends[0], ends[1])


@pytest.mark.parametrize(
    "method",
    [
        "fedper",
        "fedrep",
        "fedbn",
        "fedpart + incremental_download",
        "fedphoenix(theta=0.5)",
        "fedphoenix(theta=0.5, side=client)",
    ],
)
def test_the_end_of_a_client_is_the_model_that_it_trained(method, monkeypatch):
    """Against what the client itself had in hand when it stopped."""
    toy = "images" if "phoenix" in method else "batch"
    ends, reply = [], ClientUpdate.reply

    def recorded(self, outcome):
        if not self.tools.probe:
            ends.append(lab.bits(outcome.model))
        return reply(self, outcome)

    monkeypatch.setattr(ClientUpdate, "reply", recorded)
    rounds, _ = looked("barrier", method, toy)
    models = [lab.bits(snapshot.final_params(i)) for snapshot, _ in rounds for i in range(len(snapshot.replies))]
    assert len(models) == len(ends) == 9
    for ours, theirs in zip(models, ends, strict=True):
        assert np.allclose(np.frombuffer(ours, np.float32), np.frombuffer(theirs, np.float32), atol=1e-6)


# ---- losses of clients


def test_the_loss_is_of_evenly_spaced_training_samples_in_evaluation_mode():
    rounds, run = looked("barrier", toy="dropout", rounds=1)
    ((snapshot, _),) = rounds
    data, net = run.parts.federation, lab.small()
    net.load_state_dict(dict(snapshot.after.items()))
    net.eval().requires_grad_(False)
    for client, most in ((0, 5), (3, 1000), (4, 1)):
        rows = data.training(client)
        chosen = rows[
            [round(k * (len(rows) - 1) / max(1, min(most, len(rows)) - 1)) for k in range(min(most, len(rows)))]
        ]
        expected = torch.nn.functional.cross_entropy(net(data.train.take(chosen)), data.train.y[chosen])
        assert snapshot.loss(client, snapshot.after, most) == pytest.approx(float(expected), rel=1e-6)
        assert snapshot.loss(client, snapshot.after, most) == snapshot.loss(client, snapshot.after, most)


@pytest.mark.parametrize("norms", ["running", "batch"])
def test_batch_norms_use_running_statistics_unless_asked_to_look_at_the_batch(norms):
    rounds, run = looked(f"barrier(norms={norms})", toy="batch", rounds=2)
    snapshot, row = rounds[-1]
    data, replies = run.parts.federation, snapshot.replies
    ends, mean = [snapshot.final_params(i) for i in range(3)], average(snapshot)
    rises = []
    for reply, own in zip(replies, ends, strict=True):
        rows = data.training(reply.client)
        tensors = {**dict(own.items()), **dict(own.statistics.items())}
        mixed = tensors | {n: t for n, t in mean.items() if n in snapshot.layout.group("first")}
        losses = []
        for values in (tensors, mixed):
            net = lab.small("batch")
            net.load_state_dict(values, strict=False)
            net.train(norms == "batch").requires_grad_(False)
            losses.append(float(torch.nn.functional.cross_entropy(net(data.train.take(rows)), data.train.y[rows])))
        rises.append(losses[1] - losses[0])
    assert "norm.running_mean" in mean
    assert row["barrier"]["first"] == pytest.approx(np.mean(rises), abs=1e-5)
    assert torch.equal(run.server.model.statistics.flat, snapshot.after.statistics.flat), (
        "running statistics were only read"
    )


def test_statistics_that_stay_with_the_client_are_its_own():
    rounds, _ = looked("barrier", toy="batch", bn="local", rounds=2)
    snapshot, _ = rounds[-1]
    assert not set(average(snapshot)) & set(snapshot.layout.statistics.names)
    assert not torch.equal(snapshot.final_params(0).statistics.flat, snapshot.final_params(1).statistics.flat)


def test_only_evaluated_rounds_pay_for_losses():
    found = {}
    for every in (1, 3):
        run = lab.engine(lab.parts(eval_every=every, measures="barrier"))
        loss, calls = run.evaluator.loss, []
        run.evaluator.loss = lambda *a, loss=loss, calls=calls: (calls.append(a), loss(*a))[1]
        lab.finish(run)
        found[every] = len(calls)
    assert found == {1: 3 * 3 * (3 + 2), 3: 3 * (3 + 2)}, (
        "three clients, and for each itself, the average and one model a layer"
    )


def test_the_report_has_a_curve_and_a_map_and_one_of_restored_layers():
    rounds, _ = looked("barrier(reverse=true)")
    rows = [{"round": snapshot.round, "measures": {"barrier": row["barrier"]}} for snapshot, row in rounds]
    assert [(p.title, p.kind) for p in panels({"fedavg": [rows]})] == [
        ("Loss barrier of averaging", "lines"),
        ("Loss barrier of averaging by layer: fedavg", "heat"),
        ("One layer restored by layer: fedavg", "heat"),
    ]


@pytest.mark.parametrize(
    ("text", "said"), [("most=0", "at least 1"), ("clients=0", "at least 1"), ("norms=own", "norms")]
)
def test_settings_that_cannot_be_meant_are_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        build_measures(f"barrier({text})")
