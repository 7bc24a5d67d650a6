"""Arguments of attention functions: NumPy or torch arrays in, the same kind out, and their checks."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from attention.gpu.masks import device_visibility, to_device
from attention.gpu.placement import on_gpu
from attention.partial import Partial
from attention.spec import Spec
from attention.visibility import Masking, Visibility, tensor_of, visibility_of
from topocomm import OperatorError

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
AXES = {"q": "[batch, heads, q_len, d]", "k": "[batch, kv_heads, n, d]", "v": "[batch, kv_heads, n, d]"}


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
        """Return (k [kv_heads, n, d], v [kv_heads, n, d_v]) of some keys of a batch entry; with pages copies."""
        if self.pages is None:
            return self.k[batch, :, part], self.v[batch, :, part]
        at = torch.arange(self.n, device=self.k.device)[part]
        page, slot = self.pages[batch, at // self.k.shape[2]].clamp(min=0), at % self.k.shape[2]
        return self.k[page, :, slot].transpose(0, 1), self.v[page, :, slot].transpose(0, 1)

    @property
    def out_shape(self) -> tuple[int, int, int, int]:
        """[batch, heads, q_len, d_v]."""
        return (*self.q.shape[:3], self.v.shape[3])

    def empty_partial(self) -> Partial:
        """Return an uninitialised float32 Partial of the result's shape."""
        return empty_partial(self.out_shape, self.q.device)


def empty_partial(shape: tuple[int, ...], device: torch.device) -> Partial:
    """Return an uninitialised float32 Partial with `out` of this shape, contiguous."""
    return Partial(*(torch.empty(size, dtype=torch.float32, device=device) for size in (shape, shape[:-1])))


def check_inputs(function: str, q: Any, k: Any, v: Any, *, spec: Spec, masking: Masking) -> Inputs:
    """Return the arrays, NumPy or torch, in host memory or all on one GPU, as tensors that share their memory.

    Raises:
        OperatorError: Shapes, dtypes or devices do not fit; the message begins with the function's name and names the
            argument.
    """
    q, k, v = as_tensor(function, "q", q), as_tensor(function, "k", k), as_tensor(function, "v", v)
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_form(function, name, x)
        if x.device != q.device or not (x.is_cpu or on_gpu(x)):
            place = f"and q on {q.device}" if x.device != q.device else "which is not covered"
            raise OperatorError(
                f"{function}: {name} is on {x.device}, {place}; q, k and v must all be in host memory, or all on one "
                "GPU"
            )
        if x.requires_grad:
            raise OperatorError(f"{function}: {name} requires gradients; pass {name}.detach() or use torch.no_grad()")
    paged = masking.block_tables is not None
    fault = misfit(q, k, v, paged=paged) or _spec_misfit(q, spec)
    if fault is not None:
        raise OperatorError(f"{function}: {fault}, got q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}")
    pages = _pages(function, k, q.shape[0], masking) if paged else None
    n = k.shape[2] * (1 if pages is None else pages.shape[1])
    if on_gpu(q):
        dense = masking._replace(block_tables=None)
        visibility: Visibility | None = device_visibility(function, q.shape, n, spec, dense, q.device)
    else:
        visibility = visibility_of(function, q.shape, n, spec, masking)
    if pages is not None:
        if not (on_gpu(masking.block_tables) or on_gpu(masking.kv_lengths)):
            used = -(-tensor_of(masking.kv_lengths)[:, None] // k.shape[2])
            bad = (torch.arange(pages.shape[1]) < used) & ((pages < 0) | (pages >= k.shape[0]))
            if bad.any():
                entry, column = bad.nonzero()[0].tolist()
                raise OperatorError(
                    f"{function}: block_tables[{entry}, {column}] is {int(pages[entry, column])}, but k has pages 0 to "
                    f"{k.shape[0] - 1}; entries beyond kv_lengths may be anything"
                )
        pages = to_device(function, "block_tables", pages, q.device)
    return Inputs(q, k, v, spec, visibility, pages)


def sequence_inputs(function: str, q: Any, k: Any, v: Any, spec: Spec | None) -> tuple[list[torch.Tensor], Inputs]:
    """Return q, k and v of the same tokens as tensors, and as checked inputs that ask for no gradients.

    Raises:
        OperatorError: As `check_inputs`, or q has another number of tokens than k and v.
    """
    tensors = [as_tensor(function, argument, x) for argument, x in (("q", q), ("k", k), ("v", v))]
    inputs = check_inputs(function, *(x.detach() for x in tensors), spec=spec or Spec(), masking=Masking())
    if inputs.q.shape[2] != inputs.k.shape[2]:
        raise OperatorError(
            f"{function}: q, k and v must be of the same tokens, got {inputs.q.shape[2]} queries and "
            f"{inputs.k.shape[2]} keys; queries of their own are for tree_decode and ring_decode"
        )
    return tensors, inputs


def _pages(function: str, k: torch.Tensor, batch: int, masking: Masking) -> torch.Tensor:
    tables = tensor_of(masking.block_tables)
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


def as_tensor(function: str, name: str, x: Any) -> torch.Tensor:
    """Return a NumPy array or tensor as a tensor on the same memory."""
    if isinstance(x, torch.Tensor):
        return x.detach() if x.requires_grad and not torch.is_grad_enabled() else x
    if not isinstance(x, np.ndarray):
        raise OperatorError(f"{function}: {name} must be a NumPy array or torch tensor, got {type(x).__name__}")
    if min(x.strides, default=0) < 0:
        x = x.copy()  # torch has no negative strides
    if not x.flags.writeable:
        # the same memory, marked writable: torch warns of read-only arrays, but here inputs are only read
        interface = {**x.__array_interface__, "data": (x.ctypes.data, False)}
        x = np.asarray(SimpleNamespace(__array_interface__=interface, owner=x))
    try:
        return torch.from_numpy(x)
    except TypeError as error:
        raise OperatorError(f"{function}: {name} has dtype {x.dtype}, which torch does not know ({error})") from None


def to_caller(like: Any, tensor: torch.Tensor) -> Any:
    """Return the tensor as the kind of array that `like` is; no copy."""
    return tensor.numpy() if isinstance(like, np.ndarray) else tensor


def check_out(
    function: str, name: str, out: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return an array to write a result into, as a tensor on its memory.

    Raises:
        OperatorError: Its shape, dtype or device is not that of the result, or it is read-only.
    """
    if isinstance(out, np.ndarray) and not (out.flags.writeable and min(out.strides, default=0) >= 0):
        raise OperatorError(f"{function}: {name} must be writable and have no negative strides")
    tensor = as_tensor(function, name, out)
    if tuple(tensor.shape) != shape or tensor.dtype != dtype or tensor.device != device:
        place = "the CPU" if device.type == "cpu" else device
        raise OperatorError(
            f"{function}: {name} must be {dtype} {list(shape)} on {place}, "
            f"got {tensor.dtype} {list(tensor.shape)} on {tensor.device}"
        )
    return tensor


def check_form(function: str, name: str, x: torch.Tensor) -> None:
    """Raise an OperatorError that names the array if it has not four axes, or another dtype than `DTYPES`."""
    if x.ndim != 4:
        raise OperatorError(f"{function}: {name} must be {AXES[name]}, got shape {list(x.shape)}")
    if x.dtype not in DTYPES:
        raise OperatorError(f"{function}: {name} must be float32, float16 or bfloat16, got {x.dtype}; convert it first")


def misfit(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, paged: bool = False) -> str | None:
    """Say what does not fit between q, k and v; None: all fits."""
    batch, heads, _, d = q.shape
    entries, kv_heads, n, d_k = k.shape
    if v.shape[:3] != (entries, kv_heads, n):
        return f"k and v must agree in {'[pages, kv_heads, page size]' if paged else '[batch, kv_heads, n]'}"
    if d_k != d or not (entries == batch or paged):
        return "q and k must agree in batch and head dim"
    if kv_heads == 0 or heads % kv_heads:
        return "the heads of q must be a multiple of those of k and v"
    return None if k.dtype == v.dtype else f"k and v must have one dtype, not {k.dtype} and {v.dtype}"


def _spec_misfit(q: torch.Tensor, spec: Spec) -> str | None:
    """Say what does not fit between q and the spec; None: all fits."""
    if q.shape[3] == 0:
        return "the head dim must be at least 1"
    for name, values in (("alibi_slopes", spec.alibi_slopes), ("sinks", spec.sinks)):
        if values is not None and len(values) != q.shape[1]:
            return f"spec.{name} has {len(values)} values, q has {q.shape[1]} heads"
    return None
