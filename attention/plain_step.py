"""The shortest way through `tree_decode`: the step before, once more, with other numbers and perhaps more keys.

Decoding makes the same call for every layer and token. Its checks, look-ups and conversions cost some 40 us where they
run in a row, and several times as much where the weights of a model have emptied the caches in between: more than the
reduction. So a step that needs no positions or masks leaves behind what does not change, and the next asks only whether
it is of the same kind. Everything else, errors too, goes the common way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attention.arrays import Inputs
from attention.communicators import state_of
from attention.local.rows import Place, SameAgain, covers
from attention.merge import LSE, OUT
from attention.partial import Partial
from attention.spec import Spec
from topocomm import Communicator, PreparedCall

ATTRIBUTE = "_attention_steps"
"""Where the steps lie on their communicator, by the shape of q."""
STEPS_LIMIT = 32


class PlainStep:
    """A decode step in which all queries see all keys, and its reduction.

    Attributes:
        spec: As the caller gave it.
    """

    def __init__(self, inputs: Inputs, spec: Spec | None, reduction: PreparedCall, kept: Mapping[Any, Any]) -> None:
        self.spec = spec
        self._shape, self._reduction, self._kept = inputs.out_shape, reduction, kept
        self._own = {OUT: np.empty(self._shape, np.float32), LSE: np.empty(self._shape[:3], np.float32)}
        self._local = SameAgain(inputs)
        self._places: dict[int, tuple[dict[str, NDArray[np.float32]], Place]] = {}
        """Send buffers by id, which stays theirs as long as they are here, and their addresses."""

    def run(self, q: Any, k: Any, v: Any) -> Partial | None:
        """The merged partial in q's dtype, lse float32; None, and nothing done, where this is another kind of step."""
        if self._kept.get(self._shape) is not self._reduction:
            return None
        mine = self._reduction.input
        mine = self._own if mine is None else mine
        known = self._places.get(id(mine))
        if known is None:
            known = self._places[id(mine)] = mine, (mine[OUT].ctypes.data, mine[LSE].ctypes.data)
        if not self._local.run(q, k, v, known[1]):
            return None
        found = self._reduction(mine)
        out = torch.from_numpy(found[OUT])
        return Partial(out if q.dtype is torch.float32 else out.to(q.dtype), torch.from_numpy(found[LSE]))


def plain_step(comm: Any, q: Any, spec: Spec | None) -> PlainStep | None:
    """What an earlier step left for one like it."""
    steps: dict[Any, PlainStep] | None = getattr(comm, ATTRIBUTE, None)
    step = None if steps is None else steps.get(getattr(q, "shape", None))
    return step if step is not None and step.spec is spec else None


def remember(comm: Communicator, inputs: Inputs, spec: Spec | None, reduction: PreparedCall) -> None:
    """Leave a plain step for the next call, where this one is such."""
    plain = inputs.visibility is None and inputs.pages is None and inputs.spec.sinks is None
    if plain and covers(inputs) and 0 not in inputs.out_shape:
        steps: dict[Any, PlainStep] = vars(comm).setdefault(ATTRIBUTE, {})
        if len(steps) >= STEPS_LIMIT:
            steps.clear()
        steps[inputs.q.shape] = PlainStep(inputs, spec, reduction, state_of(comm)["calls"])
