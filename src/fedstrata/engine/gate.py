"""The engine's side of the gate: what a reply to a task must look like."""

from __future__ import annotations

from dataclasses import dataclass

from fedstrata.client.task import ClientFailure, ClientTask
from fedstrata.core.params import Spec
from fedstrata.core.piece import Reply
from fedstrata.core.plan import Plan, Setup
from fedstrata.engine.ledger import Ledger
from fedstrata.wire import messages
from fedstrata.wire.gate import Bounds, inspect


@dataclass(frozen=True)
class Gate:
    """Check every reply before it touches the model.

    Attributes:
        ledger: knows the payloads that clients send; setup: of the run.
        max_update_norm: largest accepted norm, or None.
    """

    ledger: Ledger
    setup: Setup
    max_update_norm: float | None

    def refusal(self, task: ClientTask, reply: Reply) -> ClientFailure | None:
        """Return why a reply is left out, or None."""
        bounds = Bounds(self.setup.samples.size(reply.client), self.max_update_norm)
        payload, specs = dict(self.ledger.payload(task)), self._specs(task.plan)
        if (reply.delta.spec, reply.statistics.spec) != specs:
            expected = messages.up_shapes(task.plan, self.setup.model) | payload
            refusal = inspect(messages.contents(reply), reply.samples, expected, bounds)
        else:  # the names are right: two vectors are looked at instead of many tensors
            tensors = {"delta": reply.delta.flat, "statistics": reply.statistics.flat}
            dtype = self.setup.model.flat.dtype
            shapes = {n: ((spec.total,), dtype) for n, spec in zip(tensors, specs, strict=True)}
            sent = messages.payload_contents(reply) if reply.up_payload else {}
            refusal = inspect(tensors | sent, reply.samples, shapes | payload, bounds)
        if refusal is None:
            return None
        return ClientFailure(reply.cohort_index, reply.client, refusal.code, refusal.message)

    def _specs(self, plan: Plan) -> tuple[Spec, Spec]:
        layout = self.setup.layout
        return layout.spec.only(plan.upload), layout.statistics.only(plan.upload)
