"""Mistakes planted on purpose, to see that the tests notice."""

import math
import threading

import attention.decode.prepared
import attention.decode.reductions


def plant_lse_fault(monkeypatch):
    """Rank 1's log-sum-exp is ln 2 too large before the merge, as where two bases of the logarithm meet.

    For ranks on threads, whose threads are named after them.
    """
    right = attention.decode.reductions.attend

    def wrong(inputs, result):
        right(inputs, result)
        if threading.current_thread().name == "rank1":
            result.lse.add_(math.log(2))

    monkeypatch.setattr(attention.decode.reductions, "attend", wrong)
    monkeypatch.setattr(attention.decode.prepared, "local_kernel", lambda *given: None)  # it would pass `attend` by
