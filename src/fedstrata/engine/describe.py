"""Describe what a run would cost: parameters, state, bytes, FLOPs and memory, in all and by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch

from fedstrata.client.frozen_prefix import NetworkCut, NotCached
from fedstrata.client.step_cost import cost, forward
from fedstrata.client.task import ClientTask
from fedstrata.client.update import ClientUpdate, reason_left_out
from fedstrata.client.worker import FlopCounter, Worker
from fedstrata.common.errors import ConfigError
from fedstrata.config.config import Config
from fedstrata.core.layout import Names
from fedstrata.core.network import Batch
from fedstrata.core.piece import Piece
from fedstrata.core.state import State, state_tensors
from fedstrata.engine.assembly import PROBE_SAMPLES, RunComponents, assemble, traced_of
from fedstrata.engine.server import RoundPlan, Server, plan_round
from fedstrata.methods import source_of
from fedstrata.wire import messages
from fedstrata.wire.frame import MessageSize

VERBS = (
    *("model", "init_server", "init_client", "query", "sample", "plan", "send", "receive", "objective", "gradient"),
    *("step", "upload", "compress", "feedback", "weigh", "screen", "observe", "reduce", "merge", "settle"),
    *("personal_model", "refine"),
)
"""Verbs of a piece, in the order of a round."""


@dataclass(frozen=True)
class PieceFacts:
    """One piece of the chain.

    Attributes:
        name: as registered.
        settings: all of them, as in call syntax.
        verbs: what it changes of FedAvg, in the order of a round.
        source: paper.
    """

    name: str
    settings: str
    verbs: str
    source: str

    @classmethod
    def of(cls, name: str, piece: Piece) -> PieceFacts:
        """Return the facts of a piece."""
        settings = ", ".join(f"{f.name}={getattr(piece, f.name)}" for f in fields(piece))
        return cls(
            name, settings or "none", ", ".join(verb for verb in VERBS if piece.overrides(verb)), source_of(piece)
        )


@dataclass(frozen=True)
class LayerCost:
    """One layer group.

    Attributes:
        name, kind, role, depth, parameters: as in the layout.
        flops: of one sample when only this layer is trained: whole forward pass, and backward to this layer.
        prefix_flops: the part of them before the layer that runs once a sample and round, as its activations are
            cached; 0 where none are.
        cached_bytes: of these activations, a sample.
        memory: bytes at the peak of a local step on one batch when only this layer is trained: the model, the live
            tensors of the two passes, gradients and optimizer state.
    """

    name: str
    kind: str
    role: str
    depth: int
    parameters: int
    flops: float
    memory: int
    prefix_flops: float
    cached_bytes: int


@dataclass(frozen=True)
class Description:
    """The costs of one configuration.

    Attributes:
        method, data, model: as configured.
        pieces: of the method, in the order of the chain.
        parameters: numbers in the model; statistics: numbers in norm statistics.
        layers: shallow to deep.
        server_state, client_state: bytes of the pieces' states on the server, and of one client's state.
        bytes_down, bytes_up: payload for one client in round 0; framing apart.
        flops_step: FLOPs a sample by purpose, under the whole chain.
        memory: bytes at the peak of a local step of the whole model.
        not_cached: why activations of frozen layers are not cached, or None.
        formulas: costs that publications state for pieces, by piece and label; compare with the FLOPs of layers.
        probe: clients and batch that this was measured on.
    """

    method: str
    data: str
    model: str
    pieces: tuple[PieceFacts, ...]
    parameters: int
    statistics: int
    layers: tuple[LayerCost, ...]
    server_state: int
    client_state: int
    bytes_down: int
    bytes_up: int
    framing_down: int
    framing_up: int
    flops_step: Mapping[str, float]
    memory: int
    not_cached: str | None
    formulas: Mapping[str, float]
    probe: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return asdict(self)


def describe(config: Config) -> Description:
    """Measure the costs of a configuration on one batch of one of its clients; nothing is trained.

    Raises:
        FedstrataError: an invalid configuration.
        ConfigError: no client has samples to measure on.
    """
    parts = assemble(config)
    probe = probe_costs(parts)
    worker, update = probe.worker, probe.update
    batch = next(update.tools.batches("describe"))
    batch = Batch(batch.x[:PROBE_SAMPLES], batch.y[:PROBE_SAMPLES])
    layout, local = parts.setup.layout, parts.setup.local
    if local.activation_cache_mb and worker.cache.traced == NotCached():
        worker.cache.traced = traced_of(worker.bound, parts.federation, local)
    layers = tuple(
        LayerCost(
            g.name,
            g.kind,
            g.role,
            g.depth,
            g.numel,
            *cost(worker, batch, frozenset(g.names)),
            *prefix_cost(worker, batch, frozenset(g.names)),
        )
        for g in layout.groups.values()
    )
    return Description(
        method=str(parts.method),
        data=parts.federation.name,
        model=config.model_for(parts.federation.task),
        pieces=tuple(PieceFacts.of(name, piece) for name, piece in parts.method.named.items()),
        parameters=parts.parameters,
        statistics=layout.statistics.total,
        layers=layers,
        server_state=sum(_bytes(state) for state in probe.server.states.values()),
        client_state=probe.client_state,
        bytes_down=probe.down.payload,
        bytes_up=probe.up.payload,
        framing_down=probe.down.framing,
        framing_up=probe.up.framing,
        flops_step=probe.flops,
        memory=cost(worker, batch, layout.parameters)[1],
        not_cached="; ".join(worker.cache.reasons()) or None,
        formulas=_formulas(parts, forward(worker, batch)),
        probe=(
            f"client {update.task.client}, {len(batch.y)} samples, memory scaled to local.batch={config.local.batch}"
        ),
    )


def prefix_cost(worker: Worker, batch: Batch, names: Names) -> tuple[float, int]:
    """Return FLOPs, and bytes, of one sample's activations before these parameters where they are cached."""
    split = worker.cache.cut(names)
    if not isinstance(split, NetworkCut):
        return 0.0, 0
    with torch.no_grad(), worker.autocast(), FlopCounter() as counter:
        split.prefix(worker.bound.laid_out(batch.x))
    return counter.get_total_flops() / len(batch.y), split.bytes


def _formulas(parts: RunComponents, flops: Mapping[str, int]) -> dict[str, float]:
    named = parts.method.named.items()
    formulas = {
        f"{name}: {label}": round(value, 4)
        for name, piece in named
        for label, value in piece.formulas(flops, parts.setup).items()
    }
    return {label: int(value) if value == int(value) else value for label, value in formulas.items()}


@dataclass(frozen=True)
class CostProbe:
    """One client's first round, measured on one batch.

    Attributes:
        worker: who trained; server: before round 0; update: of the client, after its turn.
        down, up: what crossed the boundary.
        client_state: bytes that the client stores.
        flops: of a sample, by purpose.
    """

    worker: Worker
    server: Server
    update: ClientUpdate
    down: MessageSize
    up: MessageSize
    client_state: int
    flops: Mapping[str, float]

    @property
    def task(self) -> ClientTask:
        """What the client was asked to do."""
        return self.update.task


def probe_costs(parts: RunComponents) -> CostProbe:
    """Have the first client of round 0 that can train do so on one batch; nothing is kept.

    Raises:
        ConfigError: no client of round 0 has samples.
    """
    worker = parts.make_worker()
    server = Server.start(parts.method, parts.setup)
    turn = plan_round(server, parts.rules, parts.lr(0), lambda *_: None, lambda _: None)
    update = _update(worker, turn)
    reply = update.reply(update.train(update.begin()))
    task, layout = update.task, parts.setup.layout
    codecs = {d: messages.codecs_of(parts.method, layout, task.plan, d) for d in messages.NAMES}
    stored = sum(t.numel() * t.element_size() for t in reply.client_state.flat().values())
    flops = {purpose.partition(":")[0]: update.worker.costs[purpose] for purpose in reply.cost_by_phase}
    down, up = messages.size_down(task, codecs["down"]), messages.size_up(reply, codecs["up"])
    return CostProbe(worker, server, update, down, up, stored, flops)


def _update(worker: Worker, turn: RoundPlan) -> ClientUpdate:
    for task in turn.tasks:
        if reason_left_out(worker, task) is None:
            return ClientUpdate(replace(worker, costs={}), task, probe=True)
    raise ConfigError(
        "no client of round 0 has samples to train on, so nothing can be measured; look at the partition by `fedstrata"
        " check`."
    )


def _bytes(state: State) -> int:
    return sum(t.numel() * t.element_size() for t in state_tensors(state).values())
