"""A trained model as a plain module: torch's own layers, nothing of the engine, and what the method changes in it."""

from __future__ import annotations

import copy
from operator import attrgetter
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from fedstrata.client.worker import Worker
from fedstrata.common.errors import ConfigError
from fedstrata.core.network import BoundModel, Dropout, Net
from fedstrata.core.params import EvalMode, Model, Params, Spec
from fedstrata.data.types import Task
from fedstrata.models.blocks import ChannelDropout

_CHANNELS = {3: nn.Dropout2d, 4: nn.Dropout3d}  # by the axes of a sample; any other are rows or sequences


def plain(kit: Worker, params: Model, task: Task, *, batch_statistics: bool) -> nn.Module:
    """The module of a kit with these values, in evaluation mode.

    Args:
        kit: has the network and the method.
        params: values, with statistics.
        task: of the data.
        batch_statistics: norms look at the batch in hand (``bn=batch``): they keep no running statistics.
    """
    module = network(kit.bound, task)
    if kit.method.has("model"):
        module = Changed(module, kit, batch_statistics=batch_statistics)
    elif batch_statistics:
        forget_statistics(module)
    fill(module, params)
    if isinstance(module, Changed):
        module.integers = {name: params.integer(name) for name in kit.setup.layout.integers}
    return module.eval()


def network(bound: BoundModel, task: Task) -> nn.Module:
    """A copy of a bound network with its head in place, torch's dropout instead of ours, and tensors that share no
    memory.
    """
    body, head = copy.deepcopy((bound.body, bound.head))  # together, so that tied weights stay tied
    body.set_submodule(bound.head_name, head)
    for name, part in list(body.named_modules()):
        if isinstance(part, ChannelDropout):
            body.set_submodule(name, _CHANNELS.get(len(task.shape), nn.Dropout1d)(part.mask.p))
        elif isinstance(part, Dropout) and not isinstance(
            body.get_submodule(name.rpartition(".")[0]), nn.Dropout1d | nn.Dropout2d | nn.Dropout3d
        ):
            body.set_submodule(name, nn.Dropout(part.p))
        elif isinstance(part, _NormBase):
            part.momentum = part.__dict__.pop("_fedstrata_momentum", part.momentum)
    for part in body.modules():
        part.__dict__.pop("channels_last", None)  # a hint to the engine
        part._buffers = {n: None if b is None else b.detach().clone() for n, b in part._buffers.items()}
    for name, parameter in body.named_parameters():
        if name in bound.spec.index:  # a frozen base stays frozen
            parameter.requires_grad_()
    return body


def forget_statistics(module: nn.Module) -> None:
    """Let norms look at the batch in hand, in evaluation too."""
    for part in module.modules():
        if isinstance(part, _NormBase):
            part.track_running_stats = False
            part.running_mean = part.running_var = part.num_batches_tracked = None


def fill(module: nn.Module, params: Model) -> None:
    """Write these values, and the statistics that the module has a place for, under their names."""
    with torch.no_grad():
        for name, value in params.views.items():
            attrgetter(name)(module).copy_(value)
        for name, value in params.statistics.views.items():
            place = attrgetter(name)(module)
            if place is not None:  # a norm that looks at the batch has none
                place.copy_(value)


class Changed(nn.Module):
    """A network with what its method changes in it: the network's own submodules under their own names, the method's
    features and head.

    It stands in evaluation mode: it computes with the method's functions, and those look at the layers standing still.

    Args:
        module: the network; its submodules become this module's.
        kit: has the method.
        batch_statistics: norms look at the batch in hand.
    """

    def __init__(self, module: nn.Module, kit: Worker, *, batch_statistics: bool) -> None:
        super().__init__()
        bound = BoundModel(module, kit.bound.head_name)
        self._net: Net = kit.method.model(bound.net(kit.net.loss))
        bound.attach(self._net)
        self._spec, self._statistics = bound.spec, Spec((), ()) if batch_statistics else bound.statistics.spec
        self._eval_mode: EvalMode = "batch_stats" if batch_statistics else "eval"
        self.integers: dict[str, int] = {}  # which network it is, as a number of the program
        self._moves = any(isinstance(part, _NormBase | _DropoutNd) for part in module.modules())
        self._take_over(module)
        kept = {id(attrgetter(name)(self)) for name in self._spec.names if _has(self, name)}
        for name, parameter in list(self.named_parameters()):
            if name not in self._spec.index and id(parameter) not in kept:
                path, _, local = name.rpartition(".")
                self.get_submodule(path)._parameters[local] = None  # dropped by the method
        for name, value in bound.parts.items():
            if not _has(self, name):
                self._place(name, value.detach().clone())
        if batch_statistics:
            forget_statistics(self)

    def _take_over(self, module: nn.Module) -> None:
        for name, child in module._modules.items():
            self.add_module(name, child)
        for name, parameter in module._parameters.items():
            self.register_parameter(name, parameter)
        for name, buffer in module._buffers.items():
            self.register_buffer(name, buffer, persistent=name not in module._non_persistent_buffers_set)

    def _place(self, name: str, value: Tensor) -> None:
        """A parameter that the method adds."""
        *path, local = name.split(".")
        owner: nn.Module = self
        for step in path:
            if step not in owner._modules:
                owner.add_module(step, nn.Module())
            owner = owner.get_submodule(step)
        owner.register_parameter(local, nn.Parameter(value))

    def forward(self, x: Tensor) -> Tensor:
        """[B, *shape] -> [B, classes]."""
        own = {name: attrgetter(name)(self) for name in self._spec.names}
        kept = {name: attrgetter(name)(self) for name in self._statistics.names}
        statistics = Params(_flat(kept), self._statistics, views=kept)
        params = Params(_flat(own), self._spec, eval_mode=self._eval_mode, views=own, integers=self.integers)
        return self._net(Model(params, statistics), x)

    def train(self, mode: bool = True) -> Self:  # torch's signature  # noqa: FBT001, FBT002
        """Evaluation mode only, where that makes a difference.

        Raises:
            ConfigError: training mode of a network with dropout or batch norms.
        """
        if mode and self._moves:
            raise ConfigError(
                "this module stands in evaluation mode: its method changes the model, and dropout and batch norms would"
                " not move. Train on with fedstrata.run(..., module=...), or on a network of your own with these"
                " weights."
            )
        return super().train(mode)


def _has(module: nn.Module, name: str) -> bool:
    try:
        return attrgetter(name)(module) is not None
    except AttributeError:
        return False


def _flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors.values()]) if tensors else torch.zeros(0)
