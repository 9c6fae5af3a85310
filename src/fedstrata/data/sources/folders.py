"""Folders of pictures, read a batch at a time: ``class/file``, below clients or domains where there are such.

And official Tiny ImageNet.
"""

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
from fedstrata.data.io.samples import affine
from fedstrata.data.location import Place, written
from fedstrata.data.sources.images import Norm, channel_norm, checked_side, dark_of, image_source, read_packs
from fedstrata.data.types import Groups, Source, Task

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
Layout = Literal["class/file", "client/class/file", "domain/class/file", "domain/images/class/file"]


@dataclass(frozen=True, eq=False)
class Files:
    """Pictures on disk, decoded when they are taken.

    The shorter side is resized (antialiased, bilinear) and the middle square is cut out, so that every sample has one
    shape.

    Args:
        paths: one file a sample.
        y: [N] int64.
        size: side in pixels.
        mean: [C] in units of [0, 1] pixels; C is 1 (grey) or 3.
        std: [C].
        resize: the shorter side before the cut, at least ``size``; 0 means ``size``.
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
        for place, row in enumerate(index.tolist()):
            batch[place] = fit.fitted(self.paths[row])
        scale, shift = affine(self.mean, self.std)
        return (
            torch.from_numpy(batch).permute(0, 3, 1, 2).contiguous().float().mul_(scale).add_(shift)
        )  # [B, C, size, size]

    @property
    def fit(self) -> Pictures:
        """How a file becomes a sample, as further ones will."""
        return Pictures(self.size, self.size, self.mean, self.std, resize=self.resize)


@dataclass(frozen=True)
class _Found:
    """One picture of a tree: its group ("" for layout ``class/file``), class and file."""

    group: str
    label: str
    path: Path


def children(folder: Path, root: Path) -> list[Path]:
    """Entries of a folder by name, without hidden ones.

    Raises:
        DataError: a link to a folder, or a link that leaves the root: neither is followed.
    """
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    for entry in entries:
        if entry.is_symlink() and (not entry.resolve().is_relative_to(root) or not entry.is_file()):
            raise DataError(
                f"{entry} is a link to {entry.readlink()}; links to folders, and links that leave {root}, are not"
                " followed. Copy what it means."
            )
    return entries


def scan(root: Path, layout: Layout) -> tuple[list[_Found], int]:
    """All pictures below a folder, sorted, and the number of files passed over (hidden ones apart).

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
    found, empty, other = [], [], 0
    for group in groups:
        if not (root / group / inner).is_dir():
            raise DataError(
                f"{root / group} holds no folder {inner}, which layout {layout} has in every domain; say"
                " layout='domain/class/file'."
            )
        for folder in (entry for entry in children(root / group / inner, root) if entry.is_dir()):
            files = children(folder, root)
            pictures = [file for file in files if file.is_file() and file.suffix.lower() in PICTURES]
            other += len(files) - len(pictures)
            found += [_Found(str(group) if layout != "class/file" else "", folder.name, file) for file in pictures]
            if not pictures:
                empty.append(folder)
    known = {one.label for one in found}
    for folder in empty:  # a client may lack a class; a class may not lack all pictures
        if folder.name not in known and not _nested(folder):
            raise DataError(
                f"{folder} holds no picture ({', '.join(PICTURES[:4])}, ...); remove the folder, or put the class's"
                " pictures there."
            )
        if folder.name not in known:
            raise DataError(f"{folder} holds folders of pictures, and no picture itself; {_deeper(layout, folder)}.")
    if not found:
        flatter = "; say layout='class/file'" if layout != "class/file" and _nested(root) else "; check path and layout"
        raise DataError(f"{root} holds no pictures by layout {layout}{flatter}.")
    return found, other


def _deeper(layout: Layout, folder: Path) -> str:
    if layout == "class/file":
        return "say layout='client/class/file' (or 'domain/class/file')"
    return (
        "say layout='domain/images/class/file'"
        if folder.name == "images"
        else f"by layout {layout} they lie a level too deep"
    )


def _nested(folder: Path) -> bool:
    """Whether folders in it hold pictures."""
    return any(file.suffix.lower() in PICTURES for file in folder.glob("*/*"))


@dataclass(frozen=True)
class Folder:
    """Pictures in folders.

    Args:
        path: the folder; if it holds ``train`` and ``test`` (or ``val``), these are the two sets, else a fixed share of
            every (group, class) is the test set.
        layout: "class/file", "client/class/file", "domain/class/file", or "domain/images/class/file", where each domain
            holds its classes in a folder that is called images, as in Office-31's archive.
        size: side in pixels after resizing the shorter side and cutting out the middle.
        resize: the shorter side before the cut; None is ``size``. ImageNet's usual 224 of 256 is size=224, resize=256.
        channels: 3, or 1 for grey.
        norm: a row of ``NORMS``.
        test: share for the test set where the folder has no split of its own, in (0, 1).
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
                f"data folder: resize is {self.resize} and size {self.size}; the middle is cut out of what was resized,"
                " so resize >= size."
            )
        if not 0 < self.test < 1:
            raise ConfigError(f"data folder: test is {self.test}; it is a share, in (0, 1), such as 0.2.")

    def read(self, place: Place) -> Source:
        """See :class:`Reader`."""
        root = place.file("folder", self.path)
        if not root.is_dir():
            raise DataError(f"data folder: {root} is a file; path is a folder of class folders.")
        split = next((name for name in ("test", "val") if (root / name).is_dir() and (root / "train").is_dir()), None)
        found, other = scan(root / "train" if split else root, self.layout)
        if split:
            tested, more = scan(root / split, self.layout)
            late = np.repeat([False, True], [len(found), len(tested)])
            found, other = found + tested, other + more
        else:
            late = self._late(found)
        notes = (f"folder: {other} files are no pictures and were passed over.",) if other else ()
        content = sha256(
            "".join(f"{one.group}/{one.label}/{one.path.name} {one.path.stat().st_size}\n" for one in found).encode()
        )
        return self._source(
            found, late, notes, written("folder", replace(self, path=str(root.resolve()))), content.hexdigest()
        )

    def _late(self, found: list[_Found]) -> np.ndarray:
        cells = np.unique([f"{one.group}/{one.label}" for one in found], return_inverse=True)[1].astype(np.int64)
        return mask_by(cells, lambda n: min(int(self.test * n + 0.5), n - 1), stream(0, "folder-test"))

    def _source(self, found: list[_Found], late: np.ndarray, notes: tuple[str, ...], name: str, content: str) -> Source:
        names, codes = np.unique([one.label for one in found], return_inverse=True)
        mean, std = channel_norm(self.norm, self.channels)
        sets = []
        for mask in (~late, late):
            rows = np.flatnonzero(mask)
            sets.append(
                Files(
                    tuple(found[r].path for r in rows),
                    torch.from_numpy(codes[rows].astype(np.int64)),
                    self.size,
                    mean,
                    std,
                    self.resize or 0,
                )
            )
        if missing := sorted(set(names) - {found[r].label for r in np.flatnonzero(~late)}):
            raise DataError(
                f"data folder: class {missing[0]} has no training picture; every class of the test folder must be in"
                " the train folder."
            )
        groups = {}
        if self.layout != "class/file":
            known, owner = np.unique([one.group for one in found], return_inverse=True)
            groups[self.layout.split("/")[0]] = Groups(
                tuple(map(str, known)), owner[~late].astype(np.int64), owner[late].astype(np.int64)
            )
        labels = tuple(str(label) for label in names)
        task = Task("classification", (self.channels, self.size, self.size), len(labels), labels)
        identity = (
            f"folder(layout={self.layout}, size={self.size}, resize={self.resize}, channels={self.channels},"
            f" norm={self.norm}, test={self.test}) {content}"
        )
        test = sets[1] if len(sets[1]) else None
        preprocessor = replace(sets[0].fit, classes=len(labels))
        dark = dark_of(mean, std)
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
    """The official ``tiny-imagenet-200`` folder, or one with fewer classes in ``wnids.txt``; ``val`` is the test set.

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
        name, task, first, second, dark=dark_of(mean, std), preprocessor=replace(first.fit, classes=len(known))
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
