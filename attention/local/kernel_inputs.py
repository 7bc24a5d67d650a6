"""What the kernels of other libraries take: checks of the arrays, and causality in the one form that kernels know."""

from __future__ import annotations

import importlib
import math
from dataclasses import fields
from typing import Any, NamedTuple

import torch

from attention.partial import Partial
from attention.spec import Spec
from topocomm import MissingExtraError, OperatorError

REMEDY = "use attention.local_attention"


class MissingLibraryError(MissingExtraError):
    """A library that no extra of this package brings is needed; the message says where it comes from."""

    def __init__(self, feature: str, package: str, remedy: str) -> None:
        ImportError.__init__(self, f"{feature} needs {package}, which is not installed; {remedy}")


class Causality(NamedTuple):
    """Which query sees which key, as kernels with causality aligned to the bottom right can express it.

    Attributes:
        keys: No query sees any but the first so many keys.
        aligned: If True, query i of q_len sees the keys up to keys - q_len + i; if False, all of `keys`.
    """

    keys: int
    aligned: bool

    def empty(self, q_len: int, device: torch.device) -> torch.Tensor:
        """The rows that see no key, bool [q_len]."""
        if not self.aligned:
            return torch.full((q_len,), self.keys == 0, device=device)
        return torch.arange(q_len, device=device) + self.keys < q_len


def library(feature: str, module: str, package: str, remedy: str) -> Any:
    """The module, imported.

    Raises:
        MissingLibraryError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise MissingLibraryError(feature, package, remedy) from error


def check_arrays(
    function: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    devices: tuple[str, ...],
    dtypes: tuple[torch.dtype, ...],
) -> None:
    """Check q [batch, heads, q_len, d], k [batch, kv_heads, n, d] and v [batch, kv_heads, n, d_v] of one call.

    Raises:
        OperatorError: Shapes, dtypes or devices do not fit; the message names the argument.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise OperatorError(f"{function}: {name} must be a torch tensor, got {type(x).__name__}")
        if x.ndim != 4:
            axes = "[batch, heads, q_len, d]" if name == "q" else "[batch, kv_heads, n, d]"
            raise OperatorError(f"{function}: {name} must be {axes}, got shape {list(x.shape)}")
        if x.device.type not in devices or x.device != q.device:
            raise OperatorError(
                f"{function}: {name} must be on {' or '.join(devices)} as q is, got {x.device}; or {REMEDY}"
            )
        if x.dtype not in dtypes or x.dtype != q.dtype:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise OperatorError(f"{function}: q, k and v must have one dtype of {known}, got {x.dtype} for {name}")
        if x.requires_grad:
            raise OperatorError(f"{function}: {name} requires gradients; pass {name}.detach() or use torch.no_grad()")
    shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    if k.shape[:3] != v.shape[:3]:
        raise OperatorError(f"{function}: k and v must agree in [batch, kv_heads, n], got {shapes}")
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3] or q.shape[3] == 0:
        raise OperatorError(f"{function}: q and k must agree in batch and in a head dim of at least 1, got {shapes}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise OperatorError(f"{function}: the heads of q must be a multiple of those of k and v, got {shapes}")


def check_spec(function: str, spec: Spec) -> None:
    """Refuse what these kernels do not get: of a Spec they get the scale and causality.

    Raises:
        OperatorError: Another field is set; the message names it.
    """
    for field in fields(spec):
        value = getattr(spec, field.name)
        plain = isinstance(value, (int, float)) and value == field.default
        if field.name not in ("scale", "causal") and value is not field.default and not plain:
            raise OperatorError(f"{function}: this kernel gets no {field.name} of a Spec; {REMEDY}")


def causality(function: str, spec: Spec, q_len: int, n: int, q_positions: Any, kv_positions: Any) -> Causality:
    """Causality by global positions in the form that kernels know, if it can be expressed so.

    It can without positions (the queries are then the last of these keys), where all queries see all keys or none,
    and where queries and keys are consecutive, each in ascending order, and no query lies behind the last key.

    Args:
        function: The name that error messages start with.
        spec: Which attention.
        q_len: Number of queries.
        n: Number of keys.
        q_positions: Global positions of the queries, integers [q_len]; read on the host.
        kv_positions: Global positions of the keys, integers [n].

    Raises:
        OperatorError: It cannot be expressed.
    """
    if not spec.causal or n == 0 or q_len == 0:
        return Causality(n, False)
    if (q_positions is None) != (kv_positions is None):
        raise OperatorError(f"{function}: causal attention needs q_positions and kv_positions, or neither")
    if q_positions is None:
        return Causality(n, q_len > 1)  # the last query sees all keys
    queries = _positions(function, "q_positions", q_positions, q_len)
    keys = _positions(function, "kv_positions", kv_positions, n)
    if queries.min() >= keys.max():
        return Causality(n, False)
    if queries.max() < keys.min():
        return Causality(0, False)
    seen = int(queries[-1] - keys[0]) + 1
    if bool((queries.diff() == 1).all() and (keys.diff() == 1).all()) and seen <= n:
        return Causality(seen, q_len > 1)
    raise OperatorError(
        f"{function}: this kernel knows causality of consecutive positions only, with no query behind the last key; "
        f"{REMEDY}, which takes any positions"
    )


def _positions(function: str, name: str, given: Any, count: int) -> torch.Tensor:
    positions = torch.as_tensor(given).cpu()
    if positions.shape != (count,) or positions.dtype == torch.bool or positions.is_floating_point():
        raise OperatorError(
            f"{function}: {name} must be integers [{count}], the same in every batch entry, "
            f"got {positions.dtype} {list(positions.shape)}; {REMEDY} for others"
        )
    return positions.to(torch.int64)


def empty_partial(q: torch.Tensor, v: torch.Tensor) -> Partial:
    """Attention over no keys: (0, -inf), float32, for all queries."""
    shape = q.shape[:3]
    return Partial(
        torch.zeros((*shape, v.shape[3]), dtype=torch.float32, device=q.device),
        torch.full(shape, -math.inf, dtype=torch.float32, device=q.device),
    )


def one_head_dim(*arrays: torch.Tensor) -> list[torch.Tensor]:
    """The arrays with zeros behind their last axis, to one head dim that is a multiple of 8 and contiguous.

    Zeros change no score; out has as many columns too many as v got.
    """
    width = -(-max(x.shape[3] for x in arrays) // 8) * 8
    padded = [torch.nn.functional.pad(x, (0, width - x.shape[3])) if x.shape[3] < width else x for x in arrays]
    return [x if x.stride(3) == 1 else x.contiguous() for x in padded]
