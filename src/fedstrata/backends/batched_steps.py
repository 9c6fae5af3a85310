"""Local steps of several clients at once, stacked along a leading axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.utils.rnn import pad_sequence
from torch.utils import _pytree as pytree

from fedstrata.backends.linear_chain import LinearChain
from fedstrata.client.update import ClientUpdate
from fedstrata.client.worker import Worker
from fedstrata.common.errors import ConfigError
from fedstrata.core.layout import Names
from fedstrata.core.network import Batch
from fedstrata.core.params import Params
from fedstrata.core.piece import ClientContext, Gradient
from fedstrata.core.plan import Phase

LaneRequest: TypeAlias = Callable[[ClientUpdate], Tensor]
"""What is asked of each client's own streams inside a stacked step."""


class Stack:
    """Clients of one plan, most steps first, over one [C, P] vector.

    Args:
        kit: the worker.
        sessions: the clients' turns, sorted by steps, longest first.
        starts: where each begins.
    """

    def __init__(self, kit: Worker, sessions: Sequence[ClientUpdate], starts: Sequence[Params]) -> None:
        self.kit, self.sessions = kit, sessions
        self.flat = torch.stack([s.flat for s in starts])  # [C, P]
        self.losses = torch.zeros(len(sessions))
        self.counts = [0] * len(sessions)
        self.carry: Any = None
        self._indices = [s.index for s in sessions]
        train = kit.data.train
        self.lazy = train.lazy or kit.data.augment is not None
        if not self.lazy:
            everything = torch.cat(self._indices)
            self.x, self.y = train.take(everything), train.y[everything]
            self.offsets = torch.tensor([0, *[len(i) for i in self._indices]]).cumsum(0)[:-1].unsqueeze(1)  # [C, 1]

    def leaves(self, active: int, names: Sequence[str]) -> tuple[Params, list[Tensor]]:
        """Parameters of the first ``active`` clients whose views are leaves of autograd for these names, and those
        leaves; they share storage.
        """
        spec = self.kit.bound.spec
        flat = self.flat[:active]
        views = {n: t.detach() for n, t in Params(flat, spec).views.items()}
        leaves = [views[n].requires_grad_() for n in names]
        return Params(flat, spec, views=views), leaves

    # -- batches

    def batches(self, phase: Phase) -> Iterator[Batch]:
        """[A, B, ...] batches of the clients that still have one; shorter ones are padded with weight 0."""
        epochs, steps = phase.epochs, phase.steps
        if epochs is None and steps is None:
            epochs, steps = self.kit.setup.epochs, self.kit.setup.steps
        orders = [list(s.positions(phase.name, epochs=epochs, steps=steps)) for s in self.sessions]
        lengths = [len(o) for o in orders]
        assert lengths == sorted(lengths, reverse=True), "clients of a stack are sorted by steps"
        self.samples = [sum(len(positions) for _, positions in o) for o in orders]
        sizes = pad_sequence([torch.tensor([len(p) for _, p in o]) for o in orders])  # [T, C]
        index = pad_sequence([pad_sequence([p for _, p in o], batch_first=True) for o in orders])  # [T, C, B]
        weights = (torch.arange(index.shape[-1]) < sizes.unsqueeze(-1)).to(self.flat.dtype)  # [T, C, B]
        for step in range(lengths[0]):
            active = sum(1 for n in lengths if n > step)
            for session in self.sessions[:active]:
                session.now = phase.name, step
            least, width = (int(n) for n in torch.aminmax(sizes[step, :active]))
            weight = None if least == width else weights[step, :active, :width]
            if self.lazy:
                parts = [
                    s.read(phase.name, orders[i][step][0], orders[i][step][1])
                    for i, s in enumerate(self.sessions[:active])
                ]
                yield Batch(
                    torch.stack([_pad(b.x, width) for b in parts]),
                    torch.stack([_pad(b.y, width) for b in parts]),
                    weight,
                )
                continue
            chosen = (index[step, :active, :width] + self.offsets[:active]).view(-1)
            x, y = self.x.index_select(0, chosen), self.y.index_select(0, chosen)
            yield Batch(x.view(active, width, *x.shape[1:]), y.view(active, width), weight)
        for session in self.sessions:
            session.now = ()


def _pad(t: Tensor, width: int) -> Tensor:
    return t if len(t) == width else torch.cat([t, t[:1].expand(width - len(t), *t.shape[1:])])


class StackedSteps:
    """A stepper over a stack for one phase.

    Plain losses with element-wise gradient middleware run on the whole stack: one forward pass of all clients, one
    backward pass, one optimiser step. Everything else runs client code under ``vmap``, with ``torch.func.grad`` inside.
    """

    def __init__(self, stack: Stack, phase: Phase, names: Names) -> None:
        kit = stack.kit
        self.kit, self.stack, self.phase = kit, stack, phase
        self.optimizer = kit.optimizer()
        spec = kit.bound.spec
        self.runs = spec.runs(names)
        self.names = [n for n in spec.names if n in names]
        self.places = [(spec.offsets[n], spec.offsets[n] + spec.shapes[spec.index[n]].numel()) for n in self.names]
        self.lr = stack.sessions[0].work.lr * phase.lr
        pieces = kit.method.pieces
        self.custom = kit.method.owner("step")
        self.plain = (
            not kit.method.has("objective")
            and self.custom.step is None
            and all(p.elementwise for p in pieces if p.overrides("gradient"))
        )
        self.middle = [n for n, p in kit.method.named.items() if p.overrides("gradient")]
        layers = getattr(kit.bound.body, "linear_chain", ())
        direct = layers and self.plain and not kit.method.has("model") and kit.local.precision == "float32"
        self.chain = LinearChain(layers) if direct else None
        o = self.optimizer
        self.fused = (
            self.chain is not None
            and not self.middle
            and o.name == "sgd"
            and not (o.momentum or o.weight_decay or o.clip)
        )
        self._chains: dict[int, Gradient] = {}
        self._leaves: dict[int, tuple[Params, list[Tensor]]] = {}
        self._asked: dict[torch.Size, list[LaneRequest]] = {}
        self._tools = _Tools()
        self._data: tuple[Any, Any] | None = None

    def step(self, batch: Batch) -> None:
        """One batch of every client that still has one."""
        self.active = active = len(batch.y)
        for i in range(active):
            self.stack.counts[i] += 1
        flat = self.stack.flat[:active]
        if self.fused and self.chain is not None:
            losses = self.chain.sgd(
                self._leaf(active)[0].views, batch.x, lambda output: self._means(output, batch), self.lr, self.names
            )
            self.stack.losses[:active] += losses
            return
        if self.plain and not self.middle:
            slopes = [
                g.reshape(active, -1) for g in self._slopes(batch)
            ]  # tensor by tensor: no pass over the whole vector is needed
            self.optimizer.step([flat[:, a:b] for a, b in self.places], slopes, self.lr)
            return
        slope = (
            self._chain(active)(Params(flat, self.kit.bound.spec), batch).flat
            if self.plain
            else self._general(active, batch)
        )
        if slope is not None:
            self.optimizer.step([flat[:, a:b] for a, b in self.runs], [slope[:, a:b] for a, b in self.runs], self.lr)

    # -- the plain path: element-wise arithmetic on [A, P]

    def _chain(self, active: int) -> Gradient:
        if active not in self._chains:
            gradient: Gradient = self._backward
            for name in self.middle:
                gradient = self.kit.method.named[name].gradient(gradient, self._view(name, active))
            self._chains[active] = gradient
        return self._chains[active]

    def _view(self, name: str, active: int) -> ClientContext:
        """A view whose tensors are stacked over the first ``active`` clients, or shared."""
        tree, dims = self._stacked()
        return _with(self.stack.sessions[0].at(name, phase=self.phase), _cut(tree, dims, active), name, self._tools)

    def _backward(self, p: Params, batch: Batch) -> Params:
        assert p.flat.data_ptr() == self.stack.flat.data_ptr(), (
            "element-wise middleware asks for the gradient where the client stands"
        )
        slope = torch.zeros_like(p.flat)
        for (a, b), g in zip(self.places, self._slopes(batch), strict=True):
            slope[:, a:b] = g.flatten(1)
        return Params(slope, p.spec)

    def _slopes(self, batch: Batch) -> Sequence[Tensor]:
        """Gradient of every client's mean loss, by trained tensor, each [A, *shape]."""
        p, leaves = self._leaf(self.active)
        losses = self._losses(p, batch)  # [A]
        found = torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
        self.stack.losses[: self.active] += losses.detach()
        return [torch.zeros_like(t) if g is None else g for t, g in zip(leaves, found, strict=True)]

    def _leaf(self, active: int) -> tuple[Params, list[Tensor]]:
        if active not in self._leaves:
            self._leaves[active] = self.stack.leaves(active, self.names)
        return self._leaves[active]

    def _means(self, output: Tensor, batch: Batch) -> Tensor:
        """[A] mean loss of each client from outputs [A, B, classes]."""
        each = self.kit.net.loss(output.flatten(0, 1), batch.y.flatten()).view(batch.y.shape)  # [A, B]
        return each.mean(1) if batch.weight is None else (each * batch.weight).sum(1) / batch.weight.sum(1)

    def _losses(self, p: Params, batch: Batch) -> Tensor:
        self.kit.memo.clear()
        if self.chain is not None:
            return self._means(self.chain.output(p.views, batch.x), batch)
        spec = p.spec

        def one(views: dict[str, Tensor], flat: Tensor, x: Tensor, y: Tensor, w: Tensor | None) -> Tensor:
            return self.kit.plain_loss(Params(flat, spec, views=views), Batch(x, y, w))

        in_dims = (0, 0, 0, 0, None if batch.weight is None else 0)
        return self._over_clients(one, in_dims, (p.views, p.flat, batch.x, batch.y, batch.weight))  # type: ignore[no-any-return]

    # -- the general path: client code under vmap

    def _stacked(self) -> tuple[Any, Any]:
        """Tensors of the clients' views, stacked where they differ and shared where they are one object.

        And their axes for vmap.
        """
        if self._data is None:
            trees = [_tensors(s) for s in self.stack.sessions]
            leaves, shapes = zip(*[pytree.tree_flatten(t) for t in trees], strict=True)
            joined, dims = [], []
            for column in zip(*leaves, strict=True):
                shared = all(t is column[0] for t in column)
                joined.append(column[0] if shared or column[0] is None else torch.stack(column))
                dims.append(None if shared or column[0] is None else 0)
            self._data = pytree.tree_unflatten(joined, shapes[0]), pytree.tree_unflatten(dims, shapes[0])
        return self._data

    def _general(self, active: int, batch: Batch) -> Tensor | None:
        tree, dims = self._stacked()
        cut = _cut(tree, dims, active)
        session, spec = self.stack.sessions[0], self.kit.bound.spec
        carry = None if self.stack.carry is None else _each(lambda t: t[:active], self.stack.carry)

        def one(flat: Tensor, x: Tensor, y: Tensor, w: Tensor | None, data: Any, carried: Any) -> Any:
            self._tools.stepping = False
            loss, wrap, custom = self.kit.middleware(
                {n: _with(session.at(n, phase=self.phase), data, n, self._tools) for n in self.kit.method.named}
            )
            found: list[Tensor] = []

            def base(p: Params, b: Batch) -> Params:
                def value(f: Tensor) -> tuple[Tensor, Tensor]:
                    self.kit.memo.clear()
                    result = loss(Params(f, spec, buffers=p.buffers, still=p.still), b)
                    return result, result

                slope, at = grad(value, has_aux=True)(p.flat)
                found.append(at)
                return Params(slope, spec)

            gradient = wrap(base)
            self._tools.stepping = True
            p, b = Params(flat, spec), Batch(x, y, w)
            out, after = custom(p, b, gradient, carried) if custom is not None else (gradient(p, b), None)
            return out.flat, torch.stack(found).mean(), *([] if after is None else [_bare(after)])

        in_dims = (0, 0, 0, None if batch.weight is None else 0, dims, None if carry is None else 0)
        args = (self.stack.flat[:active], batch.x, batch.y, batch.weight, cut, carry)
        slope, value, *after = self._over_clients(one, in_dims, args)
        self.stack.losses[:active] += value.detach()
        if self.custom.step is None:
            return slope  # type: ignore[no-any-return]
        for a, b in self.runs:
            self.stack.flat[:active, a:b] = slope[:, a:b]
        if self.stack.carry is None and after:
            self.stack.carry = _each(torch.clone, after[0])
        elif after:
            _each(lambda old, new: old[:active].copy_(new), self.stack.carry, after[0])
        return None

    # -- vmap, dropout's masks and pieces' noise

    def _over_clients(self, one: Callable[..., Any], in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
        """``vmap(one)``.

        Each client gets the masks and the noise that it would have drawn alone, from its own streams, in the order of
        asking.
        """
        x = args[1] if isinstance(args[0], Tensor) else args[2]
        shape = x.shape[1:]
        if shape not in self._asked:
            asked: list[LaneRequest] = []
            self._asked[shape] = asked
            self._answer(partial(_noted, asked))
            found = vmap(one, in_dims=in_dims)(*args)
            self._tools.answer = None
            if not asked:
                return found
            # otherwise it was run to learn what is asked for, and is thrown away
        if not self._asked[shape]:
            return vmap(one, in_dims=in_dims)(*args)
        drawn = [[ask(session) for ask in self._asked[shape]] for session in self.stack.sessions[: self.active]]
        numbers = [torch.stack(column) for column in zip(*drawn, strict=True)]

        def fed(given: list[Tensor], *rest: Any) -> Any:
            feed = iter(given)
            self._answer(lambda *_: next(feed))
            return one(*rest)

        found = vmap(fed, in_dims=(0, *in_dims))(numbers, *args)
        self._tools.answer = None
        return found

    def _answer(self, answer: Callable[[LaneRequest, Sequence[int]], Tensor]) -> None:
        """How dropout layers and pieces get their numbers from now on."""
        for layer in self.kit.bound.dropouts:
            layer.draw = lambda shape: answer(lambda session: torch.rand(shape, generator=session.dropout), shape)
        self._tools.answer = answer


def _noted(asked: list[LaneRequest], ask: LaneRequest, size: Sequence[int]) -> Tensor:
    """One half everywhere, in place of numbers whose request is kept."""
    asked.append(ask)
    return torch.full(tuple(size), 0.5)


def _each(function: Callable[..., Tensor], first: Any, *rest: Any) -> Any:
    """Apply a function to the tensors of equally shaped trees, leaving None alone."""
    leaves, shape = pytree.tree_flatten(first)
    others = [pytree.tree_leaves(r, is_leaf=lambda x: x is None) for r in rest]
    return pytree.tree_unflatten(
        [t if t is None else function(t, *(o[i] for o in others)) for i, t in enumerate(leaves)], shape
    )


def _cut(tree: Any, dims: Any, active: int) -> Any:
    leaves, shape = pytree.tree_flatten(tree)
    axes = pytree.tree_leaves(dims, is_leaf=lambda d: d is None)
    return pytree.tree_unflatten([t[:active] if d == 0 else t for t, d in zip(leaves, axes, strict=True)], shape)


def _bare(carry: Any) -> Any:
    """What is carried, without statistics, which do not move here."""
    return Params(carry.flat, carry.spec) if isinstance(carry, Params) else carry


def _tensors(session: ClientUpdate) -> dict[str, Any]:
    """What differs between the clients' views, as one tree of tensors."""
    v = session.view
    extras = {n: dict(e) for n, e in session.work.extras.items()}
    return {"anchor": v.anchor, "counts": v.counts, "own": session.rows, "extras": extras}


def _with(view: ClientContext, data: Any, name: str, tools: _Tools) -> ClientContext:
    return replace(
        view,
        anchor=data["anchor"],
        counts=data["counts"],
        own=data["own"][name],
        extras=data["extras"].get(name, {}),
        tools=tools,
    )


class _Tools:
    """Inside a stacked local step: noise is that of each client; there is no single one whose loop could run."""

    answer: Callable[[LaneRequest, Sequence[int]], Tensor] | None = None
    stepping = False  # whether the step itself runs, and not what wraps it, which a client alone does once

    def noise(self, name: str, shape: Sequence[int], kind: str) -> Tensor:
        """What each client draws alone under this name; see :meth:`ClientContext.noise`."""
        if self.answer is None:
            raise ConfigError(
                f"executor=batched cannot draw {name} in an element-wise gradient; use executor=loop, threads or"
                " processes."
            )
        stepping = self.stepping
        return self.answer(lambda session: session.draw(name, shape, kind, session.now if stepping else ()), shape)

    def fit(self, start: Params, purpose: str, **options: Any) -> Params:
        """Refused."""
        raise ConfigError(
            f"executor=batched cannot fit {purpose} inside a local step; use executor=loop, threads or processes."
        )

    def scan(self, function: Callable[[Any, Batch], Any], carry: Any, purpose: str, **options: Any) -> Any:
        """Refused."""
        raise ConfigError(
            f"executor=batched cannot scan {purpose} inside a local step; use executor=loop, threads or processes."
        )
