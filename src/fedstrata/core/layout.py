"""Layers are named groups of one flat vector.

A :class:`Layout` says which tensors a model has, where they lie, and which layer (group) each belongs to. A conv *with
its own norm* is one group. Selectors find tensors by kind, role, name, group or depth; one that matches nothing is an
error that lists near names.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import nn

from fedstrata.common.errors import LayoutError
from fedstrata.common.suggest import suggestion
from fedstrata.core.params import Spec

Names = frozenset[str]
Role = Literal["body", "head"]

_KINDS: tuple[tuple[str, tuple[type[nn.Module], ...]], ...] = (
    ("conv", (nn.modules.conv._ConvNd,)),
    ("linear", (nn.Linear, nn.Bilinear)),
    ("norm", (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)),
    ("embedding", (nn.Embedding, nn.EmbeddingBag)),
    ("recurrent", (nn.RNNBase,)),
    ("attention", (nn.MultiheadAttention,)),
)


class GroupSpec(NamedTuple):
    """A layer that a model declares itself, where the rule of :func:`derive_groups` would not give the published one.

    Attributes:
        name: the group's name, unique in the model.
        kind: conv, linear, norm, embedding, attention, feedforward or recurrent.
        prefixes: module names whose parameters belong to it.
    """

    name: str
    kind: str
    prefixes: tuple[str, ...]


class Entry(NamedTuple):
    """One tensor: a parameter, or a float statistic of a norm layer.

    Attributes:
        kind: of the module that owns it; ``layer`` is the kind of the whole layer (a linear map inside an attention
            layer has both). An "integer" is a whole number of the server that the network reads in a round; it is sent
            and averaged, and never trained.
    """

    name: str
    shape: torch.Size
    kind: str
    role: Role
    group: str
    layer: str
    statistic: bool = False


@dataclass(frozen=True)
class Group:
    """A layer: the tensors that are reset, trained, sent or kept together.

    Attributes:
        name: as in the layout.
        kind: conv, linear, norm, embedding, attention, feedforward, recurrent or other.
        role: body or head.
        depth: 0 is nearest to the input.
        names: its parameters, in layout order.
        numel: numbers in them.
    """

    name: str
    kind: str
    role: Role
    depth: int
    names: tuple[str, ...]
    numel: int


class Layout:
    """The tensors of a model, in order, and their groups.

    Attributes:
        entries: parameters first, then statistics, each in definition order.
        spec: of the parameters: the flat vector that is trained and sent.
        statistics: of the float buffers that norm layers keep.
        groups: layers, shallow to deep; they partition the parameters.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries: Mapping[str, Entry] = {e.name: e for e in entries}
        assert len(self.entries) == len(entries), "names are unique"
        trained = [e for e in entries if not e.statistic]
        kept = [e for e in entries if e.statistic]
        self.spec = Spec(tuple(e.name for e in trained), tuple(e.shape for e in trained))
        self.statistics = Spec(tuple(e.name for e in kept), tuple(e.shape for e in kept))
        self.groups: Mapping[str, Group] = _collect(trained)

    @cached_property
    def all(self) -> Names:
        """Every name, statistics included."""
        return frozenset(self.entries)

    @cached_property
    def parameters(self) -> Names:
        """Names of the parameters."""
        return frozenset(self.spec.names)

    @cached_property
    def integers(self) -> Names:
        """Names of the server's integer buffers, see :class:`Entry`."""
        return frozenset(e.name for e in self.entries.values() if e.kind == "integer")

    @cached_property
    def trainable(self) -> Names:
        """Names of the parameters that local steps may move: all but integer buffers."""
        return self.parameters - self.integers

    def names(self) -> tuple[str, ...]:
        """Return group names, shallow to deep."""
        return tuple(self.groups)

    def group(self, *groups: str) -> Names:
        """Return all tensors of these layers, statistics included."""
        for name in groups:
            if name not in self.groups:
                raise LayoutError(
                    f"no group {name!r}.{suggestion(name, self.groups)} The groups are {', '.join(self.groups)}."
                )
        wanted = frozenset(groups)
        return frozenset(e.name for e in self.entries.values() if e.group in wanted)

    def select(self, selector: str) -> Names:
        """Return names of the tensors that a selector matches.

        Args:
            selector: terms joined by commas (any of them) or ``&`` (all of them); ``!`` negates a term. A term is
                ``all``, ``kind:conv``, ``role:head``, ``name:layer3.*``, ``group:stem`` or ``depth:0-3``. Patterns use
                ``*``, ``?`` and ``[]`` on whole names.
        Returns:
            names of parameters and of the statistics that match.
        Raises:
            LayoutError: nothing matches, or a term cannot be read; near names are listed.
        """
        result: set[str] = set()
        for part in selector.split(","):
            hits = set(self.entries)
            for term in part.split("&"):
                hits &= self._term(term.strip(), selector)
            result |= hits
        if not result:
            raise LayoutError(f"selector {selector!r} matches no tensor of this model. {self._offers()}")
        return frozenset(result)

    def _term(self, term: str, selector: str) -> set[str]:
        if term.startswith("!"):
            return set(self.entries) - self._term(term[1:].strip(), selector)
        if term == "all":
            return set(self.entries)
        field, colon, pattern = term.partition(":")
        if not colon or field not in ("kind", "role", "name", "group", "depth"):
            raise LayoutError(
                f"cannot read {term!r} in selector {selector!r}: write kind:, role:, name:, group: or depth:, or all."
                f" {self._offers()}"
            )
        if field == "depth":
            return self._depths(pattern, selector)
        hits = {e.name for e in self.entries.values() if fnmatch.fnmatchcase(getattr(e, field), pattern)}
        if field == "kind" and pattern in (
            "attention",
            "feedforward",
        ):  # layers that are made of other kinds of modules
            hits |= {e.name for e in self.entries.values() if e.layer == pattern}
        if not hits:
            known = sorted({str(getattr(e, field)) for e in self.entries.values()})
            raise LayoutError(
                f"selector {selector!r}: {term!r} matches nothing.{suggestion(pattern, known)} {self._offers()}"
            )
        return hits

    def _depths(self, pattern: str, selector: str) -> set[str]:
        first, dash, last = pattern.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise LayoutError(f"selector {selector!r}: depth is a number or a range such as 0-3.")
        low, high = int(first), int(last or first)
        return {
            e.name
            for e in self.entries.values()
            if e.group in self.groups and low <= self.groups[e.group].depth <= high
        }

    def _offers(self) -> str:
        kinds = sorted({e.kind for e in self.entries.values()})
        names = list(self.groups)
        shown = ", ".join(names[:12]) + (f", ... ({len(names)} in all)" if len(names) > 12 else "")
        return f"Kinds here: {', '.join(kinds)}; roles: body, head; groups: {shown}."

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and list(self.entries.values()) == list(other.entries.values())

    def __hash__(self) -> int:
        return hash(tuple(self.entries))


def _collect(entries: Iterable[Entry]) -> dict[str, Group]:
    members: dict[str, list[Entry]] = {}
    for entry in entries:
        members.setdefault(entry.group, []).append(entry)
    return {
        name: Group(
            name,
            result[0].layer,
            result[0].role,
            depth,
            tuple(e.name for e in result),
            sum(e.shape.numel() for e in result),
        )
        for depth, (name, result) in enumerate(members.items())
    }


def kind_of(module: nn.Module) -> str:
    """Return the kind of a layer by its class; "other" for what torch does not name."""
    for kind, classes in _KINDS:
        if isinstance(module, classes):
            return kind
    return "other"


def derive_groups(module: nn.Module) -> list[GroupSpec]:
    """Derive the layers of a module: those of its ``layer_groups()``, otherwise every leaf with parameters.

    A norm joins the conv or linear layer defined directly before it, if it has one number for each of that layer's
    outputs.
    """
    declared = getattr(module, "layer_groups", None)
    if declared is not None:
        return [GroupSpec(*g) for g in declared()]
    groups: list[GroupSpec] = []
    before: nn.Module | None = None
    for name, leaf in module.named_modules():
        if not any(True for _ in leaf.parameters(recurse=False)):
            continue
        kind = kind_of(leaf)
        if kind == "norm" and before is not None and _outputs(before) == _width(leaf):
            groups[-1] = groups[-1]._replace(prefixes=(*groups[-1].prefixes, name))
        else:
            groups.append(GroupSpec(name or kind, kind, (name,)))
        before = leaf if kind in ("conv", "linear") else None
    return groups


def _outputs(layer: nn.Module) -> int:
    return int(getattr(layer, "out_channels", getattr(layer, "out_features", -1)))


def _width(norm: nn.Module) -> int:
    for attribute in ("num_features", "num_channels"):
        if hasattr(norm, attribute):
            return int(getattr(norm, attribute))
    shape = getattr(norm, "normalized_shape", (-2,))
    return int(shape[-1])


def entries_of(module: nn.Module, head: str) -> list[Entry]:
    """Return parameters (tied ones once) and float norm statistics of a module, in layout order.

    Args:
        module: any module.
        head: name of the submodule that is the head; everything else is body.
    Raises:
        LayoutError: declared groups that do not partition the parameters.
    """
    groups = derive_groups(module)
    whole = hasattr(
        module, "layer_groups"
    )  # a declared prefix stands for all below it; a derived one for the parameters of that module itself
    modules = dict(module.named_modules())
    result: list[Entry] = []
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue  # a frozen base, outside the vector
        owner = name.rpartition(".")[0]
        mine = [
            g
            for g in groups
            if any(owner == p or (whole and (owner.startswith(p + ".") or p == "")) for p in g.prefixes)
        ]
        if len(mine) != 1:
            raise LayoutError(
                f"parameter {name!r} lies in {len(mine)} of the declared layer groups"
                f" ({', '.join(g.name for g in mine)}); exactly one is right."
            )
        kind = kind_of(modules[owner])
        result.append(
            Entry(
                name,
                parameter.shape,
                kind if kind != "other" else mine[0].kind,
                _role(name, head),
                mine[0].name,
                mine[0].kind,
            )
        )
    order = {g.name: i for i, g in enumerate(groups)}
    result.sort(key=lambda e: order[e.group])  # stable: definition order within a group
    for prefix, leaf in modules.items():
        if isinstance(leaf, nn.modules.batchnorm._NormBase):
            group, layer = next(
                (
                    (g.name, g.kind)
                    for g in groups
                    if any(prefix == p or prefix.startswith(p + ".") for p in g.prefixes)
                ),
                (prefix, "norm"),
            )
            for local, buffer in leaf.named_buffers(recurse=False):
                if buffer.is_floating_point():
                    name = f"{prefix}.{local}" if prefix else local
                    result.append(Entry(name, buffer.shape, "norm", _role(name, head), group, layer, statistic=True))
    return result


def _role(name: str, head: str) -> Role:
    return "head" if name == head or name.startswith(head + ".") else "body"
