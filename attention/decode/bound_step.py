"""Decode steps bound to the memory in which keys and values lie: nothing is done twice that no token changes.

In a model each layer's step follows on a pass over its weights, which leaves neither the interpreter's nor torch's
memory in the caches: what is not looked at costs nothing. So all of a step is one call in C, attention/kernels/step.c,
but for what few models have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

import torch

from attention.decode.reductions import AllReduce
from attention.local.compiled_attention import StepKernel
from attention.merge.logsumexp import LSE, OUT
from attention.partial import Partial, add_sinks
from attention.spec import Spec
from topocomm import Communicator, PreparedCall

Attend = Callable[[torch.Tensor, Any, Mapping[str, Any]], torch.Tensor | None]


class Alike(NamedTuple):
    """What calls of a bound step have in common; with the kind None nothing is compared.

    Attributes:
        kind: The attribute `kind` of a mask: that very object.
        options: By name, these very objects.
        harmless: Names of options whose values may be any.
        n_options: How many options there are.
    """

    kind: object = None
    options: dict[str, Any] = {}  # noqa: RUF012 - read only
    harmless: tuple[str, ...] = ()
    n_options: int = 0


ANY = Alike()
_NO_REDUCTION: tuple[Any, ...] = (None, None, 0)
RESULTS, RESULT_BYTES = 16, 64 << 10
"""Memory for the next results is made for so many at once, and of up to so many bytes: behind a pass over weights one
by itself takes as long as the kernel over a few hundred keys."""


class BoundStep:
    """Steps of one kind on the CPU over a range of rows of one memory; `PreparedDecode.bind` makes them.

    Attributes:
        begin: Says which rows the next steps see, and how many more they may add: a `StorageRun`'s items.
        append: Adds k [batch, kv_heads, 1, d] and v [batch, kv_heads, 1, d_v] as the next row, or counts them where
            another rank owns it; False, and nothing done, where they are of another kind or ask for gradients, or no
            more may be added.
        attend: Attends the rows, reduces, and returns out, of q's dtype and as many numbers as were asked for, given q,
            a mask and options; collective. Once after each of the others. None, and nothing done, where q, mask or
            options are of another kind, q asks for gradients, or the reduction was freed for others.
        most_keys: Returns of how many rows at most a range may be; others go other ways.
    """

    def __init__(
        self,
        comm: Communicator,
        reduction: AllReduce,
        kernel: StepKernel,
        spec: Spec,
        dtype: torch.dtype,
        storage: tuple[torch.Tensor, torch.Tensor],
        shape: tuple[int, ...] | None = None,
        alike: Alike = ANY,
        counters: tuple[Any, Any, Any] = (None, None, None),
    ) -> None:
        """Bind to k [batch, kv_heads, rows, d] and v [batch, kv_heads, rows, d_v], which stay where they are.

        Args:
            comm: The ranks.
            reduction: As it was prepared.
            kernel: Likewise.
            spec: Likewise.
            dtype: Of the queries.
            storage: k and v.
            shape: Of the results, as many numbers as [batch, heads, q_len, d_v]; None: this.
            alike: What else calls have in common.
            counters: int64 [1], where tokens are counted, and rows of k and of v.
        """
        own, sinks = reduction.empty(), spec.sinks
        inputs: tuple[Any, ...] = (own,)
        turns, reduce = None, _NO_REDUCTION
        if comm.size > 1:
            call, calls, dropped = reduction.planned()
            (inputs, turns), reduce = call.turns, (_writing(call), calls, dropped)
        sent = tuple([own if x is None else x for x in inputs])
        memories = tuple([((x,), x[OUT].__dlpack__(), x[LSE].__dlpack__()) for x in sent])
        shape = reduction.shape if shape is None else shape
        make = _makes_results(reduction, shape if sinks is None else reduction.shape)
        result_dtype = None if dtype is torch.float32 or sinks is not None else dtype
        result = make, result_dtype, sinks is not None
        in_turn = memories, None if turns is None else turns.__dlpack__()
        self.most_keys = kernel.most_keys
        self.begin, self.append, attend = kernel.bind(*storage, result, in_turn, reduce, counters, alike, None)
        alone = own[LSE] if comm.size == 1 else None
        self.attend: Attend = attend if sinks is None else _with_sinks(attend, sinks, alone, dtype, shape)


def _writing(call: PreparedCall) -> Callable[..., Any]:
    """The call of a value and `out`, by its fast path; elsewhere `out` costs more looks at it than two copies do."""
    if call.fast_path is not None:
        return call

    def run(value: Any, *, out: dict[str, Any]) -> None:
        for name, merged in call(value).items():
            out[name][...] = merged

    return run


def _makes_results(reduction: AllReduce, shape: tuple[int, ...]) -> Callable[[], tuple[Any, ...]]:
    """What makes memory for some results, each by itself: a tensor of this shape, `out` of the reduction, its lse."""
    count = max(1, min(RESULTS, RESULT_BYTES // (4 * max(1, prod(shape)))))

    def make() -> tuple[Any, ...]:
        arrays = [reduction.empty() for _ in range(count)]
        with torch.inference_mode(False):  # a step may be in that mode, and the next one not
            return tuple([(torch.from_numpy(x[OUT].reshape(shape)), {"out": x}, x[LSE]) for x in arrays])

    return make


def _with_sinks(
    attend: Callable[..., Any], sinks: Any, own_lse: Any, dtype: torch.dtype, shape: tuple[int, ...]
) -> Attend:
    """Steps that give out and lse, with sinks counted; without a reduction lse is in `own_lse`."""

    def run(q: torch.Tensor, mask: Any, options: Mapping[str, Any]) -> torch.Tensor | None:
        result = attend(q, mask, options)
        if result is None:
            return None
        out, lse = result
        partial = Partial(out, torch.from_numpy(lse if own_lse is None else own_lse))
        merged: torch.Tensor = add_sinks(partial, sinks).out.to(dtype).view(shape)
        return merged

    return run
