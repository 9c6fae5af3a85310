"""FedPhoenix: its ten acceptance properties, on the networks of its paper; where a client starts.

And what it says to its user.
"""

import functools
import math
import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedstrata.cli import main
from fedstrata.common import random_streams
from fedstrata.common.errors import ConfigError
from fedstrata.core.layout import Layout, entries_of
from fedstrata.core.params import Model, Params
from fedstrata.core.piece import Piece
from fedstrata.core.plan import CohortSlot
from fedstrata.data.types import Task
from fedstrata.engine.server import Server, context, plan_round
from fedstrata.methods import fedphoenix
from fedstrata.methods.fedphoenix import FedPhoenix
from fedstrata.methods.fedphoenixblend import FedPhoenixBlend, parts
from fedstrata.methods.parts import costs
from fedstrata.methods.parts.resets import LAWS, Matrix, draw, matrices, matrix, seeded, whole
from fedstrata.models import build
from helpers import lab

THETA = 2 / 64
IMAGES = Task("classification", (3, 32, 32), 10)
LAYERS = {"resnet18(stem=3)": 20, "vgg16": 13, "mobilenet": 27}  # convolutions


@functools.lru_cache(maxsize=1)
def resnet18():
    """(module, layout, parameters with statistics)."""
    module = build("resnet18(stem=3)", IMAGES, None, random_streams.torch_stream(0, "model"))
    layout = Layout(entries_of(module, "head"))
    buffers = Params.of({n: module.get_buffer(n) for n in layout.statistics.names})
    flat = Params.of({n: module.get_parameter(n) for n in layout.spec.names}).flat
    return module, layout, Model(Params(flat, layout.spec), buffers)


def layout_of(model):
    with torch.device("meta"):
        from fedstrata.models.registry import _read  # noqa: PLC0415

        row, given = _read(model, None)
        return Layout(entries_of(row.factory(task=IMAGES, **given), "head"))


def stream(place=0, t=0, seed=0):
    return seeded(random_streams.stream(seed, "send.fedphoenix", t, place))


def convs_by_module():
    """Names and kernels of the convolutions, read off the module itself, in definition order."""
    return [(f"{name}.weight", m.out_channels) for name, m in resnet18()[0].named_modules() if isinstance(m, nn.Conv2d)]


def changed(copy, params, name):
    """[n, width] bool."""
    return (copy[name] != params[name]).flatten(1)


# ---- 1 to 5: which kernels


def test_1_floor_theta_n_kernels_of_each_convolution_change_in_every_entry_and_no_other_bit_does():
    _, layout, params = resnet18()
    copy = FedPhoenix(theta=THETA).reset(params, layout, 0, stream())
    assert len(convs_by_module()) == 20
    for name, n in convs_by_module():
        moved = changed(copy, params, name)
        assert int(moved.any(1).sum()) == math.floor(THETA * n)
        assert moved.any(1).equal(moved.all(1)), f"{name}: a chosen kernel keeps an entry"


def test_2_biases_norms_and_linear_layers_are_bit_identical_to_the_servers():
    _, layout, params = resnet18()
    copy = FedPhoenix(theta=THETA).reset(params, layout, 0, stream())
    convs = {name for name, _ in convs_by_module()}
    assert len(convs) < len(params)
    assert all(torch.equal(copy[n], params[n]) for n in params if n not in convs)
    assert lab.bits(copy.statistics) == lab.bits(params.statistics)


def test_3_the_servers_model_is_bit_identical_before_and_after_the_copies_of_a_cohort():
    made = lab.parts("fedphoenix(theta=0.5)", "images")
    server = Server.start(made.method, made.setup)
    before = lab.bits(server.model)
    turn = plan_round(server, made.rules, 0.1, lambda *_: None, lambda _: None)
    assert all(lab.bits(work.sent) != before for work in turn.tasks)
    assert lab.bits(server.model) == before


def test_4_clients_of_a_round_get_different_kernels_and_the_same_index_the_same_bits():
    _, layout, params = resnet18()
    piece = FedPhoenix(theta=THETA)
    one, two = (piece.reset(params, layout, 3, stream(place, 3)) for place in (0, 1))
    sets = [[changed(copy, params, n).any(1) for n, _ in convs_by_module()] for copy in (one, two)]
    assert any(not a.equal(b) for a, b in zip(*sets, strict=True))
    assert lab.bits(piece.reset(params, layout, 3, stream(0, 3))) == lab.bits(one)


def test_4_common_resets_are_the_same_for_all_clients_of_a_round_and_others_in_the_next():
    made = lab.parts("fedphoenix(theta=0.5, resets=common)", "images")
    server = Server.start(made.method, made.setup)
    sent = [w.sent for w in plan_round(server, made.rules, 0.1, lambda *_: None, lambda _: None).tasks]
    assert len({lab.bits(p) for p in sent}) == 1
    piece = made.method.pieces[0]
    ctx = context(replace(server, round=1), made.rules, piece, "send.fedphoenix", 0, slot=CohortSlot(0, 0))
    later = piece.send(server.model, ctx)[0]
    assert lab.bits(later) != lab.bits(sent[0])


def active(piece, layers, t):
    return [d for d in range(layers) if piece.ratio_at(d, layers, t)]


@pytest.mark.parametrize(
    ("model", "published"),
    [
        ("resnet18(stem=3)", [20, 20, 19, 10, 1, 0]),
        ("vgg16", [13, 13, 13, 7, 1, 0]),
        ("mobilenet", [27, 26, 26, 14, 1, 0]),
    ],
)
def test_5_layers_reset_in_a_round_are_those_with_t_layers_below_depth_plus_one_times_stop(model, published):
    """At rounds 0, 49, 50, 500, 999, 1000 as run on the released code.

    A large theta, so that every active layer has a kernel.
    """
    layout = layout_of(model)
    assert len(matrices(layout, "conv")) == LAYERS[model]
    assert [len(list(FedPhoenix(theta=0.5).due(layout, t))) for t in (0, 49, 50, 500, 999, 1000)] == published


@pytest.mark.parametrize("layers", [1, 7, 13, 20, 27])
def test_5_active_layers_are_the_deep_end_and_never_become_more(layers):
    piece, before = FedPhoenix(stop=90), layers
    for t in range(95):
        found = active(piece, layers, t)
        assert len(found) == sum(t * layers < (d + 1) * 90 for d in range(layers)) <= before
        assert found == list(range(layers - len(found), layers))
        before = len(found)
    assert len(active(piece, layers, 0)) == layers
    assert not active(piece, layers, 90)


def test_5_the_integer_form_has_no_extra_round_where_floats_have_one():
    assert not 900 < 7 * 900 / 7
    assert any(t < (d + 1) * (r / n) and not t * n < (d + 1) * r for n, r in [(7, 900)] for d in range(n) for t in [r])
    assert not active(FedPhoenix(stop=900), 7, 900)


def test_5_reverse_stops_deep_layers_first_constant_never_stops_and_linear_fades():
    reverse, constant, linear = (
        FedPhoenix(theta=0.5, stop=100, schedule=s, hold=h)
        for s, h in (("reverse", 0), ("constant", 0), ("linear", 20))
    )
    assert [active(reverse, 4, t) for t in (0, 25, 50, 99, 100)] == [[0, 1, 2, 3], [0, 1, 2], [0, 1], [0], []]
    assert active(constant, 4, 10**6) == [0, 1, 2, 3]
    assert [linear.ratio_at(0, 4, t) for t in (0, 20, 60, 100, 101)] == [0.5, 0.5, 0.25, 0, 0]
    assert FedPhoenix(stop=0, schedule="linear").ratio_at(0, 4, 0) == 0


# ---- 6: with what

SPREAD = {
    "uniform": 1 / math.sqrt(3),
    "trunc_normal": 0.8796,
}  # of the layer's standard deviation; 1 for the others that look at the layer


def one_layer(rows=256, inputs=128, seed=1):
    """A convolution whose weights have mean 0.3 and standard deviation 0.05."""
    weight = 0.3 + 0.05 * torch.randn(rows, inputs, 3, 3, generator=torch.Generator().manual_seed(seed))
    module = nn.Conv2d(inputs, rows, 3, bias=False)
    module.weight = nn.Parameter(weight)
    shell = nn.Sequential(module)
    return Layout(entries_of(shell, "none")), Params.of({"0.weight": weight})


@pytest.mark.parametrize("law", LAWS)
def test_6_new_values_have_the_mean_and_standard_deviation_of_their_law(law):
    layout, params = one_layer()
    weight = params["0.weight"]
    copy = FedPhoenix(theta=0.5, law=law).reset(params, layout, 0, stream())["0.weight"]
    new = copy.flatten(1)[(copy != weight).flatten(1).any(1)].double()
    assert new.numel() >= 100_000
    mean, std = float(weight.double().mean()), float(weight.double().std())
    if law.startswith("kaiming"):
        mean, std = 0.0, math.sqrt(2 / (128 * 9))
    std *= SPREAD.get(law, 1)
    assert abs(float(new.mean()) - mean) <= 0.02 * std
    assert float(new.std()) == pytest.approx(std, rel=0.02)  # 1e5 numbers: the standard error is 0.3 %


def test_6_bounded_laws_keep_their_bounds():
    shape, generator = (300, 400), torch.Generator().manual_seed(0)
    for law, edge in (("uniform", 1.0), ("xavier_uniform", math.sqrt(3)), ("trunc_normal", 2.0)):
        values = draw(law, shape, 400, (0.0, 1.0), 1.0, generator, torch.float64)
        assert edge * 0.99 < values.abs().max() <= edge
    assert draw("kaiming_uniform", shape, 400, (5.0, 5.0), 1.0, generator, torch.float64).abs().max() <= math.sqrt(
        6 / 400
    )


def test_6_orthogonal_kernels_are_at_right_angles():
    layout, params = one_layer()
    copy = FedPhoenix(theta=0.5, law="orthogonal").reset(params, layout, 0, stream())["0.weight"]
    chosen = (copy != params["0.weight"]).flatten(1).any(1)
    weight = params["0.weight"].double()
    rows = (copy.double().flatten(1)[chosen] - weight.mean()) / (weight.std() * math.sqrt(128 * 9))
    assert (rows @ rows.T - torch.eye(128, dtype=torch.float64)).abs().max() <= 1e-4


def test_6_more_orthogonal_kernels_than_entries_keep_the_standard_deviation():
    """16 depthwise kernels of 9: their columns are at right angles."""
    values = draw("orthogonal", (16, 9), 9, (0.0, 1.0), 1.0, torch.Generator().manual_seed(0), torch.float64)
    assert torch.allclose(values.T @ values, 16 * torch.eye(9, dtype=torch.float64), atol=1e-12)


def test_6_moments_are_the_unbiased_ones_before_the_reset_and_read_once_a_round(monkeypatch):
    layout, params = one_layer(rows=4, inputs=2)
    asked = []
    real = torch.std_mean
    monkeypatch.setattr(torch, "std_mean", lambda t: asked.append(1) or real(t))
    fresh = Params(params.flat, params.spec)
    for place in range(10):
        FedPhoenix(theta=0.5).reset(fresh, layout, 0, stream(place))
    assert len(asked) == 1
    mean, std = fedphoenix.moments(fresh, matrix(layout, "0.weight"))
    assert mean == pytest.approx(float(params.flat.double().mean()), rel=1e-6)
    assert std == pytest.approx(float(params.flat.double().std(unbiased=True)), rel=1e-6)


# ---- 7: the limit


@pytest.mark.parametrize("toy", ["images", "layer"])
@pytest.mark.parametrize(
    "off", ["theta=0", "stop=0", "theta=0, side=client", "stop=0, side=client", "stop=0, schedule=linear"]
)
def test_7_without_theta_or_rounds_a_whole_run_is_fedavg_bit_for_bit(toy, off):
    found, plain = lab.play(f"fedphoenix({off}, layers=both)", toy), lab.played("fedavg", toy)
    assert set(lab.differences(found, plain)) <= {"states"}, "a piece without state has an empty one, FedAvg none"


# ---- 8: parts of kernels and linear layers


@pytest.mark.parametrize("share", [1 / 3, 2 / 3])
def test_8_only_the_largest_entries_of_a_chosen_kernel_change(share):
    layout, params = one_layer(rows=64, inputs=5)
    copy = FedPhoenix(theta=0.25, share=share).reset(params, layout, 0, stream())
    moved, sizes = changed(copy, params, "0.weight"), params["0.weight"].flatten(1).abs()
    assert int(moved.any(1).sum()) == 16
    for kernel, size in zip(moved[moved.any(1)], sizes[moved.any(1)], strict=True):
        assert int(kernel.sum()) == round(share * 45)
        assert size[kernel].min() >= size[~kernel].max()


def test_8_of_entries_of_equal_size_the_first_change():
    params = Params.of({"0.weight": torch.ones(4, 1, 3, 3) * torch.tensor([-1.0, 1, 2]).reshape(1, 1, 1, 3)})
    layout = one_layer(rows=4, inputs=1)[0]
    moved = changed(FedPhoenix(theta=0.25, share=5 / 9).reset(params, layout, 0, stream()), params, "0.weight")
    assert moved[moved.any(1)].tolist() == [[True, True, True, False, False, True, False, False, True]]


@pytest.mark.parametrize(("share", "times"), [(1 / 3, 3), (2 / 3, 1.5)])
def test_8_the_matched_budget_redraws_as_many_numbers_as_whole_kernels(share, times):
    layout, params = one_layer(rows=64, inputs=128)
    whole_kernels, matched, by_hand = (
        int(changed(piece.reset(params, layout, 0, stream()), params, "0.weight").sum())
        for piece in (
            FedPhoenix(theta=0.125),
            FedPhoenix(theta=0.125, share=share, budget="matched"),
            FedPhoenix(theta=0.125 * times, share=share),
        )
    )
    assert matched == by_hand == whole_kernels == 8 * 1152


def test_8_linear_layers_are_reset_by_rows_until_a_round_of_their_own():
    made = lab.parts("fedphoenix(theta=0.5, layers=fc, stop=5, fc_stop=3)", "layer")
    piece, params, layout = made.method.pieces[0], made.setup.model, made.setup.layout
    copy = piece.reset(params, layout, 0, stream())
    rows = {n: int(changed(copy, params, n).any(1).sum()) for n in ("first.weight", "second.weight", "head.weight")}
    assert rows == {"first.weight": 4, "second.weight": 2, "head.weight": 1}
    assert all(torch.equal(copy[n], params[n]) for n in params if n not in rows)
    assert [len(list(piece.due(layout, t))) for t in (0, 2, 3)] == [3, 3, 0]


@pytest.mark.parametrize(("layers", "kinds"), [("conv", {"conv"}), ("fc", {"linear"}), ("both", {"conv", "linear"})])
def test_8_each_arm_touches_its_own_layers_only(layers, kinds):
    made = lab.parts(f"fedphoenix(theta=0.5, layers={layers})", "images")
    params, layout = made.setup.model, made.setup.layout
    copy = made.method.pieces[0].reset(params, layout, 0, stream())
    touched = {layout.entries[n].kind for n in params if not torch.equal(copy[n], params[n])}
    assert touched == kinds


# ---- 9: the blend


@functools.lru_cache(maxsize=1)
def transformer():
    module = build(
        "transformer(width=16, heads=2, feedforward=32)",
        Task("classification", (6,), 4, vocabulary=50),
        None,
        random_streams.torch_stream(0, "m"),
    )
    layout = Layout(entries_of(module, "head"))
    flat = Params.of({n: module.get_parameter(n) for n in layout.spec.names}).flat
    return layout, Params(flat, layout.spec)


def test_9_alpha_0_leaves_every_bit():
    layout, params = transformer()
    assert FedPhoenixBlend(alpha=0, rho=0.5).blend(params, layout, 0, stream()) is params
    assert lab.bits(lab.play("fedphoenixblend(alpha=0, rho=0.5)").model) == lab.bits(lab.played("fedavg").model)


@pytest.mark.parametrize("lines", ["rows", "columns"])
def test_9_touched_lines_are_the_blend_and_the_others_keep_their_bits(lines, monkeypatch):
    layout, params = transformer()
    drawn = []
    real = torch.randn
    monkeypatch.setattr(
        torch, "randn", lambda *shape, **options: drawn.append(real(*shape, **options)) or drawn[-1].clone()
    )
    piece = FedPhoenixBlend(alpha=0.3, rho=0.25, qkv=lines, out=lines, ffn=lines)
    copy = piece.blend(params, layout, 0, stream())
    expected = parts(layout)
    assert len(drawn) == len(expected) == 3 * (3 + 1 + 2)
    for part, noise in zip(expected, drawn, strict=True):
        old, new = part.matrix.of(params.flat).double(), part.matrix.of(copy.flat).double()
        sample = old.mean() + old.std() * noise.double()
        old, new = (old, new) if lines == "rows" else (old.T, new.T)
        moved = (old != new).any(1)
        assert int(moved.sum()) == old.shape[0] // 4
        order = matched(new[moved] - 0.7 * old[moved], 0.3 * sample)
        assert (new[moved] - (0.7 * old[moved] + 0.3 * sample[order])).abs().max() <= 1e-6


def matched(found, samples):
    """Which sample each line has; they are drawn in the order in which lines were chosen."""
    return torch.cdist(found, samples).argmin(1)


def test_9_fused_projections_are_three_matrices_with_moments_and_lines_of_their_own():
    layout, params = transformer()
    fused = matrix(layout, "layers.0.attention.qkv.weight")
    first = [p for p in parts(layout) if p.role == "qkv" and p.block == 0]
    assert [p.matrix for p in first] == [Matrix(fused.start + i * 256, 16, 16) for i in range(3)]
    copy = FedPhoenixBlend(rho=1 / 16, out="none", ffn="none").blend(params, layout, 0, stream())
    moved = changed(copy, params, "layers.0.attention.qkv.weight").any(1)
    assert [int(third.sum()) for third in moved.split(16)] == [1, 1, 1]
    assert sorted({p.block for p in parts(layout)}) == [0, 1, 2]
    assert torch.equal(copy["embedding.weight"], params["embedding.weight"])
    assert torch.equal(copy["head.weight"], params["head.weight"])


def test_9_the_stair_freezes_early_blocks_first_and_the_shift_moves_strength_to_late_ones():
    stair, shift = FedPhoenixBlend(stop=90), FedPhoenixBlend(stop=90, blocks="shift")
    assert [[stair.weight(b, 3, t) for b in range(3)] for t in (0, 30, 60, 90)] == [
        [1, 1, 1],
        [0, 1, 1],
        [0, 0, 1],
        [0, 0, 0],
    ]
    start, middle = ([shift.weight(b, 3, t) for b in range(3)] for t in (0, 45))
    assert start == pytest.approx([1, 2 / 3, 1 / 3])
    assert middle == pytest.approx([2 / 3, 1, 2 / 3])
    assert [shift.weight(b, 3, 89) for b in range(3)] == sorted(shift.weight(b, 3, 89) for b in range(3))
    assert shift.weight(2, 3, 90) == 0


def test_9_the_shift_takes_blocks_as_often_as_their_weight_says():
    layout, params = transformer()
    piece = FedPhoenixBlend(stop=90, blocks="shift", rho=1 / 16, out="none", ffn="none")
    taken = [0, 0, 0]
    for place in range(300):
        copy = piece.blend(params, layout, 0, stream(place))
        for b in range(3):
            taken[b] += not torch.equal(
                copy[f"layers.{b}.attention.qkv.weight"], params[f"layers.{b}.attention.qkv.weight"]
            )
    assert taken[0] == 300
    assert [n / 300 for n in taken] == pytest.approx([1, 2 / 3, 1 / 3], abs=0.09)  # three standard errors


def test_9_the_blend_trains_a_text_transformer():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randint(0, 50, (36, 6), generator=generator), torch.arange(36) % 4
    federation = lab.listed(x, y, (12, 12, 12), vocabulary=50, test=(x[:8].numpy(), y[:8].numpy()))
    module = build(
        "transformer(width=16, heads=2, feedforward=32)", federation.task, None, random_streams.torch_stream(0, "m")
    )
    run = lab.engine(
        lab.parts("fedphoenixblend(rho=0.25, blocks=shift, stop=3)", (federation, module), local_lr=0.01, rounds=2)
    )
    rows = list(run.rounds())
    run.close()
    assert all(row["updated"] and not row["refused"] and 1 < row["loss"] < 2 for row in rows)
    assert all(len({lab.bits(w.sent.flat) for w in works}) == 3 for works in run.executor.tasks), (
        "every client starts from a copy of its own"
    )


# ---- 10: what it costs


def test_10_the_cost_functions_return_the_published_formulas():
    _, layout, _ = resnet18()
    numbers = sum(m.rows * m.width for m in matrices(layout, "conv"))
    assert numbers == 11_159_232
    cohort, clients, steps = 10, 100, 50
    assert costs.fedphoenix(numbers, THETA, cohort) == (6 + (10 * THETA + 1) * cohort) * numbers == 19.125 * numbers
    assert costs.fedmut(numbers, cohort) == 21 * numbers
    assert costs.clusteredsampling(numbers, cohort, clients) == 3000 * numbers
    assert costs.fedprox(numbers, steps, cohort) == 1500 * numbers


@pytest.mark.parametrize("name", ["fedphoenix(layers=both, theta=0.5)", "fedprox", "fedmut", "clusteredsampling"])
def test_10_describe_shows_the_formula(name):
    made = lab.parts(name)
    (value,) = made.method.pieces[0].formulas({}, made.setup).values()
    weights, everything, steps = (
        6 * 8 + 8 * 5 + 5 * 3,
        made.setup.layout.spec.total,
        sum(2 * math.ceil(n / 4) for n in lab.SIZES) / 6,
    )
    by_hand = {"fedphoenix": (6 + 6 * 3) * weights, "fedprox": 3 * steps * 3 * everything, "fedmut": 7 * everything}
    assert value == pytest.approx(by_hand.get(name.partition("(")[0], 3 * 3 * 6 * everything), rel=1e-12)


def test_10_the_command_prints_all_four_formulas_beside_what_is_measured(capfd, monkeypatch):
    """100 clients, 10 a round, 50 local steps: 19.125 times the weights of convolutions, and 21, 3000 and 1500 times
    all.
    """
    chain = "fedprox + clusteredsampling + fedmut + fedphoenix(theta=2/64)"
    settings = [
        "model=resnet8(stem=3)",
        "partition=iid",
        "clients=100",
        "cohort=10",
        "local.epochs=none",
        "local.steps=50",
        "local.batch=4",
    ]
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit) as left:
        main(["describe", chain, *settings])
    said = capfd.readouterr()
    assert left.value.code in (0, None), said.err
    shown = dict(
        re.split(r"  +", line.strip(), maxsplit=1)
        for line in said.out.partition("the method")[0].splitlines()
        if line.strip()
    )
    numbers = int(shown["parameters"].replace(",", ""))
    convs = (
        64 * 9 + 2 * 64 * 64 * 9 + sum(a * b * 9 + b * b * 9 + a * b for a, b in ((64, 128), (128, 256)))
    )  # stem, stages, shortcuts
    times = {
        "fedprox": 1500 * numbers,
        "clusteredsampling": 3000 * numbers,
        "fedmut": 21 * numbers,
        "fedphoenix": int(19.125 * convs),
    }
    assert shown["by formula"] == ", ".join(
        f"{name}: FLOPs a round beside training {value:,}" for name, value in times.items()
    )
    measured = {
        "to a client, first round": "4.92 MB",
        "from a client, first round": "4.92 MB",
        "training, a sample": "local 72.5 MFLOP",
    }
    assert measured.items() <= shown.items()


# ---- where a client starts


class Ends(Piece):
    """Remembers the models that come back."""

    seen: list = []  # a spy  # noqa: RUF012

    def upload(self, delta, ctx):
        self.seen.append((ctx.round, ctx.samples, ctx.trained.model.flat.double().clone()))
        return delta, {}, ctx.state


@pytest.mark.parametrize("side", ["server", "client"])
def test_the_server_averages_the_models_that_come_back(side):
    """Not their differences from a reset start: those would lose every reset."""
    Ends.seen.clear()
    run = lab.engine(lab.parts(lab.parse(f"fedphoenix(theta=0.5, layers=both, side={side})") + Ends()))
    for t in range(2):
        run.round()
        back = [(n, end) for round_, n, end in Ends.seen if round_ == t][:3]  # then the ledger's probe
        total = sum(n for n, _ in back)
        mean = sum(n / total * end for n, end in back)
        assert (run.server.model.flat.double() - mean).abs().max() <= 1e-6
    run.close()


def test_a_client_side_reset_enters_the_average_exactly_as_a_server_side_one(monkeypatch):
    """The same kernels on both sides, and local steps too small to move a float: bit for bit, and reset rows of the
    average are the new ones.
    """
    monkeypatch.setattr(fedphoenix, "seeded", lambda _: torch.Generator().manual_seed(5))
    monkeypatch.setattr(fedphoenix, "seeded_by", lambda _: torch.Generator().manual_seed(5))
    sides = {
        side: lab.play(f"fedphoenix(theta=0.5, layers=both, side={side})", local_lr=1e-30, rounds=1)
        for side in ("server", "client")
    }
    assert lab.bits(sides["server"].model) == lab.bits(sides["client"].model)
    made = lab.parts("fedphoenix(theta=0.5, layers=both)")
    start = made.method.pieces[0].reset(made.setup.model, made.setup.layout, 0, torch.Generator().manual_seed(5))
    moved = start.flat != made.setup.model.flat
    assert moved.any()
    assert (sides["client"].model.flat - start.flat)[
        moved
    ].abs().max() <= 1e-6  # all start alike, so their mean is that start


def test_with_training_both_sides_agree_to_rounding(monkeypatch):
    monkeypatch.setattr(fedphoenix, "seeded", lambda _: torch.Generator().manual_seed(5))
    monkeypatch.setattr(fedphoenix, "seeded_by", lambda _: torch.Generator().manual_seed(5))
    server, client = (lab.play(f"fedphoenix(theta=0.5, layers=both, side={side})") for side in ("server", "client"))
    assert lab.gap(server.model, client.model) <= 1e-5  # float32 through three rounds


def test_with_the_reset_on_the_client_the_server_sends_its_own_model():
    run = lab.engine(lab.parts("fedphoenix(theta=0.5, layers=both, side=client)"))
    before = lab.bits(run.server.model)
    run.round()
    run.close()
    assert all(lab.bits(work.sent) == before for work in run.executor.tasks[0])


def test_a_reset_asks_for_as_many_bytes_as_fedavg():
    rows = [
        lab.play(m, "images").rows for m in ("fedavg", "fedphoenix(theta=0.5)", "fedphoenix(theta=0.5, side=client)")
    ]
    assert len({(r["bytes_up"], r["bytes_down"]) for run in rows for r in run}) == 1


# ---- what it says


def notes(method, toy):
    made = lab.parts(method, toy)
    return made.method.notes(made.setup)


def test_a_reset_of_nothing_is_noted_with_the_way_out():
    (note,) = notes("fedphoenix", "images")
    assert "theta=0.03125 of 4 kernels" in note
    assert "1/4" in note
    assert "at_least_one" in note
    assert "no such layer" in notes("fedphoenix", "layer")[0]
    assert "rho" in notes("fedphoenixblend", "layer")[0]
    assert notes("fedphoenix(at_least_one=true)", "images") == ()
    assert notes("fedphoenix(theta=1/4)", "images") == ()
    assert notes("fedphoenix(theta=0)", "images") == ()


def test_a_share_of_a_kernel_that_is_no_number_is_noted():
    setup = lab.parts("fedphoenix(theta=0.5, share=0.001, layers=both)").setup
    (note,) = FedPhoenix(theta=0.5, share=1e-3, layers="both").notes(setup)
    assert "share=0.001) resets nothing" in note
    assert not list(FedPhoenix(theta=0.5, share=1e-3, layers="both").due(setup.layout, 0))
    assert FedPhoenix(theta=0.5, share=1e-3).entries(Matrix(0, 4, 1000)) == 1


def test_a_reset_that_stops_before_it_begins_is_noted_as_such():
    for method, toy in (
        ("fedphoenix(theta=0.5, stop=0)", "images"),
        ("fedphoenix(theta=0.5, layers=fc, fc_stop=0)", "layer"),
    ):
        (note,) = notes(method, toy)
        assert "stops in round 0" in note, method
    assert "theta=0.03125" in notes("fedphoenix(stop=0)", "images")[0], "a later stop would not help"


def test_a_run_carries_the_note(tmp_path):
    import fedstrata  # noqa: PLC0415

    quick = {
        "rounds": 1,
        "clients": 20,
        "cohort": 2,
        "local.steps": 1,
        "out": str(tmp_path),
        "model": "mlp(hidden=[4])",
    }
    assert any("fedphoenix" in note for note in fedstrata.run("fedphoenix", **quick).notes)
    assert not any("fedphoenix" in note for note in fedstrata.run("fedphoenix(layers=fc, theta=0.5)", **quick).notes)


def test_at_least_one_takes_a_kernel_where_the_share_is_less():
    assert [whole(THETA, n, least=1) for n in (6, 16, 64)] == [1, 1, 2]
    assert [whole(THETA, n) for n in (6, 16, 31, 32, 64)] == [0, 0, 0, 1, 2]
    assert whole(0.29, 100) == 29, "a product that is whole but for rounding"


def test_a_weight_of_one_number_is_left_alone():
    layout, params = (
        Layout(entries_of(nn.Sequential(nn.Conv2d(1, 1, 1)), "none")),
        Params.of({"0.weight": torch.ones(1, 1, 1, 1), "0.bias": torch.ones(1)}),
    )
    assert FedPhoenix(theta=1.0).reset(params, layout, 0, stream()) is params


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"theta": 1.5}, "share of a layer's kernels"),
        ({"stop": -1}, "at least 0"),
        ({"hold": 7, "stop": 5}, r"in \[0, stop=5\]"),
        ({"share": 0.0}, r"in \(0, 1\]"),
        ({"theta": 0.5, "share": 1 / 3, "budget": "matched"}, "theta / share"),
        ({"side": "client", "resets": "common"}, "it knows every start"),
        ({"scale": 0.0}, "above 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(setting, says):
    with pytest.raises(ConfigError, match=says):
        FedPhoenix(**setting)
