"""Small runs of the published networks."""

import numpy as np
import torch

from fedstrata.common import random_streams
from fedstrata.config.config import Config
from fedstrata.data.federation import Federation
from fedstrata.engine.assembly import assemble
from fedstrata.models import build
from helpers import lab


def pictures(size=8, clients=(5, 4)):
    """Two clients with a few small pictures each."""
    generator = torch.Generator().manual_seed(0)
    n = sum(clients)
    x = torch.randn(n, 3, size, size, generator=generator).numpy()
    return Federation.of(
        x,
        np.arange(n) % 3,
        client=np.repeat(np.arange(len(clients)), clients),
        testing="server",
        test=(x[:3], np.arange(3)),
    )


def residual(text, federation=None, name="resnet8", **settings):
    """An engine of ResNet-8 on small pictures, all clients in every round, Adam as published."""
    federation = federation or pictures()
    known = {
        "rounds": 25,
        "bn": "local",
        "local.epochs": 1,
        "local.batch": 3,
        "local.optimizer": "adam",
        "local.lr": 1e-3,
        "eval.every": 1000,
    }
    config = Config(method=text, cohort=federation.clients, executor="loop", model=name, **(known | settings))
    return lab.engine(
        assemble(config, federation, build(name, federation.task, None, random_streams.torch_stream(0, "model")))
    )
