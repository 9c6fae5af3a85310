"""The model as functions: bound or at any parameters, the same numbers; frozen twins; added and dropped parameters."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedstrata.common.errors import MethodError
from fedstrata.core.network import Batch, BoundModel, Dropout, gradient_at
from fedstrata.core.params import Model, Params
from helpers import lab


def bound(module=None):
    made = BoundModel(lab.small() if module is None else module, "head")
    net = made.net(lambda z, y: cross_entropy(z, y, reduction="none"))
    made.attach(net)
    return made, net


@pytest.fixture
def batch():
    x, y, _ = lab.arrays()
    return Batch(x[:5], y[:5])


def elsewhere(p):
    return Model(Params(p.flat.detach().clone(), p.spec), p.statistics)


def test_features_then_head_is_the_module(batch):
    made, net = bound()
    assert torch.equal(net(made.model, batch.x), lab.small()(batch.x))
    assert net.features(made.model, batch.x).shape == (5, 5)


def test_other_parameters_give_the_same_numbers_as_bound_ones(batch):
    made, net = bound()
    assert torch.equal(net(elsewhere(made.model), batch.x), net(made.model, batch.x))


def gradients(made, net, batch, names):
    by_tensor, whole = made.gradients(batch.mean(net.loss(net(made.model, batch.x), batch.y)), names)
    assert whole is None, "this loss has no term on the whole vector"
    return dict(zip(names, by_tensor, strict=True))


def test_gradients_at_the_bound_vector_agree_with_pure_autograd(batch):
    made, net = bound()
    loss = lambda p, b: b.mean(net.loss(net(p, b.x), b.y)) + 0.1 * p.flat.square().sum() + p["head.bias"].sum()
    by_tensor, whole = made.gradients(loss(made.model, batch), list(made.spec.names))
    pure, value = gradient_at(loss, elsewhere(made.model), batch)
    assert torch.allclose(torch.cat([g.flatten() for g in by_tensor]) + whole, pure.flat, atol=1e-7)
    assert value == pytest.approx(loss(made.model, batch).item())


def test_the_caller_s_module_is_not_touched(batch):
    module = lab.small()
    made, net = bound(module)
    made.load(made.snapshot() * 0)
    assert module.first.weight.any()
    assert not net(made.model, batch.x).any()


def test_frozen_parts_take_no_gradient(batch):
    made, net = bound()
    made.train_only(frozenset({"head.weight", "head.bias"}))
    loss = batch.mean(net.loss(net(made.model, batch.x), batch.y))
    assert gradients(made, net, batch, ["head.weight"])["head.weight"].any()
    assert not made.parts["first.weight"].requires_grad
    loss.backward()
    assert made.parts["first.weight"].grad is None


def test_running_statistics_move_in_training_only(batch):
    made, net = bound(lab.small("batch"))
    made.mode(training=True)
    net(made.model, batch.x)
    moved = made.statistics.flat.clone()
    assert not torch.equal(moved, made.statistics0.flat)
    for eval_mode in ("eval", "batch_stats"):
        net(made.model.frozen(eval_mode), batch.x)
    made.mode(training=False)
    net(made.model, batch.x)
    made.mode(training=False, batch_statistics=True)
    net(made.model, batch.x)
    assert torch.equal(made.statistics.flat, moved)


def test_frozen_twins_use_running_or_batch_statistics(batch):
    module = lab.small("batch")
    made, net = bound(module)
    assert torch.allclose(net(made.model.frozen("eval"), batch.x), module.eval()(batch.x))
    assert torch.allclose(net(made.model.frozen("batch_stats"), batch.x), module.train()(batch.x))


def test_momentum_of_norms_comes_back_after_batch_statistics(batch):
    made, _ = bound(lab.small("batch"))
    made.mode(training=False, batch_statistics=True)
    made.mode(training=True)
    assert made.norms[0].momentum == 0.1


def test_dropout_scales_what_it_keeps_and_is_the_identity_in_evaluation():
    drop = Dropout(0.25)
    generator = torch.Generator().manual_seed(0)
    drop.draw = lambda shape: torch.rand(shape, generator=generator)
    out = drop(torch.ones(10_000))
    assert out.unique().tolist() == pytest.approx([0, 4 / 3])
    assert (out == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)  # four standard deviations of 10,000 draws
    assert torch.equal(drop.eval()(torch.ones(3)), torch.ones(3))


@pytest.mark.parametrize("p", [1.0, -0.1])
def test_dropout_refuses_a_share_outside_its_range(p):
    with pytest.raises(ValueError, match="a share of entries"):
        Dropout(p)


def test_batch_mean_counts_real_samples_only():
    values = torch.tensor([1.0, 3.0, 100.0])
    assert Batch(values, values, torch.tensor([1.0, 1.0, 0.0])).mean(values).item() == 2
    assert Batch(values, values).mean(values[:2]).item() == 2
    assert Batch(values, values).mean(torch.ones(3, 4)).item() == 1


def test_a_net_with_one_more_parameter_trains_it(batch):
    made, net = bound()
    wider = net.with_parameter("shift", torch.zeros(3), kind="shift", role="head")
    wider = replace(wider, head=lambda p, z: net.head(p, z) + p["shift"])
    made.attach(wider)
    assert gradients(made, wider, batch, ["shift"])["shift"].any()
    assert made.layout.entries["shift"].role == "head"


def test_names_are_refused_twice_or_unknown():
    _, net = bound()
    with pytest.raises(MethodError, match="already has a parameter"):
        net.with_parameter("head.bias", torch.zeros(1), kind="x", role="head")
    with pytest.raises(MethodError, match=r"Did you mean 'head\.bias'"):
        net.without_parameter("head.bais")


def test_tied_weights_stay_tied():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.head = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6), torch.nn.Linear(6, 3)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.head(self.second(torch.relu(self.first(x))))

    made, net = bound(lab.filled(Tied()))
    assert made.body.first.weight is made.body.second.weight
    x = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(net(elsewhere(made.model), x), net(made.model, x), atol=1e-7)
