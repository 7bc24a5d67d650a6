"""combine_heads: from every rank's attention partial for all heads, the merged one for this rank's heads.

This is the last step of decode context parallelism: the keys of a sequence are sharded over the ranks of a group, each
has attended its own for the queries of all heads, and the projection that follows wants 1/P of the heads on each rank.
It is one reduce-scatter with LOGSUMEXP in float32, whose rows are heads; what it does not know of is planned once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from attention.arrays import DTYPES, empty_partial
from attention.decode.communicators import (
    PREPARED_LIMIT,
    as_communicator,
    cached_call,
    calls_of,
    state_of,
    stream_order_of,
)
from attention.decode.reductions import as_tensors
from attention.decode.sharded import part_of
from attention.gpu.placement import on_gpu
from attention.merge.logsumexp import LOGSUMEXP, LSE, OUT
from attention.partial import Partial
from topocomm import Communicator, OperatorError
from topocomm.extend import skipped_by_dynamo

if TYPE_CHECKING:
    from topocomm import PreparedCall

Base = Literal["e", 2]
Key = tuple[str, int, int, int, torch.device | None]
"""What tells prepared calls apart: size of `size_of`, heads, dim, and the GPU, None for host memory."""
LN2 = math.log(2.0)  # as a float32 it errs by 3e-9, a twentieth of what rounding the product does
MOST_HOST_BYTES, MOST_DEVICE_BYTES = 8 << 20, 32 << 20
"""Of the float32 partial of one call: more rows go by several. It bounds the memory that calls keep."""
NOTHING = -math.inf
ITEM_BYTES = 4


@skipped_by_dynamo
def combine_heads(
    out: torch.Tensor,
    lse: torch.Tensor,
    group: Any,
    *,
    base: Base = "e",
    empty: torch.Tensor | None = None,
    return_lse: bool = False,
) -> Any:
    """Return attention over the keys of all ranks, for this rank's heads; collective.

    Rank r of P gets the heads from r heads // P to before (r+1) heads // P. Weights are computed in float64, sums in
    float32 whatever the dtype of `out`, which rounds once.

    Where a lse is not finite this rank has no keys for the row, and what `out` holds there is dropped, NaN too:
    kernels mark such rows by -inf, +inf (FlashAttention 2, FlashMLA) or NaN. A row that is empty on all ranks gives
    (0, -inf). NaN in `out` under a finite lse stays visible.

    Args:
        out: [rows, heads, dim], float32, bfloat16 or float16, any strides: this rank's partials. A row is a token.
        lse: [rows, heads], floating point, any strides.
        group: Whose ranks: an engine's coordinator with a `cpu_group`, a torch ProcessGroup, a 1-D DeviceMesh, an
            mpi4py communicator or a topocomm.Communicator. Wrapped at its first use. Values on GPUs are moved as that
            communicator moves them.
        base: Base of the logarithm that lse is: "e", or 2 (FlashInfer).
        empty: Bool [rows], True where this rank has no keys; None: lse alone tells.
        return_lse: Whether the merged lse is wanted too.

    Returns:
        [rows, own heads, dim] in out's dtype, contiguous; with return_lse Partial(that, lse float32 [rows, own heads]
        in the same base).

    Collective: every rank calls it with as many rows, heads and dims, and in the same order relative to its other
    calls. The first call of a size is planned and agreed; numbers of rows that are near each other share one size.

    Raises:
        OperatorError: Arguments do not fit.
        MismatchError: Ranks give different sizes.
        DeadlineError, RankFailedError: Another rank did not come, or failed.
    """
    check_partial(out, lse, empty)
    if base not in ("e", 2):
        raise OperatorError(f"combine_heads: base must be 'e' or 2, got {base!r}")
    combine = head_combine(group)
    target = out.new_empty((out.shape[0], combine.own_heads(out.shape[1]), out.shape[2]))
    merged = combine.run(Partial(out, lse), base, empty, target, return_lse=return_lse)
    return merged if return_lse else merged.out


def head_combine(group: Any) -> HeadCombine:
    """Return what merges for the ranks of a group; collective at the group's first use.

    Raises:
        OperatorError: It is no group.
        TopocommError: The group cannot be used: it has no backend for host memory, or is not set up.
    """
    comm = as_communicator("combine_heads", getattr(group, "cpu_group", group))
    state = state_of(comm)
    if "head_combine" not in state:
        state["head_combine"] = HeadCombine(comm)
    return state["head_combine"]  # type: ignore[no-any-return]


def check_partial(out: torch.Tensor, lse: torch.Tensor, empty: torch.Tensor | None = None) -> None:
    """Raise an OperatorError where these are no partials of [rows, heads, dim]."""
    if out.ndim != 3 or lse.shape != out.shape[:2]:
        raise OperatorError(
            f"combine_heads: expected out [rows, heads, dim] and lse [rows, heads], got {list(out.shape)} and "
            f"{list(lse.shape)}; a lse [heads, rows] goes in as lse.transpose(0, 1)"
        )
    if out.dtype not in DTYPES or not lse.is_floating_point():
        raise OperatorError(
            f"combine_heads: out must be float32, float16 or bfloat16 and lse floating point, got {out.dtype} and "
            f"{lse.dtype}; convert them first"
        )
    if lse.device != out.device or not (out.is_cpu or on_gpu(out)):
        raise OperatorError(
            f"combine_heads: out and lse must both be in host memory or on one GPU, got {out.device} and {lse.device}"
        )
    if out.requires_grad or lse.requires_grad:
        raise OperatorError("combine_heads: there are no gradients; pass detached tensors")
    if empty is not None and (empty.dtype != torch.bool or empty.shape != out.shape[:1]):
        raise OperatorError(
            f"combine_heads: empty must be bool [{out.shape[0]}], one a row, got {empty.dtype} {list(empty.shape)}"
        )


class HeadCombine:
    """The merge by heads between the ranks of one communicator, kept with it.

    Attributes:
        comm: Between whom.
    """

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self._scratch = Partial(np.empty(0, np.float32), np.empty(0, np.float32))
        self._known: dict[Key, tuple[dict[str, Any], Partial]] = {}
        """Views of the scratch memory, by what they are for."""

    def own_heads(self, heads: int) -> int:
        """Return how many of so many heads this rank gets."""
        return len(range(heads)[part_of(heads, self.comm.size, self.comm.rank)])

    def is_planned(self, out: torch.Tensor) -> bool:
        """Return whether such partials [rows, heads, dim] take calls that are prepared already; local."""
        return all(key_of(out[piece]) in calls_of(self.comm) for piece in pieces(out))

    def is_recorded(self, out: torch.Tensor) -> bool:
        """Return whether graphs record the merge of such partials on a GPU; collective as the merge is.

        They do not where values are staged through host memory.
        """
        calls = [self._call(key_of(out[piece])) for piece in pieces(out)]
        return all(getattr(call, "in_graphs", False) for call in calls)

    def run(
        self, partial: Partial, base: Base, empty: torch.Tensor | None, target: torch.Tensor, *, return_lse: bool
    ) -> Partial:
        """Merge checked partials into `target` [rows, own heads, dim] of any strides; collective.

        Returns:
            (target, lse float32 [rows, own heads] in the base given), lse None where it is not wanted.
        """
        out, lse = partial
        merged_lse = lse.new_empty(target.shape[:2], dtype=torch.float32) if return_lse else None
        parts = list(pieces(out))
        for piece in parts:
            if len(parts) == 1:  # a view costs 1 us
                merged = self._merge(partial, base, empty)
                target.copy_(by_rows(merged.out, out.shape[0]))
            else:
                without = None if empty is None else empty[piece]
                merged = self._merge(Partial(out[piece], lse[piece]), base, without)
                target[piece].copy_(by_rows(merged.out, piece.stop - piece.start))
            if merged_lse is not None:
                merged_lse[piece].copy_(by_rows(merged.lse, piece.stop - piece.start))
        if merged_lse is not None and base == 2:
            merged_lse.div_(LN2)
        return Partial(target, merged_lse)

    def _merge(self, piece: Partial, base: Base, empty: torch.Tensor | None) -> Partial:
        """The merged partial of one piece, float32 and natural: [own heads, rows or more, ...]."""
        out, rows = piece.out, piece.out.shape[0]
        key = key_of(out)
        call = self._call(key)
        sent, given = self._buffers(key, call)
        if key[1] != rows:
            given = Partial(*(x[:rows] for x in given))
        given.out.copy_(out)
        lse = piece.lse if piece.lse.dtype == torch.float32 else piece.lse.float()
        torch.nan_to_num(lse, nan=NOTHING, posinf=NOTHING, neginf=NOTHING, out=given.lse)
        if base == 2:
            given.lse.mul_(LN2)
        if empty is not None:
            given.lse.masked_fill_(empty[:, None], NOTHING)
        merged = as_tensors(call(sent))
        if self.comm.size == 1:  # no merge has dropped what empty rows hold
            merged.out.masked_fill_((merged.lse == NOTHING)[..., None], 0.0)
        return merged

    def _call(self, key: Key) -> PreparedCall:
        return cached_call(self.comm, key, lambda: self._prepare(key))

    def _prepare(self, key: Key) -> PreparedCall:
        parts = [part_of(key[2], self.comm.size, rank) for rank in range(self.comm.size)]
        rows = [part.stop - part.start for part in parts]
        return self.comm.prepare("reduce_scatter", like=self._by_heads(key), operator=LOGSUMEXP, rows=rows)

    def _buffers(self, key: Key, call: PreparedCall) -> tuple[dict[str, Any], Partial]:
        """Memory for partials by heads, as the call takes it and as tensors [rows, heads, ...].

        On a GPU the send buffer of the call, or fresh tensors, which belong to the stream, or to the graph that is
        captured. In host memory the same in every call, since fresh pages cost more than the copy.
        """
        if key[4] is not None:
            stream_order_of(self.comm).acquire(key[4], call)
            sent = self._by_heads(key) if call.input is None else call.input
            return sent, _given(sent)
        known = self._known.get(key)
        if known is None:
            if len(self._known) == PREPARED_LIMIT:
                self._known.clear()
            sent = self._by_heads(key)
            known = self._known[key] = sent, _given(sent)
        return known

    def _by_heads(self, key: Key) -> dict[str, Any]:
        """Memory for partials by heads, of NumPy in host memory, since so the compiled reduction is entered at once."""
        _, rows, heads, dim, device = key
        if device is not None:
            return empty_partial((heads, rows, dim), device)._asdict()
        count = heads * rows
        if self._scratch.out.size < count * dim or self._scratch.lse.size < count:
            sizes = max(count * dim, self._scratch.out.size), max(count, self._scratch.lse.size)
            self._scratch = Partial(*(np.zeros(size, np.float32) for size in sizes))
            self._known.clear()  # they keep the memory before
        out, lse = self._scratch
        return {OUT: out[: count * dim].reshape(heads, rows, dim), LSE: lse[:count].reshape(heads, rows)}


def _given(sent: dict[str, Any]) -> Partial:
    """The memory that a call takes as tensors [rows, heads, ...], to be written in inference mode and outside of it."""
    with torch.inference_mode(False):
        return Partial(*(x.transpose(0, 1) for x in as_tensors(sent)))


def by_rows(by_heads: torch.Tensor, rows: int) -> torch.Tensor:
    """Return [heads, rows or more, ...] as a view [rows, heads, ...]."""
    turned = by_heads.transpose(0, 1)
    return turned if turned.shape[0] == rows else turned[:rows]


def size_of(rows: int) -> int:
    """Return the size that serves so many rows: 1, 2, 3, 4, 6, 8, 12, ..., so that few calls are planned.

    Batches of a server change from step to step. At most a third of what is moved is for nothing.
    """
    power = 1 << max(0, rows - 1).bit_length()
    return power // 4 * 3 if power >= 4 and rows <= power // 4 * 3 else power


def key_of(out: torch.Tensor) -> Key:
    """Return the key of the call for one piece of partials [rows, heads, dim]."""
    rows, heads, dim = out.shape
    return "combine_heads", size_of(rows), heads, dim, out.device if on_gpu(out) else None


def pieces(out: torch.Tensor) -> Iterator[slice]:
    """Yield the rows that go in one call each, of partials [rows, heads, dim]."""
    rows, heads, dim = out.shape
    most_bytes = MOST_DEVICE_BYTES if on_gpu(out) else MOST_HOST_BYTES
    most = most_bytes // max(1, heads * (dim + 1) * ITEM_BYTES)
    step = 1 << max(0, most.bit_length() - 1)
    for first in range(0, rows, step):
        yield slice(first, min(rows, first + step))
