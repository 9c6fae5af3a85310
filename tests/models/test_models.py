"""Claims about every model of the registry: shapes, counts, groups, initialisation, dropout, functional calls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.flop_counter import FlopCounterMode

from fedstrata import models
from fedstrata.core.layout import Layout, derive_groups, entries_of
from fedstrata.core.network import Dropout
from fedstrata.data.types import Task
from fedstrata.models.blocks import ChannelDropout


def task_of(shape, classes, vocabulary=0, kind="classification"):
    return Task(kind, shape, classes, vocabulary=vocabulary)


CIFAR, CIFAR100, DIGITS, MNIST = (
    task_of((3, 32, 32), 10),
    task_of((3, 32, 32), 100),
    task_of((1, 8, 8), 10),
    task_of((1, 28, 28), 10),
)
CHARS, NEWS = task_of((80,), 80, 80), task_of((64,), 5, 30333)

COUNTS = [
    ("logistic", task_of((784,), 10), None, 7_850),
    ("mlp", task_of((784,), 10), None, 101_770),
    ("cnn", CIFAR, None, 878_538),
    ("cnn(padding=2)", MNIST, None, 1_663_370),
    ("small_cnn", CIFAR, None, 62_006),
    ("lenet", CIFAR, None, 797_962),
    ("lenet", CIFAR100, None, 815_332),
    ("dlg_lenet", CIFAR, None, 15_826),
    ("resnet8", CIFAR, None, 1_235_274),
    ("resnet8", CIFAR100, None, 1_258_404),
    ("resnet8", task_of((3, 64, 64), 200), None, 1_284_104),
    ("resnet18", CIFAR, None, 11_181_642),
    ("resnet18", CIFAR100, None, 11_227_812),
    ("resnet18", task_of((3, 64, 64), 200), None, 11_279_112),
    ("resnet18(stem=3)", CIFAR, "group", 11_173_962),
    ("vgg11", CIFAR, None, 9_750_922),
    ("mobilenet(track=false)", CIFAR100, None, 3_309_476),
    ("vit_s(patch=16)", task_of((3, 224, 224), 1000), None, 22_050_664),  # the figure of the timm and DeiT projects
    ("char_lstm", CHARS, None, 133_520),
    ("transformer", NEWS, None, 6_793_605),
]

RESNET18 = [9_536, *[36_992] * 4, 73_984, 147_712, 8_448, 147_712, 147_712, 295_424, 590_336, 33_280, 590_336, 590_336]
RESNET18 += [1_180_672, 2_360_320, 132_096, 2_360_320, 2_360_320, 5_130]
GROUPS = [
    ("resnet8", CIFAR, [9_536, 36_992, 36_992, 73_984, 147_712, 8_448, 295_424, 590_336, 33_280, 2_570]),
    ("resnet18", CIFAR, RESNET18),
    ("transformer", NEWS, [6_066_600, *[160_800, 81_200] * 3, 1_005]),
    ("cnn20", CIFAR, [896, 9_248, 18_496, 36_928, 73_856, 147_584, 1_049_088, 5_130]),
]

# A spec, a task and the forms that are cheap enough to run through a whole forward and backward pass.
SMALL = [
    ("logistic", DIGITS),
    ("logistic", task_of((13,), 1, kind="regression")),
    ("mlp(hidden=[16, 8], dropout=0.2)", task_of((64,), 3)),
    ("cnn", CIFAR),
    ("cnn(dropout=0.3)", MNIST),
    ("cnn(padding=2)", DIGITS),
    ("small_cnn(dropout=0.3)", CIFAR),
    ("small_cnn", MNIST),
    ("lenet", MNIST),
    ("dlg_lenet", MNIST),
    ("dlg_lenet(activation=elu, spread=0)", CIFAR),
    ("cnn20(dropout=0.1)", CIFAR),
    ("resnet8", CIFAR),
    ("resnet8(stem=3, dropout=0.5)", DIGITS),
    ("resnet8", task_of((1, 28, 28), 62)),
    ("resnet18(down=conv2)", CIFAR),
    ("resnet9(dropout=0.1)", task_of((3, 16, 16), 10)),
    ("vgg11", CIFAR),
    ("mobilenet(dropout=0.5)", task_of((3, 16, 16), 10)),
    ("mobilenet(track=false)", DIGITS),
    ("vit_s(layers=2, width=24, heads=3, dropout=0.1)", DIGITS),
    ("char_lstm(dropout=0.1)", CHARS),
    ("transformer", task_of((17,), 4, 50)),
]
NORMED = ["mlp", "cnn", "small_cnn", "lenet", "cnn20", "resnet8", "resnet18", "resnet9", "vgg11", "mobilenet"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def build(spec: str, task: Task, norm: str | None = None, seed: int = 0) -> nn.Module:
    return models.build(spec, task, norm, seeded(seed))  # type: ignore[arg-type]


def batch(task: Task, size: int = 3) -> torch.Tensor:
    if task.vocabulary:
        return torch.randint(task.vocabulary, (size, *task.shape), generator=seeded())
    return torch.randn(size, *task.shape, generator=seeded())


def give_streams(module: nn.Module, seed: int = 7) -> None:
    generator = seeded(seed)
    for part in module.modules():
        if isinstance(part, Dropout):
            part.draw = lambda shape: torch.rand(shape, generator=generator)


small = pytest.mark.parametrize(
    ("spec", "task"), SMALL, ids=lambda v: v if isinstance(v, str) else "x".join(map(str, v.shape))
)


@pytest.mark.parametrize(("spec", "task", "norm", "wanted"), COUNTS)
def test_parameter_counts_are_the_published_ones(spec, task, norm, wanted):
    assert models.count(spec, task, norm) == wanted


@pytest.mark.parametrize(("spec", "task", "wanted"), GROUPS, ids=[g[0] for g in GROUPS])
def test_layer_groups_are_the_published_ones(spec, task, wanted):
    layout = Layout(entries_of(build(spec, task), "head"))
    assert [g.numel for g in layout.groups.values()] == wanted


@pytest.mark.parametrize("host", ["conv1", "conv2"])
def test_resnet18_has_18_groups_when_shortcuts_join_a_convolution(host):
    layout = Layout(entries_of(build(f"resnet18(down={host})", CIFAR), "head"))
    assert len(layout.groups) == 18
    assert "layer2.0.down.conv.weight" in layout.group(f"layer2.0.{host}")


@pytest.mark.parametrize(("spec", "convs"), [("resnet18(stem=3)", 20), ("vgg16", 13), ("mobilenet", 27)])
def test_convolutions_are_those_that_fedphoenix_counts(spec, convs):
    found = [n for n, m in build(spec, CIFAR).named_modules() if isinstance(m, nn.Conv2d)]
    assert len(found) == convs


def test_a_shortcut_is_defined_behind_conv2_of_its_block():
    names = [n for n, m in build("resnet18", CIFAR).named_modules() if isinstance(m, nn.Conv2d)]
    assert names[5:8] == ["layer2.0.conv1", "layer2.0.conv2", "layer2.0.down.conv"]


def test_fedphoenix_resnet18_has_11159232_convolution_weights():
    assert (
        sum(m.weight.numel() for m in build("resnet18(stem=3)", CIFAR).modules() if isinstance(m, nn.Conv2d))
        == 11_159_232
    )


def test_vgg16_on_tiny_imagenet_takes_8192_inputs_with_pool_4():
    assert build("vgg16(pool=4)", task_of((3, 64, 64), 200)).get_parameter("hidden.0.weight").shape == (4096, 8192)


@small
def test_every_model_gives_one_row_of_finite_logits_a_sample(spec, task):
    module = build(spec, task)
    give_streams(module)
    for mode in (True, False):
        out = module.train(mode)(batch(task))
        assert out.shape == (3, task.classes)
        assert out.isfinite().all()


@small
def test_groups_partition_the_parameters(spec, task):
    module = build(spec, task)
    layout = Layout(entries_of(module, "head"))  # raises where a parameter lies in no group or in two
    assert sorted(layout.spec.names) == sorted(n for n, _ in module.named_parameters())
    kinds = {"conv", "linear", "embedding", "attention", "feedforward", "recurrent", "norm"}
    assert {g.kind for g in layout.groups.values()} <= kinds
    assert list(layout.groups.values())[-1].role == "head"


@small
def test_the_head_is_found_and_leaves_the_features(spec, task):
    module = build(spec, task)
    give_streams(module)
    assert models.check(module, task) == module.head_name == "head"


@small
def test_initialisation_draws_from_the_given_generator_only(spec, task):
    before = torch.get_rng_state()
    first, again, other = build(spec, task), build(spec, task), build(spec, task, seed=1)
    assert torch.equal(before, torch.get_rng_state())
    for (name, a), (_, b) in zip(first.state_dict().items(), again.state_dict().items(), strict=True):
        assert torch.equal(a, b), name
    assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


@small
def test_nothing_stays_unfilled(spec, task, monkeypatch):
    empty = nn.Module.to_empty

    def poisoned(self, **kwargs):
        empty(self, **kwargs)
        for tensor in self.state_dict().values():
            tensor.fill_(float("nan") if tensor.is_floating_point() else -1)
        return self

    monkeypatch.setattr(nn.Module, "to_empty", poisoned)
    for name, tensor in build(spec, task).state_dict().items():
        assert tensor.isfinite().all(), name
        assert tensor.is_floating_point() or tensor.item() == 0, name


@small
def test_functional_call_equals_the_call(spec, task):
    module = build(spec, task).eval()
    other = {n: p.detach() * 1.01 for n, p in module.named_parameters()}
    x = batch(task)
    with (
        torch.no_grad()
    ):  # one mode for both: torch's LSTM rounds differently where it need not keep anything for a backward pass
        out = functional_call(module, other, (x,))
        for name, p in module.named_parameters():
            p.copy_(other[name])
        assert torch.equal(out, module(x))


@small
def test_gradients_reach_every_parameter(spec, task):
    module = build(spec, task)
    give_streams(module)
    module(batch(task)).square().sum().backward()
    assert [n for n, p in module.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize(
    ("spec", "task"),
    [s for s in SMALL if not s[0].startswith("char_lstm")],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_stacked_clients_equal_single_ones(spec, task):
    module = build(spec, task, "group" if spec.startswith(("resnet", "mobilenet")) else None).eval()
    stack = {n: torch.stack([p.detach(), 0.9 * p.detach()]) for n, p in module.named_parameters()}
    x = torch.stack([batch(task, 2), batch(task, 2).flip(0)])
    loss = lambda p, b: functional_call(module, p, (b,)).square().mean()
    together = vmap(grad(loss))(stack, x)
    for client in range(2):
        alone = grad(loss)({n: p[client] for n, p in stack.items()}, x[client])
        for name, g in alone.items():
            torch.testing.assert_close(
                together[name][client], g, rtol=2e-4, atol=1e-5 * float(1 + g.abs().max())
            )  # sums of up to 10^5 float32 terms


@pytest.mark.parametrize("spec", NORMED)
def test_layer_names_do_not_depend_on_the_norm(spec):
    task = task_of((3, 32, 32), 10)
    structure = {
        norm: [(n, type(m) is nn.Conv2d) for n, m in build(spec, task, norm).named_modules()]
        for norm in ("batch", "group", "none")
    }
    assert structure["batch"] == structure["group"] == structure["none"]
    assert len({len(derive_groups(build(spec, task, norm))) for norm in ("batch", "group", "none")}) == 1


@pytest.mark.parametrize("spec", NORMED)
def test_batch_norm_learns_where_asked_and_group_norm_keeps_no_statistics(spec):
    assert any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in build(spec, CIFAR, "batch").modules())
    assert list(build(spec, CIFAR, "group").buffers()) == list(build(spec, CIFAR, "none").buffers()) == []
    assert any(isinstance(m, nn.GroupNorm) for m in build(spec, CIFAR, "group").modules())


def test_mobilenet_without_tracking_has_no_statistics_and_83_tensors():
    module = build("mobilenet(track=false)", CIFAR100)
    assert len(module.state_dict()) == 83
    x = batch(CIFAR100)
    assert torch.equal(module.eval()(x), module.train()(x))


def test_groups_is_a_setting():
    assert {
        m.num_groups for m in build("resnet18(groups=2)", CIFAR, "group").modules() if isinstance(m, nn.GroupNorm)
    } == {2}


def test_fedpart_encoder_layers_start_equal():
    module = build("transformer", task_of((5,), 4, 50))
    one, two, three = (module.get_submodule(f"layers.{i}").state_dict() for i in range(3))
    assert all(torch.equal(one[k], two[k]) and torch.equal(one[k], three[k]) for k in one)
    assert len({p.data_ptr() for p in module.parameters()}) == len(list(module.parameters()))


def test_the_transformer_is_torchs_encoder():
    task = task_of((6,), 4, 50)
    module = build("transformer(dropout=0)", task).eval()
    layer = nn.TransformerEncoderLayer(200, 2, 200, dropout=0.0, batch_first=True).eval()
    peer = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    for mine, theirs in zip(module.layers, peer.layers, strict=True):
        names = {"attention.qkv.weight": "self_attn.in_proj_weight", "attention.qkv.bias": "self_attn.in_proj_bias"}
        names |= {f"attention.out.{p}": f"self_attn.out_proj.{p}" for p in ("weight", "bias")}
        theirs.load_state_dict({names.get(k, k): v for k, v in mine.state_dict().items()})
    seen = []
    module.layers[0].register_forward_pre_hook(lambda _, x: seen.append(x[0]))
    x = batch(task)
    out = module(x)
    torch.testing.assert_close(module.head(peer(seen[0])[:, -1]), out, rtol=1e-5, atol=1e-5)


def test_positions_are_the_published_sines():
    embedded = torch.zeros(1, 7, 4, dtype=torch.float64)
    table = models.attention.sinusoids(embedded)
    assert table[3, 0] == pytest.approx(torch.sin(torch.tensor(3.0)).item(), abs=1e-7)
    assert table[3, 3] == pytest.approx(torch.cos(torch.tensor(3 / 100.0, dtype=torch.float64)).item(), abs=1e-12)


def test_the_lstm_is_torchs():
    module = build("char_lstm", CHARS)
    peer = nn.LSTM(8, 100, batch_first=True)
    mine = module.get_submodule("lstm1")
    peer.load_state_dict({f"{n}_l0": p.detach() for n, p in mine.named_parameters()})
    x = torch.randn(2, 80, 8, generator=seeded())
    torch.testing.assert_close(mine(x), peer(x)[0])


@pytest.mark.parametrize(
    ("spec", "task", "forward"),
    [
        ("char_lstm", CHARS, 80 * 400 * (108 + 200) + 8_000),
        ("mlp", task_of((784,), 10), 101_632),
        ("cnn", CIFAR, 32 * 784 * 75 + 64 * 100 * 800 + 824_320),
    ],
)
def test_torchs_counter_sees_all_products(spec, task, forward):
    module = build(spec, task)
    with FlopCounterMode(display=False) as counter:
        out = module(batch(task))
    assert counter.get_total_flops() == 2 * 3 * forward
    with FlopCounterMode(display=False) as counter:
        out.sum().backward()
    inputs = {"char_lstm": 0, "mlp": 100_352, "cnn": 32 * 784 * 75}[
        spec
    ]  # the first layer's input needs no gradient; the fused LSTM computes it anyway
    assert counter.get_total_flops() == 2 * 3 * (2 * forward - inputs)


def test_fedfn_initialisation_of_vgg11():
    module = build("vgg11", CIFAR)
    for name, part in module.named_modules():
        if isinstance(part, nn.Conv2d):
            assert torch.count_nonzero(part.bias) == 0
            assert part.weight.std().item() == pytest.approx((2 / (9 * part.out_channels)) ** 0.5, rel=0.05), (
                name
            )  # at least 1728 draws


@pytest.mark.parametrize(("init", "std"), [("fan_out", (2 / (9 * 64)) ** 0.5), ("torch", (1 / (3 * 9 * 64)) ** 0.5)])
def test_resnets_start_as_fedpart_or_as_fedfn_say(init, std):
    weight = build(f"resnet18(init={init})", CIFAR).get_parameter("layer1.0.conv1.weight")
    assert weight.std().item() == pytest.approx(std, rel=0.02)


def test_default_linear_initialisation_is_torchs_law():
    layer = build("mlp(hidden=512)", task_of((100,), 2)).get_submodule("layers.0.linear")
    assert 0.099 < layer.weight.abs().max().item() <= 0.1
    assert 0.09 < layer.bias.abs().max().item() <= 0.1


DROPPED = [
    ("resnet18(dropout=0.5)", CIFAR, 5),
    ("vgg16(conv_dropout=0.5)", CIFAR, 6),
    ("vgg16", CIFAR, 2),
    ("mobilenet(dropout=0.5)", CIFAR, 5),
    ("small_cnn(dropout=0.3)", CIFAR, 4),
    ("transformer", task_of((5,), 4, 50), 13),
]


@pytest.mark.parametrize(("spec", "task", "layers"), DROPPED, ids=[d[0] for d in DROPPED])
def test_dropout_controls_have_our_layer_at_the_published_places(spec, task, layers):
    module = build(spec, task)
    assert sum(isinstance(m, Dropout) for m in module.modules()) == layers
    assert not any(isinstance(m, nn.modules.dropout._DropoutNd) for m in module.modules())


def ways_through_dropout(spec, task):
    """(module that runs before, p, whole channels, shape of a sample) of every dropout, in the order of the forward
    pass.
    """
    module, found, last = build(spec, task).train(), [], [""]
    give_streams(module)
    inner = {id(m.mask) for m in module.modules() if isinstance(m, ChannelDropout)}
    for name, layer in module.named_modules():
        if id(layer) in inner:
            continue
        if isinstance(layer, (Dropout, ChannelDropout)):
            drop = layer.mask if isinstance(layer, ChannelDropout) else layer
            told = drop.p, isinstance(layer, ChannelDropout)
            layer.register_forward_pre_hook(
                lambda _, x, told=told: found.append((last[0], *told, tuple(x[0].shape[1:])))
            )
        elif not isinstance(layer, nn.Identity) and not any(True for _ in layer.children()):
            layer.register_forward_hook(lambda *_, name=name: last.__setitem__(0, name))
    module(batch(task))
    return found


TINY = task_of((3, 64, 64), 200)


def resnet18(p, side):
    """After each stage and in front of the head."""
    stages = [(f"layer{k + 1}.1.norm2", p, False, (64 * 2**k, side // 2**k, side // 2**k)) for k in range(4)]
    return [*stages, ("layer4.1.norm2", p, False, (512,))]


CONTROLS = [
    ("resnet18(stem=3, dropout=0.5)", CIFAR, resnet18(0.5, 32)),
    ("resnet18(stem=3, dropout=0.25)", TINY, resnet18(0.25, 64)),
    (
        "vgg16(conv_dropout=0.5)",
        CIFAR,
        [
            *(
                (f"convs.{n}.norm", 0.5, False, (w, s, s))
                for n, w, s in ((1, 64, 16), (3, 128, 8), (6, 256, 4), (9, 512, 2))
            ),
            ("hidden.0", 0.5, False, (4096,)),
            ("hidden.1", 0.5, False, (4096,)),
        ],
    ),
    (
        "mobilenet(dropout=0.5)",
        CIFAR,
        [
            *(
                (f"blocks.{n - 1}.norm2", 0.5, False, (w, s, s))
                for n, w, s in ((4, 256, 8), (6, 512, 4), (9, 512, 4), (12, 1024, 2))
            ),
            ("blocks.12.norm2", 0.5, False, (1024,)),
        ],
    ),
    (
        "small_cnn(dropout=0.3)",
        CIFAR,
        [
            ("convs.0.conv", 0.3, True, (6, 14, 14)),
            ("convs.1.conv", 0.3, True, (16, 5, 5)),
            ("hidden.0", 0.3, False, (120,)),
            ("hidden.1", 0.3, False, (84,)),
        ],
    ),
]


@pytest.mark.parametrize(("spec", "task", "places"), CONTROLS, ids=[c[0] for c in CONTROLS])
def test_fedphoenix_dropout_controls_drop_where_they_are_said_to(spec, task, places):
    """After each stage and in front of the head; after pools 1 to 4 and both hidden layers; after blocks 4, 6, 9, 12
    and in front of the head; of
    channels after both convolutions and of numbers after both hidden layers. Shapes show the pool in front."""
    assert ways_through_dropout(spec, task) == places


@pytest.mark.parametrize("spec", ["small_cnn(dropout=0.3)", "cnn(dropout=0.5)"])
def test_dropout_follows_the_derived_stream(spec):
    module, x = build(spec, CIFAR).train(), batch(CIFAR)
    before = torch.get_rng_state()
    outs = []
    for seed in (1, 1, 2):
        give_streams(module, seed)
        outs.append(module(x))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])


def test_channel_dropout_drops_whole_channels():
    layer = ChannelDropout(0.5).train()
    give_streams(layer)
    out = layer(torch.ones(4, 8, 3, 3))
    assert set(out.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(out.amin((2, 3)), out.amax((2, 3)))


def test_rows_tell_what_a_list_needs():
    for row in models.rows():
        assert row.name
        assert row.summary.endswith((".", "classes."))
        assert row.source
        assert row.norm in (None, "batch", "group", "none")
    found = models.find("resnet8")
    assert found.norm == "batch"
    assert found.parameters(CIFAR) == 1_235_274
    assert found.settings["stem"] == 7
    assert models.find("char_lstm").norm is None
