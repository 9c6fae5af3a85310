"""ProgFed: the network grows; rules, bytes, FLOPs, evaluation, resume, and what is refused beside it."""

from itertools import chain

import pytest
import torch
from torch.func import grad, vmap
from torch.nn import functional

from fedstrata.client.batch_order import Order
from fedstrata.client.step_cost import cost
from fedstrata.client.update import ClientUpdate
from fedstrata.common.errors import FedstrataError, MethodError
from fedstrata.config.config import Config
from fedstrata.core.network import Batch
from fedstrata.core.params import Params
from fedstrata.engine.assembly import assemble
from fedstrata.engine.describe import describe
from fedstrata.inference import export
from fedstrata.methods import method
from fedstrata.methods.progfed import LEFT
from fedstrata.models.blocks import Norms
from fedstrata.models.resnet import ResNet
from fedstrata.testing.laws import poisoned
from fedstrata.wire import messages
from helpers import lab
from helpers.finished_runs import toy_run
from helpers.networks import pictures, residual

WIDTHS = (4, 6, 8)
FRONT = (9_536 + 2 * 36_992, 73_984 + 147_712 + 8_448, 295_424 + 590_336 + 33_280)
STATISTICS = (2 * 3 * 64, 2 * 3 * 128, 2 * 3 * 256)


def tiny(norm="none"):
    """Three stages, 4, 6 and 8 wide."""
    model = ResNet(3, 3, WIDTHS, Norms("tiny", norm, 2), blocks=1, stem=3, drop=0.0)
    model.start(torch.Generator().manual_seed(3))
    return model


def engine(text, module=None, federation=None, wrap=None, **settings):
    known = {
        "rounds": 5,
        "local.epochs": 2,
        "local.batch": 2,
        "local.lr": 0.05,
        "eval.every": 1,
        "executor": "loop",
        "seed": 7,
    }
    federation = federation or pictures()
    config = Config(method=text, cohort=federation.clients, **(known | settings))
    return lab.engine(assemble(config, federation, module or tiny()), **(wrap or {}))


def turns(text, rounds, stages):
    return [method(text).pieces[0].turn(t, stages, rounds) for t in range(rounds)]


# ---- the calendar


def test_by_default_the_published_stages_take_375_of_3000_rounds_each_and_the_last_the_rest():
    found = [stage for stage, _ in turns("progfed", 3000, 4)]
    assert [found.count(s) for s in range(4)] == [375, 375, 375, 1875]
    assert found == sorted(found)
    assert not any(warm for _, warm in turns("progfed", 3000, 4))


def test_warm_up_is_extra_and_opens_every_stage_but_the_first():
    found = turns("progfed(each=375, warmup=25)", 3075, 4)
    assert [sum(s == stage for s, _ in found) for stage in range(4)] == [375, 400, 400, 1900]
    assert [t for t, (_, warm) in enumerate(found) if warm] == [*range(375, 400), *range(775, 800), *range(1175, 1200)]


# ---- the rule, written out


def written_features(p, x, stage):
    """The tiny network's pooled features behind a stage, by convolutions alone."""

    def conv(x, name, stride=1):
        kernel = p[f"{name}.weight"]
        return functional.conv2d(x, kernel, p[f"{name}.bias"], stride=stride, padding=kernel.shape[-1] // 2)

    x = conv(x, "conv1").clamp(min=0)
    for s in range(stage + 1):
        block, stride = f"layer{s + 1}.0", 1 if s == 0 else 2
        y = conv(conv(x, f"{block}.conv1", stride).clamp(min=0), f"{block}.conv2")
        x = (y + (conv(x, f"{block}.down.conv", stride) if s else x)).clamp(min=0)
    return x.mean((2, 3))


def written_output(p, x, stage):
    head = "head" if stage == 2 else f"progfed.{stage}"
    return written_features(p, x, stage) @ p[f"{head}.weight"].T + p[f"{head}.bias"]


def moving(names, stage, *, warm):
    """What a round trains: blocks by the first part of their names."""
    blocks = (("conv1", "layer1"), ("layer2",), ("layer3",))
    parts = [*chain(*blocks[stage if warm else 0 : stage + 1]), "head" if stage == 2 else f"progfed.{stage}"]
    return [n for n in names if any(n.startswith(f"{part}.") for part in parts)]


def by_hand(run, calendar):
    """FedAvg over what each round trains, in float64."""
    data, c = run.parts.federation, run.parts.config
    w = {n: t.double().clone() for n, t in run.parts.setup.model.views.items() if n != LEFT}
    total = sum(len(data.training(i)) for i in range(data.clients))
    for t, (stage, warm) in enumerate(calendar):
        trained, mean = moving(w, stage, warm=warm), {}
        for i in range(data.clients):
            index, own = data.training(i), dict(w)
            for _, rows in Order(
                c.seed, ("local", t, i, 0), len(index), c.local.batch, "cycle", merge_single=False
            ).batches(epochs=2, steps=None):
                leaves = [own[n].clone().requires_grad_() for n in trained]
                output = written_output(
                    own | dict(zip(trained, leaves, strict=True)), data.train.x[index[rows]].double(), stage
                )
                y = data.train.y[index[rows]]
                loss = (torch.logsumexp(output, 1) - output[torch.arange(len(y)), y]).mean()
                for name, slope in zip(trained, torch.autograd.grad(loss, leaves), strict=True):
                    own[name] = own[name] - c.local.lr * slope
            for name in trained:
                mean[name] = mean.get(name, 0) + len(index) / total * own[name]
        w |= mean
    return w


CALENDARS = {
    "progfed(each=1, warmup=1)": [(0, False), (1, True), (1, False), (2, True), (2, False)],
    "progfed(each=2)": [(0, False), (0, False), (1, False), (1, False), (2, False)],
}


@pytest.mark.parametrize("text", CALENDARS)
def test_progfed_equals_the_written_out_rule_on_a_tiny_residual_network(text):
    run = engine(text)
    found = lab.finish(run)
    wanted = by_hand(run, CALENDARS[text])
    assert found.model.integer(LEFT) == 0
    for name, value in wanted.items():
        assert (found.model[name].double() - value).abs().max() <= 1e-5 * max(1, value.abs().max()), name
        moved = bool((found.model[name] - run.parts.setup.model[name]).any())
        assert moved, f"{name}: every part has had its turn"


def test_the_server_is_tested_with_the_network_of_the_stage():
    run = engine("progfed(each=1)", **{"local.lr": 0.3})
    test, seen = run.parts.federation.test, []
    for t in range(3):
        row, p = run.round(), {n: v.double() for n, v in run.server.model.views.items()}
        stage = min(t + 1, 2)  # the next round's network is in place once a round is done
        assert 2 - run.server.model.integer(LEFT) == stage
        output = written_output(p, test.x.double(), stage)
        said = run.evaluator.predict(run.worker, run.server.model, test, torch.arange(len(test)))
        assert torch.allclose(said.double(), output, atol=1e-5)
        assert row["accuracy"] == float((output.argmax(1) == test.y).double().mean())
        seen.append(said)
    run.close()


# ---- bytes and FLOPs


def test_a_stage_sends_the_front_of_resnet8_its_head_and_one_number_both_ways():
    run = residual("progfed(each=1)", rounds=3, bn="share")
    run_full = residual("fedavg", rounds=1, bn="share")
    full = run_full.round()
    run_full.close()
    for stage in range(3):
        row = run.round()
        numbers = sum(FRONT[: stage + 1]) + sum(STATISTICS[: stage + 1]) + 3 * ((64, 128, 256)[stage] + 1) + 1
        for work, reply in zip(run.executor.tasks[-1], run.executor.replies[-1], strict=True):
            for letter in (messages.down(work), messages.up(reply)):
                assert sum(4 * t.numel() for t in letter.tensors.values()) == 4 * numbers
                heads = {
                    n.split("/", 1)[1].rsplit(".", 1)[0] for n in letter.tensors if "head" in n or "progfed" in n
                } - {"progfed"}
                assert heads == {"head" if stage == 2 else f"progfed.{stage}"}
        assert row["bytes_up"] == row["bytes_down"] == 2 * 4 * numbers
        assert row["bytes_up"] < full["bytes_up"] if stage < 2 else row["bytes_up"] == full["bytes_up"] + 2 * 4
    run.close()


def test_a_warm_up_sends_up_the_newest_block_and_its_head_and_goes_through_all_of_the_front():
    run = residual("progfed(each=1, warmup=1)", rounds=5, bn="local")
    up, down = zip(
        *((row["bytes_up"] / 8, row["bytes_down"] / 8) for row in (run.round() for _ in range(5))), strict=True
    )
    run.close()
    heads = [3 * (width + 1) + 1 for width in (64, 128, 256)]
    whole = [sum(FRONT[: s + 1]) + heads[s] for s in range(3)]
    assert up == (whole[0], FRONT[1] + heads[1], whole[1], FRONT[2] + heads[2], whole[2])
    assert down == (whole[0], whole[1], whole[1], whole[2], whole[2])


def test_early_stages_take_fewer_flops_and_the_last_those_of_fedavg():
    grown, plain = residual("progfed(each=1)", rounds=3), residual("fedavg", rounds=1)
    flops, full = [grown.round()["flops"] for _ in range(3)], plain.round()["flops"]
    grown.close()
    plain.close()
    assert flops[0] < flops[1] < flops[2] == full
    assert flops[0] < 0.75 * full


def test_what_lies_behind_the_stage_is_not_run():
    run = engine("progfed(each=4)", tiny("batch"))
    run.round()
    counted = {
        n: int(b) for n, b in run.executor.inner.worker.bound.body.named_buffers() if n.endswith("num_batches_tracked")
    }
    run.close()
    assert all((count > 0) == n.startswith(("norm1", "layer1")) for n, count in counted.items())
    moved = run.server.model.statistics - run.parts.setup.model.statistics
    assert all(bool(t.any()) == n.startswith(("norm1", "layer1")) for n, t in moved.views.items())


def test_costs_of_layers_are_those_of_the_whole_network():
    grown, plain = engine("progfed"), engine("fedavg")
    batch = Batch(grown.parts.federation.train.take(torch.arange(4)), grown.parts.federation.train.y[:4])
    for name, group in plain.parts.setup.layout.groups.items():
        names = frozenset(group.names)
        assert cost(grown.worker, batch, names).flops == cost(plain.worker, batch, names).flops, name
    assert grown.worker.bound.model.integer(LEFT) == 2, "and the network is as it was"
    grown.close()
    plain.close()


def test_describe_knows_the_local_heads():
    found = describe(Config(method="progfed", model="mlp(hidden=[8, 8, 8])", data="digits"))
    assert [layer.name for layer in found.layers][-3:] == ["progfed.0", "progfed.1", LEFT]
    assert found.bytes_up == 4 * (64 * 8 + 8 + 10 * 9 + 1)


# ---- state


@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_a_run_that_is_taken_up_at_any_stage_ends_as_the_uninterrupted_one(after):
    whole = lab.finish(engine("progfed(each=1, warmup=1) + fedavgm(beta=0.5)"))
    first, second = (
        engine("progfed(each=1, warmup=1) + fedavgm(beta=0.5)"),
        engine("progfed(each=1, warmup=1) + fedavgm(beta=0.5)"),
    )
    for _ in range(after):
        first.round()
    second.server = lab.copied(first.server)
    first.close()
    assert lab.differences(whole, lab.finish(second)) == []


def test_a_lost_round_delays_the_next_stage_and_the_calendar_is_caught_up_with():
    run = engine("progfed(each=1)")
    run.executor.change = poisoned
    assert not run.round()["updated"]
    assert run.server.model.integer(LEFT) == 2
    run.executor.change = lambda replies: replies
    run.round()
    assert "delta/layer2.0.conv1.weight" not in messages.up(run.executor.replies[-1][0]).tensors
    assert run.server.model.integer(LEFT) == 0, "round 2 is of the last stage, whatever was lost"
    run.close()


def test_heads_start_alike_everywhere_and_follow_from_the_model():
    one, same, other = (engine("progfed", m) for m in (tiny(), tiny(), lab.filled(tiny(), 1)))
    heads = [
        {n: t for n, t in e.parts.setup.model.views.items() if n.startswith("progfed.")} for e in (one, same, other)
    ]
    assert all(torch.equal(heads[0][n], heads[1][n]) for n in heads[0])
    assert not torch.equal(heads[0]["progfed.0.weight"], heads[2]["progfed.0.weight"])
    for stage, width in enumerate(WIDTHS[:2]):
        value = heads[0][f"progfed.{stage}.weight"]
        assert value.shape == (3, width)
        assert 0.3 * width**-0.5 < value.abs().max() <= width**-0.5
    for e in (one, same, other):
        e.close()


def test_fewer_stages_begin_deeper():
    run = engine("progfed(stages=2, each=1)", rounds=2)
    run.round()
    sent = messages.up(run.executor.replies[-1][0]).tensors
    assert {"delta/layer1.0.conv1.weight", "delta/layer2.0.conv1.weight", "delta/progfed.0.weight"} <= set(sent)
    assert "delta/layer3.0.conv1.weight" not in sent
    assert run.server.model["progfed.0.weight"].shape == (3, 6)
    run.close()


# ---- other pieces


@pytest.mark.parametrize(
    "text",
    [
        "fedprox(mu=0.1)",
        "moon",
        "fedavgm",
        "fedadam",
        "fedyogi",
        "feddyn",
        "fednova",
        "fedper",
        "fedrep",
        "fedbabu(epochs=1)",
    ],
)
def test_what_trains_plainly_goes_with_it_through_all_stages(text):
    found = lab.finish(engine(f"progfed(each=1, warmup=1) + {text}"))
    assert all(row["updated"] and not row["refused"] for row in found.rows)
    assert found.model.integer(LEFT) == 0
    assert float(found.model[LEFT]) == 0
    assert found.model.flat.isfinite().all()


def test_clients_of_incremental_downloads_end_with_the_same_model_for_fewer_bytes_down():
    plain, back = (lab.finish(engine(f"progfed(each=1, warmup=1){rest}")) for rest in ("", " + incremental_download"))
    assert lab.bits(plain.model) == lab.bits(back.model)
    assert sum(r["bytes_down"] for r in back.rows) < sum(r["bytes_down"] for r in plain.rows)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fedprox + progfed", "Write progfed first"),
        ("progfed + scaffold", "scaffold sends or keeps"),
        ("progfed + fedmut", "fedmut sends or keeps"),
        ("progfed + ditto", "ditto sends or keeps"),
        ("progfed + budgets(memory=[0.5])", "budgets measures"),
        ("progfed + local", "the server sends it to all clients"),
        ("progfed + lgfedavg", "the server sends it to all clients"),
        ("progfed(stages=4)", "the model has 3 exits"),
        ("progfed(each=0)", "progfed.each is 0"),
        ("progfed(warmup=-1)", "progfed.warmup is -1"),
        ("progfed(stages=0)", "progfed.stages is 0"),
    ],
)
def test_what_cannot_be_meant_beside_it_is_refused(text, said):
    with pytest.raises(FedstrataError, match=said):
        engine(text)


def test_a_model_without_exits_is_refused():
    with pytest.raises(MethodError, match="no exits"):
        engine("progfed", torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3)))


def test_a_run_that_ends_early_or_never_grows_says_so():
    def said(text):
        run = engine(text)
        run.close()
        return " ".join(run.parts.method.notes(run.parts.setup))

    assert said("progfed(each=1)") == ""
    assert "ends in stage 2 of 3" in said("progfed(each=4)")
    assert "it is FedAvg" in said("progfed(stages=1)")


# ---- integer buffers


def test_an_integer_buffer_is_read_from_the_vector_until_its_number_is_given_as_inside_vmap():
    spec = Params.of({"w": torch.ones(2), "s": torch.tensor([3.0])}).spec
    flat = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 3.0]])

    def value(f):
        p = Params(f, spec).with_integers({"s": 3})
        return p["w"].sum() * p.integer("s")

    assert torch.equal(vmap(grad(value))(flat)[:, :2], torch.full((2, 2), 3.0))
    assert Params(flat[0], spec).integer("s") == 3
    assert Params(flat[0], spec).with_integers({"s": 5}).integer("s") == 5


def test_weight_decay_does_not_change_the_integer_buffer():
    run = engine("progfed(each=3)", **{"local.weight_decay": 0.5})
    run.round()
    assert float(run.server.model[LEFT]) == 2
    assert not any(reply.delta[LEFT].any() for reply in run.executor.replies[-1])
    session = ClientUpdate(run.worker, run.executor.tasks[-1][0])
    assert float(session.tools.fit(session.context.received, "private", steps=3)[LEFT]) == 2
    run.close()


@pytest.mark.full
@pytest.mark.parametrize("rounds", [1, 3])
def test_an_exported_program_ends_where_the_run_ended(tmp_path, rounds):
    folder, _, given = toy_run(tmp_path, "progfed(each=2)", rounds=rounds)
    made = export(folder, tmp_path / "out", format="all", **given)
    assert max(made.difference.values()) < 1e-5


@pytest.mark.parametrize(("rounds", "stage"), [(2, 0), (4, 1), (5, 2)])
def test_a_run_that_ends_with_a_stage_keeps_the_network_that_it_trained(rounds, stage):
    """Otherwise its model would end in the next stage's head, which nobody has trained."""
    found = lab.finish(engine("progfed(each=2)", rounds=rounds))
    assert found.model[LEFT].item() == 2 - stage
