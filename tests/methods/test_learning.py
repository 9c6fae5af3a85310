"""An order of scores that must hold: pooled, federated, alone."""

import pytest
import torch

from helpers import lab


def blobs(n, seed):
    """Four overlapping clusters in six dimensions."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (n,), generator=generator)
    return torch.randn(n, 6, generator=generator) + 2 * torch.nn.functional.one_hot(y, 6), y


def accuracy(method, seed, sizes, x, y, test):
    """Mean accuracy, on the common test set, of the models that clients end up with."""
    module = lab.filled(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)), seed)
    data = lab.listed(x, y, sizes, test=(test[0].numpy(), test[1].numpy()))
    made = lab.engine(lab.parts(method, (data, module), cohort=len(sizes), rounds=12, seed=seed, local_lr=0.05))
    lab.finish(made)
    everything = torch.arange(len(test[1]))
    told = [
        made.evaluator.predict(made.worker, lab.client_model(made, i), data.test, everything).argmax(1)
        for i in range(len(sizes))
    ]
    return sum(float((t == test[1]).float().mean()) for t in told) / len(sizes)


@pytest.mark.parametrize("seed", range(3))
def test_t23_the_pooled_oracle_is_at_least_fedavg_and_fedavg_at_least_local_training(seed):
    """Eight clients of two classes each: alone, a client cannot know the other two.

    One test sample in a hundred may fall either way.
    """
    x, y = blobs(240, seed)
    order = torch.argsort(y, stable=True)
    deal = torch.cat(
        [
            torch.arange(240).reshape(8, 30)[[i, (i + 3) % 8]][:, half::2].reshape(-1)
            for i in range(8)
            for half in (i % 2,)
        ]
    )
    x, y, test = x[order][deal], y[order][deal], blobs(400, seed + 100)
    oracle = accuracy("fedavg", seed, (240,), x, y, test)
    federated, alone = (accuracy(method, seed, (30,) * 8, x, y, test) for method in ("fedavg", "local"))
    assert oracle >= federated - 0.01
    assert federated >= alone + 0.1
    assert oracle > 0.75
