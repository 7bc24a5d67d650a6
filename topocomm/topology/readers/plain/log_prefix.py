"""Takes off what a logger, a launcher or a mail client put before every line of a tool's text.

`srun -l`, `mpirun --tag-output`, container logs and `cat -n` print a rank, a host name, a time or a number first:

    2024-06-01 12:00:00 INFO GPU0     X      NV4

The prefix is what stands before a row that can only begin there; its numbers may differ from line to line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MATRIX_ROW = re.compile(r"\bGPU\d{1,5}\s+X(?=\s|$)")
"""The row of the first GPU in a matrix: its own cell comes first."""
LISTED_GPU = re.compile(r"\bGPU \d{1,5}: \S")
"""The line that begins a GPU in listings of links."""
MAX_PREFIX = 200
"""Characters; what is longer is text, not a prefix."""


def without_prefix(lines: Sequence[str], row: re.Pattern[str]) -> list[str]:
    """The lines, one for one, without the prefix that they share; as they are where there is none.

    Blanks after the prefix stay, because the columns of a drawing count. Lines without the prefix stay whole.

    Args:
        lines: The text.
        row: Finds a line of the tool where that line begins.
    """
    for index, line in enumerate(lines):
        found = row.search(line[: MAX_PREFIX + 100])
        if found is None:
            continue
        prefix = _pattern(line[: found.start()])
        if prefix is None:
            break
        near = (*lines[max(index - 3, 0) : index], *lines[index + 1 : index + 4])
        if any(prefix.match(text) for text in near):
            return [line[taken.end() :] if (taken := prefix.match(line)) else line for line in lines]
    return list(lines)


def _pattern(before: str) -> re.Pattern[str] | None:
    """Matches what stands before a row on other lines, whatever its numbers; None for blanks and for a whole text."""
    words = before.strip()
    if not words or len(words) > MAX_PREFIX:
        return None
    parts = (r"\d+" if part.isdigit() else re.escape(part) for part in re.split(r"([0-9]+)", words))
    ends = r"(?=\s|$)" if words[-1].isalnum() else ""
    return re.compile(r"\s*" + "".join(parts) + ends)
