"""Checks of arguments and results that tree, ring and three all-reduces share."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from attention.arrays import Inputs, check_inputs, check_out, to_caller
from attention.decode.communicators import as_communicator
from attention.partial import Partial, add_sinks
from attention.spec import PLAIN, Spec
from attention.visibility import Masking
from topocomm import Communicator, OperatorError


class Options(NamedTuple):
    """The keyword arguments that `tree_decode`, `ring_decode` and `three_allreduce_decode` share."""

    spec: Spec | None
    masking: Masking
    return_lse: bool
    out: Any
    result: str = "all"


class ShardedCall(NamedTuple):
    """One checked call on one rank.

    Attributes:
        inputs: q, and this rank's keys and values.
        heads: The query heads whose result this rank gets.
        q: As the caller gave it.
        target: `out` of the options as a tensor; None where they have none.
    """

    comm: Communicator
    inputs: Inputs
    heads: slice
    q: Any
    target: torch.Tensor | None
    options: Options

    @classmethod
    def begin(cls, function: str, q: Any, shard: tuple[Any, Any], comm: Any, options: Options) -> ShardedCall:
        """Check the arguments.

        Raises:
            OperatorError: They do not fit, or positions are missing.
        """
        comm = as_communicator(function, comm)
        spec = PLAIN if options.spec is None else options.spec
        if spec.needs_positions and comm.size > 1 and options.masking.kv_positions is None:
            raise OperatorError(
                f"{function}: attention over {comm.size} shards that is causal, or has a window or slopes, needs "
                "kv_positions and q_positions, the global positions of this rank's keys and of the queries"
            )
        if options.result not in ("all", "heads"):
            raise OperatorError(f'{function}: result must be "all" or "heads", got {options.result!r}')
        inputs = check_inputs(function, q, *shard, spec=spec, masking=options.masking)
        count = inputs.q.shape[1]
        heads = slice(0, count) if options.result == "all" else part_of(count, comm.size, comm.rank)
        call = cls(comm, inputs, heads, q, None, options)
        if options.out is None:
            return call
        return call._replace(
            target=check_out(function, "out", options.out, call.shape, inputs.q.dtype, inputs.q.device)
        )

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of this rank's result."""
        batch, _, q_len, d_v = self.inputs.out_shape
        return batch, self.heads.stop - self.heads.start, q_len, d_v

    def empty(self) -> Partial:
        """Uninitialised float32 tensors for the merged partial; `out` is the result itself where that can be."""
        device = self.inputs.q.device
        direct = self.target is not None and self.target.dtype == torch.float32 and self.target.is_contiguous()
        out = self.target if direct else torch.empty(self.shape, dtype=torch.float32, device=device)
        return Partial(out, torch.empty(self.shape[:3], dtype=torch.float32, device=device))

    def finish(self, merged: Partial) -> Any:
        """Return the result in the caller's kind and dtype: out, or Partial(out, lse); sinks are counted here."""
        if self.inputs.spec.sinks is not None:
            merged = add_sinks(merged, self.inputs.spec.sinks[self.heads])
        if self.target is None:
            out = to_caller(self.q, merged.out.to(self.inputs.q.dtype))
        else:
            if merged.out is not self.target:
                self.target.copy_(merged.out)
            out = self.options.out
        return Partial(out, to_caller(self.q, merged.lse)) if self.options.return_lse else out


def part_of(count: int, ranks: int, rank: int) -> slice:
    """Return a rank's range of `count` heads (with `result="heads"`) or features: as equal shares as can be."""
    return slice(rank * count // ranks, (rank + 1) * count // ranks)
