"""Take local steps of several clients at once, stacked along a leading axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
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
from fedstrata.core.params import Model, Params
from fedstrata.core.piece import ClientContext, Gradient, Loss
from fedstrata.core.plan import Phase
from fedstrata.core.state import State

LaneRequest: TypeAlias = Callable[[ClientUpdate], Tensor]
"""A draw from each client's streams inside a stacked step."""


class Stack:
    """Clients of one plan, most steps first, over one [C, P] vector.

    Args:
        worker: who trains.
        updates: the clients' turns, sorted by steps, longest first.
        starts: where each begins.
    """

    def __init__(self, worker: Worker, updates: Sequence[ClientUpdate], starts: Sequence[Model]) -> None:
        self.worker, self.updates = worker, updates
        self.flat = torch.stack([s.flat for s in starts])  # [C, P]
        self.integers = {n: starts[0].integer(n) for n in worker.setup.layout.integers}  # equal on all clients
        self.losses = torch.zeros(len(updates))
        self.counts = [0] * len(updates)
        self.opt_state: Any = None
        indices = [u.tools.index for u in updates]
        train = worker.data.train
        self.lazy = train.lazy or worker.data.augment is not None
        if not self.lazy:
            everything = torch.cat(indices)
            self.x, self.y = train.take(everything), train.y[everything]
            self.offsets = torch.tensor([0, *[len(i) for i in indices]]).cumsum(0)[:-1].unsqueeze(1)  # [C, 1]

    def params(self, flat: Tensor, views: dict[str, Tensor] | None = None) -> Params:
        """Return parameters over a vector of one client or of several."""
        return Params(flat, self.worker.bound.spec, views=views, integers=self.integers)

    def leaves(self, active: int, names: Sequence[str]) -> tuple[Params, list[Tensor]]:
        """Return parameters of the first ``active`` clients, and their views that are leaves of autograd.

        These are the views of ``names``; they share storage with the parameters.
        """
        flat = self.flat[:active]
        views = {n: t.detach() for n, t in self.params(flat).views.items()}
        leaves = [views[n].requires_grad_() for n in names]
        return self.params(flat, views), leaves

    # ---- batches

    def batches(self, phase: Phase) -> Iterator[Batch]:
        """Yield [A, B, ...] batches of the clients that still have one; shorter ones are padded with weight 0."""
        epochs, steps = phase.epochs, phase.steps
        if epochs is None and steps is None:
            epochs, steps = self.worker.setup.local.epochs, self.worker.setup.local.steps
        orders = [list(u.tools.positions(phase.name, epochs=epochs, steps=steps)) for u in self.updates]
        lengths = [len(o) for o in orders]
        assert lengths == sorted(lengths, reverse=True), "clients of a stack are sorted by steps"
        self.samples = [sum(len(positions) for _, positions in o) for o in orders]
        sizes = pad_sequence([torch.tensor([len(p) for _, p in o]) for o in orders])  # [T, C]
        widest = max(len(p) for o in orders for _, p in o)  # a client may hold less than a batch
        index = pad_sequence([torch.stack([_padded(p, widest) for _, p in o]) for o in orders])  # [T, C, B]
        weights = (torch.arange(index.shape[-1]) < sizes.unsqueeze(-1)).to(self.flat.dtype)  # [T, C, B]
        for step in range(lengths[0]):
            active = sum(1 for n in lengths if n > step)
            for update in self.updates[:active]:
                update.tools.now = phase.name, step
            least, width = (int(n) for n in torch.aminmax(sizes[step, :active]))
            weight = None if least == width else weights[step, :active, :width]
            if self.lazy:
                parts = [
                    u.tools.read(phase.name, orders[i][step][0], orders[i][step][1])
                    for i, u in enumerate(self.updates[:active])
                ]
                x = torch.stack([_pad(b.x, width) for b in parts])
                yield Batch(x, torch.stack([_pad(b.y, width) for b in parts]), weight)
                continue
            chosen = (index[step, :active, :width] + self.offsets[:active]).view(-1)
            x, y = self.x.index_select(0, chosen), self.y.index_select(0, chosen)
            yield Batch(x.view(active, width, *x.shape[1:]), y.view(active, width), weight)
        for update in self.updates:
            update.tools.now = ()


def _padded(positions: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(positions, (0, width - len(positions)))


def _pad(t: Tensor, width: int) -> Tensor:
    return t if len(t) == width else torch.cat([t, t[:1].expand(width - len(t), *t.shape[1:])])


class StackedSteps:
    """A stepper over a stack for one phase.

    Plain losses with element-wise gradient middleware run on the whole stack: one forward pass of all clients, one
    backward pass, one optimizer step. Everything else runs client code under ``vmap``, with ``torch.func.grad`` inside.
    """

    def __init__(self, stack: Stack, phase: Phase, names: Names) -> None:
        worker = stack.worker
        self.worker, self.stack, self.phase = worker, stack, phase
        self.optimizer = worker.optimizer()
        spec = worker.bound.spec
        self.runs = spec.runs(names)
        self.names = [n for n in spec.names if n in names]
        self.spans = [(spec.offsets[n], spec.offsets[n] + spec.shapes[spec.index[n]].numel()) for n in self.names]
        self.lr = stack.updates[0].task.lr * phase.lr
        pieces = worker.method.pieces
        self.custom = worker.method.owner("step")
        self.plain = (
            not worker.method.has("objective")
            and self.custom.step is None
            and all(p.batching == "elementwise" for p in pieces if p.overrides("gradient"))
        )
        self.wrappers = [n for n, p in worker.method.named.items() if p.overrides("gradient")]
        layers = getattr(worker.bound.body, "linear_chain", ())
        direct = layers and self.plain and not worker.method.has("model") and worker.setup.local.precision == "float32"
        self.chain = LinearChain(layers) if direct else None
        o = self.optimizer
        sgd = o.name == "sgd" and not (o.momentum or o.weight_decay or o.clip)
        self.fused = self.chain is not None and not self.wrappers and sgd
        self._gradients: dict[int, Gradient] = {}
        self._leaves: dict[int, tuple[Params, list[Tensor]]] = {}
        self._requests: dict[torch.Size, list[LaneRequest]] = {}
        self._numbers = LaneNumbers(worker)
        self._stacked: tuple[Any, Any] | None = None

    def step(self, batch: Batch) -> None:
        """Take one step on a batch of every client that still has one."""
        self.active = active = len(batch.y)
        for i in range(active):
            self.stack.counts[i] += 1
        flat = self.stack.flat[:active]
        if self.fused and self.chain is not None:
            views = self._leaf(active)[0].views
            losses = self.chain.sgd(views, batch.x, lambda output: self._means(output, batch), self.lr, self.names)
            self.stack.losses[:active] += losses
            return
        if self.plain and not self.wrappers:
            # tensor by tensor: no pass over the whole vector is needed
            grads = [g.reshape(active, -1) for g in self._by_tensor(batch)]
            self.optimizer.step([flat[:, a:b] for a, b in self.spans], grads, self.lr)
            return
        if self.plain:
            grad_flat: Tensor | None = self._gradient(active)(self.stack.params(flat), batch).flat
        else:
            grad_flat = self._general(active, batch)
        if grad_flat is not None:
            values = [flat[:, a:b] for a, b in self.runs]
            self.optimizer.step(values, [grad_flat[:, a:b] for a, b in self.runs], self.lr)

    # ---- the plain path: element-wise arithmetic on [A, P]

    def _gradient(self, active: int) -> Gradient:
        if active not in self._gradients:
            gradient: Gradient = self._backward
            for name in self.wrappers:
                gradient = self.worker.method.named[name].gradient(gradient, self._context(name, active))
            self._gradients[active] = gradient
        return self._gradients[active]

    def _context(self, name: str, active: int) -> ClientContext:
        """Return a context whose tensors are stacked over the first ``active`` clients, or shared."""
        tree, dims = self._stack_data()
        context = self.stack.updates[0].at(name, phase=self.phase)
        return _with(context, _first_lanes(tree, dims, active), name, self._numbers)

    def _backward(self, p: Params, batch: Batch) -> Params:
        assert p.flat.data_ptr() == self.stack.flat.data_ptr(), (
            "element-wise middleware asks for the gradient at the clients' parameters"
        )
        flat = torch.zeros_like(p.flat)
        for (a, b), g in zip(self.spans, self._by_tensor(batch), strict=True):
            flat[:, a:b] = g.flatten(1)
        return Params(flat, p.spec)

    def _by_tensor(self, batch: Batch) -> Sequence[Tensor]:
        """Return the gradient of every client's mean loss, by trained tensor, each [A, *shape]."""
        p, leaves = self._leaf(self.active)
        losses = self._losses(p, batch)  # [A]
        grads = torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
        self.stack.losses[: self.active] += losses.detach()
        return [torch.zeros_like(t) if g is None else g for t, g in zip(leaves, grads, strict=True)]

    def _leaf(self, active: int) -> tuple[Params, list[Tensor]]:
        if active not in self._leaves:
            self._leaves[active] = self.stack.leaves(active, self.names)
        return self._leaves[active]

    def _means(self, output: Tensor, batch: Batch) -> Tensor:
        """Return [A] mean loss of each client from outputs [A, B, classes]."""
        each = self.worker.net.loss(output.flatten(0, 1), batch.y.flatten()).view(batch.y.shape)  # [A, B]
        return each.mean(1) if batch.weight is None else (each * batch.weight).sum(1) / batch.weight.sum(1)

    def _losses(self, p: Params, batch: Batch) -> Tensor:
        self.worker.features.clear()
        if self.chain is not None:
            return self._means(self.chain.output(p.views, batch.x), batch)

        def one(views: dict[str, Tensor], flat: Tensor, x: Tensor, y: Tensor, w: Tensor | None) -> Tensor:
            return self.worker.plain_loss(self.stack.params(flat, views), Batch(x, y, w))

        in_dims = (0, 0, 0, 0, None if batch.weight is None else 0)
        args = (p.views, p.flat, batch.x, batch.y, batch.weight)
        losses: Tensor = self._over_clients(one, in_dims, args, batch.x)
        return losses

    # ---- the general path: client code under vmap

    def _stack_data(self) -> tuple[Any, Any]:
        """Return the tensors of the clients' contexts and their axes for vmap.

        They are stacked where clients differ and shared where they are one object.
        """
        if self._stacked is None:
            trees = [_tensors(u) for u in self.stack.updates]
            leaves, shapes = zip(*[pytree.tree_flatten(t) for t in trees], strict=True)
            joined, dims = [], []
            for column in zip(*leaves, strict=True):
                shared = all(t is column[0] for t in column)
                joined.append(column[0] if shared or column[0] is None else torch.stack(column))
                dims.append(None if shared or column[0] is None else 0)
            self._stacked = pytree.tree_unflatten(joined, shapes[0]), pytree.tree_unflatten(dims, shapes[0])
        return self._stacked

    def _general(self, active: int, batch: Batch) -> Tensor | None:
        """Run client code on every lane; return [A, P] gradients, or None where a piece moved the parameters."""
        tree, dims = self._stack_data()
        old = None if self.stack.opt_state is None else _each(lambda t: t[:active], self.stack.opt_state)
        in_dims = (0, 0, 0, None if batch.weight is None else 0, dims, None if old is None else 0)
        args = (self.stack.flat[:active], batch.x, batch.y, batch.weight, _first_lanes(tree, dims, active), old)
        flat, loss, *after = self._over_clients(self._one_lane, in_dims, args, batch.x)
        self.stack.losses[:active] += loss.detach()
        if self.custom.step is None:
            return flat  # type: ignore[no-any-return]
        for a, b in self.runs:
            self.stack.flat[:active, a:b] = flat[:, a:b]
        if self.stack.opt_state is None and after:
            self.stack.opt_state = _each(torch.clone, after[0])
        elif after:
            _each(lambda before, new: before[:active].copy_(new), self.stack.opt_state, after[0])
        return None

    def _one_lane(self, flat: Tensor, x: Tensor, y: Tensor, w: Tensor | None, data: Any, opt_state: Any) -> Any:
        """Return what one client's step gives: its gradient or new parameters, its loss, its optimizer state."""
        update, losses = self.stack.updates[0], _Losses(self.worker)
        contexts = {n: _with(update.at(n, phase=self.phase), data, n, self._numbers) for n in self.worker.method.named}
        losses.loss, wrap, custom = self.worker.middleware(contexts)
        gradient = wrap(losses.gradient)
        p, batch = self.stack.params(flat), Batch(x, y, w)
        with self._numbers.inside_step():
            if custom is None:
                moved, after = gradient(p, batch), None
            else:
                moved, after = custom(p, batch, gradient, opt_state)
        return moved.flat, torch.stack(losses.seen).mean(), *([] if after is None else [_without_statistics(after)])

    # ---- vmap, dropout masks and pieces' noise

    def _over_clients(self, one: Callable[..., Any], in_dims: tuple[Any, ...], args: tuple[Any, ...], x: Tensor) -> Any:
        """Run ``vmap(one)`` with the random numbers that each client would draw alone.

        A first pass, on constants, learns what is drawn; it counts where nothing is. Then the numbers are drawn from
        each client's streams, in that order, and fed in.
        """
        shape = x.shape[1:]
        if shape not in self._requests:
            with self._numbers.recording() as requests:
                result = vmap(one, in_dims=in_dims)(*args)
            self._requests[shape] = requests
            if not requests:
                return result
        requests = self._requests[shape]
        if not requests:
            return vmap(one, in_dims=in_dims)(*args)
        lanes = self.stack.updates[: self.active]
        drawn = [[request(update) for request in requests] for update in lanes]
        numbers = [torch.stack(column) for column in zip(*drawn, strict=True)]

        def fed(lane_numbers: list[Tensor], *rest: Any) -> Any:
            with self._numbers.feeding(lane_numbers):
                return one(*rest)

        return vmap(fed, in_dims=(0, *in_dims))(numbers, *args)


class _Losses:
    """The gradient of a client's loss under vmap, and the losses that it met."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.loss: Loss = worker.plain_loss
        self.seen: list[Tensor] = []

    def gradient(self, p: Params, batch: Batch) -> Params:
        """Return the gradient of the loss at these parameters."""

        def value(flat: Tensor) -> tuple[Tensor, Tensor]:
            self.worker.features.clear()
            loss = self.loss(p.new(flat), batch)
            return loss, loss

        flat, loss = grad(value, has_aux=True)(p.flat)
        self.seen.append(loss)
        return Params(flat, p.spec)


class LaneNumbers:
    """Random numbers inside a stacked step: the tools of pieces, and the masks of dropout layers.

    Numbers are those that each client draws alone. There is no single client whose loop could run, so private fits and
    scans are refused.
    """

    def __init__(self, worker: Worker) -> None:
        self._requests: list[LaneRequest] | None = None
        self._numbers: Iterator[Tensor] | None = None
        self._in_step = False
        for layer in worker.bound.dropouts:
            layer.draw = self._mask

    def _mask(self, shape: torch.Size) -> Tensor:
        return self._next(lambda update: torch.rand(shape, generator=update.dropout), shape, "dropout masks")

    def _next(self, request: LaneRequest, shape: Sequence[int], label: str) -> Tensor:
        if self._requests is not None:
            self._requests.append(request)
            return torch.full(tuple(shape), 0.5)
        if self._numbers is None:
            raise ConfigError(
                f"executor=batched cannot draw {label} in an element-wise gradient; use executor=loop, threads or"
                " processes."
            )
        return next(self._numbers)

    @contextmanager
    def recording(self) -> Iterator[list[LaneRequest]]:
        """Note what is drawn, and give one half everywhere."""
        self._requests = []
        try:
            yield self._requests
        finally:
            self._requests = None

    @contextmanager
    def feeding(self, numbers: Sequence[Tensor]) -> Iterator[None]:
        """Give these numbers, in order."""
        self._numbers = iter(numbers)
        try:
            yield
        finally:
            self._numbers = None

    @contextmanager
    def inside_step(self) -> Iterator[None]:
        """Draw noise of the local step; outside of it, noise of the round, which a client alone draws once."""
        self._in_step = True
        try:
            yield
        finally:
            self._in_step = False

    def noise(self, name: str, shape: Sequence[int], kind: str) -> Tensor:
        """Return what each client draws alone under this name; see :meth:`ClientContext.noise`."""
        in_step = self._in_step

        def request(update: ClientUpdate) -> Tensor:
            return update.tools.draw(name, shape, kind, update.tools.now if in_step else ())

        return self._next(request, shape, name)

    def fit(self, start: Model, purpose: str, **options: Any) -> Model:
        """Refuse a private fit."""
        raise ConfigError(
            f"executor=batched cannot fit {purpose} inside a local step; use executor=loop, threads or processes."
        )

    def scan(self, function: Callable[[Any, Batch], Any], carry: Any, purpose: str, **options: Any) -> Any:
        """Refuse a scan."""
        raise ConfigError(
            f"executor=batched cannot scan {purpose} inside a local step; use executor=loop, threads or processes."
        )


def _each(function: Callable[..., Tensor], first: Any, *rest: Any) -> Any:
    """Apply a function to the tensors of equally shaped trees, leaving None alone."""
    leaves, shape = pytree.tree_flatten(first)
    others = [pytree.tree_leaves(r, is_leaf=lambda x: x is None) for r in rest]
    return pytree.tree_unflatten(
        [t if t is None else function(t, *(o[i] for o in others)) for i, t in enumerate(leaves)], shape
    )


def _first_lanes(tree: Any, dims: Any, active: int) -> Any:
    """Return the tree of the first ``active`` clients."""
    leaves, shape = pytree.tree_flatten(tree)
    axes = pytree.tree_leaves(dims, is_leaf=lambda d: d is None)
    return pytree.tree_unflatten([t[:active] if d == 0 else t for t, d in zip(leaves, axes, strict=True)], shape)


def _without_statistics(opt_state: Any) -> Any:
    """Return an optimizer state without statistics, which do not move here."""
    return Params(opt_state.flat, opt_state.spec) if isinstance(opt_state, Params) else opt_state


def _tensors(update: ClientUpdate) -> dict[str, Any]:
    """Return what differs between the clients' contexts, as one tree of tensors."""
    context = update.context
    return {
        "received": context.received,
        "counts": context.counts,
        "states": {n: dict(state) for n, state in update.states.items()},
        "payloads": {n: dict(payload) for n, payload in update.task.down_payload.items()},
    }


def _with(context: ClientContext, data: Any, name: str, numbers: LaneNumbers) -> ClientContext:
    return replace(
        context,
        received=data["received"],
        counts=data["counts"],
        state=State(data["states"][name]),
        down_payload=State(data["payloads"].get(name, {})),
        _tools=numbers,
    )
