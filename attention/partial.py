"""Partial: the result of softmax attention over some of the keys, and all that is needed to merge it."""

from __future__ import annotations

from typing import Any, NamedTuple


class Partial(NamedTuple):
    """Attention over a subset of the keys.

    For scores s_a = scale q.k_a over the keys a of the subset:
    lse = ln sum_a exp(s_a), the natural logarithm; out = sum_a exp(s_a - lse) v_a.
    The empty subset is out = 0, lse = -inf, never +inf and never NaN.

    Attributes:
        out: [..., dim], float32 between kernels; the functions that end a calculation return q's dtype.
        lse: [...], float32 always: in 16 bits the weights of a merge would be wrong by up to 6 %.
    """

    out: Any
    lse: Any
