"""From a configuration to everything that a run is made of."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedstrata.client.frozen_prefix import Traced, trace
from fedstrata.client.step_cost import cost
from fedstrata.client.worker import PrivateLocalSettings, Worker, bind_net, precision
from fedstrata.common import random_streams
from fedstrata.common.errors import ConfigError, MethodError
from fedstrata.config.config import KEYS, Config
from fedstrata.config.lr_schedules import schedule
from fedstrata.config.sections import Unseen
from fedstrata.core.chain import Method, name_of
from fedstrata.core.layout import Layout
from fedstrata.core.network import Batch, BoundModel
from fedstrata.core.params import Params
from fedstrata.core.plan import Setup
from fedstrata.data.federation import Federation
from fedstrata.data.task_kinds import find_task
from fedstrata.diagnostics.base import Measure
from fedstrata.diagnostics.registry import build_measures
from fedstrata.engine.server import rehearse
from fedstrata.methods import method as parse_method
from fedstrata.methods.finetune import FineTune
from fedstrata.models import build, check, swap_dropout
from fedstrata.models.check import made_up, trains_on_one

TRIED = 7  # made-up samples that a cut through the model is tried on: no other axis is likely to be as long
PROBE = 8  # samples of a batch that costs are measured on


@dataclass(frozen=True)
class RunComponents:
    """What a run is made of.

    Attributes:
        config, federation, method: as given.
        setup: what pieces may know.
        make: builds one worker's kit; every call gives a new one.
        lr: local learning rate by round.
        measures: looks at training, by name.
        parameters: numbers in the model.
    """

    config: Config
    federation: Federation
    method: Method
    setup: Setup
    make: Callable[[], Worker]
    lr: Callable[[int], float]
    measures: Mapping[str, Measure] = field(default_factory=dict)

    @property
    def parameters(self) -> int:
        """Numbers in the model."""
        return self.setup.layout.spec.total


class Sizes:
    """Sizes and labels of clients, derived when asked for."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.known: dict[int, int] = {}

    def size(self, client: int) -> int:
        """Training samples; remembered for clients that were asked for."""
        if client not in self.known:
            self.known[client] = len(self.federation.training(client))
        return self.known[client]

    def counts(self, client: int) -> Tensor:
        """[classes] int64."""
        return self.federation.counts(client)


class Eligible(Sequence[int]):
    """Clients that may take part: all but the held-out ones, without listing them."""

    def __init__(self, clients: int, heldout: Sequence[int]) -> None:
        self.clients, self.out = clients, tuple(sorted(heldout))

    def __len__(self) -> int:
        return self.clients - len(self.out)

    def __contains__(self, client: object) -> bool:
        return isinstance(client, int) and 0 <= client < self.clients and client not in self.out

    def __getitem__(self, place):  # type: ignore[no-untyped-def]  # int or slice
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        client = place % len(self)
        for out in self.out:
            if out > client:
                break
            client += 1
        return client


def loss_of(kind: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Per-sample loss of a kind of task."""
    return find_task(kind).loss


def assemble(
    config: Config, federation: Federation | None = None, module: nn.Module | None = None, method: Method | None = None
) -> RunComponents:
    """Read, check and connect everything, before any training.

    Args:
        config: of the run.
        federation: instead of the configured data.
        module: instead of the configured model; it is copied.
        method: instead of the configured one.
    Raises:
        FedstrataError: whatever cannot be meant, with the remedy.
    """
    method = parse_method(config.method) if method is None else method
    if config.finetune.on:
        f = config.finetune
        method = method + FineTune(epochs=f.epochs, steps=f.steps, lr=f.lr, groups=f.groups)
    if federation is None:
        federation = config.federation()
    else:
        _own_federation(config, federation)
    module, head = _module(config, federation, module)
    loss, local = loss_of(federation.task.kind), config.local
    eligible = Eligible(federation.clients, federation.heldout)
    bound, net, memo = bind_net(module, head, loss, method)
    params = Params(bound.flat.detach().clone(), bound.spec, buffers=bound.buffers.clone())
    setup = Setup(
        layout=bound.layout,
        net=net,
        params=params,
        classes=federation.task.classes,
        clients=federation.clients,
        cohort=config.cohort_of(len(eligible)),
        rounds=config.rounds,
        seed=config.seed,
        samples=Sizes(federation),
        load=functools.cache(lambda names: cost(*scale(), names)),
        epochs=local.epochs,
        steps=local.steps,
        batch=local.batch,
        lr=local.lr,
        optimizer=local.optimizer,
        momentum=local.momentum,
        weight_decay=local.weight_decay,
        weighting=config.weighting,
        eligible=eligible,
        merges=bool(bound.norms),
    )
    settings = PrivateLocalSettings(local.draw, local.clip, local.precision, local.keep)
    partly = bool(method.pieces) or config.unseen.groups != "all"
    traced = traced_of(bound, federation, settings) if local.keep and partly else None

    @functools.cache
    def scale() -> tuple[Worker, Batch]:
        """A worker and a batch to weigh local steps with."""
        own, functions, features = bind_net(module, head, loss, method)
        return Worker(own, functions, method, setup, federation, settings, features), probing(
            federation, eligible, 2 if bound.norms else 1
        )

    config.needed(setup.cohort)  # an impossible quorum is refused before anything is written
    if bound.norms and local.batch == 1 and not trains_on_one(module, federation.task):
        raise ConfigError(
            "local.batch is 1, but a batch norm cannot look at one value; use local.batch=2 or more, or norm=group."
        )
    _check_steps(method, config)
    _check_unseen(config, federation, setup.layout)
    _check_target(config, federation)
    method.check(setup)
    rehearse(method, setup, config.bn)

    built = [(bound, net, memo)]  # the first worker takes what the setup was made with

    def make() -> Worker:
        own, functions, features = built.pop() if built else bind_net(module, head, loss, method)
        return Worker(own, functions, method, setup, federation, settings, features, traced=traced)

    factor = schedule(config.schedule, config.rounds)
    looks = build_measures(config.measures, [name for piece in method.pieces for name in piece.measures])
    return RunComponents(config, federation, method, setup, make, lambda t: local.lr * factor(t), looks)


def _check_target(config: Config, federation: Federation) -> None:
    """Refuse an accuracy to reach where there is none, so that it would never end the run."""
    if config.stop.accuracy is not None and not federation.task.has_accuracy:
        raise ConfigError(
            f"stop.accuracy is {config.stop.accuracy}, but a {federation.task.kind} has no accuracy; end the run by"
            " stop.bytes, stop.flops or stop.seconds."
        )


def traced_of(bound: BoundModel, federation: Federation, settings: PrivateLocalSettings) -> Traced | str:
    """The model's body as a graph, so that it can be cut in front of what is trained; or why not."""
    return trace(bound, made_up(federation.task, TRIED), lambda: precision(settings))


def probing(federation: Federation, eligible: Sequence[int], least: int) -> Batch:
    """Up to 8 samples of the first client that has two or more; where none has, the first sample, unless ``least`` is
    2, as with batch norms.

    Raises:
        ConfigError: no client has ``least``.
    """
    for wanted in (2, least):
        for client in eligible:
            index = federation.training(client)[:PROBE]
            if len(index) >= wanted:
                return Batch(federation.train.take(index), federation.train.y[index])
    raise ConfigError(
        "no client has two samples to measure a local step on; look at the partition by `fedstrata check`."
    )


def _check_unseen(config: Config, federation: Federation, layout: Layout) -> None:
    """Refuse settings for held-out clients where there are none, and a selector that selects nothing."""
    if not federation.heldout and config.unseen != Unseen():
        raise ConfigError(
            "unseen.* is set, but no client is held out of training, so it has no effect; set heldout=0.2 too, or leave"
            " it out."
        )
    layout.select(config.unseen.groups)


def _own_federation(config: Config, federation: Federation) -> None:
    """Refuse settings about data beside a federation that was made in Python: they would have no effect."""
    given = config.flat()
    idle = [k for k in ("data", "augment", "partition", "test", "validation", "heldout") if given[k] != KEYS[k].default]
    idle += ["clients"] if given["clients"] not in ("auto", federation.clients) else []
    idle = [k for k in idle if k != "validation" or given[k] != federation.validation]
    if idle:
        said = " and ".join(f"{k}={given[k]!r}" for k in idle)
        raise ConfigError(
            f"{said} would have no effect beside a federation of your own. Say it there: Federation.of(...,"
            " partition=..., testing=...)."
        )


def _check_steps(method: Method, config: Config) -> None:
    """Refuse settings of the local optimiser where a piece brings steps of its own, which would not look at them."""
    idle = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "clip": None}
    given = [
        f"local.{name}={getattr(config.local, name)}"
        for name, default in idle.items()
        if getattr(config.local, name) != default
    ]
    if method.has("step") and given:
        raise MethodError(
            f"{name_of(method.owner('step'))} takes local steps of its own, on which {' and '.join(given)} would have"
            " no effect; leave it out."
        )


def _module(config: Config, federation: Federation, module: nn.Module | None) -> tuple[nn.Module, str]:
    """The model, checked against the task, and the name of its head."""
    task = federation.task
    if module is None:
        norm = None if config.norm == "auto" else config.norm
        module = build(config.model_for(task), task, norm, random_streams.torch_stream(config.seed, "model"))
    else:
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"module is {module!r}; an instance of nn.Module is wanted (a class is called first: Net())."
            )
        module = swap_dropout(module).to(torch.float32)
    head = check(module, task)
    if head is None:
        raise ConfigError(
            "the model does not end in a linear layer whose input could serve as features; let its last operation be an"
            " nn.Linear, the head."
        )
    if config.bn != "share" and not any(isinstance(m, nn.modules.batchnorm._NormBase) for m in module.modules()):
        raise ConfigError(f"bn={config.bn} is set, but the model has no batch norm; leave bn out, or use norm=batch.")
    return module.to(torch.float32), head
