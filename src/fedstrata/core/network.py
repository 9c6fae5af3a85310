"""A model as functions of its parameters.

:class:`Net` is what pieces see: features, head and loss as pure functions of ``Params``. :class:`BoundModel` is the
module that computes them. Its parameters are views of one flat vector. It is called directly where it is evaluated at
that vector, so a local step costs what a bare PyTorch step costs; any other parameters (a teacher, a reference, a
perturbed point) go through ``functional_call``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedstrata.common.errors import MethodError
from fedstrata.common.suggest import suggestion
from fedstrata.core.layout import Entry, Layout, Role, entries_of
from fedstrata.core.params import EvalMode, Model, Params, Spec


class Dropout(nn.Module):
    """Element-wise dropout whose masks come from a derived stream, never from the process-wide generator.

    Args:
        p: share of entries set to zero while training, in [0, 1); the rest is scaled by 1 / (1 - p).
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout p is {p}; it is a share of entries, in [0, 1).")
        self.p = p
        self.draw: Callable[[torch.Size], Tensor] | None = None  # set by the engine: uniforms of that shape

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, ...] -> the same shape."""
        if not self.training or self.p == 0:
            return x
        assert self.draw is not None, "the engine gives every Dropout its stream before training"
        return x * (self.draw(x.shape) >= self.p) / (1 - self.p)


class Batch(NamedTuple):
    """What a local step reads.

    Attributes:
        x: [B, *shape] inputs.
        y: [B] labels.
        weight: [B] 1 for real samples, 0 for padding, or None where all are real.
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None = None

    def mean(self, values: Tensor) -> Tensor:
        """Return mean of per-sample values [B, ...] over the real samples; further axes are averaged too."""
        if values.dim() > 1:
            values = values.flatten(1).mean(1)
        if self.weight is None:
            return values.mean()
        return (values * self.weight).sum() / self.weight.sum()


Function = Callable[[Params, Tensor], Tensor]


@dataclass(frozen=True)
class Net:
    """A model as pure functions.

    Attributes:
        features: (params, x [B, *shape]) -> [B, d], what enters the head.
        head: (params, features [B, d]) -> [B, classes].
        loss: (output [B, classes], y [B]) -> [B], per sample.
        initial: parameter values at the start, in layout order.
        entries: what each tensor is.
        exits: where the body may end: the last submodule that runs, and the number of features behind it; shallow to
            deep, the last is its whole.
        reach: (params, x, n) -> [B, d] features of the body that ends at the n-th exit, counted from 1.
        head_owner: the piece that replaced the model's head, or "".
    """

    features: Function
    head: Function
    loss: Callable[[Tensor, Tensor], Tensor]
    initial: Mapping[str, Tensor] = field(repr=False)
    entries: tuple[Entry, ...] = field(repr=False)
    exits: Mapping[str, int] = field(default_factory=dict)
    reach: Callable[[Params, Tensor, int], Tensor] | None = field(default=None, repr=False)
    head_owner: str = ""

    def __call__(self, p: Params, x: Tensor) -> Tensor:
        """Return output [B, classes]."""
        return self.head(p, self.features(p, x))

    def with_parameter(self, name: str, value: Tensor, *, kind: str, role: Role, group: str = "") -> Net:
        """Return a net with one more parameter that features or head may use.

        It is a layer, or a part of an added ``group``.
        """
        if name in self.initial:
            raise MethodError(f"the model already has a parameter {name!r}; give the new one another name.")
        trained = [e for e in self.entries if not e.statistic]
        kept = [e for e in self.entries if e.statistic]
        entry = Entry(name, value.shape, kind, role, group or name, kind)
        return replace(self, initial={**self.initial, name: value}, entries=(*trained, entry, *kept))

    def owned_by(self, piece: str) -> Net:
        """Return this net with the name of the piece that replaced its head."""
        return replace(self, head_owner=piece)

    def without_parameter(self, name: str) -> Net:
        """Return a net without this parameter; features or head must not read it."""
        if name not in self.initial:
            raise MethodError(f"the model has no parameter {name!r}.{suggestion(name, self.initial)}")
        return replace(
            self,
            initial={n: t for n, t in self.initial.items() if n != name},
            entries=tuple(e for e in self.entries if e.name != name),
        )


class ActivationProvider(Protocol):
    """Cached activations of frozen layers for the current batch; see ``client/activation_cache.py``."""

    def holds(self, x: Tensor) -> bool:
        """Say whether these are the current batch's samples."""

    def features(self, x: Tensor) -> Tensor:
        """Return [B, d] features of that batch at the bound parameters."""


class BoundModel:
    """A module bound to one flat vector of parameters.

    The vector and the module's parameters share storage, so that an optimizer step on either is one on both. A worker
    owns one; it is never shared between threads.

    Parameters of the module that need no gradient are a frozen base: they lie outside the vector, are never sent,
    stored or counted, and all workers of a process share them.

    Args:
        module: the model; it is copied, except for its frozen base.
        head: name of its head, a submodule whose removal leaves the features.
    """

    def __init__(self, module: nn.Module, head: str) -> None:
        self._base = {id(p): p for p in module.parameters() if not p.requires_grad}
        self.frozen = frozenset(n for n, p in module.named_parameters() if not p.requires_grad)
        self.body = copy.deepcopy(module, dict(self._base))
        self.head_name = head
        self.entries = tuple(entries_of(self.body, head))
        self.initial = {
            e.name: self.body.get_parameter(e.name).detach().clone() for e in self.entries if not e.statistic
        }
        self.statistics0 = Params.of({e.name: self.body.get_buffer(e.name) for e in self.entries if e.statistic})
        self.head = self.body.get_submodule(head)
        _assign(self.body, head, nn.Identity())
        self.exits: Mapping[str, int] = dict(getattr(module, "exits", {}))
        self.channels_last = bool(getattr(module, "channels_last", False))
        self.dropouts = [m for m in self.body.modules() if isinstance(m, Dropout)]
        self.norms = [m for m in self.body.modules() if isinstance(m, nn.modules.batchnorm._NormBase)]
        self._twins: dict[EvalMode, tuple[nn.Module, nn.Module]] = {}
        self.cache: ActivationProvider | None = None

    def net(self, loss: Callable[[Tensor, Tensor], Tensor]) -> Net:
        """Return the functions of this module."""
        return Net(self.features, self.classify, loss, self.initial, self.entries, self.exits, self.features)

    def attach(self, net: Net) -> None:
        """Lay the parameters of ``net`` into one vector and make the module's parameters its views.

        Pieces may have added or dropped some.
        """
        self.layout = Layout(net.entries)
        self.spec = self.layout.spec
        first = next(iter(net.initial.values()))
        self.flat = torch.cat([net.initial[n].detach().reshape(-1).to(first.dtype) for n in self.spec.names])
        self.statistics = self.statistics0.clone()
        self.parts = {n: nn.Parameter(t.detach()) for n, t in Params(self.flat, self.spec).views.items()}
        self.flat.requires_grad_()  # a further leaf, for terms that are written on the whole vector
        self.model = Model(Params(self.flat, self.spec, views=dict(self.parts)), self.statistics)
        for name in self.initial:
            module, local = self._place(name)
            if name in self.parts:
                _tie(self.body, self.head, module, local, self.parts[name])
            else:
                # dropped by a piece; nothing reads it
                module._parameters[local].requires_grad_(False)  # type: ignore[union-attr]
        for name, view in self.statistics.views.items():
            module, local = self._place(name)
            module._buffers[local] = view
        self._body_names = [n for n in self.initial if not self._in_head(n) and n in self.parts]
        self._head_names = [n for n in self.initial if self._in_head(n) and n in self.parts]
        self.initial = {}  # the values live in the flat vector now

    def _in_head(self, name: str) -> bool:
        return name.startswith(self.head_name + ".")

    def _place(self, name: str) -> tuple[nn.Module, str]:
        inside = self._in_head(name)
        path, _, local = (name[len(self.head_name) + 1 :] if inside else name).rpartition(".")
        return (self.head if inside else self.body).get_submodule(path), local

    def load(self, model: Model) -> None:
        """Write these values and their statistics into the vectors that the module reads."""
        with torch.no_grad():
            self.flat.copy_(model.flat)
            if len(self.statistics):
                self.statistics.flat.copy_(model.statistics.flat)

    def snapshot(self) -> Model:
        """Copy the bound values and their statistics."""
        return Model(Params(self.flat.detach().clone(), self.spec), self.statistics.clone())

    def train_only(self, names: frozenset[str]) -> None:
        """Let gradients stop at every parameter outside ``names``: the frozen layers before cost no backward work."""
        for name, part in self.parts.items():
            part.requires_grad_(name in names)

    def gradients(self, value: Tensor, names: Sequence[str]) -> tuple[list[Tensor], Tensor | None]:
        """Return gradients of a loss at the bound vector: by tensor for these names, and that of the whole vector.

        The second is None unless the loss has terms that are written on the whole vector.
        """
        leaves = [self.parts[n] for n in names]
        value.backward()  # 3 % faster than autograd.grad: gradients come in the layout of their parameters
        by_tensor, whole = [torch.zeros_like(t) if t.grad is None else t.grad for t in leaves], self.flat.grad
        for leaf in (*leaves, self.flat):
            leaf.grad = None
        return by_tensor, whole

    def mode(self, *, training: bool, batch_statistics: bool = False) -> None:
        """Switch to training or evaluation.

        ``batch_statistics`` keeps norms on the statistics of the batch without moving running ones.
        """
        self.body.train(training)
        self.head.train(training)
        for norm in self.norms:
            kept = norm.__dict__.setdefault("_fedstrata_momentum", norm.momentum)
            looks = batch_statistics and not training
            norm.train(training or looks)
            norm.momentum = 0.0 if looks else kept

    def draw_from(self, generator: torch.Generator | None) -> None:
        """Return the stream that dropout masks come from."""
        for drop in self.dropouts:
            drop.draw = None if generator is None else (lambda shape: torch.rand(shape, generator=generator))

    def features(self, p: Params, x: Tensor, exits: int | None = None) -> Tensor:
        """Return [B, d] features at these parameters, of the whole body or up to this exit, counted from 1."""
        more = () if exits is None else (exits,)
        if p.flat is self.flat and p.eval_mode == "train":
            if self.cache is not None and not more and self.cache.holds(x):
                return self.cache.features(self.laid_out(x))
            whole: Tensor = self.body(self.laid_out(x), *more)
            return whole
        return self._call(0, p, x, *more)

    def laid_out(self, x: Tensor) -> Tensor:
        """Return samples as the network wants them in memory."""
        return x.contiguous(memory_format=torch.channels_last) if self.channels_last else x

    def classify(self, p: Params, z: Tensor) -> Tensor:
        """Return [B, classes] output of the head at these parameters."""
        if p.flat is self.flat and p.eval_mode == "train":
            return self.head(z)  # type: ignore[no-any-return]
        return self._call(1, p, z)

    def _call(self, which: int, p: Params, x: Tensor, *more: int) -> Tensor:
        module = self.twin(p.eval_mode)[which]
        cut = len(self.head_name) + 1
        tensors = {n[cut:]: p[n] for n in self._head_names} if which else {n: p[n] for n in self._body_names}
        if not which and isinstance(p, Model) and p.eval_mode != "batch_stats":
            tensors |= {
                n: t if p.eval_mode == "eval" else t.clone()
                for n, t in p.statistics.views.items()
                if not self._in_head(n)
            }
        output: Tensor = functional_call(module, tensors, (x, *more), tie_weights=True, strict=False)
        return output

    def twin(self, eval_mode: EvalMode) -> tuple[nn.Module, nn.Module]:
        """Return body and head for evaluation at other parameters: the module itself, or a copy in that mode."""
        if eval_mode == "train":
            return self.body, self.head
        if eval_mode not in self._twins:
            body, head = (copy.deepcopy(module, dict(self._base)).eval() for module in (self.body, self.head))
            for module in (body, head):
                for norm in module.modules():
                    if eval_mode == "batch_stats" and isinstance(norm, nn.modules.batchnorm._NormBase):
                        norm.train()
                        norm.track_running_stats, norm.running_mean, norm.running_var = False, None, None
            self._twins[eval_mode] = body, head
        return self._twins[eval_mode]


def _assign(module: nn.Module, path: str, child: nn.Module) -> None:
    parent, _, local = path.rpartition(".")
    setattr(module.get_submodule(parent), local, child)


def _tie(body: nn.Module, head: nn.Module, owner: nn.Module, local: str, part: nn.Parameter) -> None:
    """Put the view in place of the module's parameter, everywhere the same parameter occurs (tied weights)."""
    old = owner._parameters[local]
    for root in (body, head):
        for module in root.modules():
            for name, parameter in module._parameters.items():
                if parameter is old:
                    module._parameters[name] = part


def gradient_at(loss: Callable[[Params, Batch], Tensor], p: Params, batch: Batch) -> tuple[Params, float]:
    """Return the gradient of ``loss`` at parameters that no module is bound to, as a new vector, and the loss.

    Pure autograd over views of one copy; terms on the whole vector and on single tensors both count.
    """
    flat = p.flat.detach().requires_grad_()
    parts = {n: t.detach().requires_grad_() for n, t in Params(flat.detach(), p.spec).views.items()}
    point = Params(flat, p.spec, eval_mode=p.eval_mode, views=parts)
    with torch.enable_grad():
        value = loss(Model(point, p.statistics) if isinstance(p, Model) else point, batch)
        grads = torch.autograd.grad(value, [flat, *parts.values()], allow_unused=True)
    by_tensor = [torch.zeros_like(t) if g is None else g for t, g in zip(parts.values(), grads[1:], strict=True)]
    total = torch.cat([g.reshape(-1) for g in by_tensor])
    return Params(total if grads[0] is None else total + grads[0], p.spec), float(value.detach())


def spec_of(tensors: Mapping[str, Tensor]) -> Spec:
    """Return names and shapes of these tensors."""
    return Spec(tuple(tensors), tuple(t.shape for t in tensors.values()))
