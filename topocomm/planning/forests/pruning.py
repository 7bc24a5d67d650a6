"""Fewer trees: the heaviest columns of a packing that lose little when they are packed again alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from topocomm.planning.forests.linear_program.packing import Column, Pair, Parts, Pricer, repack
from topocomm.planning.forests.linear_program.symmetry import Symmetry


def thinned(pricer: Pricer, parts: Parts, symmetry: Symmetry, *, most: int | None, loss: float) -> Parts:
    """A packing with few columns: as few of the heaviest as keep all but `loss` of the throughput.

    Args:
        pricer: Whose columns they are.
        parts: The whole packing.
        symmetry: Whose images they stand for.
        most: Most columns of one root; None: any number.
        loss: Part of the throughput that may go, beside what `most` takes.
    """
    lowest = symmetry.elements.min(axis=0).tolist()

    def root_of(pair: Pair) -> int:
        return int(lowest[pair.root])

    ranked = _ranked(parts, root_of)
    if most is not None:
        ranked = [one for one in ranked if (one[0] + 1) * symmetry.images[root_of(one[3].pair)] <= most]
    every_root = bool(pricer.start())
    columns = [one[3] for one in sorted(ranked, key=lambda one: one[:3] if every_root else one[1:3])]
    least = len({root_of(column.pair) for column in columns}) if every_root else 1
    best = _packed(pricer, columns)
    goal = _total(pricer, best) * (1 - loss)
    low, high = least, len(columns)
    while low < high:
        middle = (low + high) // 2
        found = _packed(pricer, columns[:middle])
        if _total(pricer, found) >= goal:
            best, high = found, middle
        else:
            low = middle + 1
    return best


def _ranked(parts: Parts, root_of: Callable[[Pair], int]) -> list[tuple[int, float, int, Column]]:
    """(place among the columns of its root, negative weight, number, column)."""
    counts: dict[int, int] = {}
    found = []
    for number, (weight, column) in enumerate(parts):
        root = root_of(column.pair)
        counts[root] = counts.get(root, -1) + 1
        found.append((counts[root], -weight, number, column))
    return found


def _packed(pricer: Pricer, columns: Sequence[Column]) -> Parts:
    return repack(pricer, [*pricer.start(), *columns])


def _total(pricer: Pricer, parts: Parts) -> float:
    return pricer.total(parts) if parts else 0.0
