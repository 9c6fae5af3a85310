"""Read image data sets into memory: the .npz stacks, the official IDX and CIFAR files, and Debian's Fashion-MNIST.

``norm`` names a row of :data:`~fedstrata.data.io.normalization.NORMS`; "raw" leaves pixels in [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fedstrata.common.errors import ConfigError, DataError
from fedstrata.data.inputs.images import Fit, Pictures
from fedstrata.data.io.checks import class_labels
from fedstrata.data.io.formats import Bytes, Table, packed_pictures, read_cifar, read_idx, required
from fedstrata.data.io.normalization import Norm, black_value, channel_norm
from fedstrata.data.io.samples import Images
from fedstrata.data.location import Place
from fedstrata.data.source import Source
from fedstrata.data.types import Groups, Task

DEBIAN_FASHION = Path("/usr/share/datasets/fashion-mnist")
IDX = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
IDX_FILES = ("train-images-idx3-ubyte", "train-images-idx3-ubyte.gz")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def image_set(pixels: Bytes, labels: np.ndarray, names: tuple[str, ...], norm: str, where: str) -> Images:
    """Build a set of images with checked labels.

    Raises:
        DataError: labels out of range, or another number of labels than images.
    """
    if len(pixels) != len(labels):
        raise DataError(f"{where}: {len(pixels)} images and {len(labels)} labels.")
    mean, std = channel_norm(norm, pixels.shape[1])
    return Images(torch.from_numpy(pixels), class_labels(labels, len(names), where), mean, std)


def image_source(
    name: str,
    train: Images,
    test: Images,
    names: tuple[str, ...],
    groups: dict[str, Groups],
    notes: tuple[str, ...] = (),
    fit: Fit = "crop",
) -> Source:
    """Build a source of two image sets of the same shape; ``fit`` defines how further pictures get it."""
    task = Task("classification", tuple(train.x.shape[1:]), len(names), names)
    _, height, width = task.shape
    preprocessor = Pictures(height, width, train.mean, train.std, len(names), fit=fit)
    return Source(
        name, task, train, test, groups, dark=black_value(train.mean, train.std), notes=notes, preprocessor=preprocessor
    )


def expect(train: Images, shape: tuple[int, ...], classes: int, data: str, folder: Path) -> None:
    """Refuse the files of another data set, which a wrong root may hold.

    Raises:
        DataError: another image shape or number of classes than the set has.
    """
    actual, most = tuple(train.x.shape[1:]), int(train.y.max()) + 1
    if actual != shape or most > classes:
        raise DataError(
            f"{folder} holds images {actual} with {most} classes; {data} has {shape} with {classes}. Does data.root"
            " point to"
            " another set?"
        )


def _from_idx(folder: Path, names: tuple[str, ...], norm: str) -> tuple[Images, Images]:
    sets = []
    for pictures, labels in (IDX["train"], IDX["test"]):
        paths = [path if (path := folder / file).exists() else folder / f"{file}.gz" for file in (pictures, labels)]
        for path in paths:
            if not path.exists():
                raise DataError(f"{path} (or without .gz) is missing; the four IDX files belong together.")
        x, y = read_idx(paths[0]), read_idx(paths[1])
        if x.ndim != 3 or y.ndim != 1:
            raise DataError(f"{paths[0]} has {x.ndim} axes and {paths[1]} {y.ndim}; images have 3, labels 1.")
        sets.append(image_set(x[:, None], y, names, norm, str(paths[1])))
    return sets[0], sets[1]


def read_packs(
    folder: Path, norm: str, size: int | None = None
) -> tuple[Images, Images, tuple[Table, Table], tuple[str, ...]]:
    """Read train.npz and test.npz of a folder: both image sets, their other arrays, and the class names."""
    (x, first), (late_x, second) = (packed_pictures(folder / f"{part}.npz", size) for part in ("train", "test"))
    names = tuple(str(name) for name in required(first, "classes", folder / "train.npz"))
    if x.shape[1:] != late_x.shape[1:]:
        raise DataError(
            f"{folder}: training images are {x.shape[1:]} and test images {late_x.shape[1:]} (channels, height, width);"
            " they must agree."
        )
    train = image_set(x, required(first, "labels", folder / "train.npz"), names, norm, str(folder / "train.npz"))
    test = image_set(late_x, required(second, "labels", folder / "test.npz"), names, norm, str(folder / "test.npz"))
    return train, test, (first, second), names


def groups_by(train: np.ndarray, test: np.ndarray, names: tuple[str, ...] | None = None) -> Groups:
    """Build groups over both sets from ids, or from positions into ``names``."""
    if names is not None:
        return Groups(names, train.astype(np.int64), test.astype(np.int64))
    known, codes = np.unique(np.concatenate([train, test]), return_inverse=True)
    return Groups(
        tuple(str(k) for k in known), codes[: len(train)].astype(np.int64), codes[len(train) :].astype(np.int64)
    )


@dataclass(frozen=True)
class Mnist:
    """60,000 + 10,000 grey digits, 28x28.

    Args:
        norm: a row of :data:`NORMS`.
    """

    norm: Norm = "mnist"

    def read(self, place: Place) -> Source:
        """See :class:`Reader`."""
        folder, file = place.folder("mnist", ("mnist", "MNIST/raw"), ("train.npz", *IDX_FILES))
        if file != "train.npz":
            train, test = _from_idx(folder, tuple("0123456789"), self.norm)
            expect(train, (1, 28, 28), 10, "mnist", folder)
            return image_source(f"mnist(norm={self.norm})", train, test, tuple("0123456789"), {})
        train, test, (first, second), names = read_packs(folder, self.norm)
        expect(train, (1, 28, 28), 10, "mnist", folder)
        groups = (
            {"writer": groups_by(first["writer"], second["writer"])} if "writer" in first and "writer" in second else {}
        )
        return image_source(f"mnist(norm={self.norm})", train, test, names, groups)


@dataclass(frozen=True)
class FashionMnist:
    """60,000 + 10,000 grey pictures of clothes, 28x28; without a root, Debian's ``dataset-fashion-mnist`` is read.

    Args:
        norm: a row of :data:`NORMS`.
    """

    norm: Norm = "fashion_mnist"

    def read(self, place: Place) -> Source:
        """See :class:`Reader`."""
        names = ("fashion_mnist", "fashion-mnist", "FashionMNIST/raw")
        folder, file = place.folder("fashion_mnist", names, ("train.npz", *IDX_FILES), DEBIAN_FASHION)
        if file != "train.npz":
            train, test = _from_idx(folder, CLOTHES, self.norm)
            expect(train, (1, 28, 28), 10, "fashion_mnist", folder)
            return image_source(f"fashion_mnist(norm={self.norm})", train, test, CLOTHES, {})
        train, test, _, labels = read_packs(folder, self.norm)
        expect(train, (1, 28, 28), 10, "fashion_mnist", folder)
        return image_source(f"fashion_mnist(norm={self.norm})", train, test, labels, {})


@dataclass(frozen=True)
class Cifar10:
    """50,000 + 10,000 colour photographs, 32x32.

    Args:
        norm: a row of :data:`NORMS`; FedFN uses imagenet, FedPart raw.
    """

    norm: Norm = "cifar10"

    def read(self, place: Place) -> Source:
        """See :class:`Reader`."""
        name = f"cifar10(norm={self.norm})"
        folder, file = place.folder("cifar10", ("cifar10", "cifar-10-batches-bin"), ("train.npz", "data_batch_1.bin"))
        if file == "train.npz":
            train, test, (_, second), names = read_packs(folder, self.norm)
            expect(train, (3, 32, 32), 10, "cifar10", folder)
            lossy = int((~second["lossless"]).sum()) if "lossless" in second else 0
            notes = (
                (f"cifar10: {lossy} of {len(test)} test images are JPEG copies, not exact pixels.",) if lossy else ()
            )
            return image_source(name, train, test, names, {}, notes)
        batches = [read_cifar(folder / f"data_batch_{k}.bin", 1) for k in range(1, 6)]
        x, y = (np.concatenate(part) for part in zip(*batches, strict=True))
        late, late_y = read_cifar(folder / "test_batch.bin", 1)
        train = image_set(x, y[:, 0], CIFAR10, self.norm, str(folder / "data_batch_*.bin"))
        return image_source(
            name, train, image_set(late, late_y[:, 0], CIFAR10, self.norm, str(folder / "test_batch.bin")), CIFAR10, {}
        )


@dataclass(frozen=True)
class Cifar100:
    """50,000 + 10,000 colour photographs, 32x32, in 100 fine or 20 coarse classes; official binary files.

    Args:
        labels: fine, or coarse (FedPhoenix).
        norm: a row of :data:`NORMS`.
    """

    labels: Literal["fine", "coarse"] = "fine"
    norm: Norm = "cifar100"

    def read(self, place: Place) -> Source:
        """See :class:`Reader`."""
        name = f"cifar100(labels={self.labels}, norm={self.norm})"
        folder, file = place.folder("cifar100", ("cifar100", "cifar-100-binary"), ("train.bin", "train.npz"))
        if file == "train.npz":
            if self.labels == "coarse":
                raise DataError(
                    f"{folder / file} holds one label for each picture; labels=coarse needs the official train.bin and"
                    " test.bin."
                )
            train, test, _, names = read_packs(folder, self.norm)
            expect(train, (3, 32, 32), 100, "cifar100", folder)
            return image_source(name, train, test, names, {})
        column, count = (0, 20) if self.labels == "coarse" else (1, 100)
        listed = folder / f"{self.labels}_label_names.txt"
        names = tuple(listed.read_text().split()) if listed.exists() else tuple(str(c) for c in range(count))
        if len(names) != count:
            raise DataError(f"{listed} has {len(names)} names; {count} are expected.")
        sets: list[Images] = []
        for part in ("train.bin", "test.bin"):
            x, y = read_cifar(folder / part, 2)
            sets.append(image_set(x, y[:, column], names, self.norm, str(folder / part)))
        return image_source(name, sets[0], sets[1], names, {})


@dataclass(frozen=True)
class Pacs:
    """Pictures of 7 classes in 4 domains (photo, art_painting, cartoon, sketch), 64x64.

    Args:
        norm: a row of :data:`NORMS`.
        size: side in pixels; another than the stored one resizes with a box filter.
    """

    norm: Norm = "imagenet"
    size: int | None = None

    def read(self, place: Place) -> Source:
        """See :class:`Reader`."""
        folder, file = place.folder("pacs", ("pacs", "PACS"), ("train.npz",))
        train, test, (first, second), names = read_packs(folder, self.norm, checked_side("pacs", self.size))
        domains = tuple(str(name) for name in required(first, "domains", folder / file))
        groups = {
            "domain": groups_by(
                required(first, "domain", folder / file), required(second, "domain", folder / "test.npz"), domains
            )
        }
        return image_source(f"pacs(norm={self.norm}, size={self.size})", train, test, names, groups)


def checked_side(data: str, size: int | None) -> int | None:
    """Check a side in pixels.

    Raises:
        ConfigError: below 4 or above 1024.
    """
    if size is not None and not 4 <= size <= 1024:
        raise ConfigError(f"data {data}: size is {size}; it is a side in pixels, 4 to 1024.")
    return size
