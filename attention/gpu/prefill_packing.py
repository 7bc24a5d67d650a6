"""Sequences of any lengths, one after the other without padding: where each begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from topocomm import OperatorError


@dataclass(frozen=True)
class Packing:
    """Where the sequences begin.

    Attributes:
        cu_q: int32 [sequences + 1], on the device: the first query of each, and their number.
        cu_k: The same of the keys.
        longest_q: Queries of the longest sequence, or more.
    """

    cu_q: torch.Tensor
    cu_k: torch.Tensor
    longest_q: int

    @property
    def sequences(self) -> int:
        """How many."""
        return len(self.cu_q) - 1


def packing_of(
    function: str, cu_q: Any, cu_k: Any, totals: tuple[int, int], longest_q: int | None, device: torch.device
) -> Packing:
    """The packing of (total_q, total_k) rows, checked as far as it is on the CPU.

    Raises:
        OperatorError: It does not fit; the message names the argument.
    """
    begins = [
        _checked(function, name, given, total)
        for name, given, total in (("cu_seqlens_q", cu_q, totals[0]), ("cu_seqlens_k", cu_k, totals[1]))
    ]
    if len(begins[0]) != len(begins[1]):
        raise OperatorError(
            f"{function}: cu_seqlens_q and cu_seqlens_k must have one length, sequences + 1; got {len(begins[0])} and "
            f"{len(begins[1])}"
        )
    known = begins[0].is_cpu or longest_q is None  # what lies on a GPU is waited for only where it must be
    longest = int(begins[0].diff().max()) if known and len(begins[0]) > 1 else 0
    if longest_q is not None:
        if isinstance(longest_q, bool) or not isinstance(longest_q, int) or longest_q < longest:
            raise OperatorError(
                f"{function}: longest_q must be at least the queries of the longest sequence"
                f"{f', {longest}' if known else ''}; got {longest_q!r}"
            )
        longest = min(longest_q, totals[0])
    on_device = [x.to(device, non_blocking=True).contiguous() for x in begins]
    return Packing(on_device[0], on_device[1], longest)


def _checked(function: str, name: str, given: Any, total: int) -> torch.Tensor:
    begins = torch.as_tensor(given)
    if begins.ndim != 1 or len(begins) < 1 or begins.dtype not in (torch.int32, torch.int64):
        raise OperatorError(
            f"{function}: {name} must be int32 [sequences + 1], got {begins.dtype} {list(begins.shape)}"
        )
    if begins.is_cpu:
        ends = int(begins[0]), int(begins[-1])
        if ends != (0, total) or bool((begins.diff() < 0).any()):
            raise OperatorError(
                f"{function}: {name} must ascend from 0 to {total}, the rows given; got {begins.tolist()}"
            )
    return begins.to(torch.int32)
