"""What all ways to attend over sharded keys have in common: the check of their arguments, and their result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from attention.arrays import Inputs, check_inputs, check_out, to_caller
from attention.communicators import as_communicator
from attention.partial import Partial, add_sinks
from attention.spec import Spec
from attention.visibility import Masking
from topocomm import Communicator, OperatorError


@dataclass(frozen=True)
class Options:
    """The keyword arguments that `tree_decode`, `ring_decode` and `three_allreduce_decode` share."""

    spec: Spec | None
    masking: Masking
    return_lse: bool
    out: Any
    result: str = "all"


@dataclass(frozen=True)
class ShardedCall:
    """One checked call on one rank.

    Attributes:
        comm: The ranks.
        inputs: q, and this rank's keys and values.
        heads: The query heads whose result this rank gets.
        merged: float32 tensors for the merged partial of these heads; `out` is the result itself where that is
            float32.
    """

    comm: Communicator
    inputs: Inputs
    heads: slice
    merged: Partial
    _q: Any
    _target: torch.Tensor
    _options: Options

    @classmethod
    def begin(cls, function: str, q: Any, shard: tuple[Any, Any], comm: Any, options: Options) -> ShardedCall:
        """Check the arguments.

        Raises:
            OperatorError: They do not fit, or positions are missing.
        """
        comm = as_communicator(function, comm)
        spec = options.spec or Spec()
        if spec.needs_positions and comm.size > 1 and options.masking.kv_positions is None:
            raise OperatorError(
                f"{function}: attention over {comm.size} shards that is causal, or has a window or slopes, needs "
                "kv_positions and q_positions, the global positions of this rank's keys and of the queries"
            )
        if options.result not in ("all", "heads"):
            raise OperatorError(f'{function}: result must be "all" or "heads", got {options.result!r}')
        inputs = check_inputs(function, q, *shard, spec=spec, masking=options.masking)
        whole = options.result == "all"
        heads = slice(0, inputs.q.shape[1]) if whole else head_range(inputs.q.shape[1], comm.size, comm.rank)
        batch, _, q_len, d_v = inputs.out_shape
        shape, dtype = (batch, heads.stop - heads.start, q_len, d_v), inputs.q.dtype
        if options.out is None:
            target = torch.empty(shape, dtype=dtype)
        else:
            target = check_out(function, "out", options.out, shape, dtype)
        direct = dtype == torch.float32 and target.is_contiguous()
        merged = Partial(
            target if direct else torch.empty(shape, dtype=torch.float32),
            torch.empty(shape[:3], dtype=torch.float32),
        )
        return cls(comm, inputs, heads, merged, q, target, options)

    def finish(self) -> Any:
        """The result in the caller's kind and dtype: out, or Partial(out, lse); sinks are counted here."""
        merged = self.merged
        if self.inputs.spec.sinks is not None:
            merged = add_sinks(merged, self.inputs.spec.sinks[self.heads])
        if merged.out is not self._target:
            self._target.copy_(merged.out)
        out = to_caller(self._q, self._target) if self._options.out is None else self._options.out
        return Partial(out, to_caller(self._q, merged.lse)) if self._options.return_lse else out


def head_range(heads: int, ranks: int, rank: int) -> slice:
    """The query heads that a rank gets with `result="heads"`: as equal shares as can be."""
    return slice(rank * heads // ranks, (rank + 1) * heads // ranks)
