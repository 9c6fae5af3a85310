"""FedGen: a generator of features, taught by the clients' heads, teaches the clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedstrata.common import random_streams
from fedstrata.common.errors import MethodError
from fedstrata.core.layout import Layout
from fedstrata.core.network import Batch
from fedstrata.core.params import Model, Params
from fedstrata.core.piece import ClientContext, Loss, Piece, Reply, ServerContext, setting
from fedstrata.core.plan import Plan, Setup
from fedstrata.core.state import State
from fedstrata.methods.parts import advice
from fedstrata.methods.parts.advice import Rule
from fedstrata.methods.parts.generator import Head, Lessons, features, fresh, taught, width
from fedstrata.methods.parts.resets import seeded
from fedstrata.methods.parts.rows import Limit, Row


@dataclass(frozen=True)
class FedGen(Piece):
    """Add ``alpha`` CE(head(G(e', y')), y') plus ``beta`` KL(head(G(e, y)) || model(x)) to the loss, from round 1 on.

    G is the server's generator. e and e' are uniform noise, y the batch's labels, y' ``batch`` labels of any class;
    both in each local step anew. Head and model are the client's current ones; the target of the KL term has no
    gradient. Before it averages, the server teaches G with the heads that came back (``steps`` of a fresh Adam; see
    :func:`fedstrata.methods.parts.generator.taught`), each label of a client weighed by its share of all clients'
    samples of that label, which clients send. ``shares`` mean is the released codes' product of two means, in which the
    label is lost.

    Source: Zhu et al. 2021, "Data-Free Knowledge Distillation for Heterogeneous Federated Learning"; numbers of
        FedPhoenix's released code, whose 10 times 5 steps are ``steps``. Initial weights of G are INFERRED (torch's).
    """

    alpha: float = setting(
        0.2, "the weight of generated features, at least 0 (0 with beta=0 is FedAvg; released: 0.2)", least=0
    )
    beta: float = setting(0.2, "the weight of the KL term, at least 0 (released: 0.2)", least=0)
    latent: int = setting(100, "a whole number, at least 1", least=1)
    hidden: int = setting(512, "a whole number, at least 1", least=1)
    batch: int = setting(256, "a whole number, at least 2", least=2)
    steps: int = setting(50, "a whole number, at least 0", least=0)
    lr: float = setting(3e-4, "the generator's step size, above 0 (released: 0.0003)", above=0)
    decay: float = setting(0.0, "the generator's weight decay, at least 0 (released: 0 and 0.01)", least=0)
    diversity: float = setting(1.0, "the weight of the term against equal features, at least 0 (released: 1)", least=0)
    shares: Literal["sample", "mean"] = "sample"

    def check(self, setup: Setup) -> None:
        if setup.classes < 2 or width(setup.layout, setup.classes) is None:
            raise MethodError(
                "fedgen generates what enters a linear head with an output for each class, and this model's head is"
                f" none (outputs: {setup.classes}). Use a classification task and a model whose head is one linear"
                " layer."
            )

    def check_plan(self, plan: Plan, layout: Layout) -> None:
        hidden = sorted(layout.select("role:head") & plan.client_local - plan.upload)
        if hidden:
            raise MethodError(
                f"fedgen's server reads {hidden[0]} in every reply, and this chain keeps it with each client. Leave a"
                " piece out."
            )

    def init_server(self, setup: Setup) -> State:
        rng, inputs = random_streams.torch_stream(setup.seed, "fedgen.start"), width(setup.layout, setup.classes)
        assert inputs is not None, "`check` refuses other heads"
        return State(generator=fresh(self.latent, setup.classes, self.hidden, inputs, rng))

    def send(self, model: Model, ctx: ServerContext) -> tuple[Params, State]:
        return model, ctx.state if ctx.round and ctx.slot.training else State()

    def objective(self, loss: Loss, ctx: ClientContext) -> Loss:
        if "generator" not in ctx.down_payload:
            return loss
        generator, net, classes = ctx.down_payload.params("generator"), ctx.net, ctx.setup.classes

        def generated(p: Params, name: str, y: Tensor) -> Tensor:
            """Return the client's output for generated features of these labels."""
            return net.head(p, features(generator, ctx.noise(name, (len(y), self.latent)), y, classes))

        def terms(p: Params, b: Batch) -> Tensor:
            y = (ctx.noise("labels", (self.batch,)) * classes).long()
            target = generated(p, "like", b.y).detach().log_softmax(-1)
            output = net.head(p, net.features(p, b.x).to(target.dtype)).log_softmax(-1)
            return self.alpha * net.loss(generated(p, "any", y), y).mean() + self.beta * b.mean(
                (target.exp() * (target - output)).sum(-1)
            )

        return lambda p, b: loss(p, b) + terms(p, b)

    def upload(self, delta: Params, ctx: ClientContext) -> tuple[Params, State, State]:
        return delta, State(counts=ctx.counts), ctx.state

    def observe(self, replies: Sequence[Reply], ctx: ServerContext) -> State:
        counts = torch.stack([reply.up_payload[self.name].tensor("counts") for reply in replies])
        heads = [head_of(reply, sent, ctx) for reply, sent in zip(replies, ctx.sent, strict=True)]
        lessons = Lessons(self.steps, self.lr, self.decay, self.batch, self.diversity, self.shares)
        generator = ctx.state.params("generator")
        return State(generator=taught(generator, heads, counts, ctx.setup.net.loss, lessons, seeded(ctx.rng)))

    def formulas(self, forward: Mapping[str, int], setup: Setup) -> Mapping[str, float]:
        numbers = self.init_server(setup).params("generator").spec.total
        return {"bytes of the generator for each client, down from round 1 on": 4 * numbers}


def head_of(reply: Reply, sent: Model, ctx: ServerContext) -> Head:
    """Return the head of the model that came back."""
    before = sent.pick(ctx.layout.select("role:head"))
    moved = reply.delta.pick(before)
    after = (before | (before.pick(moved) + moved)).frozen("eval")
    return lambda z: ctx.setup.net.head(after, z)


ROW = Row(
    FedGen,
    "a generator of features, taught by the clients' heads, teaches the clients",
    (
        "fedgen(latent=4, hidden=8, batch=8, steps=3, lr=0.01)",
        "fedgen(alpha=0.5, beta=1, latent=4, hidden=8, batch=8, steps=3, lr=0.01, shares=mean)",
    ),
    Limit("fedgen(alpha=0, beta=0, latent=4, hidden=8, batch=8, steps=3)", "fedavg"),
    cite=("zhu2021datafree",),
    source="Zhu et al., ICML 2021",
    family="resets",
    advice=(
        Rule(
            "later",
            lambda s: s.kind == "classification" and advice.label_skew(s) and s.body,
            advice.LABELS + ": a generator of features tells every client of classes that it does not hold",
        ),
    ),
    rank=250,
)
