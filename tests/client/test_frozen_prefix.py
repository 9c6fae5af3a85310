"""Layers before the trained ones run once a sample and round, wherever that is exact; elsewhere the reason is named."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedstrata.client.activation_cache import ActivationCache
from fedstrata.client.frozen_prefix import NetworkCut
from fedstrata.client.update import ClientUpdate, train_client
from fedstrata.config.config import Config
from fedstrata.core.chain import Method
from fedstrata.core.piece import Piece
from fedstrata.data.federation import Federation
from fedstrata.data.types import Task
from fedstrata.engine.describe import describe, probe_costs
from fedstrata.engine.server import plan_round
from fedstrata.models import build
from fedstrata.runs.run import Stopped, resume, run
from helpers import lab
from helpers.tiers import tiered

N, BATCH, EPOCHS = 10, 4, 3  # a last batch of two samples
IMAGES, TOKENS = Task("classification", (3, 12, 12), 3), Task("classification", (6,), 3, vocabulary=11)
MODELS = {
    "mlp(hidden=[16,12,8])": IMAGES,
    "small_cnn(padding=2)": IMAGES,
    "resnet8(groups=8)": IMAGES,
    "vit_s(layers=1,width=24,heads=3)": IMAGES,
    "transformer(width=12,heads=2,feedforward=8,layers=2,dropout=0)": TOKENS,
    "char_lstm(embedding=4,hidden=6)": TOKENS,
}


@dataclass(frozen=True)
class Only(Piece):
    """Trains the layers of a selector; all others are frozen."""

    train: str = "all"

    def plan(self, plan, ctx):
        return replace(plan, train=ctx.layout.select(self.train) & ctx.layout.parameters)


def made(task=IMAGES, n=N):
    """One client with samples for a task."""
    rng = np.random.default_rng(0)
    x = (
        rng.integers(0, task.vocabulary, (n, *task.shape))
        if task.vocabulary
        else rng.normal(size=(n, *task.shape)).astype(np.float32)
    )
    y = np.arange(n) % task.classes
    return Federation.of(
        x, y, client=np.zeros(n, int), test=(x[:2], y[:2]), vocabulary=task.vocabulary, labels=tuple("abc")
    )


def model_of(name):
    return build(name, MODELS[name], "group" if "resnet" in name else None, torch.Generator().manual_seed(0))


def groups_of(name):
    return list(lab.parts(toy=(made(MODELS[name]), model_of(name))).setup.layout.groups)


def turn(pieces, toy="layer", **settings):
    """Return a worker and a task of round 0."""
    settings = {"local_epochs": EPOCHS, "local_batch": BATCH, "rounds": 1} | settings
    settings["local.activation_cache_mb"] = settings.pop("cache_mb", 256)
    parts = lab.parts(Method(pieces if isinstance(pieces, tuple) else (pieces,)), toy, **settings)
    started = lab.engine(parts)
    planned = plan_round(started.server, parts.rules, parts.lr(0), lambda *_: None, lambda _: None)
    started.close()
    return parts.make_worker(), planned.tasks[0]


def cached_and_not(pieces, toy="layer", **settings):
    """Return the replies of the same turn with the activation cache, and without."""
    with_it, without = (train_client(*turn(pieces, toy, cache_mb=megabytes, **settings)) for megabytes in (256, 0))
    assert without.activation_cache_use == {}
    return with_it, without


def gap(a, b):
    return float((a.delta.flat - b.delta.flat).abs().max() / b.delta.flat.abs().max())


def cache_use(pieces, toy="layer", **settings):
    """Return the use of the cache, in a turn that equals the one without it."""
    with_it, without = cached_and_not(pieces, toy, **settings)
    assert gap(with_it, without) <= 1e-5
    return with_it.activation_cache_use


# ---- exact


@pytest.mark.parametrize(
    ("name", "group"),
    tiered([(m, g) for m in MODELS for g in groups_of(m)], [(m, groups_of(m)[-2]) for m in MODELS]),
)
def test_weights_equal_those_without_it_to_1e_5_for_every_group(name, group):
    task = MODELS[name]
    first = group == groups_of(name)[0]
    for optimizer, lr in (("sgd", 0.1), ("adam", 1e-3)):
        settings = {"local_optimizer": optimizer, "local_lr": lr}
        with_it, without = cached_and_not(Only(f"group:{group}"), (made(task), model_of(name)), **settings)
        assert with_it.activation_cache_use == ({} if first else {"local: cached": 1})
        assert gap(with_it, without) <= 1e-5
        assert with_it.loss == pytest.approx(without.loss, rel=1e-5)


BEFORE = {  # of each group of a ResNet-8: those whose activations do not depend on it
    "conv1": [],
    "layer1.0.conv1": ["conv1"],
    "layer1.0.conv2": ["conv1", "layer1.0.conv1"],
    "layer2.0.conv1": ["conv1", "layer1.0.conv1", "layer1.0.conv2", "layer2.0.down.conv"],
    "layer2.0.conv2": ["conv1", "layer1.0.conv1", "layer1.0.conv2", "layer2.0.conv1", "layer2.0.down.conv"],
    "layer2.0.down.conv": ["conv1", "layer1.0.conv1", "layer1.0.conv2", "layer2.0.conv1", "layer2.0.conv2"],
}
BOTH = ["conv1", "layer1.0.conv1", "layer1.0.conv2", "layer2.0.conv1", "layer2.0.conv2", "layer2.0.down.conv"]
BEFORE |= {
    "layer3.0.conv1": [*BOTH, "layer3.0.down.conv"],
    "layer3.0.conv2": [*BOTH, "layer3.0.conv1", "layer3.0.down.conv"],
    "layer3.0.down.conv": [*BOTH, "layer3.0.conv1", "layer3.0.conv2"],
    "head": [*BOTH, "layer3.0.conv1", "layer3.0.conv2", "layer3.0.down.conv"],
}


@pytest.mark.parametrize("group", tiered(BEFORE, list(BEFORE)[::4]))
def test_a_forward_call_counter_shows_one_pass_a_sample_and_round_before_each_of_the_10_groups(group):
    name = "resnet8(groups=8)"
    assert list(BEFORE) == groups_of(name)
    worker, task = turn(Only(f"group:{group}"), (made(), model_of(name)))
    train_client(worker, task)  # the first turn of a worker also tries the cut
    seen = Counter()
    layers = [n for n, m in worker.bound.body.named_modules() if isinstance(m, nn.Conv2d)]
    for layer in layers:
        worker.bound.body.get_submodule(layer).register_forward_hook(
            lambda _, x, __, layer=layer: seen.update({layer: len(x[0])})
        )
    worker.bound.head.register_forward_hook(lambda _, x, __: seen.update({"head": len(x[0])}))
    for number in range(2):
        seen.clear()
        train_client(worker, replace(task, round=number))
        assert seen == {layer: N if layer in BEFORE[group] else EPOCHS * N for layer in (*layers, "head")}


def test_a_cut_through_a_residual_block_is_two_tensors():
    """Before a stage's first convolution too: the shortcut's output, and what the convolution reads."""
    worker, _ = turn(Only("role:head"), (made(), model_of("resnet8(groups=8)")))
    worker.bound.mode(training=True)
    layout = worker.setup.layout
    with torch.no_grad():
        counts = {
            g: len(found.prefix(torch.zeros(2, 3, 12, 12)))
            for g in layout.groups
            if isinstance(found := worker.cache.cut(layout.group(g)), NetworkCut)
        }
    assert counts == {g: 1 if g in ("layer1.0.conv1", "head") else 2 for g in BEFORE if g != "conv1"}


@pytest.mark.parametrize(("executor", "workers"), [("threads", 2), ("processes", 2)])
def test_executors_agree_bit_for_bit(executor, workers):
    ways = [lab.play(Only("group:second"), executor=e, workers=w) for e, w in (("loop", 1), (executor, workers))]
    assert lab.differences(*ways) == []
    assert all(row["activation_cache"] == {"local: cached": 3} for way in ways for row in way.rows)


def test_stacked_clients_agree_to_1e_6_and_name_why_nothing_is_cached():
    loop, batched = (lab.play(Only("group:second"), executor=e) for e in ("loop", "batched"))
    assert lab.gap(batched.model, loop.model) <= 1e-6
    assert {label for row in batched.rows for label in row["activation_cache"]} == {
        "local: not cached, executor=batched runs all layers of a stack"
    }


@pytest.mark.parametrize("draw", ["cycle", "fresh", "replace"])
def test_every_draw_computes_a_sample_once_at_most(draw):
    worker, task = turn(Only("role:head"), local_steps=11, local_draw=draw)
    seen = Counter()
    train_client(worker, task)
    worker.bound.body.get_submodule("first").register_forward_hook(lambda _, x, __: seen.update(x[0][:, 0].tolist()))
    reply = train_client(worker, task)
    assert max(seen.values()) == 1
    assert (
        reply.cost_by_phase[next(p for p in reply.cost_by_phase if p.startswith("prefix "))]
        == sum(seen.values())
        <= reply.samples
    )
    assert cache_use(Only("role:head"), local_steps=11, local_draw=draw) == {"local: cached": 1}


def test_what_is_read_lies_in_memory_as_what_was_computed():
    value = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    cache = ActivationCache(
        NetworkCut(lambda x: (x, x.transpose(1, 2)), lambda *parts: parts, raw=False, bytes=0), 6, autocast=False
    )
    known, crossed = {}, value.transpose(1, 2)
    for positions in (torch.tensor([5, 0, 2, 1]), torch.tensor([2, 2, 0, 5]), torch.tensor([1, 4, 4, 3])):
        for i, p in enumerate(positions.tolist()):
            known.setdefault(p, value[i])
        batch = torch.stack([known[p] for p in positions.tolist()]).to(memory_format=torch.channels_last)
        cache.at(batch, positions)
        first, second = cache.features(batch)
        assert torch.equal(first, batch)
        assert torch.equal(second, batch.transpose(1, 2))
        assert first.stride() == value.stride()
        assert second.stride() == crossed.stride()
    assert (cache.count, cache.left) == (6, 0)


def test_reduced_precision_is_cached_as_it_was_computed():
    assert cache_use(Only("role:head"), local_precision="bfloat16") == {"local: cached": 1}


def test_batch_norm_behind_the_cut_still_moves_its_statistics():
    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.norm, self.head = (
                nn.Linear(6, 5),
                nn.Linear(5, 4),
                nn.BatchNorm1d(4),
                nn.Linear(4, 3),
            )

        def forward(self, x):
            return self.head(self.norm(self.second(self.first(x).relu())))

    with_it, without = cached_and_not(Only("group:second"), (lab.federation(), lab.filled(Late())))
    assert with_it.activation_cache_use == {"local: cached": 1}
    assert torch.equal(with_it.statistics.flat, without.statistics.flat)
    assert gap(with_it, without) <= 1e-5


def test_dropout_behind_the_cut_draws_the_masks_that_it_drew():
    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.drop, self.head = (
                nn.Linear(6, 5),
                nn.Linear(5, 8),
                nn.Dropout(0.4),
                nn.Linear(8, 3),
            )

        def forward(self, x):
            return self.head(self.drop(self.second(self.first(x).relu()).relu()))

    assert cache_use(Only("group:second"), (lab.federation(), lab.filled(Late()))) == {"local: cached": 1}


def test_images_in_channels_last_keep_their_bits():
    module = model_of("small_cnn(padding=2)")
    assert module.channels_last
    with_it, without = cached_and_not(Only("group:hidden.0"), (made(n=2 * BATCH), module))
    assert with_it.activation_cache_use == {"local: cached": 1}
    assert lab.bits(with_it.delta) == lab.bits(without.delta)


# ---- methods


@dataclass(frozen=True)
class Scaled(Piece):
    """Features on a sphere, scaled by an added parameter."""

    def model(self, net):
        net = net.with_parameter("scale", torch.ones(1), kind="other", role="head")
        return replace(
            net, features=lambda p, x, inner=net.features: p["scale"] * functional.normalize(inner(p, x), dim=1)
        )


@dataclass(frozen=True)
class Smooth(Piece):
    """A second term on features of the current batch, and one on those of a second model."""

    def objective(self, loss, ctx):
        teacher = ctx.received.frozen("eval")

        def term(p, b):
            z = ctx.net.features(p, b.x)
            return b.mean((z - ctx.net.features(teacher, b.x)).square().sum(1)) + 0.1 * b.mean(z.abs().sum(1))

        return lambda p, b: loss(p, b) + term(p, b)


@pytest.mark.parametrize("pieces", ["moon(mu=1)", "fedprox(mu=0.5)", "scaffold", Scaled(), Smooth()], ids=str)
@pytest.mark.parametrize("train", tiered(["group:second", "role:head", "group:second,role:head"], ["group:second"]))
def test_other_pieces_see_the_values_they_would_see(pieces, train):
    chain = lab.parse(pieces).pieces if isinstance(pieces, str) else (pieces,)
    runs = [
        lab.play(Method((Only(train), *chain)), **{"local.activation_cache_mb": mb, "cohort": 6}) for mb in (256, 0)
    ]
    assert lab.gap(runs[0].model, runs[1].model) <= 1e-5
    assert all(row["activation_cache"] == {"local: cached": 6} for row in runs[0].rows)
    assert all(row["activation_cache"] is None for row in runs[1].rows)


def test_phases_that_train_the_head_cache_the_body():
    runs = [lab.play("fedrep(head_epochs=4)", **{"local.activation_cache_mb": mb}) for mb in (256, 0)]
    assert lab.gap(runs[0].model, runs[1].model) <= 1e-5
    assert all(row["activation_cache"] == {"head: cached": 3} for row in runs[0].rows), "no layer is before the body"


def test_private_fits_of_the_head_cache_the_body():
    @dataclass(frozen=True)
    class Tune(Piece):
        def receive(self, model, ctx):
            first, second = (ctx.fit(model, "tune", epochs=3, train=ctx.layout.select("role:head")) for _ in range(2))
            assert torch.equal(first.flat, second.flat)
            return model, ctx.state

    reply = train_client(*turn(Tune()))
    assert reply.activation_cache_use == {"tune.tune: cached": 2}
    assert reply.cost_by_phase["prefix tune.tune"] == 2 * reply.samples


def test_methods_that_train_everything_record_nothing():
    for method in ("fedavg", "fedprox(mu=0.1)", "fedbabu(epochs=0)", "ditto(mu=0.5)"):
        assert all(row["activation_cache"] is None for row in lab.play(method).rows), method


# ---- refused


class Body(nn.Module):
    """Two layers; a subclass defines what happens between them."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 3)

    def between(self, x):
        return x.relu()

    def forward(self, x):
        return self.head(self.second(self.between(self.first(x))).relu())


class Choosy(Body):
    def forward(self, x):
        return super().forward(x if x.sum() > 0 else x + 0)


class Crowd(Body):
    def between(self, x):
        return (x - x.mean(0)).relu()


class Turned(Body):
    def between(self, x):
        return x.t().relu().t()


class Across(Body):
    """Time first, samples second."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 5)

    def forward(self, x):
        y = self.first(x.reshape(-1, 3, 2).transpose(0, 1)).relu()  # [3, B, 5]
        return self.head(self.second(y).relu().mean(0))


class Crossed(Body):
    def forward(self, x):
        return self.head((self.second.weight @ self.first(x).relu().t()).t())


class Shift(nn.Module):
    def __init__(self):
        super().__init__()
        self.by = nn.Parameter(torch.zeros(5))

    def forward(self, x):
        return x + self.by


class Overwriting(Body):
    """What is frozen is used, and then overwritten."""

    def __init__(self):
        super().__init__()
        self.shift = Shift()

    def forward(self, x):
        z = self.first(x)
        shifted = self.shift(z)
        z.relu_()
        return self.head(self.second(shifted + z).relu())


class InPlace(Body):
    """A block as many write it: one ReLU for all layers, in place, and a shortcut added in place."""

    def __init__(self):
        super().__init__()
        self.act, self.third = nn.ReLU(inplace=True), nn.Linear(5, 5)

    def forward(self, x):
        y = self.act(self.first(x))
        z = self.third(y)
        z += y
        return self.head(self.act(self.second(self.act(z))))


class Tied(Body):
    """Two layers with one weight: who trains the one trains the other."""

    def __init__(self):
        super().__init__()
        self.mid, self.again = nn.Linear(5, 5), nn.Linear(5, 5)
        self.again.weight = self.mid.weight

    def between(self, x):
        return self.again(self.mid(x).relu()).relu()


class Silent(Body):
    def forward(self, x):
        with torch.no_grad():
            z = self.second(self.first(x).relu()).relu()
        return self.head(z)


class Refuses(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else x * 1


class Inside(Body):
    def __init__(self):
        super().__init__()
        self.part = Refuses()

    def between(self, x):
        return self.part(x).relu()


def toy(module):
    return lab.federation(), lab.filled(module)


def why(pieces, given="layer", **settings):
    """Return the reason, in a turn that equals the one without a cache."""
    with_it, without = cached_and_not(pieces, given, **settings)
    assert lab.bits(with_it.delta) == lab.bits(without.delta), "nothing is cached, so nothing differs"
    (label,) = with_it.activation_cache_use
    return label


class Turning:
    draws = 1

    def __call__(self, x, u):
        return x * (1 + 0.1 * u)


def test_refused_augmentation():
    data, module = lab.TOYS["layer"]()
    assert (
        why(Only("role:head"), (replace(data, augment=Turning()), module))
        == "local: not cached, samples are augmented, anew in each epoch"
    )


def test_refused_dropout_before():
    assert why(Only("role:head"), "dropout") == "local: not cached, dropout before the trained layers (drop)"


def test_refused_batch_norm_before():
    assert (
        why(Only("role:head"), "batch")
        == "local: not cached, a batch norm before the trained layers looks at the batch (norm)"
    )


def test_refused_by_the_memory_bound():
    data = made(n=300)
    module = lambda: build(
        "mlp(hidden=[1000,2])", IMAGES, None, torch.Generator().manual_seed(0)
    )  # 300 x 1,000 float32: 1.2 MB
    within, beyond = (
        train_client(*turn(Only("group:layers.1.linear"), (data, module()), cache_mb=mb)) for mb in (2, 1)
    )
    assert within.activation_cache_use == {"local: cached": 1}
    assert beyond.activation_cache_use == {
        "local: not cached, a client's samples would take more than local.activation_cache_mb=1": 1
    }
    assert gap(within, beyond) <= 1e-5


def test_refused_model_that_cannot_be_traced():
    assert why(Only("role:head"), toy(Choosy())).startswith(
        "local: not cached, the model cannot be traced (TraceError:"
    )


def test_refused_samples_that_see_each_other():
    assert why(Only("role:head"), toy(Crowd())) == "local: not cached, samples see each other before the trained layers"


def test_refused_value_without_a_row_for_each_sample():
    assert (
        why(Only("group:second"), toy(Across()))
        == "local: not cached, values before the trained layers do not hold one row a sample"
    )


def test_refused_graph_that_computes_something_else():
    """Tracing does not see ``no_grad``, so that gradients would reach layers that the model keeps from them."""
    assert (
        why(Only("group:second,role:head"), toy(Silent()))
        == "local: not cached, the traced model does not compute what the model computes"
    )


def test_refused_values_that_are_overwritten_later():
    assert (
        why(Only("group:shift"), toy(Overwriting()))
        == "local: not cached, the traced model does not compute what the model computes"
    )


def test_refused_for_methods_that_look_elsewhere():
    label = "local: not cached, the method looks at other points or at parts of batches"
    assert (
        why((Only("role:head"), *lab.parse("perfedavg").pieces))
        == "local: not cached, the method looks at parts of batches"
    )
    assert why((Only("role:head"), *lab.parse("pfedme(lam=5, inner=2)").pieces)) == label


def test_refused_where_each_sample_is_read_once():
    assert why(Only("role:head"), local_epochs=1) == "local: not cached, each sample is read once"
    assert why(Only("role:head"), local_steps=2) == "local: not cached, each sample is read once"


def test_a_layer_that_cannot_be_looked_into_is_taken_as_a_whole():
    assert cache_use(Only("role:head"), toy(Inside())) == {"local: cached": 1}


@pytest.mark.parametrize("group", ["third", "second", "head"])
def test_operations_in_place_change_nothing_that_is_cached(group):
    assert cache_use(Only(f"group:{group}"), toy(InPlace())) == {"local: cached": 1}


@pytest.mark.parametrize("group", ["mid", "again", "second"])
def test_tied_weights_are_trained_wherever_they_are_used(group):
    worker, task = turn(Only(f"group:{group}"), toy(Tied()))
    train_client(worker, task)
    seen = Counter()
    for layer in ("first", "mid", "again"):
        worker.bound.body.get_submodule(layer).register_forward_hook(
            lambda _, x, __, layer=layer: seen.update({layer: len(x[0])})
        )
    n = train_client(worker, task).samples
    behind = {"mid": ("mid", "again"), "again": ("again",), "second": ()}[group]
    assert seen == {layer: n * (EPOCHS if layer in behind else 1) for layer in ("first", "mid", "again")}
    assert cache_use(Only(f"group:{group}"), toy(Tied())) == {"local: cached": 1}


@pytest.mark.parametrize("module", [Turned, Crossed])
def test_values_that_lie_across_are_computed_anew_from_cached_rows(module):
    assert cache_use(Only("group:second"), toy(module())) == {"local: cached": 1}


# ---- the ledger, the folder


F, H, G, K = lab.FEATURES, 8, 5, lab.CLASSES


def test_the_ledger_counts_layers_before_the_trained_ones_once():
    run_ = lab.engine(lab.parts(Only("role:head"), local_epochs=EPOCHS))
    row = run_.round()
    run_.close()
    samples = sum(lab.SIZES[i] for i in row["cohort"])
    assert row["flops"] == samples * 2 * (F * H + H * G) + EPOCHS * samples * 2 * (2 * G * K), (
        "head: forward, and the gradient of its weights"
    )


def test_clients_with_and_without_a_cache_are_counted_each_as_they_ran():
    data, wide = lab.federation(), lab.filled(Body())
    run_ = lab.engine(lab.parts(Only("role:head"), (data, wide), cohort=6, local_steps=3))
    row = run_.round()
    run_.close()
    prefix, head = 2 * (F * 5 + 5 * 4), 2 * 2 * 4 * K
    once = {17: 12, 12: 12, 9: 9}  # samples read in three batches, each once
    more = {8: 12, 5: 9, 3: 9}  # and some of them again
    assert row["activation_cache"] == {"local: cached": 3, "local: not cached, each sample is read once": 3}
    assert row["flops"] == sum(once.values()) * (prefix + head) + sum(more.values()) * head + sum(more) * prefix


def test_describe_shows_the_frozen_prefix_apart():
    found = probe_costs(lab.parts(Only("role:head"), local_epochs=EPOCHS)).flops
    assert found == {"local": 2 * 2 * G * K, "prefix local": 2 * (F * H + H * G)}


def test_describe_shows_what_each_layer_would_cache():
    found = describe(Config(method="fedrep(head_epochs=2)", data="digits", model="mlp(hidden=[32,16])", clients=5))
    assert [(layer.prefix_flops, layer.cached_bytes) for layer in found.layers] == [
        (0, 0),
        (2 * 64 * 32, 4 * 32),
        (2 * (64 * 32 + 32 * 16), 4 * 16),
    ]
    assert found.not_cached is None
    assert list(found.flops_step) == ["head", "prefix head", "local"]
    refused = describe(Config(data="digits", model="mlp(hidden=[32],dropout=0.1)", clients=5))
    assert [(layer.prefix_flops, layer.cached_bytes) for layer in refused.layers] == [(0, 0), (0, 0)]
    assert refused.not_cached == "dropout before the trained layers (layers.0.drop)"


def settings(tmp_path, name, **more):
    return Config(**(dict(lab.DEFAULTS) | {"out": str(tmp_path), "name": name, "rounds": 4} | more))


def test_a_resumed_run_ends_where_an_uninterrupted_one_ends(tmp_path):
    given = lambda: {"federation": lab.federation(), "module": lab.small(), "method": Method((Only("role:head"),))}
    whole = run(settings(tmp_path, "whole"), **given())
    stops = iter([False, True])
    with pytest.raises(Stopped):
        run(settings(tmp_path, "halves"), stop=lambda: next(stops), **given())
    again = resume(tmp_path / "halves", **given())
    assert again.summary["model_sha256"] == whole.summary["model_sha256"]
    assert again.summary["flops"] == whole.summary["flops"]
    assert again.summary["activation_cache"] == whole.summary["activation_cache"] == {"local: cached": 12}
    assert [r["activation_cache"] for r in again.rounds] == [r["activation_cache"] for r in whole.rounds]


def test_a_folder_from_before_the_setting_is_the_same_run():
    assert (
        Config().digest()
        == Config(**{"local.activation_cache_mb": 256}).digest()
        != Config(**{"local.activation_cache_mb": 0}).digest()
    )


def test_a_run_that_trains_everything_has_no_cache_in_its_summary(tmp_path):
    assert (
        run(settings(tmp_path, "plain"), federation=lab.federation(), module=lab.small()).summary["activation_cache"]
        is None
    )


def test_workers_are_left_as_they_were_by_the_trial_of_a_cut():
    worker, task = turn(Only("role:head"), "layer")
    update = ClientUpdate(worker, task)
    worker.bound.load(update.begin())
    flat = worker.bound.flat.detach().clone()
    assert isinstance(
        update.tools.plan_cache("local", worker.setup.layout.select("role:head"), 2, None), ActivationCache
    )
    assert torch.equal(worker.bound.flat, flat)
