"""Prepared decode steps: what does not change is done once, and a step runs kernel, plan and division.

Gradients: every rank holds the same queries and the same result, and all ranks compute the same loss of it. Then the
gradient that arrives is the same everywhere, each shard adds its part (`attention.ring.backward`), those of the own
keys and values stay, and one all-reduce with SUM gives every rank the gradient of the queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Unpack, overload

import torch

from attention.array_types import AnyArray, Numbers, Ranks, StepArguments
from attention.arrays import check_inputs
from attention.cache.shards import ShardMap, canonical_shards
from attention.decode.agreement import agree_once
from attention.decode.bound_step import BoundStep
from attention.decode.communicators import prepared_call
from attention.decode.local_kernels import HostKernel, local_kernel
from attention.decode.reductions import (
    AllReduce,
    CanonicalReduce,
    ReduceScatter,
    Reduction,
    SixteenBitGather,
    as_tensors,
)
from attention.decode.sharded import Options, ShardedCall
from attention.decode.verification import Verification, due
from attention.gpu.loading import Folds, load_once
from attention.partial import Partial, add_sinks
from attention.ring.backward import backward_block
from attention.spec import Spec
from attention.visibility import UNMASKED, Masking
from topocomm import SUM, Communicator, OperatorError
from topocomm.extend import skipped_by_dynamo

WIRES = ("float32", "bfloat16")


@dataclass(frozen=True)
class DecodeOptions:
    """How a decode step merges its partials: the arguments of `tree_decode` of these names."""

    order: str = "any"
    shards: ShardMap | None = None
    result: str = "all"
    wire: str = "float32"
    verify: bool | int = False

    def check(self, function: str) -> None:
        """Raise an OperatorError that begins with the function's name if the choices do not go together."""
        if self.order not in ("any", "canonical"):
            raise OperatorError(f'{function}: order must be "any" or "canonical", got {self.order!r}')
        if self.wire not in WIRES:
            raise OperatorError(f"{function}: wire must be one of {', '.join(WIRES)}, got {self.wire!r}")
        if self.order == "canonical" and self.wire != "float32":
            raise OperatorError(
                f'{function}: canonical order needs wire="float32": what is rounded on the wire depends on the layout'
            )
        if self.order == "any" and self.shards is not None:
            raise OperatorError(f'{function}: shards belong to order="canonical"')


@skipped_by_dynamo
def prepare_decode(
    comm: Ranks,
    like_q: AnyArray,
    spec: Spec | None = None,
    *,
    like_kv: tuple[AnyArray, AnyArray],
    like_positions: tuple[Numbers, Numbers] | None = None,
    options: DecodeOptions | None = None,
) -> PreparedDecode:
    """Prepare decode steps of one kind: checks, agreement of the ranks, plan, buffers, kernels; collective.

    `tree_decode` is this, kept on the communicator, and `PreparedDecode.step`.

    Args:
        comm: As `tree_decode`: a topocomm.Communicator, an mpi4py communicator, a torch ProcessGroup or a 1-D
            DeviceMesh.
        like_q: Queries as those of the steps, [batch, heads, q_len, d]; only shape, dtype and device matter. On a GPU
            on all ranks, or in host memory on all.
        spec: Which attention; None: Spec().
        like_kv: Keys [batch, kv_heads, n_local, d] and values [batch, kv_heads, n_local, d_v] as those of the steps,
            with any number of keys, which may be 0. For steps with block_tables: dense keys of the same heads.
        like_positions: (q_positions, kv_positions) of these, as `tree_decode` takes them, where steps give
            kv_positions; the ranks check that each key is on one rank. None: steps give none.
        options: Order, result, wire, verify; None: DecodeOptions().

    Returns:
        The prepared step, which lives as long as it is referred to; its buffers belong to the communicator.

    Collective: every rank calls it, in the same order relative to its other calls, with the same heads, dims, dtypes,
    spec and options; the number of keys may differ.

    Raises:
        OperatorError: This rank's arguments do not fit, or positions are missing.
        MismatchError: Ranks differ in what they must have alike, or a key is on two ranks or on none; on every rank.
        DeadlineError, RankFailedError: Another rank did not come, or failed.
    """
    q_positions, kv_positions = (None, None) if like_positions is None else like_positions
    arrays = like_q, *like_kv
    return prepared_step(
        "prepare_decode", arrays, comm, spec, Masking(q_positions, kv_positions), options or DecodeOptions()
    )


def prepared_step(
    function: str, arrays: tuple[Any, Any, Any], comm: Any, spec: Spec | None, masking: Masking, options: DecodeOptions
) -> PreparedDecode:
    """`prepare_decode` for steps like this one, whose errors begin with the function's name; collective."""
    options.check(function)
    q, k, v = (x.detach() if isinstance(x, torch.Tensor) else x for x in arrays)
    call = ShardedCall.begin(function, q, (k, v), comm, Options(spec, masking, False, None, options.result))
    agree_once(function, call, (("order", options.order), ("result", options.result), ("wire", options.wire)))
    _load(call, options)
    return PreparedDecode("PreparedDecode.step" if function == "prepare_decode" else function, call, options)


@skipped_by_dynamo
class PreparedDecode:
    """A decode step made ready by `prepare_decode`, for arrays of one kind with any number of keys."""

    def __init__(self, function: str, call: ShardedCall, options: DecodeOptions) -> None:
        """Plan for a call that is checked and agreed; collective. `prepare_decode` makes them."""
        self.comm: Communicator = call.comm
        self.spec: Spec = call.inputs.spec
        self.options = options
        self._function, self._kind = function, _kind_of(call)
        self._device = call.inputs.q.device
        self._has_positions = call.options.masking.kv_positions is not None
        self._sharded = self.comm.size > 1
        self._verifies = options.verify is not False
        self._reduction: Reduction
        if options.order == "canonical":
            shards = options.shards or canonical_shards(self.comm.size)
            self._reduction = CanonicalReduce(self.comm, call.inputs, shards)
        elif options.wire == "bfloat16" and self._sharded:
            self._reduction = SixteenBitGather(self.comm, call.inputs, exact=self._verifies)
        else:
            self._reduction = (ReduceScatter if options.result == "heads" else AllReduce)(self.comm, call.inputs)
        self._local = local_kernel(function, call.inputs, self.comm) if type(self._reduction) is AllReduce else None

    @overload
    def step(
        self,
        q: AnyArray,
        k_shard: AnyArray,
        v_shard: AnyArray,
        *,
        return_lse: Literal[False] = False,
        out: AnyArray | None = None,
        **rest: Unpack[StepArguments],
    ) -> AnyArray: ...
    @overload
    def step(
        self,
        q: AnyArray,
        k_shard: AnyArray,
        v_shard: AnyArray,
        *,
        return_lse: Literal[True],
        out: AnyArray | None = None,
        **rest: Unpack[StepArguments],
    ) -> Partial: ...
    # The arguments are those of `tree_decode`.
    def step(  # noqa: PLR0913
        self,
        q: AnyArray,
        k_shard: AnyArray,
        v_shard: AnyArray,
        *,
        q_positions: Numbers = None,
        kv_positions: Numbers = None,
        kv_mask: Numbers = None,
        kv_lengths: Numbers = None,
        block_tables: Numbers = None,
        return_lse: bool = False,
        out: AnyArray | None = None,
    ) -> Any:
        """Attend this rank's keys, reduce, and return the merged result; collective.

        Arguments and results are those of `tree_decode`, for a q of the shape, dtype and device of `like_q`;
        kv_positions are given in every step, or in none, as to `prepare_decode`, and are not compared with other ranks'
        again, unless the step is verified.

        The shortest way is taken by torch tensors, on a GPU of up to 16 queries, without block_tables and `out`, in
        steps that are not verified, with order="any", result="all", wire="float32" and no gradients: the local kernel
        writes into the send buffer, the plan runs, the merged partial is normalised. Every other step is checked in
        full, with the same bits.

        Raises:
            OperatorError: Arguments do not fit, or are of another kind than was prepared.
            MismatchError: Verification found a wrong result; on every rank.
            DeadlineError, RankFailedError: Another rank did not come, or failed.
        """
        masking = UNMASKED
        if not (q_positions is kv_positions is kv_mask is kv_lengths is block_tables is None):
            masking = Masking(q_positions, kv_positions, kv_mask, kv_lengths, block_tables)
        return self.run((q, k_shard, v_shard), masking, return_lse, out)

    def run(self, arrays: tuple[Any, Any, Any], masking: Masking, return_lse: bool, out: Any) -> Any:
        """As `step`, for (q, k_shard, v_shard); `UNMASKED` where nothing is said of positions, masks and lengths."""
        verified = self._verifies and due(self.comm, self.options.verify, self._device)
        if self._local is not None and not verified and out is None and masking.block_tables is None:
            merged = self._fast_path(*arrays, masking)
            if merged is not None:
                return merged if return_lse else merged.out
        if torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in arrays):
            self._check_differentiable(arrays, out, masking.block_tables)
            options = Options(self.spec, masking, True, None)
            forward = partial(self._checked_step, verified)
            merged = Partial(*_WithGradients.apply(*arrays, forward, self.comm, options))  # type: ignore[no-untyped-call]
            return merged if return_lse else merged.out
        return self._checked_step(verified, arrays, Options(self.spec, masking, return_lse, out, self.options.result))

    def bind(self, k: torch.Tensor, v: torch.Tensor, **rest: Any) -> BoundStep | None:
        """Return this step for queries of its kind and ranges of these keys and values, the shortest way there is.

        k [batch, kv_heads, rows, d] and v [batch, kv_heads, rows, d_v] are of the prepared kind, on the CPU; `rest` are
        arguments of `BoundStep`. None: such steps have none.
        """
        if type(self._reduction) is not AllReduce or type(self._local) is not HostKernel or self._verifies:
            return None
        if self.spec.needs_positions or self._has_positions:
            return None
        dtype = self._kind["dtype of q"]
        return BoundStep(self.comm, self._reduction, self._local.kernel, self.spec, dtype, (k, v), **rest)

    def _checked_step(self, verified: bool, arrays: tuple[Any, Any, Any], options: Options) -> Any:
        """A step with every check, of arrays that ask for no gradients; collective."""
        q, k, v = arrays
        call = ShardedCall.begin(self._function, q, (k, v), self.comm, options)
        self._check_kind(call)
        if call.inputs.pages is not None:
            _load(call, self.options)  # pages of a size that is new
        watch = Verification(call, self.options.wire) if verified and call.inputs.q.numel() else None
        merged = self._reduction.merge(call, watch)
        if watch is not None:
            watch.check(merged)
        return call.finish(merged)

    def _fast_path(self, q: Any, k: Any, v: Any, masking: Masking) -> Partial | None:
        """The merged partial in q's dtype, lse float32; None, and nothing done, where the kernel does not take it."""
        if (masking.kv_positions is not None) is not self._has_positions and self._sharded:
            return None
        assert self._local is not None
        assert isinstance(self._reduction, AllReduce)
        reduction = self._reduction.call()
        sent = self._local.run(q, k, v, masking, reduction)
        if sent is None:
            return None
        alone = not self._sharded and not self._reduction.on_gpu
        merged = as_tensors({name: x.copy() for name, x in sent.items()} if alone else reduction(sent))
        if self.spec.sinks is not None:
            merged = add_sinks(merged, self.spec.sinks)
        return merged if q.dtype is torch.float32 else Partial(merged.out.to(q.dtype), merged.lse)

    def _check_kind(self, call: ShardedCall) -> None:
        kind = _kind_of(call)
        if kind != self._kind:
            name, was, got = next((name, was, kind[name]) for name, was in self._kind.items() if kind[name] != was)
            raise OperatorError(
                f"{self._function}: prepared for {name} {was}, got {got}; call prepare_decode for each kind of step"
            )
        if (call.options.masking.kv_positions is not None) is not self._has_positions and self._sharded:
            was = "with" if self._has_positions else "without"
            raise OperatorError(
                f"{self._function}: prepared for steps {was} kv_positions; give them in every step, or in none, as to "
                "prepare_decode"
            )

    def _check_differentiable(self, arrays: tuple[Any, Any, Any], out: Any, block_tables: Any) -> None:
        if (
            type(self._reduction) is not AllReduce
            or self.options.wire != "float32"
            or not (out is block_tables is None)
        ):
            raise OperatorError(
                f'{self._function}: gradients are there for order="any", result="all" and wire="float32", without out '
                "and block_tables; call it under torch.no_grad() or pass detached tensors"
            )
        if not all(isinstance(x, torch.Tensor) for x in arrays):
            raise OperatorError(
                f"{self._function}: where gradients are wanted, q, k_shard and v_shard must all be torch tensors"
            )


@skipped_by_dynamo
class _WithGradients(torch.autograd.Function):
    """The forward step of (q, k, v) without gradients, out and lse, made differentiable; no pages."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v, forward, ctx.comm, ctx.options = arguments
        out, lse = forward((q.detach(), k.detach(), v.detach()), ctx.options)
        ctx.save_for_backward(q, k, v, out, lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *arriving: torch.Tensor) -> tuple[Any, ...]:
        q, k, v, out, lse = (x.detach() for x in ctx.saved_tensors)
        inputs = check_inputs("tree_decode", q, k, v, spec=ctx.options.spec, masking=ctx.options.masking)
        dq, dk, dv = backward_block(inputs, out, lse, *arriving)
        if ctx.needs_input_grad[0]:
            summed = {"value": dq}
            prepared_call(ctx.comm, "allreduce", summed, SUM)(summed, out=summed)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None, None


def _load(call: ShardedCall, options: DecodeOptions) -> None:
    """Load the kernels of such steps; collective at the first of a kind, and of a size of pages."""
    folds = None if options.wire == "float32" else Folds(call.comm.size, torch.bfloat16)
    load_once("tree_decode", call, moved=options.order == "canonical", folds=folds)


def _kind_of(call: ShardedCall) -> dict[str, Any]:
    """What every step has in common with the prepared one, by name."""
    q, k, v = call.inputs.q, call.inputs.k, call.inputs.v
    return {
        "q": list(q.shape),
        "kv_heads": k.shape[1],
        "d_v": v.shape[3],
        "dtype of q": q.dtype,
        "dtype of k and v": k.dtype,
        "device": q.device,
    }
