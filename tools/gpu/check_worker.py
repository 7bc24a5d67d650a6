"""One of the processes of check_kernels.py: python tools/gpu/check_worker.py FIRST STEP UNTIL."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

import numpy as np
from card import Card
from harness.workers import MOST, work_through
from problems import check_folds, check_kinds
from problems.check_kinds import Found
from results import first_line

ODDS = {"decode": 5, "prefill": 4, "merging": 2, "states": 1, "local_attention": 2}


def one(card: Card, index: int) -> Found:
    """The check of a number; every third is of folds, whose pairs of operator and dtype come in turn."""
    turn, engine = divmod(index, MOST)
    if turn % 3 == 2:
        return _kept(lambda: check_folds.check(card, turn // 3 * MOST + engine), "folds")
    kinds = [kind for kind, odds in ODDS.items() for _ in range(odds)]
    kind = kinds[np.random.default_rng(index).integers(len(kinds))]
    return _kept(lambda: check_kinds.check(card, kind, index), kind)


def _kept(check: Callable[[], Found], kind: str) -> Found:
    """Return the findings of a check; an exception is a failure."""
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - the next problem may well work
        traceback.print_exc()
        return Found(kind, "", f"{type(error).__name__}: {first_line(error)}")


if __name__ == "__main__":
    sys.exit(work_through(lambda card, index: [one(card, index).record()]))
