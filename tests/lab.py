"""Small federations, models and runs for tests. Everything is derived from a seed; nothing takes a tenth of a second."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from fedstrata.build import Parts, assemble
from fedstrata.config import Config
from fedstrata.data.federation import Federation
from fedstrata.data.partition import Listed
from fedstrata.engine import Engine
from fedstrata.methods import method as parse
from fedstrata.params import Params
from fedstrata.piece import Piece, Reply
from fedstrata.server import Server

SIZES = (17, 8, 5, 12, 3, 9)  # with batches of 4: tails of one sample, a client smaller than a batch, one that divides evenly
EQUAL = (8, 8, 8, 8, 8, 8)
FEATURES, CLASSES = 6, 3


class Small(nn.Module):
    """Two hidden layers with a norm after the first, and a linear head; every kind of selector matches something."""

    def __init__(self, norm="layer", drop=0.0):
        super().__init__()
        self.first = nn.Linear(FEATURES, 8)
        self.norm = {"layer": lambda: nn.LayerNorm(8), "group": lambda: nn.GroupNorm(2, 8), "batch": lambda: nn.BatchNorm1d(8)}[norm]()
        self.drop = nn.Dropout(drop)
        self.second = nn.Linear(8, 5)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x):
        return self.head(torch.relu(self.second(self.drop(torch.relu(self.norm(self.first(x)))))))


class Images(nn.Module):
    """One convolution with its norm, pooled, and a linear head: for 1x6x6 images."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.head = nn.Linear(4 * 9, CLASSES)

    def forward(self, x):
        return self.head(torch.nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2).flatten(1))


def filled(module: nn.Module, seed: int = 0) -> nn.Module:
    """A module whose parameters are drawn from a generator of their own, so that no global generator matters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            shift = 1.0 if name.endswith("norm.weight") else 0.0
            parameter.copy_(shift + 0.4 * torch.randn(parameter.shape, generator=generator))
    return module


def small(norm="layer", drop=0.0) -> nn.Module:
    """The laws' model."""
    return filled(Small(norm, drop))


def arrays(sizes=SIZES, seed=0, shape=(FEATURES,)):
    """(x, y, client): every client has its own shift of the inputs and its own favourite class."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(sizes)
    client = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    x = torch.randn(total, *shape, generator=generator) + 0.3 * client.reshape(-1, *[1] * len(shape)) / len(sizes)
    y = torch.randint(CLASSES, (total,), generator=generator)
    favourite = torch.rand(total, generator=generator) < 0.5
    return x, torch.where(favourite, client % CLASSES, y), client


def federation(sizes=SIZES, seed=0, shape=(FEATURES,), **options) -> Federation:
    """Clients of these sizes (0 is allowed), with a server test set of 30 samples."""
    x, y, _ = arrays(sizes, seed, shape)
    tx, ty, _ = arrays((30,), seed + 1, shape)
    return listed(x, y, sizes, test=(tx.numpy(), ty.numpy()), **options)


def listed(x, y, sizes, **options) -> Federation:
    """A federation whose clients hold consecutive stretches of these lengths."""
    options = {"testing": "server"} | options
    if min(sizes):
        return Federation.of(x.numpy(), y.numpy(), client=np.repeat(np.arange(len(sizes)), sizes), **options)
    made = Federation.of(x.numpy(), y.numpy(), partition="iid", clients=1, **options)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return dataclasses.replace(made, partition=Listed("listed", offsets, np.arange(len(y), dtype=np.int64)), fingerprint=f"{made.fingerprint}{sizes}")


TOYS = {
    "layer": lambda: (federation(), small("layer")),
    "group": lambda: (federation(), small("group")),
    "equal": lambda: (federation(EQUAL), small("layer")),
    "batch": lambda: (federation(), small("batch")),
    "dropout": lambda: (federation(), small("layer", drop=0.3)),
    "images": lambda: (federation(shape=(1, 6, 6)), filled(Images())),
}
DEFAULTS = {"rounds": 3, "cohort": 3, "executor": "loop", "eval.every": 100, "local.epochs": 2, "local.batch": 4, "local.lr": 0.1, "seed": 7}


def config(**settings) -> Config:
    """The laws' settings, with changes; a length in steps replaces the one in epochs."""
    known = dict(DEFAULTS) | {k.replace("local_", "local.").replace("eval_", "eval.").replace("gate_", "gate."): v for k, v in settings.items()}
    if known.get("local.steps") is not None:
        known["local.epochs"] = None
    return Config(**known)


def parts(method="fedavg", toy="layer", **settings) -> Parts:
    """A toy run, connected; ``method`` is text, a piece or a chain, ``toy`` a name or (federation, module)."""
    data, module = TOYS[toy]() if isinstance(toy, str) else toy
    chain = method if not isinstance(method, str | Piece) else (parse(method) if isinstance(method, str) else parse("fedavg") + method)
    settings = {"cohort": min(DEFAULTS["cohort"], data.clients)} | settings
    return assemble(config(**settings), data, module, chain)


class Wrapped:
    """An executor whose works and replies pass through functions on their way, and are recorded."""

    def __init__(self, inner, change=lambda replies: replies, order=lambda works: works):
        self.inner, self.change, self.order = inner, change, order
        self.name, self.workers = inner.name, inner.workers
        self.works, self.replies = [], []

    def train(self, works):
        replies = self.change(list(self.inner.train(self.order(list(works)))))
        self.works.append(list(works))
        self.replies.append(sorted((r for r in replies if isinstance(r, Reply)), key=lambda r: r.place))
        yield from replies

    def close(self):
        self.inner.close()


def engine(made: Parts, executor="loop", workers=1, **wrap) -> Engine:
    """An engine whose executor is recorded."""
    built = Engine(made, executor, workers)
    built.executor = Wrapped(built.executor, **wrap)
    return built


@dataclass
class Outcome:
    """What a run left."""

    params: Params
    models: list[Params]
    slots: dict
    clients: list
    rows: list = field(default_factory=list)


def outcome(run: Engine, rows=()) -> Outcome:
    """The server's model and slots, every client's own model and row."""
    total = run.parts.federation.clients
    return Outcome(
        run.server.params, [own_model(run, i) for i in range(total)], dict(run.server.slots), [run.rows.get(i) for i in range(total)], list(rows)
    )


def own_model(run: Engine, client: int) -> Params:
    """The model that a client uses itself, as after the last round."""
    found = run.evaluator.model(run.kit, run.work_of(client, run.server.params))
    buffers = None if found.buffers is None else found.buffers.clone()
    return Params(found.flat.detach().clone(), found.spec, buffers=buffers)


def finish(run: Engine) -> Outcome:
    """All rounds that are left, then what they left behind."""
    try:
        rows = list(run.rounds())
        return outcome(run, rows)
    finally:
        run.close()


def play(method="fedavg", toy="layer", executor="loop", workers=1, *, wrap=None, **settings) -> Outcome:
    """A whole run, not remembered."""
    return finish(engine(parts(method, toy, **settings), executor, workers, **(wrap or {})))


@functools.lru_cache(maxsize=512)
def played(method="fedavg", toy="layer", executor="loop", workers=1, **settings) -> Outcome:
    """A whole run, remembered; for runs that several laws compare with."""
    return play(method, toy, executor, workers, **settings)


def copied(server: Server) -> Server:
    """The same values in memory of their own."""
    slots = {n: {k: v.clone() for k, v in s.items()} for n, s in server.slots.items()}
    return Server(server.round, server.params.clone(), slots)


# ---- comparisons ----------------------------------------------------------------------------------------------------------------------------


def bits(value) -> bytes:
    """The exact bytes of parameters (with statistics), tensors, rows or states."""
    if value is None:
        return b"none"
    if isinstance(value, Params):
        return bits(value.flat) + (b"" if value.buffers is None else bits(value.buffers.flat))
    if isinstance(value, torch.Tensor):
        return value.detach().contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return b"".join(name.encode() + bits(part) for name, part in sorted(value.items()))
    return b"".join(bits(part) for part in value)


def same(a: Outcome, b: Outcome) -> list[str]:
    """Where two outcomes differ in any bit: the server's model, its slots, clients' models and rows."""
    found = [what for what in ("params", "slots") if bits(getattr(a, what)) != bits(getattr(b, what))]
    found += [f"model of client {i}" for i, (x, y) in enumerate(zip(a.models, b.models, strict=True)) if bits(x) != bits(y)]
    return found + [f"row of client {i}" for i, (x, y) in enumerate(zip(a.clients, b.clients, strict=True)) if bits(x) != bits(y)]


def gap(a: Params, b: Params) -> float:
    """max|a - b| / max|b| over parameters and statistics together."""
    worst = (a.flat.double() - b.flat.double()).abs().max()
    scale = b.flat.double().abs().max()
    if a.buffers is not None and len(a.buffers):
        worst = torch.maximum(worst, (a.buffers.flat.double() - b.buffers.flat.double()).abs().max())
        scale = torch.maximum(scale, b.buffers.flat.double().abs().max())
    return float(worst / scale)
