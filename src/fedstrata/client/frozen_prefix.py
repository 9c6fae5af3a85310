"""Split a network into a frozen prefix, which is computed once a sample, and the rest, which runs in each step.

The split is a set of values: every value that does not depend on a trained parameter and that a dependent one uses. A
split through a residual block is two tensors. The network is read by symbolic tracing; where that fails, or where
caching would not be exact, the result is a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn

from fedstrata.core.network import BoundModel, Dropout
from fedstrata.core.params import Params

Names = frozenset[str]
Context: TypeAlias = Callable[[], AbstractContextManager[None]]
ROOT = "body."


@dataclass(frozen=True)
class NotCached:
    """Why activations are not cached; an empty reason means that no frozen layer precedes the trained ones."""

    reason: str = ""


@dataclass(frozen=True)
class Traced:
    """A network's body as a graph.

    Attributes:
        graph: from samples to features.
        constants: tensors that the body makes without reading samples, by node target.
        rows: bytes of one sample, of each value that holds one row a sample and depends on what a sample holds.
        mixed: such values that hold no row a sample, or several tensors; they are computed anew.
        probe: [B, *shape] samples that it was tried on.
    """

    graph: fx.Graph
    constants: Mapping[str, Tensor]
    rows: Mapping[fx.Node, int]
    mixed: frozenset[fx.Node]
    probe: Tensor


@dataclass(frozen=True)
class NetworkCut:
    """Both parts of a body, on its own parameters.

    Attributes:
        prefix: samples -> the values at the cut, in order.
        suffix: samples where it asks for them (``raw``), then those values -> features.
        raw: whether layers behind the cut read the samples themselves too.
        bytes: of the values of one sample.
    """

    prefix: Callable[[Tensor], tuple[Tensor, ...]]
    suffix: Callable[..., Tensor]
    raw: bool
    bytes: int

    def features(self, x: Tensor, values: Iterable[Tensor]) -> Tensor:
        """Return [B, d] from samples and the values at the cut."""
        return self.suffix(*((x,) if self.raw else ()), *values)


# ---- tracing


class _Tracer(fx.Tracer):
    """Symbolic tracing that stops at what it cannot look into: such a layer is one step of the graph."""

    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Dropout) or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        inside = self.module_stack.copy()
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            path, self.module_stack = self.path_of_module(m), inside
            if path + "." == ROOT:
                raise
            return self.create_proxy("call_module", path, args, kwargs)


class _Shell(nn.Module):
    """Calls the body with samples alone, so that its further arguments have their defaults.

    Constants result in tracing become its attributes.
    """

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.body(x)
        return features


def trace(bound: BoundModel, x: Tensor, context: Context) -> Traced | NotCached:
    """Return the body as a graph, or why not.

    No other thread may run a network meanwhile: tracing replaces ``nn.Module.__call__`` for its time.

    Args:
        bound: the network.
        x: a few samples, two at least.
        context: the precision that forward passes run in.
    """
    x = bound.laid_out(x)
    bound.mode(training=True)
    shell = _Shell(bound.body)
    try:
        whole = _Tracer().trace(shell)
        graph, _ = _copied([n for n in whole.nodes if n in _ancestors([_output(whole)])], [])
        constants = {
            str(n.target): getattr(shell, str(n.target))
            for n in graph.nodes
            if n.op == "get_attr" and ROOT not in str(n.target)
        }
        bound.body.eval()  # sizes do not depend on it, and neither masks are drawn nor statistics moved
        look = _Look(_module(bound, graph, constants), graph)
        with torch.no_grad(), context():
            look.run(x)
    except Exception as error:  # whatever a model's own code raises  # noqa: BLE001
        first_line = str(error).partition(chr(10))[0][:120]
        return NotCached(f"the model cannot be traced ({type(error).__name__}: {first_line})")
    finally:
        bound.mode(training=True)
    return Traced(graph, constants, look.rows, frozenset(look.mixed), x)


class _Look(fx.Interpreter):
    """Runs a graph and notes which values depend on what samples hold, and their sizes."""

    def __init__(self, module: fx.GraphModule, graph: fx.Graph) -> None:
        super().__init__(module, graph=graph)
        self.data: set[fx.Node] = set()
        self.rows: dict[fx.Node, int] = {}
        self.mixed: set[fx.Node] = set()
        self.batch = 0

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.op == "placeholder":
            self.batch = len(value)
        if n.op == "output" or not (n.op == "placeholder" or any(i in self.data for i in n.all_input_nodes)):
            return value
        if isinstance(value, Tensor):
            self.data.add(n)
            if value.dim() and len(value) == self.batch:
                self.rows[n] = value.numel() * value.element_size() // self.batch
            else:
                self.mixed.add(n)
        elif isinstance(value, tuple | list) and any(isinstance(v, Tensor) for v in value):
            self.data.add(n)
            self.mixed.add(n)
        return value


# ---- cutting


def cut(traced: Traced, bound: BoundModel, names: Names) -> NetworkCut | NotCached:
    """Split the body for the training of ``names``, or say why that would not be exact."""
    order = list(traced.graph.nodes)
    trained = {id(bound.parts[n]) for n in names if n in bound.parts}
    moving: set[fx.Node] = set()
    for node in order:
        if any(i in moving for i in node.all_input_nodes) or trained & {id(p) for p in _parameters(bound, node)}:
            moving.add(node)
    inside: set[fx.Node] = set()
    entries: set[fx.Node] = set()
    left = [_output(traced.graph)]
    while left:  # sizes and positions depend on no sample: they are computed again from their operands
        node = left.pop()
        if node.op == "placeholder" or (node not in moving and node in traced.rows):
            entries.add(node)
        elif node not in inside:
            inside.add(node)
            left += node.all_input_nodes
    prefix_nodes = _ancestors(entries)
    if not any(_parameters(bound, node) for node in prefix_nodes):
        lost = any(node in traced.mixed and node not in moving and _parameters(bound, node) for node in inside)
        return NotCached("values before the trained layers do not hold one row a sample" if lost else "")
    inexact = _inexact(traced, bound, [n for n in order if n in prefix_nodes])
    if inexact is not None:
        return NotCached(inexact)
    kept = [n for n in order if n in entries and n.op != "placeholder"]
    raw = [n for n in order if n in entries and n.op == "placeholder"]
    before, copies = _copied([n for n in order if n in prefix_nodes], [])
    before.output(tuple(copies[n] for n in kept))
    after, _ = _copied([n for n in order if n in inside], [*raw, *kept])
    prefix, suffix = (_module(bound, graph, traced.constants) for graph in (before, after))
    return NetworkCut(prefix, suffix, bool(raw), sum(traced.rows[n] for n in kept))


def _inexact(traced: Traced, bound: BoundModel, nodes: Sequence[fx.Node]) -> str | None:
    """Name a layer whose outputs for a sample differ from step to step, or depend on the other samples."""
    for node in nodes:
        part = _resolved(bound, node, traced.constants)
        for name, inner in part.named_modules() if isinstance(part, nn.Module) else ():
            path = ".".join(filter(None, (str(node.target).removeprefix(ROOT), name)))
            if isinstance(inner, Dropout) and inner.p > 0:
                return f"dropout before the trained layers ({path})"
            alone = isinstance(inner, nn.modules.instancenorm._InstanceNorm) and not inner.track_running_stats
            if isinstance(inner, nn.modules.batchnorm._NormBase) and not alone:
                return f"a batch norm before the trained layers looks at the batch ({path})"
    return None


def _output(graph: fx.Graph) -> fx.Node:
    result: fx.Node = next(n for n in graph.nodes if n.op == "output")
    return result


def _ancestors(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Return these nodes and all that they are computed from."""
    result: set[fx.Node] = set()
    left = list(nodes)
    while left:
        node = left.pop()
        if node not in result:
            result.add(node)
            left += node.all_input_nodes
    return result


def _copied(nodes: Sequence[fx.Node], inputs: Sequence[fx.Node]) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """Return A new graph of these nodes, with ``inputs`` as its arguments, and where each node has gone."""
    graph = fx.Graph()
    copies = {n: graph.placeholder(n.name) for n in inputs}
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    return graph, copies


def _module(bound: BoundModel, graph: fx.Graph, constants: Mapping[str, Tensor]) -> fx.GraphModule:
    """Return A graph on the body's own layers and parameters."""
    parts = {str(n.target): _resolved(bound, n, constants) for n in graph.nodes if n.op in ("call_module", "get_attr")}
    return fx.GraphModule(parts, graph)


def _resolved(bound: BoundModel, node: fx.Node, constants: Mapping[str, Tensor]) -> Any:
    """Return the layer or tensor that a node names, if it names one."""
    if node.op not in ("call_module", "get_attr"):
        return None
    target = str(node.target)
    if target in constants:
        return constants[target]
    result: Any = bound.body
    for part in target.removeprefix(ROOT).split("."):
        result = getattr(result, part)
    return result


def _parameters(bound: BoundModel, node: fx.Node) -> list[nn.Parameter]:
    """Return what a node itself reads."""
    if node.op not in ("call_module", "get_attr") or not str(node.target).startswith(ROOT):
        return []
    result = _resolved(bound, node, {})
    if isinstance(result, nn.Module):
        return list(result.parameters())
    return [result] if isinstance(result, nn.Parameter) else []


# ---- trying


def doubt(
    made: NetworkCut, bound: BoundModel, names: Names, start: Params, x: Tensor, context: Context
) -> NotCached | None:
    """Say why the two parts differ from the network, tried on a few samples, or None.

    Features and gradients must be the same, and no sample may see another.

    Args:
        made: the parts.
        bound: the network; it is left as it was.
        names: of the trained parameters.
        start: parameters to try at, moved a little so that none is zero.
        x: samples.
        context: the precision that forward passes run in.
    """
    with _borrowed(bound, start), context():
        bound.train_only(names)
        leaves = [bound.parts[n] for n in bound.spec.names if n in names]
        whole = _outcome(bound, leaves, lambda: bound.body(x))
        try:
            with torch.no_grad():
                values, few = made.prefix(x), made.prefix(x[: len(x) // 2])
            parts = _outcome(bound, leaves, lambda: made.features(x, values))
        except Exception as error:  # tracing may have missed anything of a model's own code  # noqa: BLE001
            return NotCached(f"the traced model does not run ({type(error).__name__})")
        if not all(_near(a, b[: len(a)]) for a, b in zip(few, values, strict=True)):
            return NotCached("samples see each other before the trained layers")
    if len(whole) != len(parts) or not all(_near(a, b) for a, b in zip(parts, whole, strict=True)):
        return NotCached("the traced model does not compute what the model computes")
    return None


def _outcome(bound: BoundModel, leaves: Sequence[nn.Parameter], run: Callable[[], Tensor]) -> list[Tensor]:
    """Return features, and the gradients of a fixed function of them; dropout draws the same masks in every call."""
    bound.draw_from(torch.Generator().manual_seed(0))
    with torch.enable_grad():
        z = run()
        if not z.requires_grad:
            return [z]
        weight = torch.randn(z.shape, generator=torch.Generator().manual_seed(1))
        gradients = torch.autograd.grad((z * weight).sum(), leaves, allow_unused=True)
    return [z.detach(), *(torch.zeros_like(t) if g is None else g for t, g in zip(leaves, gradients, strict=True))]


def _near(a: Tensor, b: Tensor) -> bool:
    """Say whether two tensors are equal up to the order of float sums."""
    if a.shape != b.shape:
        return False
    scale = float(b.detach().abs().max()) if b.numel() else 0.0
    return torch.allclose(a.float(), b.float(), rtol=1e-5, atol=1e-5 * scale, equal_nan=True)


@contextmanager
def _borrowed(bound: BoundModel, start: Params) -> Any:
    """Load parameters near ``start`` for a while, then restore parameters, statistics and streams."""
    flat = bound.flat.detach().clone()
    statistics = [(b, b.clone()) for b in bound.body.buffers()]
    draws = [drop.draw for drop in bound.dropouts]
    try:
        with torch.no_grad():
            bound.flat.copy_(
                start.flat + 0.01 * torch.randn(start.flat.shape, generator=torch.Generator().manual_seed(2))
            )
        yield
    finally:
        with torch.no_grad():
            bound.flat.copy_(flat)
            for buffer, value in statistics:
                buffer.copy_(value)
        for drop, draw in zip(bound.dropouts, draws, strict=True):
            drop.draw = draw


__all__ = ["Context", "NetworkCut", "NotCached", "Traced", "cut", "doubt", "trace"]
