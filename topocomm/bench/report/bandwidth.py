"""Bandwidths as nccl-tests defines them, so that figures compare.

algbw = size / time. busbw = algbw x the part of the payload that a rank's port must carry whatever the algorithm: it
compares with the bandwidth of the hardware, and does not fall with the number of ranks.
"""

from __future__ import annotations


def bus_factor(collective: str, ranks: int) -> float:
    """The factor from algbw to busbw: allreduce 2(n-1)/n, allgather and reduce_scatter (n-1)/n, the others 1."""
    if collective == "allreduce":
        return 2 * (ranks - 1) / ranks
    if collective in ("allgather", "reduce_scatter"):
        return (ranks - 1) / ranks
    return 1.0


def bus_formula(collective: str) -> str:
    """The same as a formula."""
    if collective == "allreduce":
        return "algbw x 2(n-1)/n"
    if collective in ("allgather", "reduce_scatter"):
        return "algbw x (n-1)/n"
    return "algbw"


def gb_per_s(size_bytes: int, time_us: float) -> float:
    """Decimal gigabytes per second."""
    return size_bytes / time_us / 1e3 if time_us > 0 else 0.0
