"""Read folders of pictures, a batch at a time: ``class/file``, optionally below clients or domains; Tiny ImageNet."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedstrata.common.errors import ConfigError, DataError
from fedstrata.common.random_streams import stream
from fedstrata.data.inputs.images import Pictures
from fedstrata.data.io.checks import mask_by
from fedstrata.data.io.formats import required
from fedstrata.data.io.normalization import Norm, affine, black_value, channel_norm
from fedstrata.data.location import Place, written
from fedstrata.data.source import Source
from fedstrata.data.sources.images import checked_side, image_source, read_packs
from fedstrata.data.types import Groups, Task

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
Layout = Literal["class/file", "client/class/file", "domain/class/file", "domain/images/class/file"]


@dataclass(frozen=True, eq=False)
class Files:
    """Picture files, decoded when they are read.

    The shorter side is resized (antialiased, bilinear) and the centre is cropped: every sample has the same shape.

    Args:
        paths: one file for each sample.
        y: [N] int64.
        size: side in pixels.
        mean: [C] in units of [0, 1] pixels; C is 1 (grey) or 3.
        std: [C].
        resize: the shorter side before the crop, at least ``size``; 0 means ``size``.
    """

    paths: tuple[Path, ...]
    y: Tensor
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: int = 0
    lazy: bool = field(default=True, init=False)

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, index: Tensor) -> Tensor:
        """See :class:`Samples`."""
        fit = self.fit
        batch = np.empty((len(index), self.size, self.size, len(self.mean)), dtype=np.uint8)
        for i, row in enumerate(index.tolist()):
            batch[i] = fit.read_picture(self.paths[row])
        scale, shift = affine(self.mean, self.std)
        return (
            torch.from_numpy(batch).permute(0, 3, 1, 2).contiguous().float().mul_(scale).add_(shift)
        )  # [B, C, size, size]

    @property
    def fit(self) -> Pictures:
        """How a file is turned into a sample; further files are prepared alike."""
        return Pictures(self.size, self.size, self.mean, self.std, resize=self.resize)


@dataclass(frozen=True)
class _Picture:
    """One picture of a tree: its group ("" for layout ``class/file``), class and file."""

    group: str
    label: str
    path: Path


def children(folder: Path, root: Path) -> list[Path]:
    """List the entries of a folder by name, without hidden ones.

    Raises:
        DataError: a link to a folder, or a link that leaves the root: neither is followed.
    """
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    for entry in entries:
        if entry.is_symlink() and (not entry.resolve().is_relative_to(root) or not entry.is_file()):
            raise DataError(
                f"{entry} is a link to {entry.readlink()}; links to folders, and links that leave {root}, are not"
                " followed. Copy the target instead."
            )
    return entries


def scan(root: Path, layout: Layout) -> tuple[list[_Picture], int]:
    """List all pictures below a folder, sorted, and count the other files (hidden ones apart).

    Raises:
        DataError: a class folder without pictures, no picture at all, or links that are not followed.
    """
    root = root.resolve()
    groups = (
        [Path()]
        if layout == "class/file"
        else [Path(folder.name) for folder in children(root, root) if folder.is_dir()]
    )
    inner = "images" if layout == "domain/images/class/file" else ""
    entries_found, empty, other = [], [], 0
    for group in groups:
        if not (root / group / inner).is_dir():
            raise DataError(
                f"{root / group} holds no folder {inner}, which layout {layout} needs in every domain; set"
                " layout='domain/class/file'."
            )
        for folder in (entry for entry in children(root / group / inner, root) if entry.is_dir()):
            files = children(folder, root)
            pictures = [file for file in files if file.is_file() and file.suffix.lower() in PICTURES]
            other += len(files) - len(pictures)
            entries_found += [
                _Picture(str(group) if layout != "class/file" else "", folder.name, file) for file in pictures
            ]
            if not pictures:
                empty.append(folder)
    known = {one.label for one in entries_found}
    for folder in empty:  # a client may lack a class; a class may not lack all pictures
        if folder.name not in known and not _nested(folder):
            raise DataError(
                f"{folder} holds no picture ({', '.join(PICTURES[:4])}, ...); remove the folder, or put the class's"
                " pictures there."
            )
        if folder.name not in known:
            raise DataError(f"{folder} holds folders of pictures, and no picture itself; {_deeper(layout, folder)}.")
    if not entries_found:
        flatter = "; set layout='class/file'" if layout != "class/file" and _nested(root) else "; check path and layout"
        raise DataError(f"{root} holds no pictures by layout {layout}{flatter}.")
    return entries_found, other


def _deeper(layout: Layout, folder: Path) -> str:
    if layout == "class/file":
        return "set layout='client/class/file' (or 'domain/class/file')"
    return (
        "set layout='domain/images/class/file'"
        if folder.name == "images"
        else f"by layout {layout} they are a level too deep"
    )


def _nested(folder: Path) -> bool:
    """Whether subfolders hold pictures."""
    return any(file.suffix.lower() in PICTURES for file in folder.glob("*/*"))


@dataclass(frozen=True)
class Folder:
    """Pictures in folders.

    Args:
        path: the folder; if it holds ``train`` and ``test`` (or ``val``), these are the two sets, else a fixed share of
            every (group, class) is the test set.
        layout: "class/file", "client/class/file", "domain/class/file", or "domain/images/class/file", where each domain
            holds its classes in a folder that is called images, as in Office-31's archive.
        size: side in pixels after resizing the shorter side and cropping the centre.
        resize: the shorter side before the crop; None is ``size``. ImageNet's usual 224 of 256 is size=224, resize=256.
        channels: 3, or 1 for grey.
        norm: a row of ``NORMS``.
        test: share for the test set where the folder has no split, in (0, 1).
    """

    path: str
    layout: Layout = "class/file"
    size: int = 64
    resize: int | None = None
    channels: Literal[1, 3] = 3
    norm: Norm = "half"
    test: float = 0.2

    def __post_init__(self) -> None:
        checked_side("folder", self.size)
        if self.resize is not None and self.resize < self.size:
            raise ConfigError(
                f"data folder: resize is {self.resize} and size {self.size}; the centre is cropped from the resized"
                " picture; set resize >= size."
            )
        if not 0 < self.test < 1:
            raise ConfigError(f"data folder: test is {self.test}; it is a share, in (0, 1), such as 0.2.")

    def read(self, place: Place) -> Source:
        """See :class:`Reader`."""
        root = place.file("folder", self.path)
        if not root.is_dir():
            raise DataError(f"data folder: {root} is a file; path is a folder of class folders.")
        split = next((name for name in ("test", "val") if (root / name).is_dir() and (root / "train").is_dir()), None)
        entries_found, other = scan(root / "train" if split else root, self.layout)
        if split:
            tested, more = scan(root / split, self.layout)
            is_test = np.repeat([False, True], [len(entries_found), len(tested)])
            entries_found, other = entries_found + tested, other + more
        else:
            is_test = self._draw_test(entries_found)
        notes = (f"folder: {other} files are not pictures and were skipped.",) if other else ()
        content = sha256(
            "".join(
                f"{one.group}/{one.label}/{one.path.name} {one.path.stat().st_size}\n" for one in entries_found
            ).encode()
        )
        return self._source(
            entries_found,
            is_test,
            notes,
            written("folder", replace(self, path=str(root.resolve()))),
            content.hexdigest(),
        )

    def _draw_test(self, entries_found: list[_Picture]) -> np.ndarray:
        cells = np.unique([f"{one.group}/{one.label}" for one in entries_found], return_inverse=True)[1].astype(
            np.int64
        )
        return mask_by(cells, lambda n: min(int(self.test * n + 0.5), n - 1), stream(0, "folder-test"))

    def _source(
        self, entries_found: list[_Picture], is_test: np.ndarray, notes: tuple[str, ...], name: str, content: str
    ) -> Source:
        names, codes = np.unique([one.label for one in entries_found], return_inverse=True)
        mean, std = channel_norm(self.norm, self.channels)
        sets = []
        for mask in (~is_test, is_test):
            rows = np.flatnonzero(mask)
            sets.append(
                Files(
                    tuple(entries_found[r].path for r in rows),
                    torch.from_numpy(codes[rows].astype(np.int64)),
                    self.size,
                    mean,
                    std,
                    self.resize or 0,
                )
            )
        if missing := sorted(set(names) - {entries_found[r].label for r in np.flatnonzero(~is_test)}):
            raise DataError(
                f"data folder: class {missing[0]} has no training picture; every class of the test folder must be in"
                " the train folder."
            )
        groups = {}
        if self.layout != "class/file":
            known, owner = np.unique([one.group for one in entries_found], return_inverse=True)
            groups[self.layout.split("/")[0]] = Groups(
                tuple(map(str, known)), owner[~is_test].astype(np.int64), owner[is_test].astype(np.int64)
            )
        labels = tuple(str(label) for label in names)
        task = Task("classification", (self.channels, self.size, self.size), len(labels), labels)
        identity = (
            f"folder(layout={self.layout}, size={self.size}, resize={self.resize}, channels={self.channels},"
            f" norm={self.norm}, test={self.test}) {content}"
        )
        test = sets[1] if len(sets[1]) else None
        preprocessor = replace(sets[0].fit, classes=len(labels))
        dark = black_value(mean, std)
        return Source(
            name,
            task,
            sets[0],
            test,
            groups,
            natural=bool(groups),
            dark=dark,
            notes=notes,
            preprocessor=preprocessor,
            identity=identity,
        )


def tiny_folder(root: Path, size: int, norm: str, name: str) -> Source:
    """Read the official ``tiny-imagenet-200`` folder, or one with fewer classes; ``val`` is the test set.

    Raises:
        DataError: missing pictures or annotations.
    """
    wnids = (root / "wnids.txt").read_text().split()
    notes = root / "val" / "val_annotations.txt"
    if not notes.exists():
        raise DataError(f"{notes} is missing; the official archive tiny-imagenet-200.zip holds it.")
    known = {wnid: code for code, wnid in enumerate(sorted(wnids))}
    base = root.resolve()
    train = [(file, code) for wnid, code in known.items() for file in children(root / "train" / wnid / "images", base)]
    rows = [line.split("\t") for line in notes.read_text().splitlines() if line]
    val = [(root / "val" / "images" / row[0], known[row[1]]) for row in rows if row[1] in known]
    if not train or not val:
        raise DataError(
            f"{root}: {len(train)} training and {len(val)} validation pictures were found for {len(known)} classes;"
            " both are needed."
        )
    mean, std = channel_norm(norm, 3)
    first, second = (
        Files(tuple(p for p, _ in part), torch.tensor([c for _, c in part]), size, mean, std) for part in (train, val)
    )
    task = Task("classification", (3, size, size), len(known), tuple(sorted(wnids)))
    return Source(
        name, task, first, second, dark=black_value(mean, std), preprocessor=replace(first.fit, classes=len(known))
    )


@dataclass(frozen=True)
class TinyImagenet:
    """Tiny ImageNet or any subset of its classes: the .npz pack, or the official folder (read lazily).

    Args:
        size: side in pixels; other than 64 resizes with a box filter.
        norm: a row of :data:`NORMS`; FedPart uses cifar100.
    """

    size: int = 64
    norm: Norm = "imagenet"

    def read(self, place: Place) -> Source:
        """See :class:`Reader`."""
        checked_side("tiny_imagenet", self.size)
        places = ("tiny_imagenet", "tiny_imagenet_sub", "tiny-imagenet-200")
        folder, file = place.folder("tiny_imagenet", places, ("train.npz", "wnids.txt"))
        name = f"tiny_imagenet(size={self.size}, norm={self.norm})"
        if file == "wnids.txt":
            return tiny_folder(folder, self.size, self.norm, name)
        train, test, (first, _), names = read_packs(folder, self.norm, self.size)
        required(first, "wnids", folder / "train.npz")  # what no other set has
        return image_source(name, train, test, names, {})
