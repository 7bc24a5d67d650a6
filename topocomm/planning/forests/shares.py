"""Weights of trees as whole rows of the payload."""

from __future__ import annotations

from collections.abc import Sequence


def whole_rows(rows: int, weights: Sequence[float]) -> list[int]:
    """Rows in proportion to the weights, by largest remainder; ties go to the first.

    Where there are fewer rows than weights, the heaviest get one each.
    """
    total = sum(weights)
    exact = [rows * weight / total for weight in weights]
    found = [int(share) for share in exact]
    order = sorted(range(len(weights)), key=lambda i: (found[i] - exact[i], i))
    for i in order[: rows - sum(found)]:
        found[i] += 1
    return found
