"""Decode steps bound to the memory in which keys and values lie: nothing is done twice that no token changes.

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
    """Steps of one kind on the CPU over a range of rows of one memory; `PreparedDecode.bind` makes them.

    Attributes:
        append: Copies k [batch, kv_heads, 1, d] and v [batch, kv_heads, 1, d_v] into a row, given its number, or with
            -1 nowhere; False, and nothing done, where they are of another kind or ask for gradients.
        most_keys: Returns of how many rows at most a range may be; others go other ways.
    """

    def __init__(
        self, comm: Communicator, reduction: AllReduce, kernel: StepKernel, spec: Spec, k: torch.Tensor, v: torch.Tensor
    ) -> None:
        """Bind to k [batch, kv_heads, rows, d] and v [batch, kv_heads, rows, d_v], which stay where they are."""
        self._reduction = reduction if comm.size > 1 else None
        self._shape, self._sinks = reduction.shape, spec.sinks
        self.most_keys = kernel.most_keys
        self.append, self._attend = kernel.bind(k, v)
        self._targets: dict[int, tuple[Any, Any, Any]] = {}
        """By the address of a send buffer's dict: that, and its out and lse as DLPack capsules."""
        self._own = reduction.empty()
        self._own_lse = self._own[LSE].__dlpack__()

    def run(self, q: torch.Tensor, first: int, end: int) -> torch.Tensor | None:
        """Attend the rows [first, end), reduce, and return out [batch, heads, q_len, d_v] of q's dtype; collective.

        None, and nothing done, where q is of another kind than was prepared, or asks for gradients.
        """
        if self._reduction is None:
            result = torch.empty(self._shape, dtype=torch.float32)
            if not self._attend(q, first, end, to_dlpack(result), self._own_lse):
                return None
            merged = self._own
        else:
            call = self._reduction.call()
            sent = call.input
            if sent is None:
                sent = self._own
            known = self._targets.get(id(sent))
            _, out, lse = known if known is not None and known[0] is sent else self._capsules(sent)
            if not self._attend(q, first, end, out, lse):
                return None
            merged = call(sent)
            result = torch.from_numpy(merged[OUT])
        if self._sinks is not None:
            result = add_sinks(Partial(result, torch.from_numpy(merged[LSE])), self._sinks).out
        return result if q.dtype is torch.float32 else result.to(q.dtype)

    def _capsules(self, sent: dict[str, Any]) -> tuple[Any, Any, Any]:
        if len(self._targets) > 2:  # of calls that were freed
            self._targets.clear()
        known = self._targets[id(sent)] = sent, sent[OUT].__dlpack__(), sent[LSE].__dlpack__()
        return known
