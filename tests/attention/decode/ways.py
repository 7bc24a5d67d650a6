"""A decode step by the shortest way and by the general one."""

import torch

from attention import tree_decode


def general(q, k, v, comm, **options):
    """What the general way gives."""
    out = torch.empty_like(q[..., :1]).expand(*q.shape[:3], v.shape[3]).contiguous()
    return tree_decode(q, k, v, comm, return_lse=True, out=out, **options)


def both_ways(comm, q, k, v, **options):
    """What the call gives, and what the general way gives for it."""
    return tree_decode(q, k, v, comm, return_lse=True, **options), general(q, k, v, comm, **options)
