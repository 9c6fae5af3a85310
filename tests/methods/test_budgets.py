"""Partial networks: batch-norm policies, budgets of clients, incremental downloads, other pieces, settings, configs."""

import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from fedstrata.cli import main
from fedstrata.client.update import ClientUpdate
from fedstrata.common.errors import ConfigError, MethodError
from fedstrata.config.config import Config
from fedstrata.core.plan import Load
from fedstrata.engine.assembly import assemble
from fedstrata.engine.server import Server, plan_round
from fedstrata.methods import method
from fedstrata.methods.budgets import Budgets
from fedstrata.wire import messages
from helpers import lab
from helpers.networks import residual
from helpers.tiers import tiered

# ---- norm statistics (section 3.5)


@pytest.mark.parametrize("bn", ["local", "share", "server", "trained", "batch"])
def test_batch_norm_policies_decide_whose_statistics_move(bn):
    """A partial round of the head, and one of the layer with the norm: all running statistics move on clients, and the
    policy says where they go.
    """
    run = lab.engine(lab.parts("fedpart(warmup=0, repeat=1)", "batch", bn=bn))
    for turn, trained in enumerate(("first", "second", "head")):
        before = run.server.model.statistics.clone()
        run.round()
        moved = lab.bits(run.server.model.statistics) != lab.bits(before)
        assert moved == (bn == "share" or (bn == "trained" and trained == "first"))
        sent = {n for r in run.executor.replies[turn] for n in r.statistics}
        assert bool(sent) == moved
        kept = {n for r in run.executor.replies[turn] for n in r.client_state.tensors}
        assert kept == ({"norm.running_mean", "norm.running_var"} if bn == "local" else set())
    run.close()


def test_local_statistics_are_those_of_one_named_client_when_the_server_tests():
    run = residual("fedpart(warmup=0, repeat=1)")
    run.round()
    served, stored = run.serving.model(), run.stored(0)
    run.close()
    assert run.serving.norm_source_client == 0
    assert all(torch.equal(t, stored.tensors[n]) for n, t in served.statistics.items())


def test_trained_statistics_with_budgets_are_averaged_over_those_who_trained_the_layer():
    """The head alone fits client budgets of 0.5.

    So its statistics are averaged by no client, and those who train the norm's layer average theirs.
    """
    run = lab.engine(lab.parts("fedpart(warmup=0, repeat=1) + budgets(time=[0.5, 1])", "batch", bn="trained", cohort=6))
    run.round()
    replies = {r.client: r for r in run.executor.replies[0]}
    run.close()
    assert {i for i, r in replies.items() if len(r.statistics)} == {1, 3, 5}
    shares = sum(replies[i].samples for i in (1, 3, 5))
    for name in ("norm.running_mean", "norm.running_var"):
        mean = sum(replies[i].samples / shares * replies[i].statistics[name] for i in (1, 3, 5))
        assert torch.allclose(run.server.model.statistics[name], mean, rtol=1e-6, atol=1e-7)


# ---- partial participation, budgets, incremental downloads


def test_budgets_are_held_in_every_round_by_measured_costs():
    text = "fedpart(warmup=1, repeat=1) + budgets(memory=[1, 0.7], time=[1, 1, 0.5])"
    run = lab.engine(lab.parts(text, cohort=6, rounds=8))
    budgets, setup = run.parts.method.pieces[1], run.parts.setup
    trained = {}
    for _ in range(8):
        run.round()
        for work in run.executor.tasks[-1]:
            assert budgets.affords(work.client, work.plan.train, setup)
            trained.setdefault(work.client, set()).add(frozenset(work.plan.train))
    run.close()
    everything = setup.layout.parameters
    assert everything in trained[0], "no budget"
    assert all(everything not in trained[i] for i in (1, 2, 3, 5))
    assert len(trained[1]) == 2, "second layer and head fit 0.7 of the memory, and take turns"
    assert len(trained[2]) == 1, "the head alone fits half of the FLOPs"


def test_a_client_that_can_afford_nothing_is_refused_with_the_arithmetic():
    with pytest.raises(
        MethodError,
        match=(
            r"client 1 can train no layer group: the cheapest that is shared takes 54% of the whole model's memory and"
            r" 45% of its"
        ),
    ):
        lab.parts("fedpart + budgets(time=[1, 0.1])")


@pytest.mark.parametrize("toy", ["layer", "batch"])
@pytest.mark.parametrize("cohort", [2, 6])
def test_returning_clients_are_sent_what_moved_since_and_train_the_same_model(toy, cohort):
    settings = {"cohort": cohort, "rounds": 9}
    plain, run = (
        lab.play("fedpart(warmup=1, repeat=1)", toy, **settings),
        lab.engine(lab.parts("fedpart(warmup=1, repeat=1) + incremental_download", toy, **settings)),
    )
    rows, groups = [], list(run.parts.setup.layout.groups.values())
    last: dict[int, int] = {}
    moved = {n: -1 for g in groups for n in g.names}
    while not run.over:
        t = run.server.round
        rows.append(run.round())
        for work in run.executor.tasks[-1]:
            since = last.get(work.client)
            wanted = {n for n, when in moved.items() if since is None or when >= since}
            assert {n for n in work.plan.download if n in moved} == wanted
            last[work.client] = t
        moved |= dict.fromkeys((n for n in run.plan.aggregate if n in moved), t)
    run.close()
    assert lab.bits(run.server.model) == lab.bits(plain.model)
    assert sum(r["bytes_down"] for r in rows) < sum(r["bytes_down"] for r in plain.rows)
    assert [r["bytes_up"] for r in rows] == [r["bytes_up"] for r in plain.rows]


def test_downlink_mirrors_uplink_where_every_client_is_in_every_round():
    run = residual("fedpart(warmup=1, repeat=1) + incremental_download", rounds=12)
    rows = [run.round() for _ in range(12)]
    run.close()
    assert rows[0]["bytes_down"] == rows[0]["bytes_up"]
    assert [r["bytes_down"] for r in rows[1:]] == [r["bytes_up"] for r in rows[:-1]], "what moved in the round before"


@pytest.mark.parametrize("other", ["fedphoenix", "scaffold", "fedmut"])
def test_incremental_downloads_are_refused_beside_models_made_for_one_client(other):
    with pytest.raises(MethodError, match="incremental_download has clients keep what they were sent"):
        method(f"{other} + incremental_download")


@pytest.mark.parametrize(
    "chain",
    [
        "budgets(time=[1, 0.7]) + fedpart(warmup=1, repeat=1)",
        "incremental_download + fedpart(warmup=1, repeat=1)",
        "incremental_download + fedprox(mu=0.1) + fedrep",
        "budgets(time=[1, 0.8]) + fedprox(mu=0.1) + fedper",
        "fedpart(warmup=1, repeat=1) + fedbabu(epochs=1)",
        "fedpart(warmup=1, repeat=1) + fedrep",
        "fedpart(warmup=1, repeat=1) + fedprox(mu=0.1) + fedper",
    ],
)
def test_plans_are_made_by_what_they_decide_in_either_order_of_the_chain(chain):
    """What takes part at all, then what of it trains in a round, then what single clients do of that."""
    first, middle, last = re.fullmatch(r"(.*?\)?) \+ (?:(fedprox\(mu=0.1\)) \+ )?(.*)", chain).groups()
    other = " + ".join(part for part in (last, middle, first) if part)
    outcomes = [lab.play(text, rounds=5, cohort=4) for text in (chain, other)]
    assert lab.bits(outcomes[0].model) == lab.bits(outcomes[1].model)
    assert [lab.bits(m) for m in outcomes[0].models] == [lab.bits(m) for m in outcomes[1].models]
    costs = [[(r["bytes_up"], r["bytes_down"], r["flops"]) for r in o.rows] for o in outcomes]
    assert costs[0] == costs[1]


@pytest.mark.parametrize(
    "chain",
    [
        "budgets + incremental_download",
        "incremental_download + budgets",
        "budgets + fedprox",
        "fedper + fedpart + budgets + incremental_download",
    ],
)
def test_a_chain_keeps_the_order_in_which_it_is_written(chain):
    assert [piece.name for piece in method(chain).pieces] == chain.split(" + ")


def test_every_round_of_a_chain_that_is_accepted_trains_something():
    """Also the late ones, whose turn is that of the head, which another piece has taken out."""
    for chain in ("fedbabu(epochs=0) + fedpart(warmup=1, repeat=1)", "fedrep + fedpart(warmup=1, repeat=1)"):
        assert all(row["updated"] for row in lab.play(chain, rounds=8).rows)


def test_cycles_count_the_groups_that_the_chain_trains():
    """FedBABU's head is never trained: of the toy's three groups two take turns."""
    assert len(lab.play("fedbabu(epochs=0) + fedpart(warmup=1, repeat=1, cycles=2)", rounds=6).rows) == 6
    with pytest.raises(ConfigError, match=r"fedpart\(cycles=2\) with 2 layer groups takes 6 rounds, and rounds is 8"):
        lab.parts("fedbabu + fedpart(warmup=1, repeat=1, cycles=2)", rounds=8)
    with pytest.raises(ConfigError, match=r"with 3 layer groups takes 8 rounds, and rounds is 6"):
        lab.parts("fedpart(warmup=1, repeat=1, cycles=2)", rounds=6)


@pytest.mark.parametrize("client", range(6))
def test_a_client_that_can_afford_no_shared_layers_is_refused_before_training_whoever_it_is(client):
    """Also one that is in no early cohort, and one that could afford the head, which is private here."""
    budgets = [1.0] * 6
    budgets[client] = 0.5  # of the FLOPs; the head takes 0.45, the body's layers 0.61 and 0.79
    with pytest.raises(
        MethodError,
        match=(
            f"client {client} can train no layer group: the cheapest that is shared takes 66% .* and 61% of its FLOPs"
        ),
    ):
        lab.parts(f"fedper + budgets(time={budgets})", cohort=2)
    lab.parts(f"budgets(time={budgets})", cohort=2)


def test_a_budget_of_1_is_no_limit_even_where_a_part_takes_more_than_the_whole():
    """Its backward pass may make what that of the whole model does not."""
    setup = lab.parts("fedavg").setup
    odd = replace(setup, load=lambda names: Load(1.0, 10 if names == setup.layout.parameters else 11))
    part = setup.layout.group("head")
    assert Budgets(memory=(1.0, 0.9)).affords(0, part, odd)
    assert not Budgets(memory=(1.0, 0.9)).affords(1, part, odd)


def test_budgets_are_measured_on_one_sample_where_nobody_has_more():
    found = lab.play("budgets(time=[1, 0.7])", (lab.federation((1, 1, 1, 1)), lab.small("layer")), cohort=4)
    assert all(row["updated"] for row in found.rows)
    with pytest.raises(ConfigError, match="no client has two samples to measure a local step on"):
        lab.play("budgets(time=[1, 0.7])", (lab.federation((1, 1, 1, 1)), lab.small("batch")), cohort=4)


@pytest.mark.parametrize("other", ["fedpart", "budgets"])
def test_networks_that_grow_are_refused(other):
    with pytest.raises(MethodError, match="from stage to stage"):
        assemble(Config(method=f"progfed(each=2) + {other}", model="mlp(hidden=[8, 8])", data="digits", rounds=6))


def test_where_nothing_is_shared_a_client_on_a_budget_has_nothing_to_train():
    with pytest.raises(
        MethodError, match="no layers are shared here, so client 1, who cannot afford all, has none to train"
    ):
        lab.parts("local + budgets(time=[1, 0.9])")


def test_a_round_tells_which_layer_groups_were_trained_and_by_how_many():
    rows = lab.play("fedpart(warmup=1, repeat=1)", rounds=5).rows
    groups = list(lab.parts().setup.layout.groups)
    assert [row["trained"] for row in rows[:4]] == [
        None,
        *({name: 3} for name in groups[:3]),
    ], "None is the whole model"
    drawn = lab.play("fedpart(warmup=0, repeat=1, order=random_client)", rounds=3).rows
    assert all(sum(row["trained"].values()) == 3 for row in drawn)
    phases = lab.play("fedrep(head_epochs=1)", rounds=1).rows
    assert phases[0]["trained"] is None, "the head in one phase, the body in the other"


def test_states_of_returning_clients_are_counted_before_the_run(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "fedstrata.engine.preflight.preflight", lambda clients, size, where: asked.append((clients, size))
    )
    parts = lab.parts("fedpart + incremental_download")
    lab.engine(parts).close()
    assert asked == [(6, 4 * parts.parameters)], "each client keeps a model"


def test_private_and_absent_layers_are_left_out_of_the_turns():
    """Behind FedBABU, whose head nobody trains, two groups are left.

    Behind FedRep each phase trains what it has of the group.
    """
    run = lab.engine(lab.parts("fedbabu(epochs=1) + fedpart(warmup=0, repeat=1)"))
    names = list(run.parts.setup.layout.groups.values())
    for turn in (0, 1, 0):
        run.round()
        assert all(w.plan.train == frozenset(names[turn].names) for w in run.executor.tasks[-1])
    run.close()
    found = lab.play("fedrep(head_epochs=1) + fedpart(warmup=0, repeat=1)", rounds=4)
    assert all(row["updated"] for row in found.rows)


# ---- settings


@pytest.mark.parametrize("wrong", ["repeat=0", "warmup=-1", "first=-1", "cycles=0", "together=0", "order=upwards"])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigError, match=f"{wrong.partition('=')[0]}"):
        method(f"fedpart({wrong})")


@pytest.mark.parametrize("wrong", ["memory=[0]", "time=[1.5]", "time=[1, -0.1]"])
def test_budgets_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigError, match="a client's share of what a step of the whole model takes"):
        method(f"budgets({wrong})")


def test_the_control_of_scaffold_moves_by_the_sum_of_what_those_who_trained_a_layer_changed():
    """Over all clients, whoever sent: c <- c + sum of changes / N, tensor by tensor."""
    run = residual("scaffold + budgets(time=[1.0, 0.7])", **{"local.optimizer": "sgd"})
    before = run.server.states["scaffold"]["control"]
    run.round()
    changes = [reply.up_payload["scaffold"]["control"] for reply in run.executor.replies[-1]]
    after = run.server.states["scaffold"]["control"]
    run.close()
    assert len({frozenset(change) for change in changes}) > 1, "clients sent different layers"
    for name in after:
        total = sum((change[name].double() for change in changes if name in change), torch.zeros(()).double())
        wanted = before[name].double() + total / len(run.parts.setup.eligible)
        torch.testing.assert_close(after[name].double(), wanted, atol=1e-6, rtol=1e-5)


# ---- configurations of published experiments

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("fedpart_*.toml"))


SHAPES = {  # layer groups, parameters, those of the first group, local steps of 8 epochs
    "fedpart_ag_news": (8, None, None, 96),
    "fedpart_cifar100": (10, 1_258_404, 9_536, 128),
    "fedpart_resnet18": (21, 11_181_642, 9_536, 128),
    "fedpart_tiny": (10, None, 9_536, 128),
}


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """Made-up data in the forms of CIFAR-10's and CIFAR-100's own files, of a pack of Tiny-ImageNet, and of AG News."""
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)

    def binary(path, count, *labels):
        path.parent.mkdir(exist_ok=True)
        columns = [(np.arange(count) % n).astype(np.uint8)[:, None] for n in labels]
        path.write_bytes(np.concatenate([*columns, rng.integers(0, 256, (count, 3072), np.uint8)], 1).tobytes())

    for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
        binary(root / f"cifar-10-batches-bin/{name}.bin", 200, 10)
    for name, count in (("train", 1000), ("test", 100)):
        binary(root / f"cifar-100-binary/{name}.bin", count, 20, 100)
    for name, count in (("train", 600), ("test", 50)):
        jpegs = []
        for _ in range(5):
            out = io.BytesIO()
            Image.fromarray(rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(out, "JPEG")
            jpegs.append(out.getvalue())
        stack = [jpegs[i % 5] for i in range(count)]
        (root / "tiny_imagenet").mkdir(exist_ok=True)
        np.savez(
            root / f"tiny_imagenet/{name}.npz",
            size=np.array([64, 64, 3]),
            labels=np.arange(count) % 10,
            classes=np.array([f"c{k}" for k in range(10)]),
            wnids=np.array([f"n{k}" for k in range(10)]),
            jpeg=np.frombuffer(b"".join(stack), dtype=np.uint8),
            offsets=np.concatenate([[0], np.cumsum([len(j) for j in stack])]),
        )
    (root / "ag_news").mkdir()
    for name, count in (("train", 3000), ("test", 8)):
        words = [f"word{i % 7} and word{i % 3}" for i in range(count)]
        pd.DataFrame({"label": np.arange(count) % 4, "title": words, "description": words}).to_parquet(
            root / f"ag_news/{name}.parquet"
        )
    return root


@pytest.mark.parametrize("path", tiered(CONFIGS, CONFIGS[:1]), ids=lambda path: path.stem)
def test_published_settings_are_checked_and_take_a_step_of_one_client(path, stand_in, capfd):
    """By the command, and by one batch in a round of the whole model and in the first partial one."""
    with pytest.raises(SystemExit) as left:
        main(["check", str(path), f"data.root={stand_in}"])
    assert left.value.code in (0, None), capfd.readouterr().err
    groups, total, first, steps = SHAPES.get(path.stem, (10, 1_235_274, 9_536, 128))
    assert f"{groups} layer groups" in " ".join(capfd.readouterr().out.split())
    config = Config.read(path, [f"data.root={stand_in}"])
    parts = assemble(config)
    assert parts.setup.local_steps(parts.setup.samples.size(0)) == steps, "8 epochs, the last batch of each smaller"
    total = total or parts.parameters
    first = first or next(iter(parts.setup.layout.groups.values())).numel
    warm = 60 if path.stem == "fedpart_cifar10_warmup" else 5
    start = Server.start(parts.method, parts.setup)
    for t, sent in ((0, total), (warm, None if parts.method.named["fedpart"].order == "reverse" else first)):
        turn = plan_round(replace(start, round=t), parts.rules, parts.lr(t), lambda *_: None, lambda _: None)
        session = ClientUpdate(replace(parts.make_worker(), costs={}), turn.tasks[0], probe=True)
        outcome = session.train(session.begin())
        reply = session.reply(outcome)
        assert 1 < reply.loss < 8, "chance is 2.3 on ten classes, 4.6 on a hundred"
        assert messages.size_up(reply).payload == 4 * (sent or next(reversed(parts.setup.layout.groups.values())).numel)


def test_there_is_a_config_for_each_published_setting():
    cifar10 = [f"fedpart_cifar10_{name}" for name in ("150", "alpha01", "alpha1", "iid", "moon", "order", "warmup")]
    assert [path.stem for path in CONFIGS] == [
        "fedpart_ag_news",
        "fedpart_cifar100",
        *cifar10,
        "fedpart_resnet18",
        "fedpart_tiny",
    ]


def test_the_config_of_progfed_is_checked_and_takes_a_step_of_its_first_stage(stand_in, capfd):
    path = Path(__file__).parents[2] / "configs/progfed_cifar10.toml"
    with pytest.raises(SystemExit) as left:
        main(["check", str(path), f"data.root={stand_in}"])
    assert left.value.code in (0, None), capfd.readouterr().err
    parts = assemble(Config.read(path, [f"data.root={stand_in}", "cohort=1"]))
    stages = [parts.method.named["progfed"].turn(t, 4, parts.config.rounds)[0] for t in range(parts.config.rounds)]
    assert [stages.count(s) for s in range(4)] == [500] * 4
    start = Server.start(parts.method, parts.setup)
    turn = plan_round(start, parts.rules, parts.lr(0), lambda *_: None, lambda _: None)
    session = ClientUpdate(replace(parts.make_worker(), costs={}), turn.tasks[0], probe=True)
    outcome = session.train(session.begin())
    reply = session.reply(outcome)
    assert 1 < reply.loss < 8, "chance is 2.3 on ten classes"
    front, statistics = 9_408 - 7 * 7 * 3 * 64 + 3 * 3 * 3 * 64 + 128 + 4 * 36_992, 2 * 5 * 64
    assert messages.size_up(reply).payload == 4 * (front + statistics + 10 * 65 + 1)
