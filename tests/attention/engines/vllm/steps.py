"""Steps of a made-up engine: requests with new tokens, caches in blocks as vLLM keeps them, and attention of it all."""

from typing import NamedTuple

import torch

from attention import Spec
from attention.engines.vllm.cpu_batch import batch_of
from attention.engines.vllm.cpu_slots import Share

BLOCK, BLOCKS = 8, 64


class Requests(NamedTuple):
    """Requests of one step: in order (tokens before the step, new tokens)."""

    sizes: tuple[tuple[int, int], ...]
    starts: torch.Tensor
    lengths: torch.Tensor
    tables: torch.Tensor


def requests_of(*sizes):
    """Requests whose blocks lie anywhere; entries of the tables behind the last block are none at all."""
    starts = torch.tensor([0, *(new for _, new in sizes)]).cumsum(0)
    lengths = torch.tensor([before + new for before, new in sizes], dtype=torch.int32)
    blocks = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(1)).tolist()
    tables = torch.full((len(sizes), 12), 1 << 20, dtype=torch.int32)
    for row, length in enumerate(lengths.tolist()):
        for column in range(-(-length // BLOCK)):  # enough for a single rank
            tables[row, column] = blocks.pop()
    return Requests(tuple(sizes), starts.to(torch.int32), lengths, tables)


def batch_on(requests, share):
    """The batch of a rank."""
    return batch_of(requests.starts, requests.lengths, requests.tables, new_slots(requests, share), share, BLOCK)


def new_slots(requests, share):
    """Where the new tokens go, with two of padding."""
    positions = torch.cat([torch.arange(before, before + new) for before, new in requests.sizes])
    rows = torch.cat([torch.full((new,), row) for row, (_, new) in enumerate(requests.sizes)])
    return torch.cat([share.slots(positions, rows, requests.tables, BLOCK), torch.tensor([-1, -1])])


def cache_on(requests, share: Share, keys, values):
    """A rank's cache with what came before the step; NaN wherever nothing was written."""
    kv_heads, d = keys[0].shape[1:]
    cache = torch.full((BLOCKS, kv_heads, BLOCK, 2 * d), torch.nan, dtype=keys[0].dtype)
    for row, (before, _) in enumerate(requests.sizes):
        positions = torch.arange(before)
        slots = share.slots(positions, torch.full((before,), row), requests.tables, BLOCK)
        for token in positions[slots >= 0].tolist():
            at = int(slots[token])
            cache[at // BLOCK, :, at % BLOCK] = torch.cat([keys[row][token], values[row][token]], -1)
    return cache


def exact_step(requests, q, keys, values, spec: Spec):
    """Attention of the new tokens [tokens, heads, d] over all keys up to their own, in float64."""
    results = []
    for row, (before, new) in enumerate(requests.sizes):
        start = int(requests.starts[row])
        heads, group = q.shape[1], q.shape[1] // keys[row].shape[1]
        k, v = (x[row].double().repeat_interleave(group, 1) for x in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", q[start : start + new].double(), k) * spec.scale_for(q.shape[2])
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        hidden = torch.arange(before + new)[None] > torch.arange(before, before + new)[:, None]
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        assert weights.shape == (heads, new, before + new)
        results.append(torch.einsum("hqk,khd->qhd", weights, v))
    return torch.cat(results)
