"""Modules of a user's own that trained differently from worker to worker, were refused without a reason, or were
trained where they must not be.
"""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import fedstrata
from fedstrata.client.worker import FlopCounter
from fedstrata.common.errors import ConfigError
from fedstrata.models import build, check
from helpers import lab

SMALL = {"cohort": 3, "rounds": 2, "local_epochs": 1, "executor": "loop"}


class WithToken(nn.Module):
    """A parameter of the module itself beside those of its layers, as a class token is."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(8))
        self.body = nn.Linear(lab.FEATURES, 8)
        self.head = nn.Linear(8, lab.CLASSES)

    def forward(self, x):
        return self.head(torch.relu(self.body(x) + self.token))


class Counts(WithToken):
    """It remembers how often it was trained, and looks at it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.seen += 1
        return super().forward(x * (1 + 0.01 * self.seen))


def changed(change):
    module = WithToken()
    change(module)
    return module


def run(module, tmp_path):
    return fedstrata.run(module=module, federation=lab.federation(), out=str(tmp_path), **SMALL)


@pytest.mark.parametrize("module", [WithToken(), WithToken().double()])
def test_a_parameter_beside_the_layers_is_a_layer_of_its_own(tmp_path, module):
    result = run(module, tmp_path)
    assert not result.summary["refused"]


def test_a_weight_norm_is_trained(tmp_path):
    module = WithToken()
    nn.utils.parametrizations.weight_norm(module.body)
    assert not run(module, tmp_path).summary["refused"]


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (Counts(), "buffer seen changes while the model trains"),
        (lab.small("batch"), None),
        (
            changed(lambda m: setattr(m, "body", nn.Sequential(m.body, nn.BatchNorm1d(8, momentum=None)))),
            "momentum=None",
        ),
        (changed(lambda m: nn.utils.parametrizations.spectral_norm(m.body)), "changes while the model trains"),
        (changed(lambda m: m.requires_grad_(False)), "nothing to train"),
        (changed(lambda m: m.body.weight.requires_grad_(False)), None),  # a frozen base
        (
            changed(lambda m: setattr(m, "token", nn.Parameter(torch.zeros(8, dtype=torch.complex64)))),
            "token is torch.complex64",
        ),
        (
            changed(
                lambda m: setattr(m, "token", nn.Parameter(torch.zeros(8, dtype=torch.int64), requires_grad=False))
            ),
            "token is torch.int64",
        ),
        (WithToken, "a class is called first"),
        ("mlp", "must be an instance of nn.Module"),
    ],
)
def test_a_module_that_cannot_be_repeated_is_refused_by_name(tmp_path, module, says):
    if says is None:
        assert not run(module, tmp_path).summary["refused"]
        return
    with pytest.raises(ConfigError) as told:
        run(module, tmp_path)
    assert says in str(told.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("hidden", [8, 16])
def test_a_group_norm_over_one_or_two_values_is_refused(hidden):
    task = fedstrata.Config().federation().task
    with pytest.raises(ConfigError, match=f"normalises groups of {hidden // 8}"):
        check(build(f"mlp(hidden={hidden})", task, "group", torch.Generator()), task)
    check(build(f"mlp(hidden={hidden}, groups=2)", task, "group", torch.Generator()), task)


def test_flops_are_those_of_torchs_own_counter():
    layer, x = nn.Linear(6, 4), torch.randn(5, 6)
    with FlopCounter() as ours, FlopCounterMode(display=False) as theirs:
        layer(x).sum().backward()
    assert ours.get_total_flops() == theirs.get_total_flops() > 0
