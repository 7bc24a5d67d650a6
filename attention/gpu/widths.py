"""Head dims as kernels hold them: blocks have a power of two columns."""

from __future__ import annotations

FEWEST = 16
"""Columns that matrix units take at least."""


def pieces(width: int) -> tuple[int, int]:
    """A head dim in two powers of two from 16, the second 0 where one is enough: 80 is 64 and 16, 576 is 512 and 64.

    What is a power of two beyond 128 is halved, which needs fewer registers where results are merged: 256 is twice 128.
    """
    first = max(FEWEST, 1 << (width.bit_length() - 1))
    if first == width > 128:
        first //= 2
    rest = width - first
    return first, 0 if rest <= 0 else max(FEWEST, 1 << (rest - 1).bit_length())
