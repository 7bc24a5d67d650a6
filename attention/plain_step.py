"""The shortest way through `tree_decode`: the step before, once more, with other numbers and perhaps more keys.

Decoding makes the same call for every layer and token. Its checks, look-ups and conversions cost some 40 us where they
run in a row, and several times as much where the weights of a model have emptied the caches in between: more than the
reduction. So a step that needs no positions or masks leaves behind what does not change, and the next asks only whether
it is of the same kind. Everything else, errors too, goes the common way.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attention import gpu
from attention.arrays import Inputs, empty_partial
from attention.communicators import state_of, turns_of
from attention.gpu.where import Turns, current, on_gpu
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

    def __init__(self, inputs: Inputs, spec: Spec | None, key: Hashable, kept: Mapping[Any, PreparedCall]) -> None:
        self.spec = spec
        self._key, self._reduction, self._kept = key, kept[key], kept
        shape = inputs.out_shape
        self._own = {OUT: np.empty(shape, np.float32), LSE: np.empty(shape[:3], np.float32)}
        self._local = SameAgain(inputs)
        self._places: dict[int, tuple[dict[str, NDArray[np.float32]], Place]] = {}
        """Send buffers by id, which stays theirs as long as they are here, and their addresses."""

    def run(self, q: Any, k: Any, v: Any) -> Partial | None:
        """The merged partial in q's dtype, lse float32; None, and nothing done, where this is another kind of step."""
        if self._kept.get(self._key) is not self._reduction:
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


class DeviceStep:
    """The same on a GPU: the kernel writes into the send buffer, and nothing is waited for.

    Attributes:
        spec: As the caller gave it.
    """

    def __init__(
        self, inputs: Inputs, spec: Spec | None, key: Hashable, kept: Mapping[Any, PreparedCall], turns: Turns
    ) -> None:
        from attention.gpu.decode import decode_partial

        self.spec = spec
        self._key, self._reduction, self._kept, self._turns = key, kept[key], kept, turns
        self._decode = decode_partial
        self._shape, self._device = inputs.out_shape, inputs.q.device
        self._kind = _kind_of(inputs.q, inputs.k, inputs.v)

    def run(self, q: Any, k: Any, v: Any) -> Partial | None:
        """As `PlainStep.run`."""
        if self._kept.get(self._key) is not self._reduction:
            return None
        if not (type(q) is type(k) is type(v) is torch.Tensor) or k.ndim != 4 or v.ndim != 4:
            return None
        wants = q.requires_grad or k.requires_grad or v.requires_grad
        if wants or _kind_of(q, k, v) != self._kind or k.shape[:3] != v.shape[:3]:
            return None
        self._turns.take(self._device, self._reduction)
        mine = self._reduction.input
        if mine is None:
            mine = empty_partial(self._shape, self._device)._asdict()
        with current(self._device):
            self._decode(q, k, v, spec=self.spec, out=Partial(mine[OUT], mine[LSE]))
        found = self._reduction(mine)
        out = found[OUT]
        return Partial(out if q.dtype is torch.float32 else out.to(q.dtype), found[LSE])


def _kind_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[Any, ...]:
    """What the tensors of two steps must have alike; the number of keys may differ."""
    of_all = [(x.dtype, x.device, x.shape[0], x.shape[1], x.shape[3], x.stride(3)) for x in (q, k, v)]
    return (*of_all, q.shape[2])


def plain_step(comm: Any, q: Any, spec: Spec | None) -> PlainStep | DeviceStep | None:
    """What an earlier step left for one like it."""
    steps: dict[Any, PlainStep | DeviceStep] | None = getattr(comm, ATTRIBUTE, None)
    step = None if steps is None else steps.get(getattr(q, "shape", None))
    return step if step is not None and step.spec is spec else None


def remember(comm: Communicator, inputs: Inputs, spec: Spec | None, key: Hashable) -> None:
    """Leave a plain step for the next call, where this one is such; `key` is what its reduction is kept under."""
    plain = inputs.visibility is None and inputs.pages is None and inputs.spec.sinks is None
    there = on_gpu(inputs.q)
    if plain and 0 not in inputs.out_shape and (gpu.decodes(inputs) if there else covers(inputs)):
        steps: dict[Any, PlainStep | DeviceStep] = vars(comm).setdefault(ATTRIBUTE, {})
        if len(steps) >= STEPS_LIMIT:
            steps.clear()
        kept = state_of(comm)["calls"]
        if there:
            steps[inputs.q.shape] = DeviceStep(inputs, spec, key, kept, turns_of(comm))
        else:
            steps[inputs.q.shape] = PlainStep(inputs, spec, key, kept)
