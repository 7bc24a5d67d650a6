"""Flags that the GPUs of a host raise in each other's memories, and waits for them that end."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

ABORT, AWAITED = tl.constexpr(0), tl.constexpr(1)
"""Words that the host reads and writes: whether to end all waits; then by rank, whether it was awaited in vain."""
LOOK = tl.constexpr(64)
"""A wait looks at the clock each time it has looked at its flags so often."""
STORE_RELEASE = tl.constexpr(
    "{ .reg .pred %p; setp.ne.s32 %p, $3, 0; @%p st.release.sys.global.u64 [$1], $2; mov.u32 $0, 0; }"
)


@triton.jit
def now(polls, BACKEND: tl.constexpr):
    """The time: nanoseconds, on AMD's GPUs units of 10 ns; in the interpreter looks at the flags."""
    if BACKEND == "cuda":
        made = tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], tl.int64, is_pure=False, pack=1)
    elif BACKEND == "hip":
        clock: tl.constexpr = "s_memrealtime $0\ns_waitcnt lgkmcnt(0)"
        made = tl.inline_asm_elementwise(clock, "=s", [], tl.int64, is_pure=False, pack=1)
    else:
        made = polls.to(tl.int64)
    return made


@triton.jit
def raise_flags(flags, epoch, mask, BACKEND: tl.constexpr):
    """Write the epoch to flags of peers, after all that this program has written.

    A store, not an exchange: over PCIe there are no atomic operations on a peer's memory.
    """
    tl.debug_barrier()
    if BACKEND == "cuda":
        told = tl.broadcast_to(epoch, flags.shape)
        tl.inline_asm_elementwise(
            STORE_RELEASE, "=r,l,l,r", [flags, told, mask.to(tl.int32)], tl.int32, is_pure=False, pack=1
        )
    else:
        tl.atomic_xchg(flags.to(tl.pointer_type(tl.int64)), epoch, mask=mask, sem="release", scope="sys")


@triton.jit
def _missing(flags, epoch, mask):
    """Which flags have not come to the epoch.

    They are in this GPU's own memory. Atomic additions of nothing read them: what these return is the same in all
    threads, so all take the same branch.
    """
    words = flags.to(tl.pointer_type(tl.int64))
    seen = tl.atomic_add(words, tl.zeros(flags.shape, tl.int64), mask=mask, sem="acquire", scope="sys")
    return (mask & (seen < epoch)).to(tl.int32)


@triton.jit
def wait(flags, peers, mask, epoch, failure, control, limit, BACKEND: tl.constexpr):
    """Wait until the flags of peers have come to the epoch; whether that has failed, in this program or another.

    Then `control` tells whom this program still awaited. All programs of a launch that wait see the word `failure`.
    """
    failed = tl.full((), 0, tl.int64)
    missing = _missing(flags, epoch, mask)
    left = tl.sum(missing, axis=0)
    polls = tl.full((), 0, tl.int32)
    began = now(polls, BACKEND)
    while (left > 0) & (failed == 0):
        missing = _missing(flags, epoch, mask)
        left = tl.sum(missing, axis=0)
        polls += 1
        if polls % LOOK == 0:
            late = now(polls, BACKEND) - began > limit
            ended = (left > 0) & (late | (tl.load(control + ABORT, volatile=True) != 0))
            tl.atomic_or(failure, ended.to(tl.int64), sem="relaxed", scope="gpu")
            failed = tl.atomic_or(failure, tl.full((), 0, tl.int64), sem="relaxed", scope="gpu")
    if failed != 0:
        tl.store(control + AWAITED + peers, tl.full(peers.shape, 1, tl.int32), mask=missing != 0)
    tl.debug_barrier()
    return failed
