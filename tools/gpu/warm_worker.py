"""One of the processes that compile for bench_kernels.py: python tools/gpu/warm_worker.py FIRST STEP UNTIL.

Each runs our kernel on one set of a problem's inputs: what it is compiled to is then in Triton's cache on the disk.
"""

from __future__ import annotations

import sys
from typing import Any

from card import Card
from harness.workers import work_through
from problems.bench_problems import Shape, shapes
from results import first_line


def problems(card: Card) -> list[Shape]:
    """Those whose kernels other contexts use too: prompts, and decoding over the first context."""
    return [shape for shape in shapes(card) if shape.causal is not None or shape.n == card.sizes.tokens[0]]


def compiled(card: Card, number: int) -> list[Any] | None:
    """Run one: [what went wrong, or None]."""
    listed = problems(card)
    if number >= len(listed):
        return None
    try:
        listed[number].result(listed[number].one_set(card))
        card.synchronize()
    except Exception as error:  # noqa: BLE001 - the program that measures meets it too, and says so
        return [f"{type(error).__name__}: {first_line(error)}"]
    return [None]


if __name__ == "__main__":
    sys.exit(work_through(compiled))
