"""Which query sees which key, by positions, masks and lengths in host memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from attention.spec import Spec
from topocomm import OperatorError

HIDDEN = torch.iinfo(torch.int64).max
"""Position of a key that no query sees."""

LOWEST = torch.iinfo(torch.int64).min


@dataclass(frozen=True)
class Visibility:
    """Which query sees which key: key j is visible to query i of a batch entry iff low[i] <= keys[j] <= high[i].

    Attributes:
        low, high: int64 [batch or 1, q_len].
        queries: int64 [batch or 1, q_len]: their positions, for slopes.
        keys: int64 [batch or 1, n]: positions; `HIDDEN` where no query sees the key.
    """

    low: torch.Tensor
    high: torch.Tensor
    queries: torch.Tensor
    keys: torch.Tensor

    @classmethod
    def of(cls, spec: Spec, queries: torch.Tensor, keys: torch.Tensor) -> Visibility:
        """Return what a Spec lets queries at these positions see."""
        far = (1 << 62) if spec.window is None else int(spec.window) - 1
        low = queries - far if spec.window is not None else torch.full_like(queries, LOWEST)
        high = (
            queries
            if spec.causal
            else queries + far
            if spec.window is not None
            else torch.full_like(queries, HIDDEN - 1)
        )
        return cls(low.contiguous(), high.contiguous(), queries.contiguous(), keys.contiguous())

    def with_keys(self, keys: torch.Tensor) -> Visibility:
        """Return the same queries with keys at other positions."""
        return Visibility(self.low, self.high, self.queries, keys)

    def entry(self, batch: int, rows: slice, part: slice) -> tuple[torch.Tensor, ...]:
        """Return (low, high, queries, keys) of some queries and keys of one batch entry."""
        of_queries = [x[batch if len(x) > 1 else 0, rows] for x in (self.low, self.high, self.queries)]
        return (*of_queries, self.keys[batch if len(self.keys) > 1 else 0, part])


class Masking(NamedTuple):
    """Positions, masks, lengths and pages as a caller gave them: see `local_attention` and `tree_decode`."""

    q_positions: Any = None
    kv_positions: Any = None
    kv_mask: Any = None
    kv_lengths: Any = None
    block_tables: Any = None


UNMASKED = Masking()


def visibility_of(function: str, q_shape: tuple[int, ...], n: int, spec: Spec, masking: Masking) -> Visibility | None:
    """Return which of the queries of a q of this shape sees which of n keys; None: all see all.

    Raises:
        OperatorError: Positions, masks or lengths do not fit; the message begins with the name of the function.
    """
    if not spec.needs_positions and masking.kv_mask is None and masking.kv_lengths is None:
        return None
    batch, _, q_len, _ = q_shape
    present = present_keys(function, batch, n, masking)
    if not spec.needs_positions:
        if present is None:
            return None
        queries, keys = torch.zeros((1, q_len), dtype=torch.int64), torch.zeros((1, n), dtype=torch.int64)
    elif check_both_positions(function, masking):
        queries = positions_of(function, "q_positions", masking.q_positions, batch, q_len)
        keys = positions_of(function, "kv_positions", masking.kv_positions, batch, n)
    else:  # the queries are the last of the sequence
        lengths = n if masking.kv_lengths is None else tensor_of(masking.kv_lengths)[:, None]
        queries, keys = torch.arange(q_len).view(1, -1) + (lengths - q_len), torch.arange(n).view(1, -1)
    if present is not None:
        keys = torch.where(present, keys, HIDDEN)
    return Visibility.of(spec, queries, keys)


def present_keys(function: str, batch: int, n: int, masking: Masking) -> torch.Tensor | None:
    """Return which keys exist, bool [batch or 1, n]; None: all."""
    present = None
    if masking.kv_mask is not None:
        present = mask_of(function, masking.kv_mask, batch, n)
    if masking.kv_lengths is not None:
        lengths = tensor_of(masking.kv_lengths)
        if lengths.shape != (batch,) or lengths.is_floating_point() or not ((lengths >= 0) & (lengths <= n)).all():
            raise OperatorError(
                f"{function}: kv_lengths must be {batch} integers from 0 to {n}, the keys given; got {lengths.tolist()}"
            )
        short = torch.arange(n) < lengths[:, None]
        present = short if present is None else present & short
    return None if present is None or bool(present.all()) else present


def mask_of(function: str, kv_mask: Any, batch: int, n: int) -> torch.Tensor:
    """Return kv_mask as bool [1 or batch, n]."""
    mask = tensor_of(kv_mask)
    if mask.dtype != torch.bool:
        raise OperatorError(f"{function}: kv_mask must be bool, True where a key exists, got {mask.dtype}")
    return entries_of(function, "kv_mask", mask, batch, n)


def check_both_positions(function: str, masking: Masking) -> bool:
    """Return whether there are positions; of queries and keys, or of neither.

    Raises:
        OperatorError: Of one alone.
    """
    positions = {"q_positions": masking.q_positions, "kv_positions": masking.kv_positions}
    missing = [name for name, x in positions.items() if x is None]
    if len(missing) == 1:
        raise OperatorError(
            f"{function}: attention that is causal, or has a window or slopes, needs q_positions and kv_positions; "
            f"{missing[0]} is missing"
        )
    return not missing


def tensor_of(values: Any) -> torch.Tensor:
    """Return positions, masks or lengths as a tensor; of read-only arrays a copy, since torch warns of them."""
    read_only = isinstance(values, np.ndarray) and not values.flags.writeable
    return torch.as_tensor(values.copy() if read_only else values)


def positions_of(function: str, name: str, values: Any, batch: int, count: int) -> torch.Tensor:
    """Return positions as int64 [1 or batch, count]."""
    positions = tensor_of(values)
    if positions.dtype == torch.bool or positions.is_floating_point():
        raise OperatorError(f"{function}: {name} must be integers, got {positions.dtype}")
    return entries_of(function, name, positions, batch, count).to(torch.int64)


def entries_of(function: str, name: str, x: torch.Tensor, batch: int, count: int) -> torch.Tensor:
    """Return values for each of `count` queries or keys, [count] or [1 or batch, count], as [1 or batch, count]."""
    if x.shape not in ((count,), (1, count), (batch, count)):
        raise OperatorError(
            f"{function}: {name} must be [{count}] or [batch, {count}] with batch {batch}, got {list(x.shape)}"
        )
    return x.view(-1, count) if count else x.reshape(x.shape[0] if x.ndim == 2 else 1, 0)
