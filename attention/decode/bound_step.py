"""A decode step bound to the memory in which keys and values lie: nothing is done twice that no token changes.

In a model each layer's step follows on a pass over its weights, which leaves neither the interpreter's nor torch's
memory in the caches: what is not looked at costs nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.dlpack import to_dlpack  # type: ignore[attr-defined]

from attention.decode.reductions import AllReduce
from attention.local.compiled_attention import StepKernel
from attention.merge.logsumexp import LSE, OUT
from attention.partial import Partial, add_sinks
from attention.spec import Spec
from topocomm import Communicator


class BoundStep:
    """Steps of one kind on the CPU over a range of rows of one memory; `PreparedDecode.bind` makes them."""

    def __init__(
        self, comm: Communicator, reduction: AllReduce, kernel: StepKernel, spec: Spec, k: torch.Tensor, v: torch.Tensor
    ) -> None:
        """Bind to k [batch, kv_heads, rows, d] and v [batch, kv_heads, rows, d_v], which stay where they are."""
        self._reduction = reduction if comm.size > 1 else None
        self._shape, self._sinks = reduction.shape, spec.sinks
        self._most_keys, self._attend = kernel.most_keys, kernel.bind(k, v)
        self._targets: dict[int, tuple[Any, Any, Any]] = {}
        """By the address of a send buffer's dict: that, and its out and lse as DLPack capsules."""
        self._own = reduction.empty()

    def run(self, q: torch.Tensor, first: int, end: int) -> torch.Tensor | None:
        """Attend the rows [first, end), reduce, and return out [batch, heads, q_len, d_v] of q's dtype; collective.

        q is of the prepared kind, on the CPU, and asks for no gradients. None, and nothing done: other ways take so
        many keys.
        """
        if end - first > self._most_keys():
            return None
        if self._reduction is None:
            _, _, lse = self._capsules(self._own)
            result = torch.empty(self._shape, dtype=torch.float32)
            self._attend(to_dlpack(q), first, end, to_dlpack(result), lse)
            merged = self._own
        else:
            call = self._reduction.call()
            sent = call.input
            _, out, lse = self._capsules(self._own if sent is None else sent)
            self._attend(to_dlpack(q), first, end, out, lse)
            merged = call(self._own if sent is None else sent)
            result = torch.from_numpy(merged[OUT])
        if self._sinks is not None:
            result = add_sinks(Partial(result, torch.from_numpy(merged[LSE])), self._sinks).out
        return result if q.dtype is torch.float32 else result.to(q.dtype)

    def _capsules(self, sent: dict[str, Any]) -> tuple[Any, Any, Any]:
        known = self._targets.get(id(sent))
        if known is None or known[0] is not sent:
            if len(self._targets) > 2:  # of calls that were freed
                self._targets.clear()
            known = self._targets[id(sent)] = sent, sent[OUT].__dlpack__(), sent[LSE].__dlpack__()
        return known
