"""Two ranks of NCCL on the card, one small collective of each kind: whether a library that was brought along works.

python tools/gpu/nccl_check.py

Prints its version, or ends with status 1 and says why it does not work. The environment is that of bench_ranks.py.
"""

from __future__ import annotations

import sys

import torch
from card import Card, the_card
from results import first_line

from topocomm import Communicator, TopocommError, run_local

RANKS, COUNT = 2, 1 << 16


def main() -> int:
    """Run the collectives and print the result."""
    card = the_card()
    try:
        print(run_local(lambda comm: version_that_works(comm, card), ranks=RANKS)[0])
    except (RuntimeError, TopocommError, OSError) as error:
        print(first_line(error), file=sys.stderr)
        return 1
    return 0


def version_that_works(comm: Communicator, card: Card) -> str:
    """Return the version of a NCCL whose collectives give the right values on this rank.

    Raises:
        RuntimeError: A value is wrong, or NCCL says what is.
    """
    with card.on(card.stream()):
        library = card.library(comm)
        summed = torch.full((COUNT,), float(comm.rank + 1), device=card.place)
        gathered = torch.zeros(RANKS * 8, dtype=torch.uint8, device=card.place)
        own = torch.full((8,), comm.rank + 1, dtype=torch.uint8, device=card.place)
        card.synchronize()
        comm.barrier()  # torch's kernels are loaded before a rank waits on the card for another
        library.all_reduce(summed, "sum")
        library.all_gather(own, gathered)
        card.synchronize()
        right = bool((summed == 3).all()) and gathered.tolist() == [1] * 8 + [2] * 8
        version = str(library.version)
        if not right:
            raise RuntimeError(f"NCCL {version} gives wrong values between {RANKS} ranks on this card")
        library.close()
    return version


if __name__ == "__main__":
    sys.exit(main())
