"""Fewer trees: the heaviest columns of a packing, packed again alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from topocomm.planning.forests.linear_program.packing import Column, Pair, Parts, Pricer, repack
from topocomm.planning.forests.linear_program.symmetry import Symmetry


def prune(pricer: Pricer, parts: Parts, symmetry: Symmetry, *, most: int | None, loss: float) -> Parts:
    """Return a packing of as few of the heaviest columns as keep all but `loss` of the throughput.

    Args:
        pricer: The source of the columns.
        parts: The whole packing.
        symmetry: The group whose images the columns stand for.
        most: Most columns of one root; None: any number.
        loss: Part of the throughput that may be lost, beside what `most` costs.
    """
    lowest = symmetry.elements.min(axis=0).tolist()

    def root_of(pair: Pair) -> int:
        return int(lowest[pair.root])

    ranked = _ranked(parts, root_of)
    if most is not None:
        ranked = [entry for entry in ranked if (entry[0] + 1) * symmetry.images[root_of(entry[3].pair)] <= most]
    every_root = bool(pricer.start())
    columns = [entry[3] for entry in sorted(ranked, key=lambda entry: entry[:3] if every_root else entry[1:3])]
    least = len({root_of(column.pair) for column in columns}) if every_root else 1
    best = _packed(pricer, columns)
    goal = _total(pricer, best) * (1 - loss)
    low, high = least, len(columns)
    while low < high:
        middle = (low + high) // 2
        fewer = _packed(pricer, columns[:middle])
        if _total(pricer, fewer) >= goal:
            best, high = fewer, middle
        else:
            low = middle + 1
    return best


def _ranked(parts: Parts, root_of: Callable[[Pair], int]) -> list[tuple[int, float, int, Column]]:
    """Return (place among the columns of its root, negative weight, number, column) of each column."""
    counts: dict[int, int] = {}
    ranked = []
    for number, (weight, column) in enumerate(parts):
        root = root_of(column.pair)
        counts[root] = counts.get(root, -1) + 1
        ranked.append((counts[root], -weight, number, column))
    return ranked


def _packed(pricer: Pricer, columns: Sequence[Column]) -> Parts:
    return repack(pricer, [*pricer.start(), *columns])


def _total(pricer: Pricer, parts: Parts) -> float:
    return pricer.total(parts) if parts else 0.0
