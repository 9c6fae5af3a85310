"""Layers are named groups of one flat vector; selectors find them, or say what is near."""

import pytest
import torch
from torch import nn

from fedstrata.common.errors import LayoutError
from fedstrata.core.layout import GroupSpec, Layout, entries_of
from helpers import lab


def layout(module, head="head"):
    return Layout(entries_of(module, head))


@pytest.fixture
def small():
    return layout(lab.Small("batch"))


def test_parameters_partition_into_groups_and_a_norm_joins_its_layer(small):
    assert small.names() == ("first", "second", "head")
    assert small.groups["first"].names == ("first.weight", "first.bias", "norm.weight", "norm.bias")
    assert [n for g in small.groups.values() for n in g.names] == list(small.spec.names)
    assert sum(g.numel for g in small.groups.values()) == small.spec.total


def test_statistics_lie_apart_and_belong_to_a_group(small):
    assert small.statistics.names == ("norm.running_mean", "norm.running_var")
    assert "norm.running_mean" in small.group("first")
    assert not small.parameters & frozenset(small.statistics.names)


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("role:head", {"head.weight", "head.bias"}),
        ("kind:norm", {"norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"}),
        ("kind:norm & name:*bias", {"norm.bias"}),
        ("name:head.weight, name:second.bias", {"head.weight", "second.bias"}),
        ("group:second", {"second.weight", "second.bias"}),
        ("depth:1-2 & name:*.bias", {"second.bias", "head.bias"}),
        ("!role:body", {"head.weight", "head.bias"}),
        ("depth:2", {"head.weight", "head.bias"}),
    ],
)
def test_selectors(small, selector, names):
    assert small.select(selector) == names


def test_all_is_everything(small):
    assert small.select("all") == small.all


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("kind:norms", "Did you mean 'norm'"),
        ("group:frist", "Did you mean 'first'"),
        ("role:tail", "body, head"),
        ("kind:conv", "Kinds here: linear, norm"),
        ("kind:norm & role:head", "matches no tensor"),
        ("layer3", "write kind:, role:, name:, group: or depth:"),
        ("depth:x", "a number or a range"),
        ("depth:7", "matches no tensor"),
    ],
)
def test_a_selector_without_a_match_lists_what_is_near(small, selector, message):
    with pytest.raises(LayoutError, match=message):
        small.select(selector)


def test_an_unknown_group_is_refused(small):
    with pytest.raises(LayoutError, match="Did you mean 'second'"):
        small.group("secnd")


def test_a_norm_of_another_width_is_a_separate_layer():
    module = nn.ModuleDict({"first": nn.Linear(4, 4), "norm": nn.LayerNorm(8), "head": nn.Linear(8, 2)})
    assert layout(module).names() == ("first", "norm", "head")


def test_tied_weights_are_counted_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(5, 3)
            self.back = nn.Linear(3, 5, bias=False)
            self.back.weight = self.embed.weight
            self.head = nn.Linear(5, 2)

    made = layout(Tied())
    assert made.spec.names == ("embed.weight", "head.weight", "head.bias")
    assert made.spec.total == 15 + 12


def test_declared_groups_have_to_partition_the_parameters():
    class Declared(lab.Small):
        def layer_groups(self):
            return [GroupSpec("body", "linear", ("first", "norm")), GroupSpec("head", "linear", ("head",))]

    with pytest.raises(LayoutError, match=r"second.weight.*0 of the declared"):
        layout(Declared())


def test_declared_groups_give_order_kind_and_statistics():
    class Declared(lab.Small):
        def layer_groups(self):
            return [
                GroupSpec("late", "feedforward", ("second",)),
                GroupSpec("early", "attention", ("first", "norm")),
                GroupSpec("head", "linear", ("head",)),
            ]

    made = layout(Declared("batch"))
    assert made.names() == ("late", "early", "head")
    assert made.spec.names[0] == "second.weight"
    assert "first.weight" in made.select("kind:attention")
    assert made.entries["norm.running_var"].group == "early"


def test_integer_buffers_are_no_tensors_of_the_layout(small):
    assert "norm.num_batches_tracked" not in small.all


def test_flat_order_is_group_order_then_definition_order():
    module = lab.small()
    made = lab.parts()
    assert torch.equal(made.setup.model.flat, torch.cat([p.detach().reshape(-1) for p in module.parameters()]))
