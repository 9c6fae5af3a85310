"""Turn a trained model into a plain module: torch's layers, no part of the engine, and the method's changes."""

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
    """Build the module of a worker with these values, in evaluation mode.

    Args:
        kit: has the network and the method.
        params: values, with statistics.
        task: of the data.
        batch_statistics: norms use the statistics of the batch (``bn=batch``) and keep no running statistics.
    """
    module = network(kit.bound, task)
    if kit.method.has("model"):
        module = MethodModule(module, kit, batch_statistics=batch_statistics)
    elif batch_statistics:
        forget_statistics(module)
    fill(module, params)
    if isinstance(module, MethodModule):
        module.integers = {name: params.integer(name) for name in kit.setup.layout.integers}
    return module.eval()


def network(bound: BoundModel, task: Task) -> nn.Module:
    """Copy a bound network with its head in place and torch's dropout instead of ours; tensors share no memory."""
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
        if name not in bound.frozen:
            parameter.requires_grad_()
    return body


def forget_statistics(module: nn.Module) -> None:
    """Make norms use the statistics of the batch, in evaluation too."""
    for part in module.modules():
        if isinstance(part, _NormBase):
            part.track_running_stats = False
            part.running_mean = part.running_var = part.num_batches_tracked = None


def fill(module: nn.Module, params: Model) -> None:
    """Write these values, and the statistics that the module has buffers for, under their names."""
    with torch.no_grad():
        for name, value in params.views.items():
            attrgetter(name)(module).copy_(value)
        for name, value in params.statistics.views.items():
            buffer = attrgetter(name)(module)
            if buffer is not None:  # a norm with batch statistics has none
                buffer.copy_(value)


class MethodModule(nn.Module):
    """A network with the method's changes: the network's submodules under their names, the method's features and head.

    It is in evaluation mode, because the method's functions read the layers as constants.

    Args:
        module: the network; its submodules become this module's.
        kit: has the method.
        batch_statistics: norms use the statistics of the batch.
    """

    def __init__(self, module: nn.Module, kit: Worker, *, batch_statistics: bool) -> None:
        super().__init__()
        bound = BoundModel(module, kit.bound.head_name)
        self._net: Net = kit.method.model(bound.net(kit.net.loss))
        bound.attach(self._net)
        self._spec, self._statistics = bound.spec, Spec((), ()) if batch_statistics else bound.statistics.spec
        self._eval_mode: EvalMode = "batch_stats" if batch_statistics else "eval"
        self.integers: dict[str, int] = {}  # which network it is, as a number of the program
        self._needs_eval = any(isinstance(part, _NormBase | _DropoutNd) for part in module.modules())
        self._take_over(module)
        kept = {id(attrgetter(name)(self)) for name in self._spec.names if _has(self, name)}
        for name, parameter in list(self.named_parameters()):
            if name not in self._spec.index and id(parameter) not in kept:
                path, _, local = name.rpartition(".")
                self.get_submodule(path)._parameters[local] = None  # dropped by the method
        for name, value in bound.parts.items():
            if not _has(self, name):
                self._add(name, value.detach().clone())
        if batch_statistics:
            forget_statistics(self)

    def _take_over(self, module: nn.Module) -> None:
        for name, child in module._modules.items():
            self.add_module(name, child)
        for name, parameter in module._parameters.items():
            self.register_parameter(name, parameter)
        for name, buffer in module._buffers.items():
            self.register_buffer(name, buffer, persistent=name not in module._non_persistent_buffers_set)

    def _add(self, name: str, value: Tensor) -> None:
        """Register a parameter that the method adds."""
        *path, local = name.split(".")
        owner: nn.Module = self
        for step in path:
            if step not in owner._modules:
                owner.add_module(step, nn.Module())
            owner = owner.get_submodule(step)
        owner.register_parameter(local, nn.Parameter(value))

    def forward(self, x: Tensor) -> Tensor:
        """Compute outputs: [B, *shape] -> [B, classes]."""
        values = {name: attrgetter(name)(self) for name in self._spec.names}
        buffers = {name: attrgetter(name)(self) for name in self._statistics.names}
        statistics = Params(_flat(buffers), self._statistics, views=buffers)
        params = Params(_flat(values), self._spec, eval_mode=self._eval_mode, views=values, integers=self.integers)
        return self._net(Model(params, statistics), x)

    def train(self, mode: bool = True) -> Self:  # torch's signature  # noqa: FBT001, FBT002
        """Refuse training mode where it would compute something else.

        Raises:
            ConfigError: training mode of a network with dropout or batch norms.
        """
        if mode and self._needs_eval:
            raise ConfigError(
                "this module works in evaluation mode only: its method changes the model, and dropout and batch norms"
                " would stay inactive. Train on with fedstrata.run(..., module=...), or load these weights into your"
                " network."
            )
        return super().train(mode)


def _has(module: nn.Module, name: str) -> bool:
    try:
        return attrgetter(name)(module) is not None
    except AttributeError:
        return False


def _flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors.values()]) if tensors else torch.zeros(0)
