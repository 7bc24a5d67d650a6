"""One of the processes of check_kernels.py: a line of JSON for every problem.

python tools/gpu/check_worker.py FIRST STEP SECONDS
"""

from __future__ import annotations

import itertools
import json
import sys
import traceback
from collections.abc import Callable

import check_folds
import check_kinds
import numpy as np
import torch
from card import Card, the_card
from check_kinds import Found
from results import first_line
from turns import Limit

LANES = 12
"""Problems that are drawn together; the most workers that are of use."""
ODDS = {"decode": 5, "prefill": 3, "packed": 1, "merging": 2, "states": 1, "local_attention": 2}
LOST = 3
"""Status of a worker whose card answers no more: an illegal access ends all that the process may do on it."""


def one(card: Card, index: int) -> Found:
    """The check of a number."""
    turn, lane = divmod(index, LANES)
    if turn % 3 == 2:
        return _kept(lambda: check_folds.check(card, turn // 3 * LANES + lane), "folds")
    kinds = [kind for kind, odds in ODDS.items() for _ in range(odds)]
    kind = kinds[np.random.default_rng(index).integers(len(kinds))]
    return _kept(lambda: check_kinds.check(card, kind, index), kind)


def _kept(check: Callable[[], Found], kind: str) -> Found:
    """What a check found; an exception is a failure of it."""
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - the next problem may well work
        traceback.print_exc()
        return Found(kind, "", f"{type(error).__name__}: {first_line(error)}")


def main() -> int:
    """Every STEPth problem from FIRST on, until the time is over."""
    first, step, limit = int(sys.argv[1]), int(sys.argv[2]), Limit(float(sys.argv[3]))
    torch.set_num_threads(1)
    card = the_card()
    for index in itertools.count(first, step):
        if limit.over:
            return 0
        print(json.dumps([index, one(card, index).record()]), flush=True)
        try:
            card.synchronize()
        except RuntimeError as error:
            print(f"the card answers no more: {first_line(error)}", file=sys.stderr, flush=True)
            return LOST
    return 0


if __name__ == "__main__":
    sys.exit(main())
