"""The plain module is the run's model: for every method, every policy of norms, and what a method changes in the
model.
"""

import copy
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from fedstrata.common.errors import ConfigError
from fedstrata.core.network import Dropout
from fedstrata.core.piece import Piece
from fedstrata.data.io.samples import Tensors
from fedstrata.inference import load, open_run
from fedstrata.models.blocks import ChannelDropout
from helpers import lab
from helpers.examples import EXAMPLES, FIRST
from helpers.finished_runs import toy_run
from helpers.tiers import tiered


@dataclass(frozen=True)
class Unit(Piece):
    """Features of length 1, a head without bias, logits scaled by a number that is learned."""

    def model(self, net):
        bare = net.without_parameter("head.bias").with_parameter(
            "heat.scale", torch.tensor([1.5]), kind="scale", role="head"
        )

        def unit(p, x):
            return torch.nn.functional.normalize(net.features(p, x), dim=-1)

        return replace(bare, features=unit, head=lambda p, z: p["heat.scale"] * (z @ p["head.weight"].T))


def said(live, params, x):
    """What the engine's evaluation says of samples."""
    return live.evaluator.predict(live.worker, params, Tensors(x, torch.zeros(len(x))), torch.arange(len(x)))


def near(a, b):
    return torch.allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("toy", tiered(["layer", "batch"], ["batch"]))
@pytest.mark.parametrize("method", tiered(EXAMPLES, FIRST))
def test_shared_and_personal_models_of_every_method_are_those_of_its_evaluation(tmp_path, method, toy):
    folder, live, given = toy_run(tmp_path, method, toy, cohort=2)
    x, found = given["federation"].test.x, open_run(folder, **given)
    assert near(found.module()(x), said(live, live.serving.model(), x))
    for client in range(4):
        assert near(found.module(client)(x), said(live, lab.client_model(live, client), x)), client
    if live.parts.method.has("personal_model", "refine") or live.plan.client_local:
        assert any(not near(found.module(client)(x), found.module()(x)) for client in range(4)), (
            "a personal model is not the shared one"
        )


@pytest.mark.parametrize("bn", ["share", "local", "server", "trained", "batch"])
def test_norms_stand_as_the_run_evaluated_them(tmp_path, bn):
    folder, live, given = toy_run(tmp_path, "fedavg", "batch", bn=bn)
    x, found = given["federation"].test.x, open_run(folder, **given)
    assert near(found.module()(x), said(live, live.serving.model(), x))
    assert near(found.module(2)(x), said(live, lab.client_model(live, 2), x))
    module = found.module()
    assert module.norm.track_running_stats == (bn != "batch")
    assert near(module(x[:5]), module(x)[:5]) == (bn != "batch"), (
        "only statistics of the batch make outputs hang on the others"
    )
    assert bool(found.notes_for(None)) == (bn == "local"), "whose norms they are is said where they stay with clients"


@pytest.mark.parametrize("bn", ["share", "batch"])
@pytest.mark.parametrize("client", [None, 1])
def test_what_a_method_changes_in_the_model_holds(tmp_path, client, bn):
    folder, live, given = toy_run(tmp_path, lab.parse("fedper(personal='name:norm.*')") + Unit(), "batch", bn=bn)
    x = given["federation"].test.x
    module = load(folder, client, **given)
    values = live.serving.model() if client is None else lab.client_model(live, client)
    assert near(module(x), said(live, values, x))
    names = dict(module.named_parameters())
    assert set(names) == set(values.spec.names)
    assert "heat.scale" in names
    assert "head.bias" not in module.state_dict()


def test_a_changed_module_can_be_copied_cast_and_refilled(tmp_path):
    folder, _, given = toy_run(tmp_path, Unit(), "layer")
    x = given["federation"].test.x
    module = load(folder, **given)
    wanted, double = module(x), copy.deepcopy(module).double()
    assert torch.allclose(double(x.double()).float(), wanted, atol=1e-6)
    with torch.no_grad():
        double.get_submodule("heat").scale.zero_()
    assert torch.equal(double(x.double()), torch.zeros(30, 3, dtype=torch.float64))
    assert torch.equal(module(x), wanted), "a copy has weights of its own"
    other = copy.deepcopy(module)
    other.load_state_dict({name: torch.zeros_like(value) for name, value in module.state_dict().items()})
    assert not other(x).any()


def test_a_changed_module_with_dropout_stays_in_evaluation_mode(tmp_path):
    folder, _, given = toy_run(tmp_path, Unit(), "dropout")
    with pytest.raises(ConfigError, match="works in evaluation mode only"):
        load(folder, **given).train()


@pytest.mark.parametrize("toy", ["batch", "dropout", "images"])
def test_nothing_of_the_engine_is_left_in_a_plain_module(tmp_path, toy):
    folder, _, given = toy_run(tmp_path, "fedavg", toy)
    module = load(folder, **given)
    assert not module.training
    assert not any(isinstance(part, Dropout | ChannelDropout) for part in module.modules())
    assert not any(name.startswith("_fedstrata") for part in module.modules() for name in vars(part))
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in module.parameters())
    tensors = list(module.state_dict().values())
    assert len({t.untyped_storage().data_ptr() for t in tensors}) == len(tensors), "no two tensors share memory"
    fresh = lab.TOYS[toy]()[1]
    fresh.load_state_dict(module.state_dict())  # the names of the network's own state_dict
    assert near(fresh.eval()(given["federation"].test.x), module(given["federation"].test.x))


def test_dropout_is_torchs_and_draws_again(tmp_path):
    folder, _, given = toy_run(tmp_path, "fedavg", "dropout")
    module = load(folder, **given)
    assert isinstance(module.drop, nn.Dropout)
    assert module.drop.p == 0.3
    x = given["federation"].test.x
    torch.manual_seed(0)
    assert not torch.equal(module.train()(x), module(x))


class Channels(nn.Module):
    """Dropout of whole channels, as a user writes it."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.drop = nn.Dropout2d(0.4)
        self.head = nn.Linear(4 * 36, lab.CLASSES)

    def forward(self, x):
        return self.head(self.drop(self.conv(x)).flatten(1))


def test_dropout_of_channels_is_torchs_too(tmp_path):
    folder, _, given = toy_run(tmp_path, "fedavg", (lab.federation(shape=(1, 6, 6)), lab.filled(Channels())))
    module = load(folder, **given)
    assert isinstance(module.drop, nn.Dropout2d)
    assert module.drop.p == 0.4


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(lab.FEATURES, lab.FEATURES)
        self.second = nn.Linear(lab.FEATURES, lab.FEATURES)
        self.second.weight = self.first.weight
        self.head = nn.Linear(lab.FEATURES, lab.CLASSES)

    def forward(self, x):
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


@pytest.mark.parametrize("method", ["fedavg", Unit()], ids=str)
def test_tied_weights_stay_tied(tmp_path, method):
    folder, live, given = toy_run(tmp_path, method, (lab.federation(), lab.filled(Tied())))
    module = load(folder, **given)
    assert module.first.weight is module.second.weight
    assert near(module(given["federation"].test.x), said(live, live.serving.model(), given["federation"].test.x))


def test_the_head_of_fedbabu_is_the_one_that_was_never_trained(tmp_path):
    folder, live, given = toy_run(tmp_path, "fedbabu(epochs=0)", "layer")
    module = load(folder, **given)
    assert torch.equal(module.head.weight, given["module"].head.weight)
    assert not torch.equal(module.first.weight, given["module"].first.weight)
    assert near(module(given["federation"].test.x), said(live, live.serving.model(), given["federation"].test.x))
