"""From a configuration to everything that a run is made of: checks first, then the parts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from torch import Tensor, nn

from fedstrata.backends.selection import executor_settings
from fedstrata.client.activation_cache import CachePlanner
from fedstrata.client.frozen_prefix import NotCached, Traced, trace
from fedstrata.client.step_cost import cost
from fedstrata.client.worker import FeatureCache, Worker, bind_net, precision
from fedstrata.common import random_streams
from fedstrata.common.errors import ConfigError, MethodError
from fedstrata.config.config import KEYS, Config
from fedstrata.config.lr_schedules import schedule
from fedstrata.config.sections import NewClients
from fedstrata.core.chain import Method
from fedstrata.core.layout import Layout
from fedstrata.core.network import Batch, BoundModel, Net
from fedstrata.core.plan import LocalSettings, Setup
from fedstrata.data.federation import Federation
from fedstrata.diagnostics.base import Measure
from fedstrata.diagnostics.registry import build_measures
from fedstrata.engine.server import Rules, rehearse
from fedstrata.methods import measures_of
from fedstrata.methods import method as parse_method
from fedstrata.methods.finetune import FineTune
from fedstrata.models import build, check, swap_dropout
from fedstrata.models.check import synthetic_batch, to_float32, trains_on_one
from fedstrata.storage import sha256_of

TRACE_SAMPLES = 7  # made-up samples that a split of the model is tried on: no other axis is likely to be as long
PROBE_SAMPLES = 8  # samples of a batch that costs are measured on


@dataclass(frozen=True)
class RunComponents:
    """What a run is made of.

    Attributes:
        config, federation, method: as given.
        setup: what pieces may know.
        make_worker: builds one worker; every call gives a new one.
        lr: local learning rate by round.
        measures: what is measured in training, by name.
        frozen_base: SHA-256 over the model's frozen parameters, "" where it has none.
    """

    config: Config
    federation: Federation
    method: Method
    setup: Setup
    make_worker: Callable[[], Worker]
    lr: Callable[[int], float]
    measures: Mapping[str, Measure] = field(default_factory=dict)
    frozen_base: str = ""

    @property
    def parameters(self) -> int:
        """Numbers in the model."""
        return self.setup.layout.spec.total

    @functools.cached_property
    def rules(self) -> Rules:
        """What is fixed for all rounds."""
        return Rules(self.method, self.setup, self.config.bn)


class Sizes:
    """Sizes and labels of clients, derived on demand."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.known: dict[int, int] = {}

    def size(self, client: int) -> int:
        """Return training samples; they are remembered."""
        if client not in self.known:
            self.known[client] = len(self.federation.training(client))
        return self.known[client]

    def counts(self, client: int) -> Tensor:
        """Return [classes] int64."""
        return self.federation.counts(client)


class Eligible(Sequence[int]):
    """Clients that may take part: all but the held-out ones, without listing them."""

    def __init__(self, clients: int, heldout: Sequence[int]) -> None:
        self.clients, self.out = clients, tuple(sorted(heldout))

    def __len__(self) -> int:
        return self.clients - len(self.out)

    def __contains__(self, client: object) -> bool:
        return isinstance(client, int) and 0 <= client < self.clients and client not in self.out

    def __getitem__(self, position):  # type: ignore[no-untyped-def]  # int or slice
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(len(self)))]
        if not -len(self) <= position < len(self):
            raise IndexError(position)
        client = position % len(self)
        for out in self.out:
            if out > client:
                break
            client += 1
        return client


def assemble(
    config: Config,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    method: Method | None = None,
) -> RunComponents:
    """Read, check and connect everything, before any training.

    Args:
        config: of the run.
        federation: instead of the configured data.
        module: instead of the configured model; it is copied, except for a frozen base.
        method: instead of the configured one.
    Raises:
        FedstrataError: an invalid run, with the remedy.
    """
    method = _method(config, method)
    if federation is None:
        federation = config.federation()
    else:
        _check_given_federation(config, federation)
    module, head = _module(config, federation, module)
    eligible = Eligible(federation.clients, federation.heldout)
    parts = _Parts(config, federation, method, module, head, eligible)
    _check(parts)
    measures = build_measures(config.measures, measures_of(method))
    factor = schedule(config.schedule, config.rounds)
    lr = config.local.lr
    frozen = [p for p in module.parameters() if not p.requires_grad]
    return RunComponents(
        config,
        federation,
        method,
        parts.setup,
        parts.make_worker,
        lambda t: lr * factor(t),
        measures,
        sha256_of(frozen) if frozen else "",
    )


def _method(config: Config, method: Method | None) -> Method:
    """Return the configured method, followed by fine-tuning where it is on."""
    method = parse_method(config.method) if method is None else method
    f = config.finetune
    return method + FineTune(epochs=f.epochs, steps=f.steps, lr=f.lr, groups=f.groups) if f.on else method


class _Parts:
    """Workers and setup of a run, from checked inputs."""

    def __init__(
        self,
        config: Config,
        federation: Federation,
        method: Method,
        module: nn.Module,
        head: str,
        eligible: Eligible,
    ) -> None:
        self.config, self.federation, self.method, self.module, self.head = config, federation, method, module, head
        self.loss = federation.task.loss
        self.bound, net, features = self._bind()
        self.eligible = eligible
        self.setup = Setup(
            layout=self.bound.layout,
            net=net,
            model=self.bound.snapshot(),
            classes=federation.task.num_classes,
            clients=federation.clients,
            cohort=config.cohort_of(len(eligible)),
            rounds=config.rounds,
            seed=config.seed,
            samples=Sizes(federation),
            load=functools.cache(lambda names: cost(*self._cost_probe(), names)),
            local=local_settings(config),
            weighting=config.weighting,
            eligible=eligible,
            merges_single=bool(self.bound.norms),
        )
        partly = bool(method.pieces) or config.new_clients.groups != "all"
        cached = self.setup.local.activation_cache_mb and partly
        self.traced = traced_of(self.bound, federation, self.setup.local) if cached else NotCached()
        self._first: Worker | None = self._worker(self.bound, net, features)

    def _bind(self) -> tuple[BoundModel, Net, FeatureCache]:
        return bind_net(self.module, self.head, self.loss, self.method)

    def _worker(self, bound: BoundModel, net: Net, features: FeatureCache) -> Worker:
        return worker_of(bound, net, features, self.method, self.setup, self.federation, self.traced)

    def make_worker(self) -> Worker:
        """Return a new worker; the first one takes what the setup was made with."""
        first, self._first = self._first, None
        return first if first is not None else self._worker(*self._bind())

    @functools.cached_property
    def _probe(self) -> tuple[Worker, Batch]:
        worker = worker_of(*self._bind(), self.method, self.setup, self.federation, NotCached())
        return worker, probing(self.federation, self.eligible, 2 if self.bound.norms else 1)

    def _cost_probe(self) -> tuple[Worker, Batch]:
        """Return a worker and a batch to measure local steps with."""
        return self._probe


def worker_of(
    bound: BoundModel,
    net: Net,
    features: FeatureCache,
    method: Method,
    setup: Setup,
    federation: Federation,
    traced: Traced | NotCached,
) -> Worker:
    """Return a worker on a bound model."""
    splits = any(piece.batching == "splits" for piece in method.pieces)
    augmented = federation.augment is not None
    cache = CachePlanner(bound, setup, traced, splits, augmented, lambda: precision(setup.local))
    return Worker(bound, net, method, setup, federation, features, cache)


def local_settings(config: Config) -> LocalSettings:
    """Return the settings ``local.*`` of a configuration."""
    return LocalSettings(**{f.name: getattr(config.local, f.name) for f in fields(LocalSettings)})


def traced_of(bound: BoundModel, federation: Federation, local: LocalSettings) -> Traced | NotCached:
    """Return the model's body as a graph, so that it can be split before the trained layers; or why not."""
    return trace(bound, synthetic_batch(federation.task, TRACE_SAMPLES), lambda: precision(local))


def probing(federation: Federation, eligible: Sequence[int], least: int) -> Batch:
    """Return up to 8 samples of the first client that has two or more.

    Where no client has, it is the first sample, unless ``least`` is 2, as with batch norms.

    Raises:
        ConfigError: no client has ``least``.
    """
    for wanted in (2, least):
        for client in eligible:
            index = federation.training(client)[:PROBE_SAMPLES]
            if len(index) >= wanted:
                return Batch(federation.train.take(index), federation.train.y[index])
    raise ConfigError(
        "no client has two samples to measure a local step on; look at the partition by `fedstrata check`."
    )


# ---- checks, in the order in which a user would mend them


def _check(parts: _Parts) -> None:
    """Refuse a run that is invalid, before anything is written."""
    config, federation, setup = parts.config, parts.federation, parts.setup
    config.needed(setup.cohort)  # an impossible quorum
    executor_settings(config.executor)  # an unknown executor or setting
    if parts.bound.norms and config.local.batch == 1 and not trains_on_one(parts.module, federation.task):
        raise ConfigError(
            "local.batch is 1, but a batch norm cannot look at one value; use local.batch=2 or more, or norm=group."
        )
    _check_steps(parts.method, config)
    _check_new_clients(config, federation, setup.layout)
    _check_target(config, federation)
    parts.method.check(setup)
    rehearse(Rules(parts.method, setup, config.bn))


def _check_target(config: Config, federation: Federation) -> None:
    """Refuse an accuracy to reach where there is none, so that it would never end the run."""
    if config.stop.accuracy is not None and not federation.task.has_accuracy:
        raise ConfigError(
            f"stop.accuracy is {config.stop.accuracy}, but a {federation.task.kind} has no accuracy; end the run by"
            " stop.bytes, stop.flops or stop.seconds."
        )


def _check_new_clients(config: Config, federation: Federation, layout: Layout) -> None:
    """Refuse settings for held-out clients where there are none, and a selector that selects nothing."""
    if not federation.heldout and config.new_clients != NewClients():
        raise ConfigError(
            "new_clients.* is set, but no client is held out of training, so it has no effect; set heldout=0.2 too, or"
            " leave it out."
        )
    layout.select(config.new_clients.groups)


def _check_given_federation(config: Config, federation: Federation) -> None:
    """Refuse settings about data beside a federation that was made in Python: they would have no effect."""
    given = config.flat()
    idle = [k for k in ("data", "augment", "partition", "test", "validation", "heldout") if given[k] != KEYS[k].default]
    idle += ["clients"] if given["clients"] not in ("auto", federation.clients) else []
    idle = [k for k in idle if k != "validation" or given[k] != federation.validation]
    if idle:
        settings = " and ".join(f"{k}={given[k]!r}" for k in idle)
        raise ConfigError(
            f"{settings} would have no effect beside a federation that is given from Python. Set it there:"
            " Federation.of(..., partition=..., testing=...)."
        )


def _check_steps(method: Method, config: Config) -> None:
    """Refuse settings of the local optimizer where a piece has its local steps, which would not read them."""
    idle = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "clip": None}
    given = [
        f"local.{name}={getattr(config.local, name)}"
        for name, default in idle.items()
        if getattr(config.local, name) != default
    ]
    if method.has("step") and given:
        raise MethodError(
            f"{method.owner('step').name} has its local steps, on which {' and '.join(given)} would have no effect;"
            " leave it out."
        )


def _module(config: Config, federation: Federation, module: nn.Module | None) -> tuple[nn.Module, str]:
    """Return the model, checked against the task, and the name of its head."""
    task = federation.task
    if module is None:
        norm = None if config.norm == "auto" else config.norm
        module = build(config.model_for(task), task, norm, random_streams.torch_stream(config.seed, "model"))
    else:
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"module is {module!r}; it must be an instance of nn.Module (a class is called first: Net())."
            )
        module = to_float32(swap_dropout(module))
    head = check(module, task)
    if head is None:
        raise ConfigError(
            "the model does not end in a linear layer whose input could serve as features; let its last operation be an"
            " nn.Linear, the head."
        )
    if config.bn != "share" and not any(isinstance(m, nn.modules.batchnorm._NormBase) for m in module.modules()):
        raise ConfigError(f"bn={config.bn} is set, but the model has no batch norm; leave bn out, or use norm=batch.")
    return to_float32(module), head
