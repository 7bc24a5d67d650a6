"""Fewer trees: the heaviest columns of a packing, packed again alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from topocomm.planning.forests.linear_program.packing import Column, Parts, Pricer, repack
from topocomm.planning.forests.linear_program.symmetry import Symmetry


def prune(pricer: Pricer, parts: Parts, symmetry: Symmetry, *, most: int | None, loss: float) -> Parts:
    """Return a packing of as few of the heaviest columns as keep all but `loss` of the throughput.

    `most` is the most columns of one root; what that costs is no part of the loss.
    """
    lowest = symmetry.elements.min(axis=0).tolist()
    counts = Counter[int]()
    ranked: list[tuple[int, float, Column]] = []
    for weight, column in parts:
        root = lowest[column.pair.root]
        counts[root] += 1
        if most is None or counts[root] * symmetry.images[root] <= most:
            ranked.append((counts[root], -weight, column))
    every_root = bool(pricer.start())
    columns = [column for *_, column in sorted(ranked, key=lambda entry: entry[:2] if every_root else entry[1:2])]
    least = len({lowest[column.pair.root] for column in columns}) if every_root else 1

    def packed(columns: Sequence[Column]) -> tuple[float, Parts]:
        packing = repack(pricer, [*pricer.start(), *columns])
        return pricer.total(packing) if packing else 0.0, packing

    total, best = packed(columns)
    low, high = least, len(columns)
    while low < high:
        middle = (low + high) // 2
        fewer = packed(columns[:middle])
        if fewer[0] >= total * (1 - loss):
            best, high = fewer[1], middle
        else:
            low = middle + 1
    return best
