"""A plug-in package: a method with state on both sides, its codec with a setting, and an executor with a setting."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstrata import Params, Piece, State, WireError, setting
from fedstrata.backends.selection import ExecutorSettings
from fedstrata.client.update import train_client
from fedstrata.methods import Limit, Row
from fedstrata.wire import find_codec

# ---- a method: state on the server, state on clients, and a codec


@dataclass(frozen=True)
class SampledUpdates(Piece):
    """Send a random share of each update with error feedback, and move the server with momentum.

    v <- beta v + mean; w <- w + v. A client adds what it did not send to its next update.
    """

    share: float = setting(0.5, "the share of entries that are sent, in (0, 1] (1 sends all)", above=0, most=1)
    beta: float = setting(0.5, "the server's momentum, in [0, 1) (0 is none)", least=0, below=1)
    width: int = setting(4, "bytes of a position on the wire, 2 or 4", least=2, most=4)

    def init_server(self, setup):
        return State(velocity=Params(torch.zeros_like(setup.model.flat), setup.model.spec))

    def init_client(self, setup):
        return State(unsent=Params(torch.zeros_like(setup.model.flat), setup.model.spec))

    def upload(self, delta, ctx):
        return delta + ctx.state.params("unsent").pick(delta), {}, ctx.state

    def compress(self, delta, ctx):
        sent = ctx.noise("sent", delta.flat.shape) < self.share
        return delta.new(torch.where(sent, delta.flat, torch.zeros_like(delta.flat)))

    def feedback(self, intended, sent, ctx):
        return State(unsent=ctx.state.params("unsent") | (intended - sent))

    def codec(self, direction, layout):
        return {"all": find_codec(f"positions(width={self.width})")} if direction == "up" else {}

    def merge(self, step, ctx):
        old = ctx.state.params("velocity")
        velocity = self.beta * old.pick(step) + step
        return velocity, State(velocity=old | velocity)


ROW = Row(
    SampledUpdates,
    "a random share of each update, with error feedback and server momentum",
    examples=("sampledupdates", "sampledupdates(share=0.25, width=2) + fedprox(mu=0.1)"),
    limit=Limit("sampledupdates(share=1, beta=0)", "fedavg"),
    source="an example",
    uncited="an example",
)


@dataclass(frozen=True)
class Positions:
    """Send the entries that are not zero: their positions and values; nothing is lost."""

    width: int = 4  # bytes of a position
    name: ClassVar[str] = "positions"

    @property
    def kind(self):
        """The type of positions."""
        return {2: torch.int16, 4: torch.int32}[self.width]

    def packed_shapes(self, shapes):
        """Return None: the number of entries depends on the values."""
        return

    def pack(self, tensors):
        """Return the positions and values of all tensors together, by sorted name."""
        flat = torch.cat([tensors[name].reshape(-1) for name in sorted(tensors)])
        if len(flat) > torch.iinfo(self.kind).max:
            raise WireError(f"positions: {len(flat)} entries do not fit positions of {self.width} bytes; use width=4.")
        at = ((flat != 0) | flat.signbit()).nonzero().reshape(-1)  # -0.0 has a bit to keep
        return {"@positions.at": at.to(self.kind).view(torch.uint8), "@positions.values": flat[at]}

    def unpack(self, packed, shapes):
        """Return the tensors; entries that were not sent are zero."""
        sizes = [math.prod(shapes[name][0]) for name in sorted(shapes)]
        raw, values = packed["@positions.at"], packed["@positions.values"]
        if len(raw) != self.width * len(values):
            raise WireError("positions: positions and values do not match.")
        at = raw.clone().view(self.kind).long()
        if len(at) and not 0 <= int(at.min()) <= int(at.max()) < sum(sizes):
            raise WireError("positions: a position is outside the tensors.")
        flat = torch.zeros(sum(sizes), dtype=values.dtype)
        flat[at] = values
        parts = dict(zip(sorted(shapes), torch.split(flat, sizes), strict=True))
        return {name: parts[name].reshape(shape) for name, (shape, _) in shapes.items()}


# ---- an executor


@dataclass(frozen=True)
class Backwards(ExecutorSettings):
    """Train clients from the last to the first, in blocks."""

    summary: ClassVar[str] = "one client after the other, from the last to the first"
    block: int = 1

    def start(self, make, workers, threads):
        """Start the executor."""
        return BackwardsLoop(make(), self.block)


class BackwardsLoop:
    """The executor itself."""

    name = "backwards"
    workers = 1

    def __init__(self, worker, block):
        self.worker, self.block = worker, block

    def train(self, tasks):
        """Yield the replies of the last block first."""
        blocks = [tasks[i : i + self.block] for i in range(0, len(tasks), self.block)]
        for block in reversed(blocks):
            yield from [train_client(self.worker, task) for task in block]

    def close(self):
        """Release nothing."""
