"""What ranks tell each other of the parts that they give, before a call that depends on it."""

from __future__ import annotations

from typing import Any

import numpy as np

from topocomm.errors import MismatchError
from topocomm.execute.calls.call_cache import CallCache
from topocomm.execute.calls.ranges import rows_of, shard_edges, shards_record
from topocomm.execute.session import Session


def gather_rows(calls: CallCache, session: Session, x: Any) -> tuple[int, ...]:
    """How many rows every rank gives to an all-gather; -1 from one whose value is no array with rows. Collective."""
    which = ("allgather", None, 0, (1,) * session.size)
    told = calls.run(which, np.array([rows_of(x)]), None)
    return tuple(told.tolist())


def gather_shards(calls: CallCache, session: Session, shards: tuple[int, int] | None) -> tuple[int, ...] | None:
    """The first virtual shard of every rank and the end of the last; None where no rank says. Collective."""
    which = ("allgather", None, 0, (2,) * session.size)
    told = calls.run(which, np.array(shards_record(shards), np.int64), None)
    try:
        return shard_edges([(start, stop) for start, stop in told.reshape(-1, 2).tolist()])
    except MismatchError as error:
        mismatch = MismatchError(f"rank {session.rank}: {error}")
        session.fail(mismatch, tell=False)  # all ranks see the same
        raise mismatch from None
