"""Arithmetic on parameters: a mapping of named views over one flat vector.

Whole-parameter arithmetic acts on the flat vector in one operation; names are there for layers. ``Params`` are values:
operators return new ones. Only the engine writes into a vector that it owns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

EvalMode: TypeAlias = Literal["train", "eval", "batch_stats"]
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
        """Return the part with these names, in this order of layout; names it does not have are left out."""
        wanted = names if isinstance(names, frozenset | set | dict) else frozenset(names)
        if len(wanted) >= len(self.names) and all(n in wanted for n in self.names):
            return self
        picked = [i for i, n in enumerate(self.names) if n in wanted]
        return Spec(tuple(self.names[i] for i in picked), tuple(self.shapes[i] for i in picked))

    def runs(self, names: Iterable[str]) -> tuple[tuple[int, int], ...]:
        """Return the longest contiguous stretches (start, stop) of the flat vector that hold these names."""
        wanted = frozenset(names)
        result: list[tuple[int, int]] = []
        for name, size in zip(self.names, self.sizes, strict=True):
            if name in wanted:
                start = self.offsets[name]
                if result and result[-1][1] == start:
                    result[-1] = (result[-1][0], start + size)
                else:
                    result.append((start, start + size))
        return tuple(result)


class Params(Mapping[str, Tensor]):
    """Named tensors over one flat vector.

    Attributes:
        flat: [..., P] float32 (float64 in tests). A leading axis, where there is one, counts clients or models.
        spec: names and shapes.
        eval_mode: how a network evaluates at these parameters. "train" follows the module's own mode, "eval" uses
            running statistics, "batch_stats" uses the batch's statistics without dropout and without moving running
            statistics. See :meth:`frozen`.
    """

    __slots__ = ("_integers", "_memo", "_views", "eval_mode", "flat", "spec")

    def __init__(
        self,
        flat: Tensor,
        spec: Spec,
        *,
        eval_mode: EvalMode = "train",
        views: dict[str, Tensor] | None = None,
        integers: Mapping[str, int] | None = None,
    ) -> None:
        self.flat = flat
        self.spec = spec
        self.eval_mode: EvalMode = eval_mode
        self._views = views
        self._memo: dict[Hashable, Any] = {}
        self._integers: Mapping[str, int] = integers or {}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Params:
        """Copy named tensors into one new vector, in their order."""
        spec = Spec(tuple(tensors), tuple(t.shape for t in tensors.values()))
        parts = [t.detach().reshape(-1) for t in tensors.values()]
        return Params(torch.cat(parts) if parts else torch.zeros(0), spec)

    def __getitem__(self, name: str) -> Tensor:
        return self.views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.spec.names)

    def __len__(self) -> int:
        return len(self.spec.names)

    def __contains__(self, name: object) -> bool:
        return name in self.spec.index

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} tensors, {self.spec.total} numbers)"

    @property
    def views(self) -> dict[str, Tensor]:
        """Map each name to its view, [..., *shape]. One split serves all, so its backward is one concatenation."""
        if self._views is None:
            lead = self.flat.shape[:-1]
            parts = torch.split(self.flat, list(self.spec.sizes), dim=-1) if self.spec.names else ()
            self._views = {
                n: part.view(*lead, *shape)
                for n, part, shape in zip(self.spec.names, parts, self.spec.shapes, strict=True)
            }
        return self._views

    def memoize(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return ``make()``, computed once for this value.

        It serves what many readers derive from the same numbers, such as the moments of a layer for each client.
        """
        if key not in self._memo:
            self._memo[key] = make()
        value: T = self._memo[key]
        return value

    def integer(self, name: str) -> int:
        """Read an integer buffer of the server: a parameter that holds one whole number, equal on all clients.

        Under ``vmap``, and in an exported program, it is the number that :meth:`with_integers` was given.
        """
        if name in self._integers:
            return self._integers[name]
        return round(float(self[name].detach().reshape(-1)[0]))

    def with_integers(self, integers: Mapping[str, int]) -> Self:
        """Return these parameters with integer buffers that are not read from the vector any more."""
        same = self.new(self.flat)
        same._integers = {**self._integers, **integers}
        return same

    def new(self, flat: Tensor) -> Self:
        """Return the same names over another vector; the evaluation mode is kept."""
        return self._like(flat, self.eval_mode)

    def _like(self, flat: Tensor, eval_mode: EvalMode) -> Self:
        return type(self)(flat, self.spec, eval_mode=eval_mode, integers=self._integers)

    def pick(self, names: Iterable[str]) -> Params:
        """Return the part with these names; names that are absent are left out.

        It is a view where the part is one stretch of the vector, otherwise a copy.
        """
        spec = self.spec.only(names)
        if spec is self.spec:
            return self
        stretches = [self.flat[..., a:b] for a, b in self.spec.runs(spec.names)]
        if len(stretches) == 1:
            return Params(stretches[0], spec, eval_mode=self.eval_mode)
        flat = torch.cat(stretches, dim=-1) if stretches else self.flat[..., :0]
        return Params(flat, spec, eval_mode=self.eval_mode)

    def __or__(self, part: object) -> Self:
        """Return a copy with the tensors of ``part`` in place of these; absent names keep their values."""
        if not isinstance(part, Params):
            return NotImplemented
        if part.spec is self.spec or part.spec == self.spec:
            return self.new(part.flat)
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

    def frozen(self, eval_mode: EvalMode = "eval") -> Self:
        """Return the same values without gradient, for a teacher or reference that a network is evaluated at."""
        return self._like(self.flat.detach(), eval_mode)

    def clone(self) -> Self:
        """Return the same values in a new vector, without gradient."""
        return self.new(self.flat.detach().clone())

    def __add__(self, other: Params) -> Self:
        return self.new(self.flat + other.flat)

    def __sub__(self, other: Params) -> Self:
        return self.new(self.flat - other.flat)

    def __mul__(self, factor: float | Tensor) -> Self:
        return self.new(self.flat * factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float | Tensor) -> Self:
        return self.new(self.flat / divisor)

    def __neg__(self) -> Self:
        return self.new(-self.flat)


class Model(Params):
    """Parameters with the norm statistics that belong to them; a network can be evaluated at it.

    Args:
        params: the parameters; their vector is shared, not copied.
        statistics: float statistics of norm layers; empty where the network has none.
    """

    __slots__ = ("statistics",)

    def __init__(self, params: Params, statistics: Params) -> None:
        views = params._views if not isinstance(params, Model) else None
        super().__init__(params.flat, params.spec, eval_mode=params.eval_mode, views=views, integers=params._integers)
        self.statistics = statistics

    @property
    def params(self) -> Params:
        """The parameters alone."""
        return Params(self.flat, self.spec, eval_mode=self.eval_mode, integers=self._integers)

    def _like(self, flat: Tensor, eval_mode: EvalMode) -> Self:
        params = Params(flat, self.spec, eval_mode=eval_mode, integers=self._integers)
        return type(self)(params, self.statistics)

    def clone(self) -> Self:
        """Return the same values and statistics in new vectors, without gradient."""
        return type(self)(Params(self.flat.detach().clone(), self.spec), self.statistics.clone())


def tmap(function: Callable[..., Tensor], first: Params, *rest: Params) -> Params:
    """Apply an element-wise function to whole vectors at once.

    >>> one = Params.of({"w": torch.ones(2)})
    >>> tmap(lambda a, b: a + 2 * b, one, one)["w"]
    tensor([3., 3.])
    """
    return first.new(function(first.flat, *(p.flat for p in rest)))


def zeros(like: Params) -> Params:
    """Return zeros in the shape of ``like``."""
    return Params(torch.zeros_like(like.flat), like.spec)


def dot(a: Params, b: Params) -> Tensor:
    """Return inner product over the last axis."""
    return (a.flat * b.flat).sum(-1)


def sqdist(a: Params, b: Params) -> Tensor:
    """Return squared Euclidean distance over the last axis."""
    return (a.flat - b.flat).square().sum(-1)


def mean_over_senders(parts: Sequence[Params], weights: Sequence[float], spec: Spec) -> Params:
    """Return weighted sum of each tensor over the parts that hold it, their weights scaled to the sum of all weights.

    Args:
        parts: one a client, each with some of the names.
        weights: one a client.
        spec: names and order of the result; a name that no part (of positive weight) holds is left out.

    >>> a, b = Params.of({"w": torch.ones(1), "v": torch.ones(1)}), Params.of({"w": torch.zeros(1)})
    >>> {n: t.item() for n, t in mean_over_senders([a, b], [0.25, 0.75], a.spec).items()}
    {'w': 0.25, 'v': 1.0}
    """
    whole, result = sum(weights), {}
    for name in spec.names:
        held = [(part[name], weight) for part, weight in zip(parts, weights, strict=True) if name in part]
        share = sum(weight for _, weight in held)
        if share > 0:
            total = torch.zeros_like(held[0][0])
            for tensor, weight in held:
                total.add_(tensor, alpha=weight * whole / share)
            result[name] = total
    return Params.of(result) if result else Params(torch.zeros(0), Spec((), ()))


def sum_over_senders(parts: Sequence[Params], spec: Spec) -> Params:
    """Return sum of each tensor over the parts that hold it.

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
    return [p.flat], (p.spec, p.eval_mode, tuple(p._integers.items()))


def _unflatten(children: Iterable[Any], context: Any) -> Params:
    (flat,) = children
    return Params(flat, context[0], eval_mode=context[1], integers=dict(context[2]))


def _flatten_model(p: Model) -> tuple[list[Any], Any]:
    return [p.flat, p.statistics], (p.spec, p.eval_mode, tuple(p._integers.items()))


def _unflatten_model(children: Iterable[Any], context: Any) -> Model:
    flat, statistics = children
    return Model(Params(flat, context[0], eval_mode=context[1], integers=dict(context[2])), statistics)


# values that torch.func transforms may carry
pytree.register_pytree_node(Params, _flatten, _unflatten)
pytree.register_pytree_node(Model, _flatten_model, _unflatten_model)
