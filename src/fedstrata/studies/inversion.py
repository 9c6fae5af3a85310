"""Measure what an update reveals: images that an attacker reconstructs from it, from single layers and from signs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, ClassVar, Literal

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from fedstrata.client.update import ClientUpdate
from fedstrata.common import random_streams
from fedstrata.common.errors import ConfigError
from fedstrata.core.layout import Layout
from fedstrata.core.params import Params
from fedstrata.core.piece import Outcome as Trained
from fedstrata.core.piece import require
from fedstrata.core.state import State
from fedstrata.diagnostics.panel import Panel
from fedstrata.inference.finished_run import Finished
from fedstrata.inference.module import plain
from fedstrata.methods import method
from fedstrata.report.page.drawing import Picture
from fedstrata.studies.active_groups import groups_of, left_out
from fedstrata.studies.attacks import Guess, Target, dlg, inverting, label_of
from fedstrata.studies.base import Outcome, Study, once_each
from fedstrata.studies.image_grids import image_grid
from fedstrata.studies.outputs import stem
from fedstrata.studies.pixels import Pixels, pixels_of, psnr, ssim

PUBLISHED = {"dlg": 300, "ig": 8000}
COLUMNS = {
    "psnr": "PSNR (dB)",
    "psnr_deviation": "its deviation",
    "best_psnr": "highest PSNR (dB)",
    "ssim": "SSIM",
    "labels": "labels found",
    "numbers": "numbers seen",
}
SHOWN = 8  # images in a grid
GREY = "nothing (grey)"


@dataclass(frozen=True, eq=False)
class VisibleGradient:
    """The part of an update that an attacker sees.

    Attributes:
        gradient: of the visible parameters, as received.
        direction: whether only its direction is known.
    """

    gradient: Mapping[str, Tensor]
    direction: bool = False


@dataclass
class Score:
    """The quality of one image: final and best PSNR in dB, final SSIM, whether its label is right, and the image."""

    final: float
    best: float
    ssim: float
    label: bool
    image: Tensor = field(repr=False)


@dataclass(frozen=True)
class Inversion(Study):
    """Invert gradients of single steps: which images of a client can an attacker reconstruct?

    The attacker knows the model and sees the gradient of one batch (a client's update of one plain step, over its
    rate), or a part of it. ``visible`` lists the parts: full, groups (each layer group alone, as FedPart sends them),
    the name of a group, and sign (the signs of the full update). ``codec`` is a chain of methods in call syntax whose
    uploads are attacked too; of those, as of signs, only the direction is matched.

    ``attack``: dlg (L-BFGS, 300 steps of 20) or ig (inverting gradients, 8000 steps; ``tv`` weighs its total
    variation); ``steps`` replaces these numbers. ``label=unknown``: dlg optimises soft labels together with the image;
    ig infers the label of a single image from the head's gradient if it is visible (iDLG) and optimises soft labels
    otherwise. ``restarts`` keeps the attempt with the least loss. ``at``: the served model or the run's start.

    INFERRED: evaluation mode and batches of one image, as in the demonstration of FedPart's repository; DLG's distance
    relative to the length of the visible gradient; the distance of directions for signs and codecs; soft labels for ig
    where the head is not visible; ``images``, ``works`` (the mean PSNR above which the attack on the full update counts
    as successful), and images that are a client's first ones, without augmentation.

    Source: Zhu et al. 2019 (DLG); Geiping et al. 2020 (inverting gradients); Zhao et al. 2020 (iDLG); Wang et al. 2024
    (FedPart), Fig. 8 and Table 9.
    """

    title: ClassVar[str] = "Gradient inversion"
    text: ClassVar[str] = (
        "Images reconstructed from what a client sends of one step: PSNR in dB (-10 log10 of the mean squared error of"
        " images in [0, 1]) of the last iterate and the highest over iterates, which an attacker cannot pick, and SSIM;"
        " means over images. High means that more leaks. Grey is the guess of an attacker without information. Source:"
        " Zhu et al. 2019, Geiping et al. 2020, Wang et al. 2004."
    )
    attack: Literal["dlg", "ig"] = "dlg"
    label: Literal["known", "unknown"] = "known"
    visible: tuple[str, ...] = ("full", "groups", "sign")
    codec: str | None = None
    images: int = 8
    batch: int = 1
    client: int = 0
    steps: int | None = None
    restarts: int = 1
    tv: float = 1e-6
    at: Literal["end", "start"] = "end"
    works: float = 20.0
    seed: int = 0

    def __post_init__(self) -> None:
        require(
            bool(self.visible),
            "inversion.visible",
            list(self.visible),
            "the visible parts: full, groups, names of layer groups, sign",
        )
        once_each("inversion.visible", self.visible)
        require(self.images >= 1, "inversion.images", self.images, "images to reconstruct, at least 1")
        require(
            self.batch >= 1 and self.images % self.batch == 0,
            "inversion.batch",
            self.batch,
            f"a divisor of images={self.images}, at least 1",
        )
        require(
            self.steps is None or self.steps >= 1,
            "inversion.steps",
            self.steps,
            "steps of the attack, at least 1 (dlg: 300, ig: 8000)",
        )
        require(
            self.restarts >= 1, "inversion.restarts", self.restarts, "attempts of which the best is kept, at least 1"
        )
        require(self.tv >= 0, "inversion.tv", self.tv, "the weight of total variation, at least 0")
        require(self.works > 0, "inversion.works", self.works, "a PSNR in dB above 0")

    def study(self, runs: Mapping[str, Finished]) -> Outcome:
        """See :class:`Study`."""
        numbers: dict[str, Any] = {}
        series: dict[str, Sequence[float | None]] = {}
        pictures: list[Picture] = []
        notes: list[str] = []
        columns = {key: name for key, name in COLUMNS.items() if key != "labels" or self.label == "unknown"}
        for label, run in runs.items():
            views, truth, run_notes = self._attack_run(run, label)
            rows = {name: summary(scores, count) for name, (scores, count) in views.items()}
            numbers[label] = {
                name: (
                    row
                    | {
                        "by_image": [
                            {"psnr": s.final, "best": s.best, "ssim": s.ssim, "label": s.label} for s in views[name][0]
                        ]
                    }
                )
                for name, row in rows.items()
            }
            tag = f"{label}: " if len(runs) > 1 else ""
            series |= {f"{tag}{name}": [row[key] for key in columns] for name, row in rows.items()}
            pictures.append(self._picture(f", {label}" if len(runs) > 1 else "", views, truth))
            notes += [f"{tag}{note}" for note in (*run_notes, self._interpret(rows))]
        panel = Panel("Gradient inversion", self.text, "table", list(columns.values()), series, x_name="", y_name="")
        return Outcome(numbers, [panel], pictures, notes)

    def _interpret(self, rows: Mapping[str, Mapping[str, float | None]]) -> str:
        """Return a note on what the scores imply."""
        if "full" not in rows:
            return (
                "the full update was not attacked, so it is unknown whether the attack works here; add full to visible."
            )
        reached = rows["full"]["psnr"] or 0.0
        if reached < self.works:
            return (
                f"the attack on the full update did not succeed ({reached:.1f} dB, below works={self.works:g}), so its"
                " other scores imply nothing; use more steps or restarts, or a model that it works on."
            )
        return (
            f"the attack succeeds on the full update ({reached:.1f} dB); a stronger attack may find more where this one"
            " fails."
        )

    def _picture(self, tag: str, views: Mapping[str, tuple[list[Score], int]], truth: Tensor) -> Picture:
        """Draw the image grid of a run; its files are named after the attack, its title adds the prior and the unit."""
        prior = f" with tv={self.tv:g}" if self.attack == "ig" else ""
        picture = draw_images(f"Images found by {self.attack}{prior}{tag}, PSNR in dB", views, truth)
        return replace(picture, name=stem(f"Images found by {self.attack}{tag}"))

    def _attack_run(self, run: Finished, label: str) -> tuple[dict[str, tuple[list[Score], int]], Tensor, list[str]]:
        """Return (scores of each view with its count of visible numbers, true images [N, C, H, W], notes)."""
        pixels, federation = pixels_of(run, "gradient inversion"), run.federation
        if not federation.task.has_classes:
            raise ConfigError(f"gradient inversion needs a classification, and {label} is a {federation.task.kind}.")
        if not 0 <= self.client < federation.clients:
            raise ConfigError(
                f"inversion.client is {self.client}; clients of {label} are 0 to {federation.clients - 1}."
            )
        held = federation.training(self.client)[: self.images]
        if len(held) < self.images:
            raise ConfigError(
                f"inversion.images is {self.images}, and client {self.client} of {label} has {len(held)} training"
                " images; ask for fewer."
            )
        x, y = federation.train.take(held), federation.train.y[held]
        model = model_of(run, self.at)
        truth = pixels.restore(x)
        views: dict[str, tuple[list[Score], int]] = {}
        for start in range(0, self.images, self.batch):
            chosen = slice(start, start + self.batch)
            for name, visible in self._views(run, model, x[chosen], y[chosen]).items():
                scores, _ = views.setdefault(name, ([], sum(t.numel() for t in visible.gradient.values())))
                labels = self._labels(visible, y[chosen], run.engine.worker.bound.head_name)
                parameters = [attrgetter(n)(model) for n in visible.gradient]
                observed = list(visible.gradient.values())
                shape, classes = truth[chosen].shape, federation.task.classes
                target = Target(model, parameters, observed, visible.direction, pixels, shape, classes, labels)
                scores += self._invert(target, truth[chosen], y[chosen], start)
        grey = torch.full_like(truth[0], 0.5)
        layout = run.engine.parts.setup.layout
        notes = []
        if "groups" in self.visible:
            notes = left_out(layout, groups_of(layout, frozenset(gradients(model, layout, x[:1], y[:1]))))
        views[GREY] = [Score(psnr(grey, t), psnr(grey, t), ssim(grey, t), False, grey) for t in truth], 0
        return views, truth, notes

    def _views(self, run: Finished, model: nn.Module, x: Tensor, y: Tensor) -> dict[str, VisibleGradient]:
        """Return the visible gradients of a batch, by name."""
        layout = run.engine.parts.setup.layout
        gradient = gradients(model, layout, x, y)
        views: dict[str, VisibleGradient] = {}
        for name in self.visible:
            if name == "full":
                views[name] = VisibleGradient(gradient)
            elif name == "sign":
                views[name] = VisibleGradient({n: g.sign() for n, g in gradient.items()}, direction=True)
            else:
                shown = groups_of(layout, frozenset(gradient))
                for group in shown if name == "groups" else [name]:
                    inside = layout.group(group)
                    if group not in shown:
                        raise ConfigError(
                            f"inversion.visible has {group}, which this network does not use, so it is not sent; use"
                            f" {shown}."
                        )
                    views[f"only {group}"] = VisibleGradient({n: g for n, g in gradient.items() if n in inside})
        if self.codec is not None:
            views[f"codec {self.codec}"] = encoded(run, self.codec, gradient, self.client)
        return views

    def _invert(self, target: Target, truth: Tensor, y: Tensor, start: int) -> list[Score]:
        """Attack one batch; images are matched to the true ones by the least total error."""
        pixels = target.pixels
        kept: tuple[Guess, list[float]] | None = None
        for attempt in range(self.restarts):
            # every view starts from the same image
            generator = random_streams.torch_stream(self.seed, "inversion", start, attempt)
            best = [0.0] * len(truth)

            def watch(x: Tensor, best: list[float] = best) -> None:
                image = pixels.restore(x)
                for k, at in enumerate(matched(image, truth)):
                    best[k] = max(best[k], psnr(image[at], truth[k]))

            guess = Guess(watch)
            if self.attack == "dlg":
                dlg(target, generator, self.steps or PUBLISHED["dlg"], guess)
            else:
                inverting(target, generator, self.steps or PUBLISHED["ig"], guess, self.tv)
            if len(guess.x) and (kept is None or guess.loss < kept[0].loss):
                kept = guess, best
        return score_batch(kept, pixels, truth, y, known=self.label == "known")

    def _labels(self, visible: VisibleGradient, y: Tensor, head: str) -> Tensor | None:
        """Return the labels that the attack uses, given or inferred from the head's gradient; None to optimise them."""
        if self.label == "known":
            return y
        weight = visible.gradient.get(f"{head}.weight")
        if self.attack == "dlg" or len(y) > 1 or weight is None:
            return None
        return label_of(weight, visible.gradient.get(f"{head}.bias"))


def model_of(run: Finished, at: str) -> nn.Module:
    """Return the served or the initial model as a plain module in evaluation mode."""
    if at == "end":
        return run.module()
    engine = run.engine
    return plain(
        engine.worker, engine.parts.setup.model, run.federation.task, batch_statistics=engine.evaluator.batch_statistics
    )


def gradients(model: nn.Module, layout: Layout, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Compute the gradient of the mean cross-entropy of a batch, by parameter that the network uses."""
    names = layout.spec.names
    grads = torch.autograd.grad(
        nn.functional.cross_entropy(model(x), y), [attrgetter(n)(model) for n in names], allow_unused=True
    )
    return {name: grad for name, grad in zip(names, grads, strict=True) if grad is not None}


def encoded(run: Finished, text: str, gradient: Mapping[str, Tensor], client: int) -> VisibleGradient:
    """Return an update of one plain step after the uploads of a chain, as a gradient.

    Raises:
        ConfigError: no method of the chain changes uploads.
    """
    chain = method(text)
    if not chain.has("upload", "compress"):
        raise ConfigError(
            f"inversion.codec is {text!r}, and none of its methods changes what is sent; name one that does, or leave"
            " codec out."
        )
    engine = run.engine
    task = replace(engine.serving.task_of(client, run.served), client_state=None, down_payload={})
    update = ClientUpdate(replace(engine.worker, method=chain), task)
    received = update.context.received
    plain = delta = Params.of({n: -task.lr * gradient.get(n, torch.zeros_like(t)) for n, t in received.items()})
    outcome = Trained(received.new(received.flat + delta.flat), opt_state=None, loss=0.0)
    for name, piece in chain.named.items():
        try:
            delta, _, state = piece.upload(delta, update.at(name, _outcome=outcome))
            update.states[name] = State(state)
        except KeyError as error:
            raise ConfigError(
                f"inversion.codec is {text!r}, and the upload of {name} needs {error} of a whole run; leave it out of"
                " codec."
            ) from None
    owner = chain.owner("compress")
    delta = owner.compress(delta, update.at(owner.name, _outcome=outcome)) if owner.overrides("compress") else delta
    if delta.spec == plain.spec and torch.equal(delta.flat, plain.flat):
        raise ConfigError(
            f"inversion.codec is {text!r}, which sends this update unchanged; name a method that changes it, or leave"
            " codec out."
        )
    return VisibleGradient({n: -t for n, t in delta.items() if n in gradient}, direction=True)


def matched(images: Tensor, truth: Tensor) -> list[int]:
    """Match an image to each true one by the least total squared error; both [B, C, H, W]."""
    if len(truth) == 1:
        return [0]
    costs = (truth[:, None] - images[None]).square().flatten(2).mean(2)  # [B, B]
    return [int(k) for k in linear_sum_assignment(costs.numpy())[1]]


def score_batch(
    kept: tuple[Guess, list[float]] | None, pixels: Pixels, truth: Tensor, y: Tensor, *, known: bool
) -> list[Score]:
    """Compute the scores of one batch; an attack without a finite image scores as grey."""
    if kept is None:
        grey = torch.full_like(truth, 0.5)
        return [Score(psnr(g, t), psnr(g, t), ssim(g, t), known, g) for g, t in zip(grey, truth, strict=True)]
    guess, best = kept
    images = pixels.restore(guess.x).clamp(0, 1)
    order = matched(images, truth)
    return [
        Score(
            psnr(images[at], truth[k]), best[k], ssim(images[at], truth[k]), bool(guess.labels[at] == y[k]), images[at]
        )
        for k, at in enumerate(order)
    ]


def summary(scores: Sequence[Score], count: int) -> dict[str, float | None]:
    """Compute means over images, the standard deviation of the final PSNR, and the count of visible numbers."""
    final = [s.final for s in scores]
    spread = statistics.stdev(final) if len(final) > 1 else None
    return {
        "psnr": round(math.fsum(final) / len(final), 4),
        "psnr_deviation": None if spread is None else round(spread, 4),
        "best_psnr": round(statistics.fmean(s.best for s in scores), 4),
        "ssim": round(statistics.fmean(s.ssim for s in scores), 6),
        "labels": statistics.fmean(float(s.label) for s in scores),
        "numbers": count,
    }


def draw_images(title: str, views: Mapping[str, tuple[list[Score], int]], truth: Tensor) -> Picture:
    """Draw true images above their reconstructions, one row for each view, with the PSNR below each image."""
    shown = min(SHOWN, len(truth))
    rows: list[list[Tensor | None]] = [list(truth[:shown])]
    values: list[list[float | None]] = [[None] * shown]
    attacked = {name: scores for name, (scores, _) in views.items() if name != GREY}
    rows += [[s.image for s in scores[:shown]] for scores in attacked.values()]
    values += [[s.final for s in scores[:shown]] for scores in attacked.values()]
    return image_grid(
        title, rows, ["original", *attacked], [f"image {k + 1}" for k in range(shown)], values, "PSNR (dB)"
    )
