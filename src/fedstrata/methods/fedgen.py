"""FedGen: a generator of features, taught by the clients' heads, teaches the clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from fedstrata.common import random_streams
from fedstrata.common.errors import MethodError
from fedstrata.core.network import Batch
from fedstrata.core.params import Params
from fedstrata.core.piece import ClientContext, Loss, Piece, Reply, ServerContext, require
from fedstrata.core.plan import CohortSlot, Setup
from fedstrata.core.state import State
from fedstrata.methods.parts.generator import Head, Lessons, features, fresh, taught, width
from fedstrata.methods.parts.resets import seeded

if TYPE_CHECKING:
    from numpy.random import Generator


@dataclass(frozen=True)
class FedGen(Piece):
    """Loss plus ``alpha`` CE(head(G(e', y')), y') plus ``beta`` KL(head(G(e, y)) || model(x)), from round 1 on; G is
    the server's.

    e and e' are uniform noise, y the batch's labels, y' ``batch`` labels of any class; both in each local step anew.
    Head and model are the client's own current ones, the target of the KL term has no gradient. Before it averages, the
    server teaches G with the heads that came back (``steps`` of a fresh Adam; see
    :func:`fedstrata.methods.parts.generator.taught`), each label of a client weighed by its share of all clients'
    samples of that label, which clients mail. ``shares`` mean is the released codes' product of two means, in which the
    label is lost.

    Source: Zhu et al. 2021, "Data-Free Knowledge Distillation for Heterogeneous Federated Learning"; numbers of
        FedPhoenix's released code, whose 10
    times 5 steps are ``steps``. Initial weights of G are INFERRED (torch's).
    """

    source: ClassVar[str] = "Zhu et al., ICML 2021"
    needs: ClassVar[Literal["sum", "individuals"]] = "individuals"
    reads: ClassVar[str] = "role:head"
    alpha: float = 0.2
    beta: float = 0.2
    latent: int = 100
    hidden: int = 512
    batch: int = 256
    steps: int = 50
    lr: float = 3e-4
    decay: float = 0.0
    diversity: float = 1.0
    shares: Literal["sample", "mean"] = "sample"

    def __post_init__(self) -> None:
        require(
            self.alpha >= 0,
            "fedgen.alpha",
            self.alpha,
            "the weight of generated features, at least 0 (0 with beta=0 is FedAvg; released: 0.2)",
        )
        require(self.beta >= 0, "fedgen.beta", self.beta, "the weight of the KL term, at least 0 (released: 0.2)")
        for name, least in (("latent", 1), ("hidden", 1), ("batch", 2), ("steps", 0)):
            require(
                getattr(self, name) >= least, f"fedgen.{name}", getattr(self, name), f"a whole number, at least {least}"
            )
        require(self.lr > 0, "fedgen.lr", self.lr, "the generator's step size, above 0 (released: 0.0003)")
        require(
            self.decay >= 0,
            "fedgen.decay",
            self.decay,
            "the generator's weight decay, at least 0 (released: 0 and 0.01)",
        )
        require(
            self.diversity >= 0,
            "fedgen.diversity",
            self.diversity,
            "the weight of the term against equal features, at least 0 (released: 1)",
        )

    def check(self, setup: Setup) -> None:
        if setup.classes < 2 or width(setup.layout, setup.classes) is None:
            raise MethodError(
                "fedgen generates what enters a linear head with an output for each class, and this model's head is"
                f" none (outputs: {setup.classes}). Use a classification task and a model whose head is one linear"
                " layer."
            )

    def init(self, setup: Setup) -> State:
        features = width(setup.layout, setup.classes)
        assert features is not None
        return {
            "generator": fresh(
                self.latent,
                setup.classes,
                self.hidden,
                features,
                random_streams.torch_stream(setup.seed, "fedgen.start"),
            )
        }

    def send(self, params: Params, slot: State, seat: CohortSlot, rng: Generator, setup: Setup) -> tuple[Params, State]:
        return params, {"generator": slot["generator"]} if seat.round and seat.place >= 0 else {}

    def objective(self, loss: Loss, v: ClientContext) -> Loss:
        generator, net, classes = v.extras.get("generator"), v.net, v.setup.classes
        if not isinstance(generator, Params):
            return loss

        def made(p: Params, name: str, y: Tensor) -> Tensor:
            """The client's output for generated features of these labels."""
            return net.head(p, features(generator, v.noise(name, (len(y), self.latent)), y, classes))

        def terms(p: Params, b: Batch) -> Tensor:
            y = (v.noise("labels", (self.batch,)) * classes).long()
            target = made(p, "like", b.y).detach().log_softmax(-1)
            output = net.head(p, net.features(p, b.x).to(target.dtype)).log_softmax(-1)
            return self.alpha * net.loss(made(p, "any", y), y).mean() + self.beta * b.mean(
                (target.exp() * (target - output)).sum(-1)
            )

        return lambda p, b: loss(p, b) + terms(p, b)

    def upload(self, delta: Params, own: State, v: ClientContext) -> tuple[Params, State, State]:
        return delta, {"counts": v.counts}, own

    def merge(self, step: Params, slot: State, v: ServerContext) -> tuple[Params, State]:
        generator, counts = slot["generator"], torch.stack([_tensor(r.mail["fedgen"]["counts"]) for r in v.replies])
        assert isinstance(generator, Params)
        heads = [_head(r, sent, v) for r, sent in zip(v.replies, v.sent, strict=True)]
        how = Lessons(self.steps, self.lr, self.decay, self.batch, self.diversity, self.shares)
        return step, {"generator": taught(generator, heads, counts, v.setup.net.loss, how, seeded(v.rng))}

    def formulas(self, forward: Mapping[str, int], setup: Setup) -> Mapping[str, float]:
        generator = self.init(setup)["generator"]
        assert isinstance(generator, Params)
        return {"bytes of the generator for each client, down from round 1 on": 4 * generator.spec.total}


def _head(reply: Reply, sent: Params, v: ServerContext) -> Head:
    """The head of the model that came back."""
    before = sent.pick(v.layout.select("role:head"))
    moved = reply.delta.pick(before)
    own = (before | (before.pick(moved) + moved)).frozen("eval")
    return lambda z: v.setup.net.head(own, z)


def _tensor(value: Params | Tensor) -> Tensor:
    assert isinstance(value, Tensor)
    return value
