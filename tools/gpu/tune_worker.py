"""One of the processes of tune.py: python tools/gpu/tune_worker.py FIRST STEP UNTIL.

Compiles candidates into Triton's cache on the disk, runs each once, and says which are of no use.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from card import Card
from harness.workers import work_through
from problems.tune_targets import Call, Target, pieces
from results import first_line

_ready: dict[str, tuple[Call, Any]] = {}
"""Of the target at hand its first call and the rules' result: tensors of all calls, in every worker, are more than a
card holds."""
AGREE = 2.0**-7
"""Tolerance between candidates, which split the keys differently, relative to the largest |out|."""


def tried(card: Card, number: int) -> list[Any] | None:
    """Compile and run one: [why it is of no use, or None]."""
    todo = pieces(card)
    if number >= len(todo):
        return None
    target, candidate = todo[number]
    try:
        return [_fault(card, target, candidate)]
    except Exception as error:  # noqa: BLE001 - whatever a compiler or a launch says, the candidate is of no use
        return [f"{type(error).__name__}: {first_line(error)}"]


def _fault(card: Card, target: Target, candidate: Any) -> str | None:
    if target.name not in _ready:
        _ready.clear()  # the tensors of one target are enough
        call = target.calls[0]()
        with _asking(target.table.TUNED) as asked:
            _ready[target.name] = call, call()
        if asked != [(target.problem.arch, target.problem.key)] and not card.interpreted:
            return f"wrong: the call asks for {asked}, not for {target.problem.arch}, {target.problem.key}"
    call, wanted = _ready[target.name]
    with launches(target.kernel) as seen, target.table.TUNED.trying(candidate):
        got = call()
        card.synchronize()
    spills = sum(getattr(kernel, "n_spills", 0) or 0 for kernel in seen)
    if spills:
        return f"spills {spills} registers"
    off = float((got.out - wanted.out).abs().max() / wanted.out.abs().max())
    return None if off <= AGREE else f"wrong: {off:.1e} from the rules' result"


@contextmanager
def _asking(tuned: Any) -> Iterator[list[tuple[str, str]]]:
    """What the file of a table is asked for inside: (arch, key)."""
    asked: list[tuple[str, str]] = []
    plain = tuned.find

    def find(arch: str, key: str) -> Any:
        asked.append((arch, key))
        return plain(arch, key)

    tuned.find = find
    try:
        yield asked
    finally:
        del tuned.find


@contextmanager
def launches(kernel: Any) -> Iterator[list[Any]]:
    """What the kernel is compiled to at its launches inside; None for each in the interpreter."""
    seen: list[Any] = []
    plain = kernel.run

    def run(*args: Any, **options: Any) -> Any:
        seen.append(plain(*args, **options))
        return seen[-1]

    kernel.run = run
    try:
        yield seen
    finally:
        del kernel.run


if __name__ == "__main__":
    sys.exit(work_through(tried))
