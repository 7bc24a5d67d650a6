"""From what a kernel returned to a Partial: natural-log float32 lse, and (0, -inf) exactly in rows without keys."""

from __future__ import annotations

import math
from functools import reduce

import torch

from attention.local.conventions import Convention
from attention.partial import Partial
from topocomm import OperatorError

LN2 = math.log(2.0)


def as_partial(
    out: torch.Tensor, lse: torch.Tensor, convention: Convention, *, empty: torch.Tensor | None = None
) -> Partial:
    """The result (out, lse) of a kernel of another library as a Partial.

    Which rows are empty is never guessed: `empty` says it, or lse does as the convention tells. Whatever out holds in
    an empty row is dropped. Any other row has keys, so its lse is a finite number; where it is not (NaN or infinities
    in the data, overflow), lse and out become NaN, and stay visible in every merge. No value is read on the host.

    Args:
        out: Axes as `convention.out_layout` says, floating point.
        lse: Axes as `convention.lse_layout` says, of the convention's dtype.
        convention: How the kernel returns them, one of `attention.CONVENTIONS` or your own.
        empty: Bool, True where a row saw no key; any shape that broadcasts to [batch, heads, q_len]. None: lse tells.

    Returns:
        out [batch, heads, q_len, d_v] and lse [batch, heads, q_len], float32, on the kernel's device. A layout
        without b gives batch 1.

    Raises:
        OperatorError: Shapes or dtypes are not those of the convention, or nobody says which rows are empty.
    """
    out = _arranged("out", out, convention.out_layout, "bhqd")
    lse = _arranged("lse", lse, convention.lse_layout, "bhq")
    lse = _without_padding(out, lse, convention)
    if str(lse.dtype) != f"torch.{convention.lse_dtype}":
        raise OperatorError(f"as_partial: this convention has lse in {convention.lse_dtype}, got {lse.dtype}")
    if empty is None:
        if not convention.empty_lse:
            raise OperatorError(
                "as_partial: lse of this convention does not tell which rows saw no key; "
                "give empty=, a bool tensor (torch.tensor(False) if all rows did)"
            )
        empty = reduce(torch.logical_or, [lse == mark for mark in convention.empty_lse])
        if convention.empty_out == "zero":
            empty = empty & (out == 0).all(-1)
    else:
        if empty.dtype != torch.bool:
            raise OperatorError(f"as_partial: empty must be bool, True where a row saw no key, got {empty.dtype}")
        fits = zip(reversed(empty.shape), reversed(lse.shape), strict=False)
        if empty.ndim > lse.ndim or any(size != 1 and size != wanted for size, wanted in fits):
            raise OperatorError(
                f"as_partial: empty must broadcast to [batch, heads, q_len] = {list(lse.shape)}, got "
                f"{list(empty.shape)}"
            )
        empty = empty.to(lse.device)
    natural = (lse.double() * LN2).float() if convention.base == 2 else lse.float()
    kept = natural.isfinite() & ~empty
    lost = torch.full_like(natural, math.nan)
    return Partial(
        torch.where(kept[..., None], out.float(), lost.masked_fill(empty, 0.0)[..., None]),
        torch.where(kept, natural, lost.masked_fill(empty, -math.inf)),
    )


def write_partial(out: torch.Tensor, lse: torch.Tensor, convention: Convention, result: Partial) -> None:
    """Write the result (out, lse) of a kernel, in which every row saw a key, as `as_partial` gives it.

    A few launches whatever the size, and no copy on the way: x - x is 0 for a number and NaN for any other mark. lse is
    float32; the result are float32 tensors out [batch, heads, q_len, d_v] and lse [batch, heads, q_len] of any strides.

    Raises:
        OperatorError: Shapes or dtypes are not those of the convention.
    """
    out = _arranged("out", out, convention.out_layout, "bhqd")
    lse = _without_padding(out, _arranged("lse", lse, convention.lse_layout, "bhq"), convention)
    if lse.dtype != torch.float32:
        raise OperatorError(f"write_partial: lse must be float32, got {lse.dtype}")
    natural = lse * LN2 if convention.base == 2 else lse
    lost = natural - natural
    torch.add(natural, lost, out=result.lse)
    torch.add(out, lost[..., None], out=result.out)


def _arranged(name: str, x: torch.Tensor, layout: str, axes: str) -> torch.Tensor:
    """The array with the axes `layout` as a view with the axes `axes`."""
    if not isinstance(x, torch.Tensor):
        raise OperatorError(f"as_partial: {name} must be a torch tensor, got {type(x).__name__}")
    if x.ndim != len(layout) or any(size != 1 for size, axis in zip(x.shape, layout, strict=True) if axis == "1"):
        raise OperatorError(f"as_partial: this convention has {name} as {_axes(layout)}, got {list(x.shape)}")
    x = x.squeeze([at for at, axis in enumerate(layout) if axis == "1"])
    layout = layout.replace("1", "")
    if "b" not in layout:
        x, layout = x[None], "b" + layout
    return x.permute([layout.index(axis) for axis in axes])


def _without_padding(out: torch.Tensor, lse: torch.Tensor, convention: Convention) -> torch.Tensor:
    rows, multiple = out.shape[2], convention.lse_rows_multiple
    if lse.shape[2] == -(-rows // multiple) * multiple:
        lse = lse[:, :, :rows]
    if lse.shape != out.shape[:3]:
        raise OperatorError(
            f"as_partial: out and lse must agree in [batch, heads, q_len], got {list(out.shape[:3])} from "
            f"{_axes(convention.out_layout)} and {list(lse.shape)} from {_axes(convention.lse_layout)}"
        )
    return lse


def _axes(layout: str) -> str:
    return f"[{', '.join(layout)}]"
