"""Tables of text that are folded where a terminal is narrower than they are."""

from __future__ import annotations

from collections.abc import Sequence


def folded_table(rows: Sequence[Sequence[str]], columns: int | None = None, gap: int = 1) -> list[str]:
    """Return the lines of a table; where `columns` do not hold one, several below each other with the same first cells.

    Args:
        rows: Cells, as many in each row; shorter ones are filled up at their right.
        columns: Of the terminal; None: any number.
        gap: Blanks between two cells.
    """
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    parts: list[list[int]] = []
    used = 0
    for cell, width in enumerate(widths[1:], start=1):
        used += gap + width
        if not parts or (columns is not None and used > columns):
            parts.append([])
            used = widths[0] + gap + width
        parts[-1].append(cell)
    lines: list[str] = []
    for part in parts:
        lines += [""] if lines else []
        lines += [(" " * gap).join(row[cell].ljust(widths[cell]) for cell in (0, *part)).rstrip() for row in rows]
    return lines
