"""Memory that tensors take while something runs."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary


class Alive(TorchDispatchMode):
    """Counts the bytes of storages that operations made inside of it and that somebody still holds.

    Args:
        known: tensors whose storages were there before; they are not counted.

    Attributes:
        now, peak: bytes.
    """

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not type it
        self.now = self.peak = 0
        self.seen = WeakIdKeyDictionary()
        self.before = [t.untyped_storage() for t in known]
        for storage in self.before:
            self.seen[storage] = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and look at what it made."""
        made = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(made):
            if isinstance(leaf, Tensor):
                self._note(leaf)
        return made

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage not in self.seen:
            size = storage.nbytes()
            self.seen[storage] = size
            weakref.finalize(storage, self._freed, size)
            self.now += size
            self.peak = max(self.peak, self.now)

    def _freed(self, size: int) -> None:
        self.now -= size
