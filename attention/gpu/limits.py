"""Limits of the GPUs that kernels are compiled for, and head dims as kernels hold them."""

from __future__ import annotations

SHARED_KIB = {"sm_80": 163, "sm_89": 99, "sm_90": 227, "sm_100": 227, "gfx9": 64, "other": 48}
"""Shared memory of one program by generation: CUDA C programming guide, compute capabilities; AMD CDNA guides."""

DECODE_QUERIES = 16
"""The most queries that count as decoding."""
DECODE_WIDEST = {2: 576, 4: 256}
"""The greatest head dim that the decode kernel takes, by bytes of an item of q: what registers hold."""

FEWEST_COLUMNS = 16
"""Columns that matrix units take at least."""


def arch_of(backend: str, arch: int | str) -> str:
    """Triton's arch as one name: sm_90 from 90, gfx942 from "gfx942:sramecc+"."""
    return f"sm_{arch}" if backend == "cuda" and isinstance(arch, int) else str(arch).split(":")[0]


def generation_of(arch: str) -> str:
    """Return the key of `SHARED_KIB` for an arch; "other" fits any GPU."""
    if arch.startswith(("gfx90a", "gfx94", "gfx95")):
        return "gfx9"
    number = arch.removeprefix("sm_")
    if number == arch or not number.isdigit():
        return "other"
    capability = int(number)
    if capability in (86, 89, 120, 121):  # little shared memory
        return "sm_89"
    for least, name in ((100, "sm_100"), (90, "sm_90"), (80, "sm_80")):
        if least <= capability < 120:
            return name
    return "other"


def pieces(width: int) -> tuple[int, int]:
    """Return a head dim as two powers of two from 16, the second 0 where one is enough: 80 is 64 and 16.

    What is a power of two beyond 128 is halved, which needs fewer registers where results are merged: 256 is twice 128.
    """
    first = max(FEWEST_COLUMNS, 1 << (width.bit_length() - 1))
    if first == width > 128:
        first //= 2
    rest = width - first
    return first, 0 if rest <= 0 else max(FEWEST_COLUMNS, 1 << (rest - 1).bit_length())
