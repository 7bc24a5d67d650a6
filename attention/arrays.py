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


@dataclass(frozen=True)
class Visibility:
    """Which query sees which key: key j is visible to query i of a batch entry iff keys[j] <= queries[i].

    Attributes:
        queries: int64 [batch or 1, q_len].
        keys: int64 [batch or 1, n]; `HIDDEN` where no query sees the key.
    """

    queries: torch.Tensor
    keys: torch.Tensor

    def entry(self, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(queries [q_len], keys [n]) of one batch entry."""
        return self.queries[batch if len(self.queries) > 1 else 0], self.keys[batch if len(self.keys) > 1 else 0]


@dataclass(frozen=True)
class Masking:
    """What a caller says about positions, as given: see `local_attention` and `tree_decode`."""

    q_positions: Any = None
    kv_positions: Any = None
    kv_mask: Any = None
    kv_lengths: Any = None


@dataclass(frozen=True)
class Inputs:
    """The arrays of one call as tensors, checked.

    Attributes:
        q: [batch, heads, q_len, d].
        k: [batch, kv_heads, n, d]; heads is a multiple of kv_heads.
        v: [batch, kv_heads, n, d_v], of k's dtype.
        scale: Factor on q.k.
        visibility: Which query sees which key; None: all see all.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scale: float
    visibility: Visibility | None

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
    if k.shape[:3] != v.shape[:3]:
        raise OperatorError(f"{function}: k and v must agree in [batch, kv_heads, n], got {shapes}")
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise OperatorError(f"{function}: q and k must agree in batch and head dim, got {shapes}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise OperatorError(f"{function}: the heads of q must be a multiple of those of k and v, got {shapes}")
    if q.shape[3] == 0:
        raise OperatorError(f"{function}: the head dim must be at least 1, got {shapes}")
    if k.dtype != v.dtype:
        raise OperatorError(f"{function}: k and v must have one dtype, got {k.dtype} and {v.dtype}")
    visibility = _visibility(function, q.shape, k.shape[2], spec, masking)
    return Inputs(q, k, v, spec.scale_for(q.shape[3]), visibility)


def as_tensor(function: str, name: str, x: Any) -> torch.Tensor:
    """A NumPy array or tensor as a tensor on the same memory."""
    if isinstance(x, torch.Tensor):
        return x
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
    if spec.causal:
        queries, keys = _causal_positions(function, batch, q_len, n, masking)
    elif present is None:
        return None
    else:
        queries, keys = torch.zeros((1, q_len), dtype=torch.int64), torch.zeros((1, n), dtype=torch.int64)
    if present is not None:
        keys = torch.where(present, keys, HIDDEN)
    return Visibility(queries.contiguous(), keys.contiguous())


def _present_keys(function: str, batch: int, n: int, masking: Masking) -> torch.Tensor | None:
    """Which keys exist, bool [batch or 1, n]; None: all."""
    present = None
    if masking.kv_mask is not None:
        mask = torch.as_tensor(masking.kv_mask)
        if mask.dtype != torch.bool:
            raise OperatorError(f"{function}: kv_mask must be bool, True where a key exists, got {mask.dtype}")
        present = _per_entry(function, "kv_mask", mask, batch, n)
    if masking.kv_lengths is not None:
        lengths = torch.as_tensor(masking.kv_lengths)
        if lengths.shape != (batch,) or lengths.is_floating_point() or not ((lengths >= 0) & (lengths <= n)).all():
            raise OperatorError(
                f"{function}: kv_lengths must be {batch} integers from 0 to {n}, the keys given; got {lengths.tolist()}"
            )
        short = torch.arange(n) < lengths[:, None]
        present = short if present is None else present & short
    return None if present is None or bool(present.all()) else present


def _causal_positions(
    function: str, batch: int, q_len: int, n: int, masking: Masking
) -> tuple[torch.Tensor, torch.Tensor]:
    given = {"q_positions": masking.q_positions, "kv_positions": masking.kv_positions}
    missing = [name for name, x in given.items() if x is None]
    if len(missing) == 1:
        raise OperatorError(f"{function}: causal attention needs q_positions and kv_positions, {missing[0]} is missing")
    if missing:  # the queries are the last of the sequence
        lengths = n if masking.kv_lengths is None else torch.as_tensor(masking.kv_lengths)[:, None]
        return torch.arange(q_len).view(1, -1) + (lengths - q_len), torch.arange(n).view(1, -1)
    return (
        _positions(function, "q_positions", masking.q_positions, batch, q_len),
        _positions(function, "kv_positions", masking.kv_positions, batch, n),
    )


def _positions(function: str, name: str, given: Any, batch: int, count: int) -> torch.Tensor:
    positions = torch.as_tensor(given)
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
