"""Compile keys of the peer kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from topocomm.operators.kernels.gpu import MOST_UNROLLED, power_of_two, power_that_divides, tile_options
from topocomm.operators.layout import Layout
from topocomm.operators.operator import Operator

MOST_UNROLLED_ITEMS = 8192
"""Most items of a tile whose operands are loaded at once; registers would not hold more."""


class PeerCase(NamedTuple):
    """Properties of a plan that the kernel is compiled for, beside operator and layout.

    Attributes:
        chunk_rows: Rows of every chunk of the plan.
        rows: Rows of a caller's value and result with which pieces start.
        operands: How many a fold has: 1 where nothing is folded, 0 where that differs.
        ranks: Of the communicator.
        synchronises: Whether nobody gets through a call before all have begun it.
    """

    chunk_rows: Sequence[int]
    rows: Iterable[int]
    operands: int
    ranks: int
    synchronises: bool


def peer_options(operator: Operator, layout: Layout, case: PeerCase, backend: str) -> dict[str, Any]:
    """Return the kernel's constants by name, and the options of a launch."""
    rows = np.array([*case.rows, 0])
    starts = np.array([layout.addresses(0, count) for count in case.chunk_rows]).reshape(-1, len(layout.fields))
    combine = None if case.operands == 1 else operator.triton_combine(layout)
    tiles = tile_options(combine, layout, sum(case.chunk_rows), backend)
    fits = case.operands <= MOST_UNROLLED and tiles["ROWS"] * sum(tiles["WIDTHS"]) <= MOST_UNROLLED_ITEMS
    unrolled = fits and not (combine is not None and combine.long)
    return tiles | {
        "ROW_BYTES": tuple(f.row_bytes for f in layout.fields),
        "ALIGNS": tuple(
            power_that_divides(np.append(starts[:, index], rows * f.row_bytes)) for index, f in enumerate(layout.fields)
        ),
        "ROW_FACTOR": power_that_divides(np.array(case.chunk_rows)),
        "OPERANDS": case.operands if unrolled or case.operands == 1 else 0,
        "PEERS": power_of_two(case.ranks),
        "SYNCHRONISES": case.synchronises,
        "BACKEND": backend,
    }
