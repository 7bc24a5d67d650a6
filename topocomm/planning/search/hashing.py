"""Hashes of sets of contributions, as noise and to tell states apart: the same on every machine, nothing is drawn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]


def hashed(known: Words) -> Words:
    """uint64 [...] of words uint64 [..., w]: equal where all words are."""
    key = known[..., 0]
    for word in range(1, known.shape[-1]):
        key = mix(key) ^ known[..., word]
    return mix(key)


def mix(values: Words) -> Words:
    """splitmix64 (Steele, Lea, Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
