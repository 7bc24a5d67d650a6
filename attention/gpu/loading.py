"""Kernels of attention are on the GPU before ranks wait for each other there; as topocomm's own calls have it.

Loading a kernel may wait until the GPU is through with everything. Where ranks are threads of one process, that wait
may keep the others from what a kernel of theirs waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attention import gpu
from attention.arrays import Inputs
from attention.communicators import state_of
from attention.gpu.where import capturing, on_gpu
from attention.sharded import ShardedCall
from topocomm import Communicator

MANY_KEYS = 512
"""A shard of so many is cut into two parts, each with programs of its own, where half of the GPU has none."""


def load_once(function: str, call: ShardedCall, *, folds: int = 0) -> None:
    """Have the GPU load what a sharded call runs on this rank; collective at the first call of a kind.

    Args:
        function: Whose call it is.
        call: On every rank of the same kind: queries, heads, dims, dtypes and spec.
        folds: Partials that are folded at once; 0: none.
    """
    inputs = call.inputs
    shapes = (inputs.q.shape, inputs.k.shape[1], inputs.v.shape[3])
    kind = (function, *shapes, inputs.q.dtype, inputs.k.dtype, inputs.spec, folds)
    if on_gpu(inputs.q):
        load_together(call.comm, kind, inputs, lambda: _run(inputs, folds))


def load_together(comm: Communicator, kind: Any, inputs: Inputs, run: Callable[[], object]) -> None:
    """Have all ranks run something once, while none of their calls waits on a GPU; collective for a new kind.

    Args:
        comm: The ranks.
        kind: Of the call, the same on all ranks.
        inputs: On a GPU.
        run: Runs the kernels of a call, and waits for no other rank.
    """
    loaded: set[Any] = state_of(comm).setdefault("loaded", set())
    if comm.size == 1 or kind in loaded or capturing(inputs.q.device):
        return
    comm.barrier()  # what was called before is on the streams of all ranks, and comes to its end
    run()
    comm.barrier()
    loaded.add(kind)


def _run(inputs: Inputs, folds: int) -> None:
    partial = inputs.empty_partial()
    gpu.attend(inputs, partial)
    plain = inputs.visibility is None and inputs.pages is None
    if plain and gpu.decodes(
        inputs
    ):  # kernels differ by whether there are keys, and whether several programs share them
        some = (x if x.shape[2] else x.new_zeros((*x.shape[:2], 1, x.shape[3])) for x in (inputs.k, inputs.v))
        ones = [x[:, :, :1] for x in some]
        for n in (0, 1, MANY_KEYS):
            k, v = (x.expand(-1, -1, n, -1) if n else x[:, :, :0] for x in ones)
            gpu.attend(replace(inputs, k=k, v=v), partial)
    if folds:
        gpu.fold([partial.out] * folds, [partial.lse] * folds)
