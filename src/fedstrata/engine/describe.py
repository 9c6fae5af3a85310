"""What a run would cost, before it is run: parameters, state, bytes, FLOPs and memory, in all and by layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from fedstrata.client.frozen_prefix import NetworkCut
from fedstrata.client.step_cost import cost, forward
from fedstrata.client.update import ClientTask, ClientUpdate, why_not
from fedstrata.client.worker import FlopCounter, Worker
from fedstrata.common.errors import ConfigError
from fedstrata.config.config import Config
from fedstrata.core.layout import Names
from fedstrata.core.network import Batch
from fedstrata.core.params import Params
from fedstrata.core.piece import Piece
from fedstrata.core.state import State, flatten_state
from fedstrata.engine.assembly import RunComponents, assemble, traced_of
from fedstrata.engine.ledger import codecs_of
from fedstrata.engine.server import RoundPlan, Server, plan_round
from fedstrata.wire import messages
from fedstrata.wire.frame import MessageSize

WIDTH = 8  # samples of the probing batch, or the client's own where it has fewer


VERBS = (
    *(
        "model",
        "init",
        "init_client",
        "ask",
        "sample",
        "plan",
        "send",
        "receive",
        "objective",
        "gradient",
        "step",
        "upload",
    ),
    *("weigh", "reduce", "merge", "settle", "personalise"),
)  # of a piece, in the order of a round


@dataclass(frozen=True)
class PieceFacts:
    """One piece of the chain.

    Attributes:
        name: as registered.
        settings: all of them, as in call syntax.
        verbs: what it does otherwise than FedAvg, in the order of a round.
        source: paper.
    """

    name: str
    settings: str
    verbs: str
    source: str

    @classmethod
    def of(cls, name: str, piece: Piece) -> PieceFacts:
        """What a piece says of itself."""
        settings = ", ".join(f"{f.name}={getattr(piece, f.name)}" for f in fields(piece))
        return cls(name, settings or "none", ", ".join(verb for verb in VERBS if piece.overrides(verb)), piece.source)


@dataclass(frozen=True)
class LayerCost:
    """One layer group.

    Attributes:
        name, kind, role, depth, parameters: as in the layout.
        flops: of one sample when only this layer is trained: whole forward pass, and backward to this layer.
        front_flops: the part of them in front of it that runs once a sample and round, as its values are kept; 0 where
            none are.
        kept_bytes: of these values, a sample.
        memory: bytes at the peak of a local step on one batch when only this layer is trained: the model, what is alive
            at once in the two passes, gradients and optimiser state.
    """

    name: str
    kind: str
    role: str
    depth: int
    parameters: int
    flops: float
    memory: int
    front_flops: float
    kept_bytes: int


@dataclass(frozen=True)
class Description:
    """The costs of one configuration.

    Attributes:
        method, data, model: as configured.
        pieces: of the method, in the order of the chain.
        parameters: numbers in the model; statistics: numbers in norm statistics.
        layers: shallow to deep.
        server_state, client_state: bytes of the pieces' slots, and of one client's row.
        bytes_down, bytes_up: payload for one client in round 0; framing apart.
        flops_step: FLOPs a sample by purpose, under the whole chain.
        memory: bytes at the peak of a local step of the whole model.
        not_kept: why values in front of trained layers are not kept, or None.
        formulas: what publications reckon that pieces cost, by piece and label; compare with the layers' own FLOPs.
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
    not_kept: str | None
    formulas: Mapping[str, float]
    probe: str

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def describe(config: Config) -> Description:
    """Measure the costs of a configuration on one batch of one of its clients; nothing is trained.

    Raises:
        FedstrataError: what cannot be meant.
        ConfigError: no client has samples to measure on.
    """
    parts = assemble(config)
    tried = trial(parts)
    kit, session = tried.kit, tried.session
    batch = next(session.batches("describe"))
    batch = Batch(batch.x[:WIDTH], batch.y[:WIDTH])
    layout = parts.setup.layout
    if config.local.keep and kit.traced is None:
        kit.traced = traced_of(kit.bound, parts.federation, kit.local)
    layers = tuple(
        LayerCost(
            g.name,
            g.kind,
            g.role,
            g.depth,
            g.numel,
            *cost(kit, batch, frozenset(g.names)),
            *front(kit, batch, frozenset(g.names)),
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
        server_state=sum(_bytes(s) for s in tried.server.slots.values()),
        client_state=tried.row,
        bytes_down=tried.down.payload,
        bytes_up=tried.up.payload,
        framing_down=tried.down.framing,
        framing_up=tried.up.framing,
        flops_step=tried.flops,
        memory=cost(kit, batch, layout.parameters)[1],
        not_kept="; ".join(dict.fromkeys(why for why in kit.cuts.values() if isinstance(why, str))) or None,
        formulas=_formulas(parts, forward(kit, batch)),
        probe=(
            f"client {session.work.client}, {len(batch.y)} samples, memory scaled to local.batch={config.local.batch}"
        ),
    )


def front(kit: Worker, batch: Batch, names: Names) -> tuple[float, int]:
    """FLOPs, and bytes, of one sample's values in front of these parameters where they are kept."""
    found = kit.cut(names)
    if not isinstance(found, NetworkCut):
        return 0.0, 0
    with torch.no_grad(), kit.autocast(), FlopCounter() as counter:
        found.prefix(kit.bound.laid_out(batch.x))
    return counter.get_total_flops() / len(batch.y), found.bytes


def _formulas(parts: RunComponents, flops: Mapping[str, int]) -> dict[str, float]:
    named = parts.method.named.items()
    found = {
        f"{name}: {label}": round(value, 4)
        for name, piece in named
        for label, value in piece.formulas(flops, parts.setup).items()
    }
    return {label: int(value) if value == int(value) else value for label, value in found.items()}


@dataclass(frozen=True)
class CostProbe:
    """One client's first round, on one batch, weighed.

    Attributes:
        kit: a worker; server: before round 0; session: of the client, after its turn.
        down, up: what crossed the boundary.
        row: bytes that the client keeps.
        flops: of a sample, by purpose.
    """

    kit: Worker
    server: Server
    session: ClientUpdate
    down: MessageSize
    up: MessageSize
    row: int
    flops: Mapping[str, float]

    @property
    def work(self) -> ClientTask:
        """What the client was asked to do."""
        return self.session.work


def trial(parts: RunComponents) -> CostProbe:
    """Have the first client of round 0 that can train do so on one batch; nothing is kept.

    Raises:
        ConfigError: no client of round 0 has samples.
    """
    kit = parts.make()
    server = Server.start(parts.method, parts.setup)
    turn = plan_round(server, parts.method, parts.setup, parts.config.bn, parts.lr(0), lambda *_: None, lambda _: None)
    session = _session(kit, turn)
    loss, steps = session.train(session.begin())
    reply = session.reply(session.end(), loss, steps)
    down, up = messages.weigh_down(session.work), messages.weigh_up(reply, codecs_of(kit, session.work.plan))
    row = sum(t.numel() * t.element_size() for t in reply.row.values())
    return CostProbe(
        kit, server, session, down, up, row, {p.partition(":")[0]: session.kit.costs[p] for p in session.passes}
    )


def _session(kit: Worker, turn: RoundPlan) -> ClientUpdate:
    for work in turn.works:
        if why_not(kit, work) is None:
            return ClientUpdate(replace(kit, costs={}), work, probe=True)
    raise ConfigError(
        "no client of round 0 has samples to train on, so nothing can be measured; look at the partition by `fedstrata"
        " check`."
    )


def _bytes(state: State) -> int:
    tensors: Iterable[Tensor] = (v.flat if isinstance(v, Params) else v for v in flatten_state(state).values())
    return sum(t.numel() * t.element_size() for t in tensors)


__all__: list[str] = ["CostProbe", "Description", "LayerCost", "cost", "describe", "trial"]
