"""Inputs of kernels on the device at hand, and what the float64 formula makes of them."""

import numpy as np
import torch

from attention.reference import reference_attention

DEVICE = "cpu"


def made(seed, batch, heads, kv_heads, q_len, n, d, d_v, dtype=torch.float32):
    """q, k, v with normal values on the device."""
    random = torch.Generator().manual_seed(seed)
    shapes = ((batch, heads, q_len, d), (batch, kv_heads, n, d), (batch, kv_heads, n, d_v))
    return [torch.randn(shape, generator=random).to(dtype).to(DEVICE) for shape in shapes]


def poisoned(q, v):
    """NaN where a result is to be written, so that what is not written shows."""
    out = torch.full((*q.shape[:3], v.shape[3]), float("nan"), device=q.device)
    return out, torch.full(q.shape[:3], float("nan"), device=q.device)


def formula(q, k, v, spec, **where):
    """The float64 formula; lengths as a mask, positions by default those of the last keys."""
    lengths = where.pop("kv_lengths", None)
    batch, _, q_len, _ = q.shape
    n = k.shape[2]
    ends = torch.full((batch,), n) if lengths is None else lengths.cpu()
    given = {name: x.cpu().numpy() for name, x in where.items() if x is not None}
    if spec.needs_positions and "q_positions" not in given:
        given["q_positions"] = (ends[:, None] - q_len + torch.arange(q_len)).numpy()
        given["kv_positions"] = np.arange(n)
    if lengths is not None:
        there = (torch.arange(n) < ends[:, None]).numpy()
        given["kv_mask"] = there & np.atleast_2d(given.get("kv_mask", True))
    wide = [x.detach().cpu().double().numpy() for x in (q, k, v)]
    return reference_attention(*wide, spec=spec, **given)


def assert_close(found, wanted, tolerance=3e-6):
    """Values within the tolerance, and the same rows empty, (0, -inf) exactly."""
    out, lse = (x.cpu().double().numpy() for x in found)
    empty = np.isneginf(wanted.lse)
    assert (np.isneginf(lse) == empty).all()
    assert (out[empty] == 0).all()
    assert np.abs(out - wanted.out).max(initial=0) <= tolerance * max(1, np.abs(wanted.out).max(initial=0))
    assert np.abs(lse[~empty] - wanted.lse[~empty]).max(initial=0) <= tolerance


def paged(random, k, v, page, dtype=torch.int64):
    """The same keys in pages taken in a random order, with NaN in what no entry has; their tables."""
    batch, kv_heads, n, _ = k.shape
    pages = -(-n // page)
    tables = torch.from_numpy(random.permutation(batch * pages + 2)[: batch * pages]).view(batch, pages)
    held = []
    for x in (k, v):
        store = torch.full((batch * pages + 2, kv_heads, page, x.shape[3]), float("nan"), dtype=x.dtype)
        whole = torch.nn.functional.pad(x.cpu(), (0, 0, 0, pages * page - n), value=float("nan"))
        for entry in range(batch):
            store[tables[entry]] = whole[entry].view(kv_heads, pages, page, x.shape[3]).transpose(0, 1)
        held.append(store.to(k.device))
    return (*held, tables.to(dtype).to(k.device))
