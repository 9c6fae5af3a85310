"""Arithmetic on parameters: a mapping of named views over one flat vector.

Whole-parameter arithmetic acts on the flat vector in one operation; names are there for layers. ``Params`` are values:
operators return new ones. Only the engine writes into a vector that it owns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch._C import _functorch  # what vmap and grad wrap is public nowhere else
from torch.utils import _pytree as pytree

EvalMode = Literal["", "eval", "batch"]
T = TypeVar("T")


@dataclass(frozen=True)
class Spec:
    """Names and shapes of the tensors that lie in one flat vector, in order."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Numbers per tensor."""
        return tuple(shape.numel() for shape in self.shapes)

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Where each tensor starts in the flat vector."""
        starts, at = {}, 0
        for name, size in zip(self.names, self.sizes, strict=True):
            starts[name] = at
            at += size
        return starts

    @cached_property
    def total(self) -> int:
        """Length of the flat vector."""
        return sum(self.sizes)

    @cached_property
    def index(self) -> dict[str, int]:
        """Position of each name."""
        return {name: i for i, name in enumerate(self.names)}

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.names, self.shapes))

    def only(self, names: Iterable[str]) -> Spec:
        """The part with these names, in this order of layout; names it does not have are left out."""
        wanted = names if isinstance(names, frozenset | set | dict) else frozenset(names)
        if len(wanted) >= len(self.names) and all(n in wanted for n in self.names):
            return self
        picked = [i for i, n in enumerate(self.names) if n in wanted]
        return Spec(tuple(self.names[i] for i in picked), tuple(self.shapes[i] for i in picked))

    def runs(self, names: Iterable[str]) -> tuple[tuple[int, int], ...]:
        """The longest contiguous stretches (start, stop) of the flat vector that hold these names."""
        wanted = frozenset(names)
        found: list[tuple[int, int]] = []
        for name, size in zip(self.names, self.sizes, strict=True):
            if name in wanted:
                start = self.offsets[name]
                if found and found[-1][1] == start:
                    found[-1] = (found[-1][0], start + size)
                else:
                    found.append((start, start + size))
        return tuple(found)


class Params(Mapping[str, Tensor]):
    """Named tensors over one flat vector.

    Attributes:
        flat: [..., P] float32 (float64 in tests). A leading axis, where there is one, counts clients.
        spec: names and shapes.
        buffers: float statistics of norm layers that belong to these parameters, or None.
        still: how a network evaluates at these parameters: "" as in training, "eval" as in evaluation, "batch" as in
            training but without dropout and without touching running statistics. See :meth:`frozen`.
    """

    __slots__ = ("_known", "_views", "buffers", "flat", "spec", "still")

    def __init__(
        self,
        flat: Tensor,
        spec: Spec,
        *,
        buffers: Params | None = None,
        still: EvalMode = "",
        views: dict[str, Tensor] | None = None,
    ) -> None:
        self.flat = flat
        self.spec = spec
        self.buffers = buffers
        self.still: EvalMode = still
        self._views = views
        self._known: dict[Hashable, Any] = {}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Params:
        """Copy named tensors into one new vector, in their order."""
        spec = Spec(tuple(tensors), tuple(t.shape for t in tensors.values()))
        parts = [t.detach().reshape(-1) for t in tensors.values()]
        return cls(torch.cat(parts) if parts else torch.zeros(0), spec)

    def __getitem__(self, name: str) -> Tensor:
        return self.views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.spec.names)

    def __len__(self) -> int:
        return len(self.spec.names)

    def __contains__(self, name: object) -> bool:
        return name in self.spec.index

    def __repr__(self) -> str:
        return f"Params({len(self)} tensors, {self.spec.total} numbers)"

    @property
    def views(self) -> dict[str, Tensor]:
        """Name to view, [..., *shape]. One split serves all, so that its backward is one concatenation."""
        if self._views is None:
            lead = self.flat.shape[:-1]
            parts = torch.split(self.flat, list(self.spec.sizes), dim=-1) if self.spec.names else ()
            self._views = {
                n: part.view(*lead, *shape)
                for n, part, shape in zip(self.spec.names, parts, self.spec.shapes, strict=True)
            }
        return self._views

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """``make()``, remembered with this value: for what many readers of the same numbers derive from them (moments
        of layers, for each client).
        """
        if key not in self._known:
            self._known[key] = make()
        found: T = self._known[key]
        return found

    def setting(self, name: str) -> int:
        """The whole number that this parameter says; in a stack of clients it is that of all of them.

        It may be asked for inside ``vmap`` and ``grad``. In a program that is exported it is the number that
        :meth:`fix` was told.
        """
        if ("setting", name) in self._known:
            return int(self._known["setting", name])
        value = self[name].detach()
        while _functorch.is_functorch_wrapped_tensor(value):
            value = _functorch.get_unwrapped(value)
        return round(float(value.reshape(-1)[0]))

    def fix(self, settings: Mapping[str, int]) -> Params:
        """These parameters, whose settings are not read any more."""
        self._known |= {("setting", name): number for name, number in settings.items()}
        return self

    def new(self, flat: Tensor) -> Params:
        """The same names over another vector; statistics and stillness stay."""
        return Params(flat, self.spec, buffers=self.buffers, still=self.still)

    def pick(self, names: Iterable[str]) -> Params:
        """The part with these names: a view where it is one stretch of the vector, otherwise a copy.

        Names that are absent are left out.
        """
        spec = self.spec.only(names)
        if spec is self.spec:
            return self
        stretches = [self.flat[..., a:b] for a, b in self.spec.runs(spec.names)]
        flat = (
            stretches[0] if len(stretches) == 1 else (torch.cat(stretches, dim=-1) if stretches else self.flat[..., :0])
        )
        return Params(flat, spec, buffers=self.buffers, still=self.still)

    def __or__(self, part: object) -> Params:
        """A copy with the tensors of ``part`` in place of our own; absent names stay as they were."""
        if not isinstance(part, Params):
            return NotImplemented
        if part.spec is self.spec or part.spec == self.spec:
            return Params(part.flat, self.spec, buffers=self.buffers, still=self.still)
        unknown = [n for n in part if n not in self]
        if unknown:
            raise KeyError(f"not among these parameters: {', '.join(unknown[:5])}")
        mine = self.spec.only(part.spec.names)
        if mine.names != part.spec.names:  # given in another order than ours
            part = Params(torch.cat([part[n].flatten(part.flat.dim() - 1) for n in mine.names], dim=-1), mine)
        flat = self.flat.clone()
        at = 0
        for start, stop in self.spec.runs(part.spec.names):
            flat[..., start:stop] = part.flat[..., at : at + stop - start]
            at += stop - start
        return self.new(flat)

    def frozen(self, still: EvalMode = "eval") -> Params:
        """The same values without gradient, for a teacher or an anchor that a network is evaluated at."""
        return Params(self.flat.detach(), self.spec, buffers=self.buffers, still=still)

    def with_statistics(self, other: Params) -> Params:
        """These values, with the statistics of ``other`` where they have none of their own."""
        return (
            self if self.buffers is not None else Params(self.flat, self.spec, buffers=other.buffers, still=self.still)
        )

    def clone(self) -> Params:
        """The same values in a vector of their own, without gradient."""
        buffers = None if self.buffers is None else self.buffers.clone()
        return Params(self.flat.detach().clone(), self.spec, buffers=buffers, still=self.still)

    def __add__(self, other: Params) -> Params:
        return self.new(self.flat + other.flat)

    def __sub__(self, other: Params) -> Params:
        return self.new(self.flat - other.flat)

    def __mul__(self, factor: float | Tensor) -> Params:
        return self.new(self.flat * factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float | Tensor) -> Params:
        return self.new(self.flat / divisor)

    def __neg__(self) -> Params:
        return self.new(-self.flat)


def tmap(function: Callable[..., Tensor], first: Params, *rest: Params) -> Params:
    """Apply an element-wise function to whole vectors at once.

    >>> one = Params.of({"w": torch.ones(2)})
    >>> tmap(lambda a, b: a + 2 * b, one, one)["w"]
    tensor([3., 3.])
    """
    return first.new(function(first.flat, *(p.flat for p in rest)))


def zeros(like: Params) -> Params:
    """Zeros in the shape of ``like``."""
    return Params(torch.zeros_like(like.flat), like.spec)


def dot(a: Params, b: Params) -> Tensor:
    """Inner product over the last axis."""
    return (a.flat * b.flat).sum(-1)


def sqdist(a: Params, b: Params) -> Tensor:
    """Squared Euclidean distance over the last axis."""
    return (a.flat - b.flat).square().sum(-1)


def mean_over_senders(parts: Sequence[Params], weights: Sequence[float], spec: Spec) -> Params:
    """Weighted sum of each tensor over the parts that hold it, their weights scaled to the sum of all weights.

    Args:
        parts: one a client, each with some of the names.
        weights: one a client.
        spec: names and order of the result; a name that no part (of positive weight) holds is left out.

    >>> a, b = Params.of({"w": torch.ones(1), "v": torch.ones(1)}), Params.of({"w": torch.zeros(1)})
    >>> {n: t.item() for n, t in mean_over_senders([a, b], [0.25, 0.75], a.spec).items()}
    {'w': 0.25, 'v': 1.0}
    """
    whole, found = sum(weights), {}
    for name in spec.names:
        held = [(part[name], weight) for part, weight in zip(parts, weights, strict=True) if name in part]
        share = sum(weight for _, weight in held)
        if share > 0:
            total = torch.zeros_like(held[0][0])
            for tensor, weight in held:
                total.add_(tensor, alpha=weight * whole / share)
            found[name] = total
    return Params.of(found) if found else Params(torch.zeros(0), Spec((), ()))


def sum_over_senders(parts: Sequence[Params], spec: Spec) -> Params:
    """Sum of each tensor over the parts that hold it.

    Args:
        parts: one a client, each with some of the names.
        spec: names and order of the result; a name that no part holds is left out.

    >>> a, b = Params.of({"w": torch.ones(1), "v": torch.ones(1)}), Params.of({"w": torch.ones(1)})
    >>> {n: t.item() for n, t in sum_over_senders([a, b], a.spec).items()}
    {'w': 2.0, 'v': 1.0}
    """
    if all(part.spec == parts[0].spec for part in parts):
        total = parts[0].flat.clone()
        for part in parts[1:]:
            total += part.flat
        return parts[0].new(total)
    held = {name: [part[name] for part in parts if name in part] for name in spec.names}
    return Params.of({name: torch.stack(tensors).sum(0) for name, tensors in held.items() if tensors})


def _flatten(p: Params) -> tuple[list[Any], Any]:
    return [p.flat] if p.buffers is None else [p.flat, p.buffers], (p.spec, p.still)


def _unflatten(children: Iterable[Any], context: Any) -> Params:
    flat, *buffers = children
    return Params(flat, context[0], buffers=buffers[0] if buffers else None, still=context[1])


pytree.register_pytree_node(Params, _flatten, _unflatten)  # a value that torch.func transforms may carry
