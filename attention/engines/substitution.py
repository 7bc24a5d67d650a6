"""Our merge in the place of an engine's function, where it can serve; why not, said once, where it cannot.

The ranks of a group decide alike: by the group, by what is alike on all ranks (shape, dtype, kind of device), and by
what they have agreed on before.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

import torch

from attention.arrays import DTYPES
from attention.engines.combine import HeadCombine, check_partial, head_combine
from attention.gpu.placement import capturing, on_gpu
from attention.partial import Partial
from topocomm import DeadlineError, MismatchError, OperatorError, RankFailedError, TopocommError

LOGGER = logging.getLogger("attention.engines")
_groups: dict[Any, HeadCombine | str] = {}
"""Of each engine's coordinator what merges between its ranks, or why nothing of ours does; as long as the process."""
_said: set[str] = set()


def combined(
    function: str,
    partial: Partial,
    group: Any,
    *,
    natural: bool,
    empty: Callable[[], torch.Tensor | None] = lambda: None,
    heads_first: bool = False,
    return_lse: bool = False,
) -> Partial | None:
    """Return the merged partial of this rank's heads; None where the engine's own function has to be called.

    Then a warning has said why, once for each reason; nothing is said of a group of one rank.

    Args:
        function: Of the engine, for messages.
        partial: As `combine_heads` takes it.
        group: The engine's coordinator: it has `cpu_group` and `world_size`.
        natural: Whether lse is a natural logarithm, else one of base 2.
        empty: Gives what `combine_heads` takes as `empty`; called where ours serves.
        heads_first: Whether out of the result is to be contiguous as [own heads, rows, dim].
        return_lse: Whether lse of the result is wanted.

    Raises:
        OperatorError: The heads cannot be shared out evenly, as the engine's next layer needs it, or shapes do not fit.
        MismatchError, DeadlineError, RankFailedError: As `combine_heads`.
    """
    out = partial.out
    if group.world_size == 1:
        return None
    if out.ndim == 3 and out.shape[1] % group.world_size:
        raise OperatorError(
            f"{function}: heads must be a multiple of the {group.world_size} ranks of the group, got {out.shape[1]}; "
            "choose another size of the decode context parallel group"
        )
    combine = _servant(partial, group)
    if isinstance(combine, str):
        say_once(f"{function}: the engine's own function runs, not topocomm's: {combine}")
        return None
    rows, heads, dim = out.shape
    share = heads // group.world_size
    target = out.new_empty((share, rows, dim)).transpose(0, 1) if heads_first else out.new_empty((rows, share, dim))
    return combine.run(partial, "e" if natural else 2, empty(), target, return_lse=return_lse)


def misfit(function: Callable[..., Any], ours: Callable[..., Any]) -> str | None:
    """Say how the parameters of an engine's function differ from those that we know; None: they do not.

    `ours` takes the engine's function, then these parameters.
    """
    found, parameters = list(inspect.signature(function).parameters), parameters_of(ours)
    if found == parameters:
        return None
    name = getattr(function, "__qualname__", repr(function))
    return f"{name} has the parameters ({', '.join(found)}), and those known are ({', '.join(parameters)})"


def parameters_of(ours: Callable[..., Any]) -> list[str]:
    """Return the parameters of the engine's function that one of ours takes the place of."""
    return list(inspect.signature(ours).parameters)[1:]


def say_once(text: str) -> None:
    """Warn, once a process."""
    if text not in _said:
        _said.add(text)
        LOGGER.warning(text)


def _servant(partial: Partial, group: Any) -> HeadCombine | str:
    """What merges such partials, or why nothing of ours does; collective at the first of a group and of a size."""
    out, lse = partial
    if out.dtype not in DTYPES:
        return f"it takes float32, bfloat16 and float16, and out is {out.dtype}"
    if out.ndim != 3:
        return f"it takes out [rows, heads, dim], and this one is {list(out.shape)}"
    if not (out.is_cpu or on_gpu(out)):
        return f"it takes tensors in host memory and on GPUs of CUDA or ROCm, and out is on {out.device}"
    check_partial(out, lse)
    recording = on_gpu(out) and capturing(out.device)
    if group not in _groups:
        if recording:
            return "a graph is captured, and no call came before it; it serves those that do"
        _groups[group] = _of_group(group)
    combine = _groups[group]
    if isinstance(combine, str) or not on_gpu(out):
        return combine
    if recording and not combine.is_planned(out):
        return f"a graph is captured, and no call of {out.shape[0]} rows came before it"
    if not combine.is_recorded(out):
        return "the GPUs of this group reach each other by host memory only; topocomm doctor says what is missing"
    return combine


def _of_group(group: Any) -> HeadCombine | str:
    try:
        return head_combine(group)
    except (DeadlineError, MismatchError, RankFailedError):
        raise
    except TopocommError as error:  # the same on all ranks: the group has no gloo, say
        return str(error)
