"""Prepare pictures: files of any size, or bytes in an array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fedstrata.common.errors import DataError
from fedstrata.data.inputs.base import InputPreprocessor, PreparedInputs, prepare
from fedstrata.data.io.checks import finite_features, float32
from fedstrata.data.io.formats import open_picture
from fedstrata.data.io.normalization import affine
from fedstrata.data.io.samples import Images

Fit = Literal["crop", "stretch"]


@dataclass(frozen=True)
class Pictures(InputPreprocessor):
    """Pictures, normalised as in training.

    Attributes:
        height, width: of a sample.
        mean, std: [C] in units of [0, 1] pixels; C is 1 (grey) or 3.
        classes: of the task.
        resize: the shorter side before the centre crop; 0 is the side of the sample.
        fit: "crop" resizes (antialiased, bilinear) and crops the centre; "stretch" resizes to the exact shape
            (bicubic).
    """

    height: int
    width: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: int = 0
    resize: int = 0
    fit: Fit = "crop"

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        return len(self.mean), self.height, self.width

    @property
    def accepts(self) -> str:
        """Describe the accepted input."""
        shape = ", ".join(map(str, self.shape))
        return (
            f"pictures (a file or a folder), or arrays (.npy, .npz) of shape [N, {shape}]: uint8 pixels, or floats that"
            " are normalised already"
        )

    def pictures(
        self, files: Sequence[Path], names: Sequence[str], labels: Sequence[int] | None, where: str
    ) -> PreparedInputs:
        """See :meth:`InputPreprocessor.pictures`."""
        if len(self.mean) not in (1, 3):
            raise DataError(
                f"{where}: pictures are read in grey or RGB, and this model reads {len(self.mean)} channels; give an"
                " array (.npy, .npz)."
            )
        y = (
            torch.tensor(labels, dtype=torch.int64)
            if labels is not None
            else torch.zeros(len(files), dtype=torch.int64)
        )
        return PreparedInputs(_PictureFiles(self, tuple(files), y), tuple(names), labelled=labels is not None)

    def array(self, x: NDArray[Any], y: NDArray[Any] | None, where: str) -> PreparedInputs:
        """See :meth:`InputPreprocessor.array`."""
        if tuple(x.shape[1:]) != self.shape or not len(x):
            raise DataError(f"{where} has shape {list(x.shape)}; this model accepts {self.accepts}, at least one.")
        if x.dtype == np.uint8:
            prepared = prepare(torch.from_numpy(np.ascontiguousarray(x)), y, self.classes, where)
            return PreparedInputs(
                Images(torch.from_numpy(np.ascontiguousarray(x)), prepared.samples.y, self.mean, self.std),
                prepared.names,
                prepared.labelled,
            )
        if x.dtype.kind != "f":
            raise DataError(f"{where} holds {x.dtype}; this model accepts {self.accepts}.")
        floats = torch.from_numpy(float32(x))
        finite_features(floats, where)
        return prepare(floats, y, self.classes, where)

    def read_picture(self, path: Path) -> NDArray[np.uint8]:
        """Decode and resize one picture: bytes [H, W, C].

        Raises:
            DataError: not a picture, or damaged.
        """
        channels = len(self.mean)
        picture = open_picture(path, channels, str(path))
        if self.fit == "stretch":
            picture = (
                picture if picture.size == (self.width, self.height) else picture.resize((self.width, self.height))
            )
            return np.asarray(picture).reshape(self.height, self.width, channels)
        least = max(self.height, self.width)
        ratio = (self.resize or least) / min(picture.size)
        fits = not self.resize and picture.size == (self.width, self.height)
        if ratio != 1 and not fits:
            sides = [max(least, round(side * ratio)) for side in picture.size]
            picture = picture.resize((sides[0], sides[1]), Image.Resampling.BILINEAR)
        left, top = (picture.width - self.width) // 2, (picture.height - self.height) // 2
        return np.asarray(picture.crop((left, top, left + self.width, top + self.height))).reshape(
            self.height, self.width, channels
        )

    def facts(self) -> dict[str, Any]:
        """See :meth:`InputPreprocessor.facts`."""
        cut = (
            f"the shorter side becomes {self.resize or max(self.height, self.width)} pixels (bilinear, antialiased) and"
            " the middle is cut out"
        )
        return {
            "kind": "image",
            "takes": self.accepts,
            "fit": cut if self.fit == "crop" else f"resized to {self.width} x {self.height} pixels (bicubic)",
            "normalisation": {
                "rule": "(byte / 255 - mean) / std, by channel",
                "mean": list(self.mean),
                "std": list(self.std),
            },
        }


@dataclass(frozen=True, eq=False)
class _PictureFiles:
    """Picture files, decoded when they are read."""

    preprocessor: Pictures
    paths: tuple[Path, ...]
    y: Tensor
    lazy: bool = field(default=True, init=False)

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, index: Tensor) -> Tensor:
        """See :class:`fedstrata.data.io.samples.Samples`."""
        batch = np.stack([self.preprocessor.read_picture(self.paths[row]) for row in index.tolist()])
        scale, shift = affine(self.preprocessor.mean, self.preprocessor.std)
        return torch.from_numpy(batch).permute(0, 3, 1, 2).contiguous().float().mul_(scale).add_(shift)  # [B, C, H, W]
