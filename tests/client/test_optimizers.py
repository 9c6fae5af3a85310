"""Local optimizers against torch's own, step by step."""

import pytest
import torch

from fedstrata.client.optimizers import Optimizer
from fedstrata.common.errors import ConfigError
from helpers import lab
from helpers.rules import World

CASES = [
    ("sgd", {}, lambda w: torch.optim.SGD(w, 0.1)),
    ("sgd", {"momentum": 0.9}, lambda w: torch.optim.SGD(w, 0.1, momentum=0.9)),
    ("sgd", {"weight_decay": 0.05}, lambda w: torch.optim.SGD(w, 0.1, weight_decay=0.05)),
    (
        "sgd",
        {"momentum": 0.5, "weight_decay": 0.05},
        lambda w: torch.optim.SGD(w, 0.1, momentum=0.5, weight_decay=0.05),
    ),
    ("adam", {}, lambda w: torch.optim.Adam(w, 0.1)),
    ("adam", {"weight_decay": 0.05}, lambda w: torch.optim.Adam(w, 0.1, weight_decay=0.05)),
    ("adamw", {"weight_decay": 0.05}, lambda w: torch.optim.AdamW(w, 0.1, weight_decay=0.05)),
    ("adamw", {}, lambda w: torch.optim.AdamW(w, 0.1, weight_decay=0)),
]
every_case = pytest.mark.parametrize(
    ("name", "options", "theirs"), CASES, ids=lambda v: str(v) if not callable(v) else ""
)


def gradients(step, sizes):
    generator = torch.Generator().manual_seed(step)
    return [3 * torch.randn(n, generator=generator) for n in sizes]


@every_case
@pytest.mark.parametrize("clip", [None, 2.0])
def test_ten_steps_equal_torch_s(name, options, theirs, clip):
    """Two stretches of one vector; SGD bit for bit, Adam to rounding (torch orders its products differently)."""
    sizes = (5, 3)
    ours = [torch.linspace(-1, 1, n) for n in sizes]
    leaves = [v.clone().requires_grad_() for v in ours]
    optimizer, reference = Optimizer(name, clip=clip, **options), theirs(leaves)
    for step in range(10):
        found = gradients(step, sizes)
        for leaf, g in zip(leaves, found, strict=True):
            leaf.grad = g.clone()
        if clip:
            torch.nn.utils.clip_grad_norm_(leaves, clip)
        reference.step()
        optimizer.step(ours, found, 0.1)
    for mine, leaf in zip(ours, leaves, strict=True):
        if name == "sgd" and not clip:
            assert torch.equal(mine, leaf.detach())
        assert torch.allclose(mine, leaf.detach(), rtol=2e-6, atol=2e-7)


@every_case
def test_a_stack_of_clients_takes_the_steps_of_each_client(name, options, theirs):
    """[2, n] rows equal two optimizers; the second client finishes first."""
    stack = torch.stack([torch.linspace(-1, 1, 4), torch.linspace(0, 2, 4)])
    alone = [row.clone() for row in stack]
    together, single = Optimizer(name, clip=2.0, **options), [Optimizer(name, clip=2.0, **options) for _ in alone]
    for step in range(6):
        active = 2 if step < 3 else 1
        g = torch.stack(gradients(step, (4, 4)))[:active]
        for row in range(active):
            single[row].step([alone[row]], [g[row].clone()], 0.1)
        together.step([stack[:active]], [g.clone()], 0.1)
    assert torch.allclose(stack, torch.stack(alone), rtol=1e-6, atol=1e-7)


def test_clipping_looks_at_all_stretches_together():
    values, g = [torch.zeros(1), torch.zeros(1)], [torch.tensor([3.0]), torch.tensor([4.0])]
    Optimizer("sgd", clip=1.0).step(values, g, 1.0)
    assert torch.stack(values).flatten().tolist() == pytest.approx([-0.6, -0.8], rel=1e-5)


def test_unknown_names_and_double_moments_are_refused():
    with pytest.raises(ConfigError, match="one of sgd, adam, adamw"):
        Optimizer("rmsprop")
    with pytest.raises(ConfigError, match="moments"):
        Optimizer("adam", momentum=0.9)


@pytest.mark.parametrize(
    "settings",
    [
        {"local_optimizer": "adam", "local_lr": 0.01},
        {"local_optimizer": "adamw", "local_lr": 0.01, "local_weight_decay": 0.1},
        {"local_momentum": 0.9, "local_weight_decay": 0.01, "local_clip": 0.5},
    ],
    ids=str,
)
def test_one_client_s_local_training_equals_a_bare_torch_loop(settings):
    """The engine's update of a single client in round 0, against torch.optim on the module itself, on the same
    batches.
    """
    run = lab.engine(lab.parts(cohort=1, rounds=1, **settings))
    cohort = run.round()["cohort"]
    run.close()
    module, local = lab.small(), run.parts.config.local
    make = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "sgd": lambda p, **o: torch.optim.SGD(p, momentum=local.momentum, **o),
    }[local.optimizer]
    optimizer = make(module.parameters(), lr=local.lr, weight_decay=local.weight_decay)
    for x, y in World(run, [cohort]).batches(cohort[0], 0):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(x.float()), y).backward()
        if local.clip:
            torch.nn.utils.clip_grad_norm_(module.parameters(), local.clip)
        optimizer.step()
    flat = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    assert torch.allclose(
        run.server.model.flat, flat, rtol=1e-5, atol=2e-6
    )  # rounding only; a delta is added back to the server's model


def test_optimizer_state_is_made_anew_every_round():
    """A client alone in the federation: two rounds of one epoch are not one round of two epochs, because momentum
    starts again.
    """
    toy = lab.federation((9,)), lab.small()
    two = lab.play(toy=toy, rounds=2, local_epochs=1, local_momentum=0.9, local_lr=0.02)
    assert (
        lab.gap(lab.play(toy=toy, rounds=1, local_epochs=2, local_momentum=0.9, local_lr=0.02).model, two.model) > 1e-4
    )
