"""Build models by name: ``build("resnet18(stem=3)", task, norm, generator)``; users may register more."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from fedstrata.common import plugins
from fedstrata.common.call_syntax import Call, arguments, parse_call
from fedstrata.common.errors import ConfigError
from fedstrata.common.registry import Registry
from fedstrata.common.suggest import suggestion
from fedstrata.data.types import Task
from fedstrata.models import attention, cnn, dense, mobilenet, recurrent, resnet
from fedstrata.models.blocks import Conv, Model, Norm
from fedstrata.models.check import check

Factory = Callable[..., nn.Module]  # (task, [norm], settings...) -> module


@dataclass(frozen=True)
class Row:
    """One model of the registry, as ``fedstrata list models`` shows it.

    Attributes:
        name: what users write.
        summary: one line.
        source: paper or project of the network.
        factory: ``(task, settings...)``; with a parameter called ``norm`` where the norm can be chosen.
        ours: built on the meta device and filled from one generator; a user's factory draws from a fork of torch's
            generator.
        cite: keys of ``fedstrata.citations``, or BibTeX entries.
        uncited: why there is nothing to cite.
    """

    name: str
    summary: str
    source: str
    factory: Factory
    ours: bool = False
    cite: tuple[str, ...] = ()
    uncited: str = ""

    @property
    def norm(self) -> str | None:
        """The published default norm; None where the model has no choice of norm."""
        parameter = inspect.signature(self.factory).parameters.get("norm")
        return None if parameter is None else str(parameter.default)

    @property
    def settings(self) -> Mapping[str, object]:
        """Settings with their defaults, as written in call syntax."""
        return {
            n: p.default for n, p in inspect.signature(self.factory).parameters.items() if n not in ("task", "norm")
        }

    def parameters(self, task: Task, norm: Norm | None = None) -> int:
        """Parameters at the default settings; no memory is taken for our own models."""
        return count(self.name, task, norm)


def register(name: str, factory: Factory, *, summary: str = "", source: str = "registered by the user") -> None:
    """Add a model under ``name``.

    Args:
        name: a Python name, not taken yet.
        factory: called with ``task`` and the settings that a user writes (annotated, so that types are checked); a
            parameter ``norm`` gets the configured norm. It returns any module: ``[B, *task.shape] -> [B,
            task.classes]``. Dropout must be :class:`fedstrata.core.network.Dropout`.
        summary: one line for ``fedstrata list models``.
        source: where the network comes from.
    Raises:
        ConfigError: the name is taken or cannot be written in call syntax, or the factory takes no task.
    """
    if name not in MODELS:
        _check_factory(name, factory)
    MODELS.register(name, Row(name, summary or (inspect.getdoc(factory) or "").partition("\n")[0], source, factory))


def _check_factory(name: str, factory: Factory) -> None:
    parameters = inspect.signature(factory).parameters
    if "task" not in parameters:
        raise ConfigError(
            f"the factory of model {name!r} needs a parameter called task (its shape, classes and vocabulary)."
        )
    if "norm" in parameters and parameters["norm"].default is inspect.Parameter.empty:
        raise ConfigError(
            f"the factory of model {name!r} needs a default for norm: what it is built with when no norm is chosen."
        )


def rows() -> tuple[Row, ...]:
    """All models, ours first, in the order of registration.

    Those of installed packages are in ``fedstrata.common.plugins``.
    """
    return tuple(MODELS.items().values())


def find(name: str) -> Row:
    """The row of a model, ours or of an installed package, which is imported then.

    Raises:
        ConfigError: an unknown name; the nearest ones are offered. A plug-in that cannot be used.
    """
    return MODELS.find(name)


def _row(plugin: plugins.Plugin, offered: object) -> object:
    """Return a plug-in's row, or make one of a factory."""
    row = (
        offered
        if isinstance(offered, Row)
        else Row(plugin.name, plugin.about, plugin.origin, offered)
        if callable(offered)
        else None
    )
    if row is None or isinstance(offered, type):
        return None
    if row.name != plugin.name:
        plugins.refuse(plugin, f"its row is called {row.name!r}, so the entry point must be called that, too.")
    try:
        _check_factory(row.name, row.factory)
    except ConfigError as error:
        plugins.refuse(plugin, str(error), error)
    return replace(row, ours=False)


def build(spec: str, task: Task, norm: Norm | None, generator: torch.Generator) -> nn.Module:
    """A fresh model, initialised from ``generator`` alone; torch's own generator is left as it was.

    Args:
        spec: call syntax: ``cnn``, ``resnet18(stem=3, groups=2)``.
        task: shape, classes and vocabulary of the data.
        norm: batch, group or none; None is the model's published default.
        generator: the source of all random numbers.
    Returns:
        a module ``[B, *task.shape] -> [B, task.classes]`` in training mode, float32, on the CPU, with ``head_name``.
    Raises:
        ConfigError: an unknown model or setting, or an invalid one.
        DataError: data that do not fit the model.
    """
    row, given = _read(spec, norm)
    if row.ours:
        try:
            model = _bare(row, task, given)
            model.to_empty(device="cpu")
        except (
            RuntimeError,
            TypeError,
            OverflowError,
            MemoryError,
        ) as error:  # torch names neither the model nor the setting
            reason = str(error).splitlines()[0][:200]
            raise ConfigError(
                f"model {spec} cannot be made, probably as it is larger than memory ({reason}). Use smaller layers."
            ) from error
        model.start(generator)
        channels_last = row.name in CHANNELS_LAST and given.get("norm", row.norm) != "group"
        for part in model.modules():
            if isinstance(part, Model | Conv):
                part.channels_last = channels_last
        return model
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = row.factory(task=task, **given)
    head = check(module, task)
    if head is not None:
        module.head_name = head  # type: ignore[assignment]  # nn.Module types attributes as tensors and modules
    return module


def count(spec: str, task: Task, norm: Norm | None = None) -> int:
    """Parameters of a model, tied ones once. Our own models are counted without taking memory."""
    row, given = _read(spec, norm)
    module = _bare(row, task, given) if row.ours else build(spec, task, norm, torch.Generator())
    return sum(p.numel() for p in module.parameters())


def _bare(row: Row, task: Task, given: Mapping[str, Any]) -> Model:
    """One of our models on the meta device: no memory, no random numbers."""
    with torch.device("meta"):
        model = row.factory(task=task, **given)
    assert isinstance(model, Model)
    return model


def _read(spec: str, norm: Norm | None) -> tuple[Row, dict[str, Any]]:
    """The row and the checked arguments that a spec means."""
    call = parse_call(spec)
    row = find(call.name)
    if "norm" in call.named:
        raise ConfigError(
            f"model {call.name}: norm is a separate setting. Write norm={call.named['norm']} beside model={call.name}."
        )
    given = _arguments(call, row.factory)
    if norm is None:
        return row, given
    if norm not in typing.get_args(Norm):
        raise ConfigError(
            f"norm is {norm!r}; it is one of {', '.join(typing.get_args(Norm))}."
            f"{suggestion(norm, typing.get_args(Norm))}"
        )
    if row.norm is not None:
        given["norm"] = norm
    elif norm != "none":
        raise ConfigError(
            f"model {call.name} has no {norm} norm: its norm layers, if any, are part of it. Leave norm unset."
        )
    return row, given


def _arguments(call: Call, factory: Factory) -> dict[str, Any]:
    """Check arguments against the factory's signature, without task and norm, which the call does not set."""

    def settings() -> None: ...

    signature = inspect.signature(factory)
    kept = [p for n, p in signature.parameters.items() if n not in ("task", "norm")]
    settings.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    settings.__annotations__ = typing.get_type_hints(factory)
    return arguments(call, settings, what="model")


CHANNELS_LAST = frozenset({"cnn", "small_cnn", "lenet", "cnn20", "resnet8", "resnet9", "mobilenet"})
"""Models that train faster on channels-last images on one CPU thread; ``bench/channels_last.py`` measures it.

VGG and group norms are slower.
"""

_OURS: tuple[tuple[str, Factory, str, tuple[str, ...]], ...] = (
    ("logistic", dense.logistic, "classical", ()),
    ("mlp", dense.mlp, "FedLAG (hidden=100), McMahan et al. 2017 (hidden=[200, 200])", ("mcmahan2017communication",)),
    ("cnn", cnn.cnn, "McMahan et al. 2017", ("mcmahan2017communication",)),
    ("small_cnn", cnn.small_cnn, "FedPhoenix", ("lecun1998gradient",)),
    ("lenet", cnn.lenet, "FedSMU", ("lecun1998gradient", "lu2025fedsmu")),
    ("dlg_lenet", cnn.dlg_lenet, "Zhu et al. 2019 (DLG)", ("lecun1998gradient", "zhu2019deep")),
    ("cnn20", cnn.cnn20, "FedLAG", ("nguyen2024towards",)),
    ("resnet8", resnet.resnet8, "FedPart", ("he2016deep", "wang2024why")),
    ("resnet18", resnet.resnet18, "He et al. 2016; FedPart, FedPhoenix, FedSMU, FedFN", ("he2016deep",)),
    ("resnet9", resnet.resnet9, "FedLAG; D. Page 2018", ("he2016deep", "page2018resnet")),
    ("vgg11", cnn.vgg11, "FedFN", ("simonyan2015very",)),
    ("vgg16", cnn.vgg16, "FedPhoenix", ("simonyan2015very",)),
    ("mobilenet", mobilenet.mobilenet, "Howard et al. 2017; FedFN, FedPhoenix", ("howard2017mobilenets",)),
    ("vit_s", attention.vit_s, "Dosovitskiy et al. 2021; FedSMU", ("dosovitskiy2021image",)),
    ("char_lstm", recurrent.char_lstm, "FedSMU", ("hochreiter1997long",)),
    ("transformer", attention.transformer, "FedPart", ("vaswani2017attention", "wang2024why")),
)
MODELS: Registry[Row] = Registry(
    "models",
    "model",
    accepts=lambda offered: isinstance(offered, Row),
    wanted="a function (task, settings...) -> nn.Module, or a fedstrata.models.Row",
    entries={
        name: Row(
            name,
            (inspect.getdoc(factory) or "").partition("\n")[0],
            source,
            factory,
            ours=True,
            cite=cite,
            uncited="" if cite else "a classical model, without one first paper",
        )
        for name, factory, source, cite in _OURS
    },
    adapt=_row,
)
