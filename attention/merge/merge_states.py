"""merge_states: the merge of partials as a torch operation, for eager code, torch.compile and autograd.

It is the left fold of `attention.LOGSUMEXP`: on the CPU bit for bit, by the same kernels, and on GPUs by one
kernel that rounds alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, reduce
from typing import Any, Literal

import torch

from attention.merge.logsumexp import LOGSUMEXP, LSE, OUT
from attention.partial import Partial
from topocomm import OperatorError

LN2 = math.log(2.0)
GpuFold = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], tuple[torch.Tensor, torch.Tensor]]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def merge_states(
    outs: torch.Tensor | Sequence[torch.Tensor],
    lses: torch.Tensor | Sequence[torch.Tensor],
    *,
    base: Literal["e", 2] = "e",
) -> Partial:
    """Return attention over the union of disjoint sets of keys, from the partials of each set.

    States are folded left to right with weights exp(lse_i - lse), computed in float64 and rounded once. A state is
    ignored bit for bit where its lse is -inf or its weight underflows to 0, whatever its out holds, NaN too. A lse
    of NaN or +inf gives a lse of NaN, and an out of NaN where another state is not empty: a kernel that marks empty
    rows by +inf goes through `attention.as_partial` first.
    Differentiable in outs and lses, once. On the CPU equal to `LOGSUMEXP` bit for bit. On a GPU with triton one kernel
    launch for up to 16 states, more for strided ones or base 2.

    Args:
        outs: [n_states, *rows, dim] or n_states tensors [*rows, dim], any strides; float32, bfloat16 or float16.
        lses: [n_states, *rows] or n_states tensors [*rows], float32.
        base: Base of the logarithm that lses are: "e", or 2 (FlashInfer).

    Returns:
        out [*rows, dim] and lse [*rows], both float32; lse is the natural logarithm whatever `base` is. Rows that are
        empty in all states are (0, -inf).

    Raises:
        OperatorError: There is no state, or shapes, dtypes, devices or base do not fit.
    """
    if base not in ("e", 2):
        raise OperatorError(f"merge_states: base must be 'e' or 2, got {base!r}")
    out_list, lse_list = _states("outs", outs), _states("lses", lses)
    _check(out_list, lse_list)
    if base == 2:
        lse_list = [(lse.double() * LN2).float() for lse in lse_list]
    return Partial(*(_merge if _is_traced(out_list, lse_list) else _fold)(out_list, lse_list))


def _is_traced(*states: list[torch.Tensor]) -> bool:
    """Whether torch must see one operation: to compile or to differentiate it; else that costs more than the kernel."""
    if torch.compiler.is_compiling():
        return True
    return any(x.requires_grad or type(x) is not torch.Tensor for some in states for x in some)


def _states(name: str, states: torch.Tensor | Sequence[torch.Tensor]) -> list[torch.Tensor]:
    if isinstance(states, torch.Tensor):
        if not states.ndim:
            raise OperatorError(f"merge_states: {name} must be [n_states, ...], got a scalar")
        return list(states.unbind(0))
    for x in states:
        if not isinstance(x, torch.Tensor):
            raise OperatorError(f"merge_states: {name} must be torch tensors, got {type(x).__name__}")
    return list(states)


def _check(outs: list[torch.Tensor], lses: list[torch.Tensor]) -> None:
    if not outs or len(outs) != len(lses):
        raise OperatorError(
            f"merge_states: outs and lses must have equally many states, at least 1, got {len(outs)} and {len(lses)}"
        )
    shape, device = outs[0].shape, outs[0].device
    if not shape:
        raise OperatorError("merge_states: a state of outs must be [*rows, dim], got a scalar")
    for number, (out, lse) in enumerate(zip(outs, lses, strict=True)):
        if out.shape != shape or lse.shape != shape[:-1]:
            raise OperatorError(
                f"merge_states: state {number} must have out {list(shape)} and lse {list(shape[:-1])}, "
                f"got {list(out.shape)} and {list(lse.shape)}"
            )
        if out.dtype not in DTYPES:
            raise OperatorError(f"merge_states: outs must be float32, bfloat16 or float16, got {out.dtype}")
        if lse.dtype != torch.float32:  # in 16 bits the weights would be wrong by up to 6 %
            raise OperatorError(f"merge_states: lses must be float32, got {lse.dtype}; take them so from the kernel")
        if out.device != device or lse.device != device:
            raise OperatorError(f"merge_states: all states must be on {device}, got {out.device} and {lse.device}")


@torch.library.custom_op("attention::merge_states", mutates_args=())
def _merge(outs: Sequence[torch.Tensor], lses: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The fold of n states (out [*rows, dim], natural-log lse [*rows]), checked by the caller."""
    return _fold([x.detach() for x in outs], [x.detach() for x in lses])


def _fold(outs: list[torch.Tensor], lses: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    fold = _gpu_fold(outs[0].device.type, outs[0].shape[-1])
    if fold is not None:
        return fold(outs, lses)
    outs = [x.float() for x in outs]
    if len(outs) == 1:  # the empty rows of a single state may hold anything as well
        lse = lses[0].masked_fill(lses[0] == math.inf, math.nan)
        return outs[0].masked_fill((lse == -math.inf)[..., None], 0.0).contiguous(), lse.contiguous()
    if outs[0].device.type == "cpu":
        return fold_on_host(outs, lses)
    return _fold_by_formula(outs, lses)


@_merge.register_fake
def _(outs: Sequence[torch.Tensor], lses: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return lses[0].new_empty(outs[0].shape), lses[0].new_empty(lses[0].shape)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    outs, lses = inputs
    ctx.save_for_backward(*outs, *lses, *output)


def _gradients(ctx: Any, out_grad: torch.Tensor, lse_grad: torch.Tensor) -> tuple[list[torch.Tensor], ...]:
    """With w_i = exp(lse_i - lse): w_i g_out for out_i, and w_i (g_lse + g_out.(out_i - out)) for lse_i."""
    *states, out, lse = ctx.saved_tensors
    count = len(states) // 2
    outs, lses = [], []
    for state_out, state_lse in zip(states[:count], states[count:], strict=True):
        weight = (state_lse.double() - lse.double()).exp().float().masked_fill(state_lse == -math.inf, 0.0)
        outs.append((weight[..., None] * out_grad).to(state_out.dtype))
        pull = lse_grad + (out_grad * (state_out - out)).sum(-1)
        lses.append((weight * pull).masked_fill(weight == 0, 0.0))  # an ignored state may hold NaN
    return outs, lses


_merge.register_autograd(_gradients, setup_context=_save)


@cache
def _bind() -> Any:
    try:
        from attention.kernels.cpu_merge import bind
    except ImportError:  # the compiled part is optional; without it the operator's NumPy formula runs
        return None
    return bind


def _gpu_fold(device_type: str, dim: int) -> GpuFold | None:
    """The fold by one kernel launch, if there is one for such states."""
    if device_type != "cuda":
        return None
    try:
        from attention.gpu.gpu_merge import MOST_DIM, merge_on_device
    except ImportError:  # triton is optional; without it the formula runs
        return None
    return merge_on_device if dim <= MOST_DIM else None


def fold_on_host(
    outs: Sequence[torch.Tensor], lses: Sequence[torch.Tensor], into: Partial | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the left fold of states in host memory: out float32 [*rows, dim] and lse float32 [*rows] each.

    `into`: contiguous tensors for the result, which may be those of the first state; None: new ones.
    """
    if into is None:
        into = Partial(*(torch.empty(x[0].shape, dtype=torch.float32) for x in (outs, lses)))
    *states, target = [_flat(*state) for state in zip([*outs, into.out], [*lses, into.lse], strict=True)]
    bind = _bind()
    if bind is not None:
        bind([(state[OUT], state[LSE]) for state in states])(target)
    else:
        for name, merged in reduce(LOGSUMEXP.combine, states).items():
            target[name][:] = merged
    return into


def _flat(out: torch.Tensor, lse: torch.Tensor) -> Mapping[str, Any]:
    """The state as NumPy arrays out [rows, dim] and lse [rows], contiguous, on the same memory if that is."""
    return {
        OUT: out.contiguous().view(lse.numel(), out.shape[-1]).numpy(),
        LSE: lse.contiguous().view(-1).numpy(),
    }


def _fold_by_formula(outs: list[torch.Tensor], lses: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The fold in torch operations, for devices without a kernel of ours; a dozen launches a state."""
    states: list[Mapping[str, Any]] = [{OUT: out, LSE: lse} for out, lse in zip(outs, lses, strict=True)]
    merged = reduce(LOGSUMEXP.combine, states)
    return merged[OUT].contiguous(), merged[LSE].contiguous()
