"""What the callers of attention functions give: NumPy or torch arrays in, the same kind out, and their checks."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from attention.partial import Partial
from attention.spec import Spec
from topocomm import OperatorError

HIDDEN = torch.iinfo(torch.int64).max
"""A key at this position is seen by no query."""

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


LOWEST = torch.iinfo(torch.int64).min


@dataclass(frozen=True)
class Visibility:
    """Which query sees which key: key j is visible to query i of a batch entry iff low[i] <= keys[j] <= high[i].

    Attributes:
        low: int64 [batch or 1, q_len].
        high: int64 [batch or 1, q_len].
        queries: int64 [batch or 1, q_len]: their positions, for slopes.
        keys: int64 [batch or 1, n]: positions; `HIDDEN` where no query sees the key.
    """

    low: torch.Tensor
    high: torch.Tensor
    queries: torch.Tensor
    keys: torch.Tensor

    @classmethod
    def of(cls, spec: Spec, queries: torch.Tensor, keys: torch.Tensor) -> Visibility:
        """What a Spec lets queries at these positions see."""
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

    def entry(self, batch: int, rows: slice, part: slice) -> tuple[torch.Tensor, ...]:
        """(low, high, queries, keys) of some queries and keys of one batch entry."""
        of_queries = [x[batch if len(x) > 1 else 0, rows] for x in (self.low, self.high, self.queries)]
        return (*of_queries, self.keys[batch if len(self.keys) > 1 else 0, part])


@dataclass(frozen=True)
class Masking:
    """What a caller says about positions, as given: see `local_attention` and `tree_decode`."""

    q_positions: Any = None
    kv_positions: Any = None
    kv_mask: Any = None
    kv_lengths: Any = None
    block_tables: Any = None


@dataclass(frozen=True)
class Inputs:
    """The arrays of one call as tensors, checked.

    Attributes:
        q: [batch, heads, q_len, d].
        k: [batch, kv_heads, n, d]; heads is a multiple of kv_heads. With pages [pages, kv_heads, page size, d].
        v: [batch, kv_heads, n, d_v], of k's dtype; likewise.
        spec: Which attention.
        visibility: Which query sees which key; None: all see all, and positions do not matter.
        pages: int64 [batch, pages of an entry]: number of each page; None: no pages.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    spec: Spec
    visibility: Visibility | None
    pages: torch.Tensor | None = None

    @property
    def scale(self) -> float:
        """Factor on q.k."""
        return self.spec.scale_for(self.q.shape[3])

    @property
    def n(self) -> int:
        """Keys of a batch entry."""
        return self.k.shape[2] * (1 if self.pages is None else self.pages.shape[1])

    @property
    def rows(self) -> int:
        """Query rows that share a key head."""
        return self.q.shape[1] // self.k.shape[1] * self.q.shape[2]

    def entry(self, batch: int, part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """(k [kv_heads, n, d], v [kv_heads, n, d_v]) of some keys of a batch entry; with pages copies of them."""
        if self.pages is None:
            return self.k[batch, :, part], self.v[batch, :, part]
        at = torch.arange(self.n)[part]
        page, slot = self.pages[batch, at // self.k.shape[2]].clamp(min=0), at % self.k.shape[2]
        return self.k[page, :, slot].transpose(0, 1), self.v[page, :, slot].transpose(0, 1)

    @property
    def out_shape(self) -> tuple[int, int, int, int]:
        """[batch, heads, q_len, d_v]."""
        return (*self.q.shape[:3], self.v.shape[3])

    def empty_partial(self) -> Partial:
        """An uninitialised float32 Partial of the result's shape."""
        shape = self.out_shape
        return Partial(torch.empty(shape, dtype=torch.float32), torch.empty(shape[:3], dtype=torch.float32))


def check_inputs(function: str, q: Any, k: Any, v: Any, *, spec: Spec, masking: Masking) -> Inputs:
    """The arrays as tensors that share their memory.

    Args:
        function: The name that error messages start with.
        q: [batch, heads, q_len, d], NumPy or torch.
        k: [batch, kv_heads, n, d].
        v: [batch, kv_heads, n, d_v].
        spec: Which attention.
        masking: Positions and masks as the caller gave them.

    Raises:
        OperatorError: Shapes, dtypes or devices do not fit; the message names the argument.
    """
    tensors = {name: as_tensor(function, name, x) for name, x in (("q", q), ("k", k), ("v", v))}
    for name, tensor in tensors.items():
        _check_tensor(function, name, tensor)
    q, k, v = tensors.values()
    shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    paged = masking.block_tables is not None
    if k.shape[:3] != v.shape[:3]:
        axes = "[pages, kv_heads, page size]" if paged else "[batch, kv_heads, n]"
        raise OperatorError(f"{function}: k and v must agree in {axes}, got {shapes}")
    if (q.shape[0] != k.shape[0] and not paged) or q.shape[3] != k.shape[3]:
        raise OperatorError(f"{function}: q and k must agree in batch and head dim, got {shapes}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise OperatorError(f"{function}: the heads of q must be a multiple of those of k and v, got {shapes}")
    if q.shape[3] == 0:
        raise OperatorError(f"{function}: the head dim must be at least 1, got {shapes}")
    if k.dtype != v.dtype:
        raise OperatorError(f"{function}: k and v must have one dtype, got {k.dtype} and {v.dtype}")
    for name, values in (("alibi_slopes", spec.alibi_slopes), ("sinks", spec.sinks)):
        if values is not None and len(values) != q.shape[1]:
            raise OperatorError(f"{function}: spec.{name} has {len(values)} values, q has {q.shape[1]} heads")
    pages = _pages(function, k, q.shape[0], masking) if paged else None
    n = k.shape[2] * (1 if pages is None else pages.shape[1])
    visibility = _visibility(function, q.shape, n, spec, masking)
    if pages is not None:
        _check_pages(function, pages, k, masking)
    return Inputs(q, k, v, spec, visibility, pages)


def _pages(function: str, k: torch.Tensor, batch: int, masking: Masking) -> torch.Tensor:
    tables = _told(masking.block_tables)
    if tables.ndim != 2 or tables.shape[0] != batch or tables.is_floating_point() or tables.dtype == torch.bool:
        raise OperatorError(
            f"{function}: block_tables must be integers [batch, pages of an entry] with batch {batch}, "
            f"got {tables.dtype} {list(tables.shape)}"
        )
    if masking.kv_lengths is None:
        raise OperatorError(f"{function}: block_tables need kv_lengths [batch], the keys of every sequence")
    if k.shape[2] == 0:
        raise OperatorError(f"{function}: pages must hold at least one key, got k {list(k.shape)}")
    return tables.to(torch.int64).contiguous()


def _check_pages(function: str, pages: torch.Tensor, k: torch.Tensor, masking: Masking) -> None:
    used = -(-_told(masking.kv_lengths)[:, None] // k.shape[2])
    bad = (torch.arange(pages.shape[1]) < used) & ((pages < 0) | (pages >= k.shape[0]))
    if bad.any():
        entry, place = bad.nonzero()[0].tolist()
        raise OperatorError(
            f"{function}: block_tables[{entry}, {place}] is {int(pages[entry, place])}, but k has pages 0 to "
            f"{k.shape[0] - 1}; entries beyond kv_lengths may be anything"
        )


def as_tensor(function: str, name: str, x: Any) -> torch.Tensor:
    """A NumPy array or tensor as a tensor on the same memory."""
    if isinstance(x, torch.Tensor):
        return x if torch.is_grad_enabled() else x.detach()
    if not isinstance(x, np.ndarray):
        raise OperatorError(f"{function}: {name} must be a NumPy array or torch tensor, got {type(x).__name__}")
    if min(x.strides, default=0) < 0:
        x = x.copy()  # torch has no negative strides
    if not x.flags.writeable:
        x = _as_writable(x)
    try:
        return torch.from_numpy(x)
    except TypeError as error:
        raise OperatorError(f"{function}: {name} has dtype {x.dtype}, which torch does not know ({error})") from None


def to_caller(like: Any, tensor: torch.Tensor) -> Any:
    """The tensor as the kind of array that `like` is; no copy."""
    return tensor.numpy() if isinstance(like, np.ndarray) else tensor


def check_out(function: str, name: str, out: Any, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """An array to write a result into, as a tensor on its memory.

    Raises:
        OperatorError: Its shape or dtype is not that of the result, or it is read-only.
    """
    if isinstance(out, np.ndarray) and not (out.flags.writeable and min(out.strides, default=0) >= 0):
        raise OperatorError(f"{function}: {name} must be writable and have no negative strides")
    tensor = as_tensor(function, name, out)
    if tuple(tensor.shape) != shape or tensor.dtype != dtype or tensor.device.type != "cpu":
        raise OperatorError(
            f"{function}: {name} must be {dtype} {list(shape)} on the CPU, "
            f"got {tensor.dtype} {list(tensor.shape)} on {tensor.device}"
        )
    return tensor


def _as_writable(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same memory, marked writable: torch warns of read-only arrays, but here inputs are only read."""
    interface = {**x.__array_interface__, "data": (x.ctypes.data, False)}
    return np.asarray(SimpleNamespace(__array_interface__=interface, owner=x))


def _check_tensor(function: str, name: str, x: torch.Tensor) -> None:
    if x.ndim != 4:
        axes = "[batch, heads, q_len, d]" if name == "q" else "[batch, kv_heads, n, d]"
        raise OperatorError(f"{function}: {name} must be {axes}, got shape {list(x.shape)}")
    if x.dtype not in DTYPES:
        raise OperatorError(f"{function}: {name} must be float32, float16 or bfloat16, got {x.dtype}; convert it first")
    if x.device.type != "cpu":
        raise OperatorError(f"{function}: {name} is on {x.device}; only CPU tensors are covered: pass {name}.cpu()")
    if x.requires_grad:
        raise OperatorError(f"{function}: {name} requires gradients; pass {name}.detach() or use torch.no_grad()")


def _visibility(function: str, q_shape: torch.Size, n: int, spec: Spec, masking: Masking) -> Visibility | None:
    batch, _, q_len, _ = q_shape
    present = _present_keys(function, batch, n, masking)
    if spec.needs_positions:
        queries, keys = _both_positions(function, batch, q_len, n, masking)
    elif present is None:
        return None
    else:
        queries, keys = torch.zeros((1, q_len), dtype=torch.int64), torch.zeros((1, n), dtype=torch.int64)
    if present is not None:
        keys = torch.where(present, keys, HIDDEN)
    return Visibility.of(spec, queries, keys)


def _present_keys(function: str, batch: int, n: int, masking: Masking) -> torch.Tensor | None:
    """Which keys exist, bool [batch or 1, n]; None: all."""
    present = None
    if masking.kv_mask is not None:
        mask = _told(masking.kv_mask)
        if mask.dtype != torch.bool:
            raise OperatorError(f"{function}: kv_mask must be bool, True where a key exists, got {mask.dtype}")
        present = _per_entry(function, "kv_mask", mask, batch, n)
    if masking.kv_lengths is not None:
        lengths = _told(masking.kv_lengths)
        if lengths.shape != (batch,) or lengths.is_floating_point() or not ((lengths >= 0) & (lengths <= n)).all():
            raise OperatorError(
                f"{function}: kv_lengths must be {batch} integers from 0 to {n}, the keys given; got {lengths.tolist()}"
            )
        short = torch.arange(n) < lengths[:, None]
        present = short if present is None else present & short
    return None if present is None or bool(present.all()) else present


def _both_positions(
    function: str, batch: int, q_len: int, n: int, masking: Masking
) -> tuple[torch.Tensor, torch.Tensor]:
    given = {"q_positions": masking.q_positions, "kv_positions": masking.kv_positions}
    missing = [name for name, x in given.items() if x is None]
    if len(missing) == 1:
        raise OperatorError(
            f"{function}: attention that is causal, or has a window or slopes, needs q_positions and kv_positions; "
            f"{missing[0]} is missing"
        )
    if missing:  # the queries are the last of the sequence
        lengths = n if masking.kv_lengths is None else _told(masking.kv_lengths)[:, None]
        return torch.arange(q_len).view(1, -1) + (lengths - q_len), torch.arange(n).view(1, -1)
    return (
        _positions(function, "q_positions", masking.q_positions, batch, q_len),
        _positions(function, "kv_positions", masking.kv_positions, batch, n),
    )


def _told(given: Any) -> torch.Tensor:
    """Positions, masks and lengths as a tensor; of read-only arrays a copy, since torch warns of them."""
    read_only = isinstance(given, np.ndarray) and not given.flags.writeable
    return torch.as_tensor(given.copy() if read_only else given)


def _positions(function: str, name: str, given: Any, batch: int, count: int) -> torch.Tensor:
    positions = _told(given)
    if positions.dtype == torch.bool or positions.is_floating_point():
        raise OperatorError(f"{function}: {name} must be integers, got {positions.dtype}")
    return _per_entry(function, name, positions, batch, count).to(torch.int64)


def _per_entry(function: str, name: str, x: torch.Tensor, batch: int, count: int) -> torch.Tensor:
    """[count], [1, count] or [batch, count] as [1 or batch, count]."""
    if x.shape not in ((count,), (1, count), (batch, count)):
        raise OperatorError(
            f"{function}: {name} must be [{count}] or [batch, {count}] with batch {batch}, got {list(x.shape)}"
        )
    return x.view(-1, count) if count else x.reshape(x.shape[0] if x.ndim == 2 else 1, 0)
