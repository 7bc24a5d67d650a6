"""A reference for merges by one SUM that all ranks know beforehand: scores are at most |q| times the largest |k|.

The lse of the token before would be nearer, but ranks must have the same bits of it, and a library's SUM does not
promise that. docs/concepts/sums.md says how far below its bound a lse may lie.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from topocomm import MAX, Communicator, OperatorError

HEADROOM = 40.0
"""How far the reference lies below the bound, in units of lse: weights reach e^40 times the number of keys, of the e^88
that float32 has, and a lse may be 106 below the bound before its merge is repeated."""


class KeyNorms:
    """The largest norm of the keys of each KV head.

    Attributes:
        largest: Float64 [batch, kv_heads]; 0 where there is no key.
    """

    def __init__(self, batch: int, kv_heads: int) -> None:
        self.largest = np.zeros((batch, kv_heads))

    def include(self, keys: Any) -> None:
        """Take in keys that all ranks have, such as those of a new token.

        Args:
            keys: [batch, kv_heads, n, d], NumPy or torch, in host memory.
        """
        np.maximum(self.largest, self._norms(keys), out=self.largest)  # NaN stays

    def include_shards(self, keys: Any, comm: Communicator) -> None:
        """Take in keys of which every rank has some; collective.

        Args:
            keys: This rank's, as `include` takes them; n may be 0 and differ between ranks.
            comm: The ranks.
        """
        self.include(keys)
        self.largest = comm.allreduce(self.largest, MAX)

    def reference(self, q: Any, scale: float | None = None) -> Any:
        """Return the reference for queries, float64 [batch, heads, q_len], for `Communicator.prepare_sum`.

        Args:
            q: [batch, heads, q_len, d], the same on all ranks.
            scale: Factor on q.k; None: 1 / sqrt(d).

        Raises:
            OperatorError: The heads are no multiple of the KV heads, or the batch is another.
        """
        queries = _wide(q)
        batch, heads, _, d = queries.shape
        if batch != self.largest.shape[0] or heads % self.largest.shape[1]:
            raise OperatorError(
                f"q has batch {batch} and {heads} heads, the keys have {list(self.largest.shape)}: expected the same "
                "batch, and a multiple of the KV heads"
            )
        factor = abs(d**-0.5 if scale is None else scale)
        norms = np.sqrt(np.square(queries).sum(-1)) * factor
        return norms * self.largest.repeat(heads // self.largest.shape[1], 1)[..., None] - HEADROOM

    def _norms(self, keys: Any) -> Any:
        wide = _wide(keys)
        if wide.ndim != 4 or wide.shape[:2] != self.largest.shape:
            raise OperatorError(
                f"keys have shape {list(wide.shape)}, expected [{self.largest.shape[0]}, {self.largest.shape[1]}, n, d]"
            )
        return np.sqrt(np.square(wide).sum(-1)).max(-1, initial=0.0)


def _wide(x: Any) -> Any:
    """Float64 of NumPy or torch."""
    return np.asarray(x, np.float64) if isinstance(x, np.ndarray) else x.detach().double().numpy()
