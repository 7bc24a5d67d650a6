"""FlashInfer: one sequence, batches of sequences, and multi-head latent attention (MLA).

https://docs.flashinfer.ai/api/attention.html. lse is to base 2 (cascade.cuh).

Plans of its wrappers for batches are kept until the lengths or the shapes of a call change. A plan is computed on the
host from lengths that the host knows and is copied to the device: nothing is read back. The layers of a model share the
plan of a step, since their calls differ in the tensors alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from importlib import import_module
from threading import local
from typing import Any, NamedTuple

import torch

from attention.gpu.placement import capturing
from attention.local.conventions import CONVENTIONS
from attention.local.normalise import write_partial
from attention.partial import Partial
from attention.visibility import tensor_of
from topocomm import OperatorError

CONVENTION = CONVENTIONS["FlashInfer"]
PAGE_SIZE = 16
"""Keys of a page, where entries begin at multiples of it; else 1."""
WORKSPACE_BYTES = 128 << 20
"""What FlashInfer's documentation recommends for partial results of split keys."""
KEPT = 4
"""Plans kept per stream and kind of wrapper; each holds 8 MiB on the device and 8 MiB of pinned memory."""


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: str, scale: float, result: Partial) -> None:
    """Write the attention of a call that the table gives to FlashInfer: few queries of one sequence.

    Its kernel for prompts on tensor cores, which splits keys where queries are few: the same that its
    `single_decode_with_kv_cache(use_tensor_cores=True)` runs. "fa2" is asked for since its Hopper kernel does not
    split. Causality is aligned to the bottom right. Arguments are those of `library_kernels.attend_cudnn`, with batch
    1 and v of k's strides: it reads both by those of k.
    """
    out, lse = import_module("flashinfer").single_prefill_with_kv_cache(
        q[0].transpose(0, 1).contiguous(),
        k[0],
        v[0],
        causal=seen != "all",
        kv_layout="HND",
        sm_scale=scale,
        backend="fa2",
        return_lse=True,
    )
    write_partial(out, lse, CONVENTION, result)


def attend_batch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seen: str,
    scale: float,
    result: Partial,
    *,
    lengths: Any = None,
) -> None:
    """Write the attention of one query per sequence of a batch, by BatchDecodeWithPagedKVCacheWrapper.

    The cache is seen as pages where it lies: page i begins i pages after the first key, and an entry has the pages
    from its own first key on.

    Args:
        q: [batch, heads, 1, d], float16 or bfloat16.
        k: [batch, kv_heads, n, d]; entries are whole rows of keys apart.
        v: [batch, kv_heads, n, d], of k's strides.
        seen: "all", as it is for one query.
        scale: Factor on q.k.
        result: Float32 tensors to write; out has the rounding of q's dtype.
        lengths: Integers [batch] from 1 to n in host memory: what lies beyond them is not read. None: n each.
    """
    assert seen == "all"
    batch, heads, _, d = q.shape
    counts = _counts(lengths, batch, k.shape[2], k.device)
    apart = k.stride(0) // k.stride(2) if batch > 1 else 0
    size = PAGE_SIZE if _fits(k, v, apart, max(counts)) else 1
    n_pages = (apart * (batch - 1) + max(counts) + size - 1) // size
    sizes = heads, k.shape[1], d, size

    def make(workspace: torch.Tensor) -> Any:
        wrapper = import_module("flashinfer.decode").BatchDecodeWithPagedKVCacheWrapper
        return wrapper(workspace, "HND", use_tensor_cores=True, backend="fa2")

    def plan(wrapper: Any) -> None:
        held = torch.tensor([-(-count // size) for count in counts], dtype=torch.int32)
        last = torch.tensor([(count - 1) % size + 1 for count in counts], dtype=torch.int32)
        # The pages of all entries, made on the device, since a copy of so many could wait for it.
        starts, total = torch.nn.functional.pad(held.cumsum(0), (1, 0)).to(torch.int32), int(held.sum())
        ahead = (torch.arange(batch) * (apart // size) - starts[:-1]).to(k.device, non_blocking=True)
        shifts = torch.repeat_interleave(ahead, held.to(k.device, non_blocking=True), output_size=total)
        indices = (torch.arange(total, device=k.device) + shifts).to(torch.int32)
        wrapper.plan(starts, indices, last, *sizes, q_data_type=q.dtype, kv_data_type=k.dtype, sm_scale=scale)

    key = (tuple(counts), apart, *sizes, q.dtype, scale)
    wrapper = planned("decode", q.device, key, make, plan)
    out, lse = wrapper.run(q[:, :, 0], (_pages(k, n_pages, size), _pages(v, n_pages, size)), return_lse=True)
    _write_rows(out, lse, result)


def attend_latents(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seen: str,
    scale: float,
    result: Partial,
    *,
    lengths: Any = None,
) -> None:
    """Write the attention of one query per sequence over latents, by BatchMLAPagedAttentionWrapper.

    Every entry is one page: its kernel splits keys anywhere. Arguments are those of `attend_batch`, but q is
    [batch, heads, 1, 576], 512 items for the latents and 64 rotary ones, k [batch, 1, n, 576], and v [batch, 1, n, 512]
    its first columns.
    """
    assert seen == "all"
    batch, heads, _, d = q.shape
    n, latent = k.shape[2], v.shape[3]
    counts = _counts(lengths, batch, n, k.device)

    def make(workspace: torch.Tensor) -> Any:
        return import_module("flashinfer.mla").BatchMLAPagedAttentionWrapper(workspace, backend="auto")

    def plan(wrapper: Any) -> None:
        entries = torch.arange(batch + 1, dtype=torch.int32)
        kv_lens = torch.tensor(counts, dtype=torch.int32)
        sizes = heads, latent, d - latent, n
        wrapper.plan(entries, entries, entries[:batch], kv_lens, *sizes, False, scale, q.dtype, k.dtype)

    key = (tuple(counts), heads, latent, d, n, q.dtype, scale)
    wrapper = planned("latents", q.device, key, make, plan)
    rows = q[:, :, 0]
    out, lse = wrapper.run(
        rows[..., :latent], rows[..., latent:], k[:, 0, :, :latent], k[:, 0, :, latent:], return_lse=True
    )
    _write_rows(out, lse, result)


def _counts(lengths: Any, batch: int, n: int, device: torch.device) -> list[int]:
    if lengths is None:
        return [n] * batch
    if capturing(device):
        raise OperatorError(
            "local_attention: kv_lengths is in host memory while a CUDA graph is captured, which would keep its "
            f"values; give it as a tensor on {device}, in the call before the capture too"
        )
    return [int(count) for count in tensor_of(lengths).tolist()]


def _fits(k: torch.Tensor, v: torch.Tensor, apart: int, most: int) -> bool:
    """Whether entries begin at pages of `PAGE_SIZE`, and the last page of the last one lies in the storage."""
    beyond = -most % PAGE_SIZE
    return apart % PAGE_SIZE == 0 and all(
        x.storage_offset()
        + sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
        + (most - x.shape[2] + beyond) * x.stride(2)
        < x.untyped_storage().nbytes() // x.element_size()
        for x in (k, v)
    )


def _pages(x: torch.Tensor, n_pages: int, size: int) -> torch.Tensor:
    """The rows of [batch, heads, n, d] as pages [pages, heads, page size, d] in the same memory."""
    _, heads, _, d = x.shape
    step = x.stride(2)
    return x.as_strided((n_pages, heads, size, d), (size * step, x.stride(1), step, 1))


def _write_rows(out: torch.Tensor, lse: torch.Tensor, result: Partial) -> None:
    """Write out [batch, heads, d] and lse [batch, heads]: to the convention, entries are the queries of one batch."""
    write_partial(out, lse, CONVENTION, Partial(result.out.transpose(0, 2), result.lse.transpose(0, 2)))


class Plan(NamedTuple):
    """A planned wrapper, and the event after the copy of its plan to the device; None: there is no device."""

    wrapper: Any
    copied: Any


class Pool(NamedTuple):
    """The plans of one kind of wrapper on one stream of one thread, oldest use first; they share the workspace.

    Kernels of one stream run one after the other, so that they can. Plans are not shared by threads, which would plan
    a wrapper anew between another's plan and its run.
    """

    workspace: torch.Tensor
    plans: dict[Hashable, Plan]


class _Kept(local):
    def __init__(self) -> None:
        self.pools: dict[tuple[torch.device, str, int], Pool] = {}
        self.graphs: dict[tuple[torch.device, str, int], dict[Hashable, Plan]] = {}
        """By the stream that captures: the plans its graphs run."""
        self.retired: list[Pool] = []
        """Pools that graphs took, with their workspace: nobody tells when a graph is gone."""


_kept = _Kept()


def planned(
    kind: str,
    device: torch.device,
    key: Hashable,
    make: Callable[[torch.Tensor], Any],
    plan: Callable[[Any], None],
) -> Any:
    """Return a wrapper that holds the plan for a key; it is made and planned if none does.

    A graph that is captured takes the plans of the call that ran before it, with their workspace, for good: later
    calls plan others, so that what the graph replays stays as it was captured.

    The key is all that a plan depends on. `make` makes a wrapper around a workspace, uint8 [`WORKSPACE_BYTES`]; `plan`
    plans it, from host memory.

    Raises:
        OperatorError: A graph is captured, and the same call did not run before.
    """
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    where = device, kind, stream
    if capturing(device):
        return _captured(where, key).wrapper
    pool = _kept.pools.get(where)
    if pool is None:
        workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        pool = _kept.pools[where] = Pool(workspace, {})
    current_plan = pool.plans.pop(key, None)
    if current_plan is None:
        wrapper = None
        if len(pool.plans) >= KEPT:
            wrapper, used = pool.plans.pop(next(iter(pool.plans)))
            if used is not None:  # planning writes pinned memory at once, from which the plan before may be copied yet
                used.synchronize()
        wrapper = wrapper or make(pool.workspace)
        plan(wrapper)
        copied = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None
        current_plan = Plan(wrapper, copied)
    pool.plans[key] = current_plan
    return current_plan.wrapper


def _captured(where: tuple[torch.device, str, int], key: Hashable) -> Plan:
    """The plan for a key that a graph may keep."""
    for other, pool in list(_kept.pools.items()):
        if other[:2] == where[:2] and key in pool.plans:
            _kept.retired.append(_kept.pools.pop(other))
            _kept.graphs[where] = _kept.graphs.get(where, {}) | pool.plans
            break
    plan = _kept.graphs.get(where, {}).get(key)
    if plan is None:
        raise OperatorError(
            "local_attention: FlashInfer plans this call on the host, which cannot be captured in a CUDA graph; run "
            'the same call once, in this thread, before the capture, or pass exact="float32" for a kernel of ours'
        )
    return plan
