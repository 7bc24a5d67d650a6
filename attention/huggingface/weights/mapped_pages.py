"""Giving back memory of weights that lie in mapped files, as `from_pretrained` leaves them.

A page of a file counts as this process's memory from its first reading until the mapping ends, with the last tensor of
the file. An unchanged one can go earlier: the next reading brings it again, as a rule from the system's cache.
"""

from __future__ import annotations

import ctypes
import mmap
from functools import cache
from pathlib import Path

import numpy as np
import torch

PAGEMAP = Path("/proc/self/pagemap")
"""What of each page Linux says to the process itself: 8 bytes (Linux, Documentation/admin-guide/mm/pagemap.rst)."""
LEAST_BYTES = 1 << 16
"""Of a tensor whose pages are given back."""
SWAPPED, OF_FILE, PRESENT = (np.uint64(1 << bit) for bit in (62, 61, 63))


def release_pages(x: torch.Tensor) -> bool:
    """Give back the pages from a tensor's first number to its last, if they are a file's, unchanged; whether they were.

    Memory that belongs to no file, and pages that this process has written to, stay as they are. Nothing may write to
    this memory meanwhile. Small tensors are left alone; elsewhere than on Linux nothing is done.
    """
    if x.device.type != "cpu" or type(x.data) is not torch.Tensor or x.nbytes < LEAST_BYTES:
        return False
    items = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    page, first = mmap.PAGESIZE, x.data_ptr()
    start, stop = first // page, -(-(first + items * x.element_size()) // page)
    advise = _madvise()
    if advise is None or not _are_of_files(start, stop):
        return False
    done: int = advise(start * page, (stop - start) * page, mmap.MADV_DONTNEED)
    return done == 0


def _are_of_files(first: int, stop: int) -> bool:
    """Whether all pages of the numbers [first, stop) that are in memory are a file's own: a changed one is a copy."""
    try:
        with PAGEMAP.open("rb", buffering=0) as pagemap:
            pagemap.seek(8 * first)
            entries = np.frombuffer(pagemap.read(8 * (stop - first)), np.uint64)
    except OSError:
        return False
    present = entries[entries & PRESENT != 0]
    whole = len(entries) == stop - first and len(present) > 0
    return whole and not (entries & SWAPPED).any() and bool((present & OF_FILE).all())


@cache
def _madvise() -> ctypes._NamedFuncPointer | None:
    """The C library's madvise(address, bytes, advice); None: this is not Linux."""
    if not PAGEMAP.exists():
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    return function
