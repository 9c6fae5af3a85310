"""Check a user's module: does it fit the task, and can its randomness be seeded?"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedstrata.common.errors import ConfigError, DataError
from fedstrata.core.network import Dropout
from fedstrata.data.types import Task
from fedstrata.models.blocks import ChannelDropout

_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_OTHERS = (nn.AlphaDropout, nn.FeatureAlphaDropout)


def check(module: nn.Module, task: Task) -> str | None:
    """Try a copy of a module on a batch of two synthetic samples; torch's random generator is restored.

    Args:
        module: any module on the CPU that should map ``[B, *task.shape]`` to ``[B, task.classes]``.
        task: shape, classes and vocabulary of the data.
    Returns:
        the name of the head: the linear layer whose output is the model's output; None where there is none (methods
        that need a head then refuse the module).
    Raises:
        DataError: samples that the model cannot read, or more or fewer outputs than classes.
        ConfigError: outputs that are not finite or are probabilities, parameters without a shape yet, a wrong
            ``head_name``, or randomness from torch's own generator while training, for example functional dropout.
    """
    _has_shapes(module)
    probe = synthetic_batch(task)
    trial = copy.deepcopy(module).eval()
    with torch.no_grad(), _generator_restored():
        out = _forward(trial, probe, task)
        _norms_see_several(trial, probe)
        _fits(out, trial, task)
        _draws_nothing(copy.deepcopy(module).train(), probe, task)
        return _head(trial, probe, out, task, declared=getattr(module, "head_name", None))


def trains_on_one(module: nn.Module, task: Task) -> bool:
    """Whether batch norms see more than one value when a batch is a single sample."""
    trial = copy.deepcopy(module).eval()
    for part in trial.modules():
        if isinstance(part, nn.modules.batchnorm._NormBase):
            part.train()
    try:
        with torch.no_grad():
            trial(synthetic_batch(task)[:1])
    except ValueError:  # torch: "Expected more than 1 value per channel when training"
        return False
    return True


def swap_dropout(module: nn.Module) -> nn.Module:
    """Copy a module with torch's dropout layers replaced by ours, which draw from the derived stream.

    Raises:
        ConfigError: alpha dropout, which has no counterpart here, or p = 1.
    """
    _has_shapes(module)
    frozen = {id(p): p for p in module.parameters() if not p.requires_grad}  # a frozen base is shared, not copied
    swapped = copy.deepcopy(module, dict(frozen))
    if isinstance(swapped, (nn.Dropout, *_CHANNELS)):
        return _ours(swapped, "the module itself")
    for name, part in list(swapped.named_modules()):
        if isinstance(part, _OTHERS):
            raise ConfigError(
                f"layer {name} is {type(part).__name__}, which has no seeded counterpart here. Use"
                " fedstrata.core.network.Dropout."
            )
        if isinstance(part, (nn.Dropout, *_CHANNELS)):
            swapped.set_submodule(name, _ours(part, f"layer {name}"))
    return swapped


def to_float32(module: nn.Module) -> nn.Module:
    """Convert what is trained, and float buffers, to float32, in place; a frozen base keeps its type."""
    for part in module.modules():
        for parameter in part._parameters.values():
            if parameter is not None and parameter.requires_grad:
                parameter.data = parameter.data.to(torch.float32)
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                part._buffers[name] = buffer.to(torch.float32)
    return module


def _ours(layer: nn.Module, where: str) -> nn.Module:
    p = getattr(layer, "p", 0.0)
    if not 0 <= p < 1:
        raise ConfigError(f"{where} drops a share p={p}: it must be in [0, 1).")
    ours = ChannelDropout(p) if isinstance(layer, _CHANNELS) else Dropout(p)
    return ours.train(layer.training)


@contextmanager
def _generator_restored() -> Iterator[None]:
    """Restore the state of torch's generator afterwards."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


def _has_shapes(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ConfigError(
                f"parameter {name} has no shape yet (a lazy layer). Run one batch through the model before handing it"
                " over."
            )
        if parameter.device.type == "meta":
            raise ConfigError(
                f"parameter {name} is on the meta device and holds no numbers. Materialise and initialise the model"
                " first."
            )
        if not parameter.is_floating_point():
            raise ConfigError(
                f"parameter {name} is {parameter.dtype}; parameters are real numbers, trained as float32. Make it a"
                " buffer."
            )
    if any(True for _ in module.parameters()) and not any(p.requires_grad for p in module.parameters()):
        raise ConfigError(
            "every parameter of the model has requires_grad=False, so there is nothing to train. Set it to True for the"
            " parameters that clients train; the others are a frozen base, which is never sent."
        )
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._NormBase) and part.momentum is None:
            raise ConfigError(
                f"layer {name} has momentum=None: it counts batches, which clients do not share. Give it a number such"
                " as 0.1."
            )


def synthetic_batch(task: Task, samples: int = 2) -> Tensor:
    """Draw synthetic inputs, [samples, *shape]: standard normal numbers, or tokens with the largest one among them."""
    generator = torch.Generator().manual_seed(0)
    if task.vocabulary > 0:
        batch = torch.randint(task.vocabulary, (samples, *task.shape), generator=generator)
        batch.flatten()[0] = task.vocabulary - 1
        return batch
    return torch.randn(samples, *task.shape, generator=generator)


def _forward(module: nn.Module, probe: Tensor, task: Task) -> Tensor:
    try:
        out = module(probe)
    except Exception as error:  # any error of a user's module gets one clear message
        raise DataError(_diagnosis(module, task, error)) from error
    if not isinstance(out, Tensor):
        raise ConfigError(
            f"the model returns {type(out).__name__}; it must return a tensor [batch, {task.classes}]: the logits only."
        )
    return out


def _diagnosis(module: nn.Module, task: Task, error: Exception) -> str:
    """Explain why a module refuses the probe: usually its first layer expects another width."""
    name, first = next(
        (
            (n, m)
            for n, m in module.named_modules()
            if isinstance(m, (nn.modules.conv._ConvNd, nn.Linear, nn.Embedding))
        ),
        ("", None),
    )
    shape = tuple(task.shape)
    if isinstance(first, nn.modules.conv._ConvNd) and task.vocabulary == 0 and first.in_channels != shape[0]:
        given = (
            f"the data have {shape[0]} channel(s) (samples of shape {shape}), but the model's first convolution,"
            f" {name}, takes {first.in_channels}"
        )
        return (
            f"{given}. Give that layer {shape[0]}, or choose a model by name: those take their channels from the data."
        )
    if isinstance(first, nn.Embedding) and task.vocabulary > first.num_embeddings:
        return (
            f"the data have a vocabulary of {task.vocabulary}, but the model's embedding, {name}, holds"
            f" {first.num_embeddings}. Make it larger."
        )
    if isinstance(first, nn.Embedding) and task.vocabulary == 0:
        return (
            f"the model begins with an embedding ({name}) and reads tokens, but samples are numbers of shape {shape}."
        )
    kind = f"tokens below {task.vocabulary}" if task.vocabulary else "numbers"
    reason = " ".join(str(error).split())[:300]
    return f"the model cannot read a batch of 2 samples of shape {shape} ({kind}): {type(error).__name__}: {reason}"


def _fits(out: Tensor, module: nn.Module, task: Task) -> None:
    if out.dim() == 2 and len(task.output_shape) == 1 and out.shape[0] == 2 and out.shape[1] != task.classes:
        last = [
            f" (layer {n})"
            for n, m in module.named_modules()
            if isinstance(m, nn.Linear) and m.out_features == out.shape[1]
        ]
        where = last[-1] if last else ""
        raise DataError(
            f"the task has {task.classes} classes, but the model's head{where} gives {out.shape[1]} outputs. Give it"
            f" {task.classes}."
        )
    if tuple(out.shape) != (2, *task.output_shape):
        raise DataError(
            f"a batch of 2 samples has outputs of shape {tuple(out.shape)}; they must have the shape"
            f" {(2, *task.output_shape)}."
        )
    _finite(out, "evaluation")
    if (
        task.classes > 1
        and bool((out >= 0).all())
        and torch.allclose(out.sum(1), torch.ones(2, dtype=out.dtype), atol=1e-5)
    ):
        raise ConfigError(
            "the model returns probabilities (rows sum to 1); the loss takes logits. Leave the softmax out."
        )


def _finite(out: Tensor, mode: str) -> None:
    if not bool(out.isfinite().all()):
        raise ConfigError(
            f"the model's outputs are not finite in {mode} mode on standard normal inputs. Check its initialisation."
        )


def _draws_nothing(module: nn.Module, probe: Tensor, task: Task) -> None:
    """Refuse a module that draws from torch's generator while training: executors would then differ."""
    generator = torch.Generator().manual_seed(1)
    uniforms: Callable[[torch.Size], Tensor] = lambda shape: torch.rand(shape, generator=generator)
    for part in module.modules():
        if isinstance(part, Dropout):
            part.draw = uniforms
    before, buffers = torch.get_rng_state(), {n: b.clone() for n, b in module.named_buffers()}
    out = _forward(module, probe, task)
    _keeps_buffers(module, buffers)
    if not torch.equal(before, torch.get_rng_state()):
        layers = [
            n
            for n, m in module.named_modules()
            if isinstance(m, (nn.Dropout, *_CHANNELS, *_OTHERS)) and getattr(m, "p", 0) > 0
        ]
        source = (
            f"its layers {', '.join(layers[:5])} are"
            if layers
            else "there is a functional dropout, an attention or recurrent layer with dropout, or noise"
        )
        remedy = (
            "call fedstrata.models.swap_dropout(model)"
            if layers
            else "use the layer fedstrata.core.network.Dropout, which draws from the seeded stream"
        )
        raise ConfigError(
            f"the model draws from torch's own random generator while training ({source}), so runs could not be"
            f" repeated: {remedy}."
        )
    _finite(out, "training")


def _norms_see_several(trial: nn.Module, probe: Tensor) -> None:
    """Refuse group norms over one value (always 0) or two (always 1 and -1), through which no gradient passes."""
    seen: dict[str, int] = {}

    def watch(name: str, parts: int) -> Callable[..., None]:
        def look(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            seen[name] = given[0][0].numel() // parts

        return look

    hooks = [
        module.register_forward_pre_hook(watch(name, module.num_groups))
        for name, module in trial.named_modules()
        if isinstance(module, nn.GroupNorm) and module.num_groups > 0
    ]
    trial(probe)
    for hook in hooks:
        hook.remove()
    alone = [name for name, values in seen.items() if values <= 2]
    if alone:
        raise ConfigError(
            f"layer {alone[0]} normalises groups of {seen[alone[0]]}, of which at most the sign is left (no gradient):"
            " the model could not learn. Give it at least 3 values a group (wider layers or fewer groups), or use"
            " another norm."
        )


def _keeps_buffers(module: nn.Module, before: Mapping[str, Tensor]) -> None:
    """Refuse a module with state outside of batch norms: it is not sent, and workers would mix clients' states."""
    norms = [n for n, m in module.named_modules() if isinstance(m, nn.modules.batchnorm._NormBase)]
    for name, buffer in module.named_buffers():
        if name.rpartition(".")[0] not in norms and (name not in before or not torch.equal(buffer, before[name])):
            raise ConfigError(
                f"buffer {name} changes while the model trains; only statistics of batch norms may. Keep it constant."
            )


def _head(trial: nn.Module, probe: Tensor, out: Tensor, task: Task, *, declared: str | None) -> str | None:
    """Find the linear layer that ends the model, by removing it from a copy."""
    candidates = [
        n for n, m in trial.named_modules() if n and isinstance(m, nn.Linear) and m.out_features == task.classes
    ]
    kept = task.output_shape[:-1]
    if declared is not None:
        if declared not in candidates or not _ends_in(trial, declared, probe, out, kept):
            raise ConfigError(
                f"head_name is {declared!r}, but the model's output is not the output of a linear layer of that name."
            )
        return declared
    return next((name for name in reversed(candidates) if _ends_in(trial, name, probe, out, kept)), None)


def _ends_in(trial: nn.Module, name: str, probe: Tensor, out: Tensor, kept: tuple[int, ...]) -> bool:
    without = copy.deepcopy(trial)
    head = without.get_submodule(name)
    without.set_submodule(name, nn.Identity())
    try:
        features = without(probe)
    except Exception:  # noqa: BLE001
        return False
    if not isinstance(features, Tensor) or features.shape != (2, *kept, getattr(head, "in_features", -1)):
        return False
    return torch.allclose(head(features), out, rtol=1e-5, atol=1e-6)
