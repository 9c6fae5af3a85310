"""Compute images that excite channels of trained models, and show the kernels of their first layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedstrata.common import random_streams
from fedstrata.common.errors import ConfigError
from fedstrata.core.layout import Layout
from fedstrata.core.piece import require
from fedstrata.data.io.samples import Samples
from fedstrata.diagnostics.panel import Panel
from fedstrata.inference.finished_run import Finished
from fedstrata.report.page.drawing import Picture
from fedstrata.studies.active_groups import ServedNetwork, groups_of, left_out, parameters_used_by
from fedstrata.studies.ascent import Ascent, Crop, CropSchedule, Probe, Regularisation, ascend_phase, ascend_pixels
from fedstrata.studies.base import Outcome, Study, once_each
from fedstrata.studies.fourier import magnitude
from fedstrata.studies.image_grids import image_grid
from fedstrata.studies.pixels import Pixels, pixels_of
from fedstrata.studies.surface import finite_or_none

STEPS = {"pixels": 1000, "maco": 256}
RATE = {"pixels": 0.1, "maco": 1.0}
READ = 500  # images of one pass
PLANES = {3: ("red", "green", "blue"), 1: ("grey",)}


@dataclass(frozen=True)
class Maximise(Study):
    """Compute the images that excite channels of layers most: one grid for each layer, one row for each run.

    ``form=pixels``: Adam from N(0, 1) on the mean activation of a channel (raw output of the layer, before any norm)
    minus ``tv`` times the total variation; every ``every`` steps ``blur`` (sigma in pixels) and ``crop`` (sets the
    smallest ``share`` of numbers, by value, or of pixels, by norm, to 0); ``decay`` is weight decay. ``form=maco``: the
    Fourier magnitude is the mean over ``spectrum`` training images, and Nadam optimises only the phase, through
    ``crops`` noisy crops in each step. None means 1000 ``steps`` and an ``lr`` of 0.1, with maco 256 and 1. Pictures
    are clipped to [0, 1].

    ``layers``: names of layer groups; none means the first and the last convolution and the head. ``channels``: of each
    layer; missing ones are left out. ``kernels``: filters of the first convolution that are shown, one plane for each
    colour; 0 shows none.

    INFERRED: crop to 0 and the same interval for crop and blur; MACO in plain pixels without its decorrelation of
    colours and its last squashing, on the magnitude of the run's training images, signs of self-mirrored frequencies
    kept positive, and ``boxes`` from 1 to 0.5 of the image where published ones fall from 0.5 to 0.05 of pictures of
    512 pixels; which layers and channels are the default.

    Source: Wang et al. 2024 (FedPart), Figs. 6 and 7, settings of the authors' code; Fel et al. 2023 (MACO), settings
    of the authors' code.
    """

    title: ClassVar[str] = "Activation maximisation"
    text: ClassVar[str] = (
        "Mean activation of a channel, in the layer's units, at the random start, at the optimised image, and at its"
        " picture, which is clipped to [0, 1]; means over channels. Activations of different layers are not"
        " comparable. Source: Wang et al. 2024, Fel et al. 2023."
    )
    form: Literal["pixels", "maco"] = "pixels"
    layers: tuple[str, ...] = ()
    channels: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7)
    steps: int | None = None
    lr: float | None = None
    tv: float = 1.0
    blur: float = 0.0
    crop: Crop = "none"
    share: float = 0.1
    every: int = 4
    decay: float = 0.0
    spectrum: int = 2000
    crops: int = 32
    boxes: tuple[float, ...] = (1.0, 0.5)
    noise: float = 0.08
    kernels: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        require(
            bool(self.channels) and min(self.channels) >= 0,
            "maximise.channels",
            list(self.channels),
            "numbers of channels, from 0",
        )
        once_each("maximise.channels", self.channels)
        once_each("maximise.layers", self.layers)
        require(
            self.steps is None or self.steps >= 1,
            "maximise.steps",
            self.steps,
            "steps of the ascent, at least 1 (pixels: 1000, maco: 256)",
        )
        require(self.lr is None or self.lr > 0, "maximise.lr", self.lr, "a step above 0 (pixels: 0.1, maco: 1)")
        require(
            self.blur == 0 or 0.05 <= self.blur <= 16,
            "maximise.blur",
            self.blur,
            "the sigma of a Gaussian in pixels, 0 for none or from 0.05 to 16",
        )
        require(self.every >= 1, "maximise.every", self.every, "steps between two blurs or crops, at least 1")
        require(0 < self.share < 1, "maximise.share", self.share, "a share in (0, 1) (published: 0.1)")
        require(
            self.spectrum >= 1, "maximise.spectrum", self.spectrum, "training images of the mean magnitude, at least 1"
        )
        require(
            1 <= self.crops <= 10_000,
            "maximise.crops",
            self.crops,
            "crops in each step, from 1 to 10000 (published: 32)",
        )
        require(self.kernels <= 1000, "maximise.kernels", self.kernels, "filters that are shown, from 0 to 1000")
        fits = len(self.boxes) == 2 and all(0 < b <= 1 for b in self.boxes)
        require(
            fits, "maximise.boxes", list(self.boxes), "the first and the last mean side of a crop, shares in (0, 1]"
        )
        for name in ("tv", "blur", "decay", "noise", "kernels"):
            require(getattr(self, name) >= 0, f"maximise.{name}", getattr(self, name), "at least 0")

    def study(self, runs: Mapping[str, Finished]) -> Outcome:
        """See :class:`Study`."""
        ascents = {label: self._ascend_run(label, run) for label, run in runs.items()}
        names = list(dict.fromkeys(name for layers in ascents.values() for name in layers))
        numbers = {
            label: {name: {"channels": list(used)} | _activations(one) for name, (used, one) in layers.items()}
            for label, layers in ascents.items()
        }
        series: dict[str, Sequence[float | None]] = {}
        for label, layers in ascents.items():
            for name, (_, one) in layers.items():
                series[f"{label}: {name}" if len(runs) > 1 else name] = [
                    finite_or_none(float(t.mean())) for t in (one.first, one.last, one.shown)
                ]
        panel = Panel(
            "Activation maximisation",
            self.text,
            "table",
            ("start", "found", "picture"),
            series,
            x_name="",
            y_name="mean activation",
        )
        pictures = [
            self._grid(name, {label: layers[name] for label, layers in ascents.items() if name in layers})
            for name in names
        ]
        notes = [f"{label}: {note}" for label, run in runs.items() for note in self._left_out(run)]
        notes += [*diverged(ascents), *decreased(ascents)]
        return Outcome(numbers, [panel], pictures + self._kernels(runs), notes)

    def _left_out(self, run: Finished) -> list[str]:
        """Return a note on the layers that are missing among the defaults."""
        layout = run.engine.parts.setup.layout
        return [] if self.layers else left_out(layout, groups_of(layout, parameters_used_by(run)))

    def _grid(self, layer: str, ascents: Mapping[str, tuple[Sequence[int], Ascent]]) -> Picture:
        columns = list(dict.fromkeys(c for used, _ in ascents.values() for c in used))
        rows, values = [], []
        for used, one in ascents.values():
            at = {c: k for k, c in enumerate(used)}
            rows.append(
                [one.pictures[at[c]] if c in at and bool(one.raw[at[c]].isfinite().all()) else None for c in columns]
            )
            values.append([finite_or_none(float(one.last[at[c]])) if c in at else None for c in columns])
        return image_grid(
            f"Images for {layer}, {self.form}",
            rows,
            list(ascents),
            [f"channel {c}" for c in columns],
            values,
            "mean activation",
        )

    def _ascend_run(self, label: str, run: Finished) -> dict[str, tuple[Sequence[int], Ascent]]:
        """Return (channels, ascent) by layer."""
        pixels = pixels_of(run, "activation maximisation")
        if run.uses_batch_statistics:
            raise ConfigError(
                f"norms of {label} use batch statistics, which would mix the images; study a run without bn=batch."
            )
        layout = run.engine.parts.setup.layout
        model, modules = layers_of(run)
        spectrum = magnitude(_images(run.federation.train, self.spectrum, pixels)) if self.form == "maco" else None
        ascents: dict[str, tuple[Sequence[int], Ascent]] = {}
        for name in self.layers or default_layers(layout, list(modules)):
            width = len(run.served[weight_of(layout, name)])
            if name not in modules:
                raise ConfigError(
                    f"maximise.layers has {name}, which the final network of {label} does not use; choose from"
                    f" {list(modules)}."
                )
            used = [c for c in self.channels if c < width]
            if not used:
                raise ConfigError(f"maximise.channels are {list(self.channels)}; layer {name} of {label} has {width}.")
            probe = Probe(model, modules[name], used)
            ascents[name] = used, self._ascend(probe, pixels, spectrum, run.federation.task.shape)
        return ascents

    def _ascend(self, probe: Probe, pixels: Pixels, spectrum: Tensor | None, shape: tuple[int, ...]) -> Ascent:
        steps, lr = self.steps or STEPS[self.form], self.lr or RATE[self.form]
        if spectrum is None:
            # every run starts from the same images
            streams = [random_streams.torch_stream(self.seed, "maximise", c) for c in probe.channels]
            start = torch.stack([torch.randn(shape, generator=stream) for stream in streams])
            smooth = Regularisation(self.tv, self.blur, self.crop, self.share, self.every, self.decay)
            return ascend_pixels(probe, start, pixels, steps, lr, smooth)
        schedule = CropSchedule(self.crops, self.boxes[0], self.boxes[1], self.noise)
        generator = random_streams.torch_stream(self.seed, "maco")
        return ascend_phase(probe, spectrum, pixels, steps, lr, schedule, generator)

    def _kernels(self, runs: Mapping[str, Finished]) -> list[Picture]:
        """Draw planes of the first convolution's filters, each filter over its largest absolute value: 0.5 is 0."""
        rows: list[list[Tensor | None]] = []
        labels: list[str] = []
        for label, run in runs.items():
            weight = first_kernels(run, self.kernels)
            planes = 0 if weight is None else weight.shape[1]
            for plane, colour in enumerate(PLANES.get(planes, ())):
                assert weight is not None, "there are planes"
                kept: list[Tensor | None] = list(weight[:, plane : plane + 1])
                rows.append(kept + [None] * (self.kernels - len(kept)))
                labels.append(f"{label}: {colour}" if len(runs) > 1 else colour)
        return (
            [image_grid("Kernels of the first convolution", rows, labels, [f"filter {k}" for k in range(self.kernels)])]
            if rows
            else []
        )


def diverged(ascents: Mapping[str, Mapping[str, tuple[Sequence[int], Ascent]]]) -> list[str]:
    """Return a note for each layer with channels whose ascent diverged."""
    notes = []
    for label, layers in ascents.items():
        for name, (used, one) in layers.items():
            channels = [
                str(c)
                for c, raw, end in zip(used, one.raw, one.last, strict=True)
                if not bool(raw.isfinite().all() & end.isfinite())
            ]
            if channels:
                notes.append(
                    f"{label}, {name}: the ascent for channel {', '.join(channels)} diverged; use a smaller lr (or tv)."
                )
    return notes


def decreased(ascents: Mapping[str, Mapping[str, tuple[Sequence[int], Ascent]]]) -> list[str]:
    """Return a note for each layer with channels that the optimised image excites less than the random start."""
    notes = []
    for label, layers in ascents.items():
        for name, (used, one) in layers.items():
            channels = [
                str(c) for c, start, end in zip(used, one.first.tolist(), one.last.tolist(), strict=True) if end < start
            ]
            if channels:
                notes.append(
                    f"{label}, {name}: the optimised image excites channel {', '.join(channels)} less than the start;"
                    " use more steps, a smaller lr or a smaller prior (tv)."
                )
    return notes


def first_kernels(run: Finished, count: int) -> Tensor | None:
    """Return [n, C, h, w] in [0, 1]: the first filters of the first convolution; None without filters."""
    names = [
        n
        for n, e in run.engine.parts.setup.layout.entries.items()
        if e.kind == "conv" and len(e.shape) == 4 and not e.statistic
    ]
    if not names or not count:
        return None
    weight = run.served[names[0]][:count].detach()
    return 0.5 + weight / (2 * weight.abs().amax((1, 2, 3), keepdim=True).clamp_min(1e-12))


def layers_of(run: Finished) -> tuple[nn.Module, dict[str, nn.Module]]:
    """Return (the served network, layer group -> the module that outputs its channels), of used groups with channels.

    For a head that a method evaluates itself, the module is the network, as both have the same output.
    """
    layout, used = run.engine.parts.setup.layout, parameters_used_by(run)
    model = ServedNetwork(run) if run.engine.worker.method.has("model") else run.module()
    modules: dict[str, nn.Module] = {}
    for name in layout.names():
        weights = weights_of(layout, name)
        if not used.isdisjoint(weights):
            module = (
                model.owner(weights[0])
                if isinstance(model, ServedNetwork)
                else model.get_submodule(weights[0].removesuffix(".weight"))
            )
            if module is None and layout.groups[name].role == "head":
                module = model
            if module is not None:
                modules[name] = module
    return model, modules


def default_layers(layout: Layout, among: Sequence[str]) -> list[str]:
    """Return the first and the last convolution, and the head, among these layer groups."""
    groups = [layout.groups[name] for name in among]
    convs = [g.name for g in groups if g.kind == "conv"]
    heads = [g.name for g in groups if g.role == "head"]
    return list(dict.fromkeys([*convs[:1], *convs[-1:], *heads]))


def weights_of(layout: Layout, group: str) -> list[str]:
    """Return the names of the weights of a layer group's convolutions and linear maps.

    Raises:
        LayoutError: no such group.
    """
    inside = layout.group(group)
    return [
        n
        for n, e in layout.entries.items()
        if n in inside and e.kind in ("conv", "linear") and n.endswith(".weight") and len(e.shape) > 1
    ]


def weight_of(layout: Layout, group: str) -> str:
    """Return the name of the weight of a layer group: of its convolution or linear map.

    Raises:
        ConfigError: a group without one.
        LayoutError: no such group.
    """
    names = weights_of(layout, group)
    if not names:
        raise ConfigError(
            f"layer group {group} has no convolution or linear map whose channels could be excited; use one of "
            f"{default_layers(layout, layout.names())}."
        )
    return names[0]


def _images(samples: Samples, most: int, pixels: Pixels) -> Iterator[Tensor]:
    count = min(most, len(samples))
    for start in range(0, count, READ):
        yield pixels.restore(samples.take(torch.arange(start, min(start + READ, count))))


def _activations(one: Ascent) -> dict[str, Any]:
    return {
        name: [finite_or_none(round(float(v), 6)) for v in getattr(one, name)] for name in ("first", "last", "shown")
    }
