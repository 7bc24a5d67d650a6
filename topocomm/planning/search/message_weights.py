"""Weights of messages in the beam search, beside what they bring: noise and shifts, so that its matchings vary."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.search.gossip import SAME_US

NOISES = 64
"""Number of tables of noise, used in turn."""
STYLES = ((0.01, 0.001), (0.2, 0.1), (1.0, 0.3), (0.05, 0.6))
"""(weight of an early arrival, weight of noise) beside log2 of the new knowledge, by variant."""
SHIFT_STYLE = (0.01, 2.0)
"""The same weights for tables of shifts."""

Words = NDArray[np.uint64]
Times = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class MessageWeights:
    """Variants of the weights of messages.

    Attributes:
        kinds: (class of latency, variant) of every kind of child, int64 [kinds, 2].
        table: float64 [variants, n, n].
        early_weight: Weight of an early arrival, float64 [variants].
        table_weight: Weight of the table, float64 [variants].
        mutual: Whether pairs of ranks that exchange come first, bool [variants].
    """

    kinds: Ints
    table: Times
    early_weight: Times
    table_weight: Times
    mutual: NDArray[np.bool_]


def weights_of(latency_us: Times, limits: list[float], noise: Times, shifts: Times) -> MessageWeights:
    """Return a variant for every table, float64 [tables, n, n], with the classes of latency it is used for.

    `limits` are the largest latencies of the classes. Noise is for every class, a shift for that of its longest one.
    """
    variants = np.arange(len(noise) + len(shifts))
    styles = np.array(STYLES)[variants // 2 % len(STYLES)]
    styles[len(noise) :] = SHIFT_STYLE
    table = np.concatenate([noise, shifts])
    longest_us = np.where(shifts.astype(bool) & np.isfinite(latency_us), latency_us, 0.0).max(axis=(1, 2))
    needed = np.minimum(np.searchsorted(np.array(limits) + SAME_US, longest_us), len(limits) - 1).tolist()
    kinds = [(level, variant) for variant in range(len(noise)) for level in range(len(limits))]
    kinds += [(level, len(noise) + shift) for shift, level in enumerate(needed)]
    return MessageWeights(
        np.array(kinds), table, styles[:, 0], styles[:, 1], (variants % 2 == 0) & (variants < len(noise))
    )


def noise_tables(count: int) -> Times:
    """Return the tables of noise, float64 [tables, n, n] in [0, 1)."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    places = (np.arange(NOISES * count * count, dtype=np.uint64) + np.uint64(1)) * golden
    return (mix(places) >> np.uint64(11)).astype(np.float64).reshape(NOISES, count, count) * 2.0**-53


def shift_tables(count: int, partitions: tuple[Ints, ...]) -> Times:
    """Return shifts as float64 [tables, n, n] of 0 and 1: by 2^j inside clusters, and between clusters."""
    tables = []
    for label in (np.zeros(count, np.int64), *partitions):
        groups = [np.flatnonzero(label == name).tolist() for name in np.unique(label)]
        most = max(map(len, groups))
        for width in [1 << j for j in range(max(most - 1, 0).bit_length())]:
            inside = [(g[i], g[(i + width) % len(g)]) for g in groups for i in range(len(g))]
            tables.append(_edges(count, inside))
        for step in range(1, min(len(groups), 5)):
            for fan in (0, 1)[: len(groups) - 1]:
                pairs = []
                for place, group in enumerate(groups):
                    for i, rank in enumerate(group):
                        target = groups[(place + 1 + (step - 1 + fan * i) % (len(groups) - 1)) % len(groups)]
                        pairs.append((rank, target[i % len(target)]))
                tables.append(_edges(count, pairs))
    return np.stack(tables)


def _edges(count: int, pairs: list[tuple[int, int]]) -> Times:
    table = np.zeros((count, count))
    table[tuple(np.array(pairs).T)] = 1.0
    return table


def hashed(known: Words) -> Words:
    """Return hashes uint64 [...] of words uint64 [..., w]: equal where all words are."""
    key = known[..., 0]
    for word in range(1, known.shape[-1]):
        key = mix(key) ^ known[..., word]
    return mix(key)


def mix(values: Words) -> Words:
    """Return the values mixed by splitmix64 (Steele, Lea, Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
