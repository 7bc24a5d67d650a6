"""What all ways to attend over sharded keys have in common: the check of their arguments, and their result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from attention.arrays import Inputs, Masking, check_inputs, check_out, to_caller
from attention.communicators import as_communicator
from attention.partial import Partial
from attention.spec import Spec
from topocomm import Communicator, OperatorError


@dataclass(frozen=True)
class Options:
    """The keyword arguments of `tree_decode`, `ring_decode` and `three_allreduce_decode`."""

    spec: Spec | None
    masking: Masking
    return_lse: bool
    out: Any


@dataclass(frozen=True)
class ShardedCall:
    """One checked call on one rank.

    Attributes:
        comm: The ranks.
        inputs: q, and this rank's keys and values.
        merged: float32 tensors for the merged partial; `out` is the result itself where that is float32.
    """

    comm: Communicator
    inputs: Inputs
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
        if spec.causal and comm.size > 1 and options.masking.kv_positions is None:
            raise OperatorError(
                f"{function}: causal attention over {comm.size} shards needs kv_positions and q_positions, "
                "the global positions of this rank's keys and of the queries"
            )
        inputs = check_inputs(function, q, *shard, spec=spec, masking=options.masking)
        shape, dtype = inputs.out_shape, inputs.q.dtype
        if options.out is None:
            target = torch.empty(shape, dtype=dtype)
        else:
            target = check_out(function, "out", options.out, shape, dtype)
        direct = dtype == torch.float32 and target.is_contiguous()
        merged = Partial(
            target if direct else torch.empty(shape, dtype=torch.float32),
            torch.empty(shape[:3], dtype=torch.float32),
        )
        return cls(comm, inputs, merged, q, target, options)

    def finish(self) -> Any:
        """The result in the caller's kind and dtype: out, or Partial(out, lse)."""
        if self.merged.out is not self._target:
            self._target.copy_(self.merged.out)
        out = to_caller(self._q, self._target) if self._options.out is None else self._options.out
        return Partial(out, to_caller(self._q, self.merged.lse)) if self._options.return_lse else out
