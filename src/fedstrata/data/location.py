"""Find the files of data sets: ``data.root``, or the environment variable FEDSTRATA_DATA."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from fedstrata.common.call_syntax import shown
from fedstrata.common.errors import DataError
from fedstrata.data.source import Source

VARIABLE = "FEDSTRATA_DATA"


class Reader(Protocol):
    """A data set: a frozen record of its settings with one method."""

    def read(self, place: Place) -> Source:
        """Read the data."""
        ...


@dataclass(frozen=True)
class Place:
    """What a data set may know of the run: where files are, and how many clients.

    Attributes:
        root: folder that the user gave, or None.
        clients: number of clients that the user asked for; only generated federations use it.
    """

    root: Path | None = None
    clients: int | None = None

    def folder(
        self, data: str, names: tuple[str, ...], files: tuple[str, ...], system: Path | None = None
    ) -> tuple[Path, str]:
        """Find the first folder that holds one of ``files``; return it with the name of that file.

        Args:
            data: name of the data set, for messages.
            names: folders below the root to look in, before the root itself.
            files: file names, any one of which marks the folder.
            system: a folder of the operating system's packages, tried where the user gave no root.
        Raises:
            DataError: no root, a root that does not exist, or nothing in it; the message has the remedy.
        """
        roots = self._roots()
        looked = [folder for root in roots for folder in (*(root / name for name in names), root)]
        if system is not None and self.root is None:
            looked.append(system)
        for folder in looked:
            for file in files:
                if (folder / file).exists():
                    return folder, file
        wanted = f"{names[0]}/{files[0]}"
        if not roots:
            package = f" or install the files under {system}" if system is not None else ""
            raise DataError(
                f"data {data}: no folder was given; set data.root=FOLDER (or {VARIABLE}) to the folder with"
                f" {wanted}{package}; data=digits needs no files."
            )
        missing = [root for root in roots if not root.is_dir()]
        if missing:
            raise DataError(
                f"data {data}: the folder {missing[0]} does not exist; set data.root=FOLDER to the folder with "
                f"{wanted};"
                " data=digits needs no files."
            )
        pickled = next(
            (
                folder
                for folder in looked
                if (folder / "cifar-10-batches-py").exists() or (folder / "cifar-100-python").exists()
            ),
            None,
        )
        hint = (
            f"{pickled} holds the Python version, whose pickles can run code and are not read; get the binary version. "
            if pickled
            else ""
        )
        raise DataError(
            f"{hint}data {data}: found none of {', '.join(files)} in {', '.join(str(folder) for folder in looked)}; "
            f"put {wanted} below data.root; data=digits needs no files."
        )

    def file(self, data: str, path: str) -> Path:
        """Find a file or folder that the user named: absolute, relative to the root, or to the working folder.

        Raises:
            DataError: it does not exist.
        """
        candidates = (
            [Path(path)] if Path(path).is_absolute() else [*(root / path for root in self._roots()), Path(path)]
        )
        for candidate in candidates:
            if candidate.exists():
                return candidate
        verb = "does" if len(candidates) == 1 else "do"
        raise DataError(
            f"data {data}: {' and '.join(str(c) for c in candidates)} {verb} not exist; set path=FILE, absolute or"
            " relative to data.root."
        )

    def _roots(self) -> list[Path]:
        if self.root is not None:
            return [self.root.expanduser()]
        named = os.environ.get(VARIABLE)
        return [Path(named).expanduser()] if named else []


def written(name: str, reader: Any) -> str:
    """Write the call of a reader as a user would: files without their folders, without default settings."""
    changed = {f.name: getattr(reader, f.name) for f in fields(reader) if getattr(reader, f.name) != f.default}
    return shown(name, changed | {file: Path(changed[file]).name for file in ("path", "tested") if file in changed})
