"""What the choice of a kernel asks about a call, from its tensors.

Shapes and places, and of positions what is on the host: no value is read back from a GPU.
"""

from __future__ import annotations

from typing import Any

import torch

from attention.arrays import Inputs
from attention.gpu.decode.decode_inputs import are_columns
from attention.gpu.masks import DeviceVisibility
from attention.gpu.placement import on_gpu
from attention.local.choice import FEW_QUERIES, Call, Seen
from attention.spec import Spec
from attention.visibility import HIDDEN, Masking, tensor_of

ALIGNMENT_BYTES = 16
"""Of what bulk copies and vector loads read."""


def call_of(
    arrays: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    spec: Spec,
    masking: Masking,
    *,
    exact: bool,
    extra: frozenset[str] = frozenset(),
) -> Call:
    """Return the call for tensors (q, k, v) whose shapes fit each other; `extra` are features that they do not tell.

    Positions, masks and lengths on a GPU are not looked at.
    """
    q, k, v = arrays
    n = k.shape[2] if masking.block_tables is None else k.shape[2] * masking.block_tables.shape[1]
    features = set(extra) | {name for name in ("window", "softcap", "alibi_slopes") if getattr(spec, name) is not None}
    features |= {name for name in ("kv_mask", "kv_lengths", "block_tables") if getattr(masking, name) is not None}
    seen = _seen(spec, masking, q.shape[2], n)
    if seen is None:
        features.add("positions")
    if on_gpu(masking.kv_lengths):
        features.add("device_lengths")
    elif masking.kv_lengths is not None:  # what does not fit the kernels say
        lengths = tensor_of(masking.kv_lengths)
        fits = _are_integers(lengths) and lengths.shape == (k.shape[0],)
        if not (fits and bool(((lengths >= 1) & (lengths <= n)).all())):
            features.add("device_lengths")
    layout = {
        "strided": any(x.stride(3) != 1 and x.shape[3] > 1 and x.numel() for x in arrays),
        "unaligned": not all(_aligned(x) for x in arrays),
        "apart": k.stride()[:3] != v.stride()[:3],
        "interleaved": k.shape[0] > 1 and (k.stride(2) == 0 or k.stride(0) % k.stride(2)),
    }
    features |= {name for name, has in layout.items() if has}
    dtypes = [str(x.dtype).removeprefix("torch.") for x in (q, k)]
    return Call(
        device="cuda" if on_gpu(q) else "cpu",
        dtypes=(dtypes[0], dtypes[1]),
        batch=q.shape[0],
        heads=q.shape[1],
        kv_heads=k.shape[1],
        q_len=q.shape[2],
        n=n,
        d=q.shape[3],
        d_v=v.shape[3],
        seen=seen or "all",
        features=frozenset(features),
        latents=are_columns(v, k),
        exact=exact,
    )


def call_of_inputs(inputs: Inputs, *, exact: bool, extra: frozenset[str] = frozenset()) -> Call:
    """The same for checked inputs, whose visibility is that of all they were given."""
    visibility, masking = inputs.visibility, Masking()
    if isinstance(visibility, DeviceVisibility):
        masking = visibility.masking
    elif visibility is not None:
        hidden = visibility.keys == HIDDEN
        masking = Masking(visibility.queries, visibility.keys, hidden if on_gpu(hidden) or bool(hidden.any()) else None)
    arrays = inputs.q, inputs.k, inputs.v
    return call_of(arrays, inputs.spec, masking._replace(block_tables=inputs.pages), exact=exact, extra=extra)


def well_formed(q: Any, k: Any, v: Any) -> bool:
    """Whether the shapes of tensors on a GPU fit each other; what is wrong with others the kernels say."""
    if not all(isinstance(x, torch.Tensor) and x.ndim == 4 and on_gpu(x) and x.device == q.device for x in (q, k, v)):
        return False
    fits = k.shape[:3] == v.shape[:3] and k.shape[0] == q.shape[0] and k.shape[3] == q.shape[3] and k.dtype == v.dtype
    return fits and k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0 and not any(x.requires_grad for x in (q, k, v))


def _seen(spec: Spec, masking: Masking, q_len: int, n: int) -> Seen | None:
    """Which query sees which key, where a word says it; None: positions do."""
    if not spec.causal:  # a window and slopes are features of their own
        return "all"
    if masking.q_positions is None and masking.kv_positions is None:
        return _at_the_end(q_len, n)
    positions = masking.q_positions, masking.kv_positions
    if q_len <= FEW_QUERIES or any(x is None or isinstance(x, int) or on_gpu(x) for x in positions):
        return None  # for few queries the look would take longer than it saves
    queries, keys = (tensor_of(x) for x in positions)
    if not (_fit(queries, q_len) and _fit(keys, n)):
        return None  # the kernels say what is wrong
    if int(queries.min()) >= int(keys.max()):
        return "all"
    if _run(queries) and _run(keys) and int(queries.reshape(-1)[-1]) == int(keys.reshape(-1)[-1]):
        return _at_the_end(q_len, n)
    return None


def _at_the_end(q_len: int, n: int) -> Seen | None:
    """The queries are the last of the keys; None where some would come before the first key."""
    if q_len == 1:
        return "all"
    return "square" if q_len == n else "last" if q_len < n else None


def _are_integers(x: torch.Tensor) -> bool:
    return not x.is_floating_point() and x.dtype != torch.bool


def _fit(positions: torch.Tensor, count: int) -> bool:
    """Whether they are integers [count] or [entries, count], and there are some."""
    shape = positions.shape
    return _are_integers(positions) and len(shape) in (1, 2) and shape[-1] == count and positions.numel() > 0


def _run(positions: torch.Tensor) -> bool:
    """Whether positions are consecutive, the same for every batch entry."""
    shared = positions.ndim == 1 or positions.shape[0] == 1
    return shared and bool((positions.reshape(-1).diff() == 1).all())


def _aligned(x: torch.Tensor) -> bool:
    steps = [stride for stride, size in zip(x.stride()[:3], x.shape[:3], strict=True) if size > 1]
    return x.data_ptr() % ALIGNMENT_BYTES == 0 and all(step * x.element_size() % ALIGNMENT_BYTES == 0 for step in steps)
