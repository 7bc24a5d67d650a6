"""GATED_STATE: what a run of tokens does to the state of gated linear attention, as a reduction operator.

A token turns the state S [d, d_v] into diag(a) S + k^T v, so a run of tokens turns it into diag(decay) S + state:
`decay` is the product of its gates, `state` what it ends with if it starts from 0. First the left run, then the
right one: (right decay x left decay, right decay x left state + right state). It is associative and does not
commute; its identity is the empty run (1, 0). Every row of a state is a map of its own, so plans may split it.
`topocomm.AFFINE` is the case of one number per map; here a row of d_v numbers shares its decay.
Yang et al., "Gated Linear Attention Transformers" (2023), section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from topocomm import Field, Operator, row_kernel

DECAY = "decay"
STATE = "state"


def _combine(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    with np.errstate(all="ignore"):  # overflow, NaN and infinities go as IEEE 754 says
        state = right[DECAY][..., None] * left[STATE] + right[STATE]
        return {DECAY: right[DECAY] * left[DECAY], STATE: state}


def _combine_row(left_decay: Any, left_state: Any, right_decay: Any, right_state: Any, decay: Any, state: Any) -> None:
    decay[0] = right_decay[0] * left_decay[0]
    for column in range(state.size):
        state[column] = right_decay[0] * left_state[column] + right_state[column]


GATED_STATE = Operator(
    "gated_state",
    fields=(Field(DECAY, ("*rows",), np.float32), Field(STATE, ("*rows", "dim_v"), np.float32)),
    combine=_combine,
    identity={DECAY: 1.0, STATE: 0.0},
    kernel=row_kernel(_combine_row),
    default_dims={"dim_v": 128},
)
"""One run of tokens, then the next: fields `decay` float32 [*rows] and `state` float32 [*rows, dim_v]."""
