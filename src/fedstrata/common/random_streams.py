"""Randomness that is derived, never stored.

Every stream is keyed by (seed, purpose, keys such as round, place, client), so that any worker may serve any client, in
any order, and a resumed run draws what the uninterrupted one would have drawn.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray

_MASK = (1 << 64) - 1


def key(seed: int, purpose: str, *keys: int | str) -> int:
    """A 64-bit key for (seed, purpose, keys): equal arguments, equal key, on every machine."""
    text = "\x1f".join([str(seed), purpose, *(f"{type(k).__name__[0]}{k}" for k in keys)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def stream(seed: int, purpose: str, *keys: int | str) -> np.random.Generator:
    """Return a separate numpy generator (Philox, counter-based) for this purpose."""
    return np.random.Generator(np.random.Philox(key=key(seed, purpose, *keys)))


def torch_stream(seed: int, purpose: str, *keys: int | str) -> torch.Generator:
    """Return a separate torch generator for this purpose; the process-wide one is never touched."""
    return torch.Generator().manual_seed(key(seed, purpose, *keys) >> 1)


def uniforms(key64: int, ids: NDArray[np.int64], draws: int) -> NDArray[np.float32]:
    """U[0, 1) numbers that depend only on (key, id, draw), not on the order or company of the ids.

    Args:
        key64: from :func:`key`.
        ids: [B] int64, for example sample positions.
        draws: numbers for each id.
    Returns:
        [B, draws] float32. SplitMix64 finaliser over (key, id, draw); 24 bits are kept, which is what float32 holds.
    """
    counter = ids.astype(np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15)
    counter = counter + np.arange(draws, dtype=np.uint64)[None, :] * np.uint64(0xD1B54A32D192ED03)
    z = counter ^ np.uint64(key64 & _MASK)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    z = z ^ (z >> np.uint64(31))
    return ((z >> np.uint64(40)).astype(np.float32)) * np.float32(2.0**-24)
