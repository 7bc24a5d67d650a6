"""One Triton kernel that runs a rank's whole part of a plan: writes to its peers' memories, flags, waits, folds.

Every rank has one memory, which all ranks of its host map. Words of 64 bits come first, then two arenas that epochs
take in turn:

    state         of the rank itself: EPOCH and the words after it
    finished      by rank, the last epoch that it said to be through with
    flags         by item, stage and rank that sends, the last epoch in which it did
    arenas        what other ranks have written for this one, and what it folded from that

An item is a tile of rows of a chunk. All that a plan does with a chunk it does row by row, so an item needs nothing of
the others: a program takes items one after the other, each through all stages, and no barrier between programs is
needed. The n-th program of every rank takes the same items in the same order; all of them must run at the same time,
so there are no more than the GPU has room for.

Memory order. Programs write to a peer's arena, meet at a barrier, and raise a flag with a release that the whole system
sees; who waits for it reads it with an acquire, meets at a barrier, and reads the arena. Epochs are 64 bits wide: no
flag of long ago can be taken for a new one.

Two arenas suffice. In epoch e a rank writes to the arenas that its peers have read in epoch e - 2, so each of them
must be through with that one. If epoch e - 1 synchronised the ranks (an allreduce: nobody gets through before all have
begun, and a rank runs its epochs one after the other) that is so. Otherwise (a reduce, a broadcast, a scan) ranks say
what they are through with, in `finished`, and who sends waits for that.
"""

# mypy: ignore-errors
# ruff: noqa: C901, PLR0913, PLR0915, RUF005 one function is one launch; a tuple of tiles is no Python one
from __future__ import annotations

import triton
import triton.language as tl

from topocomm.operators.kernels.gpu_tiles import combined, load, multiple, store

ABORT, AWAITED = tl.constexpr(0), tl.constexpr(1)
"""Words that the host reads and writes: whether to end all waits; then by rank, whether it was awaited in vain."""
LOOK = tl.constexpr(64)
"""Looks at the flags between two looks at the clock."""
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


EPOCH, ARRIVED, FAILED, SYNCHRONISED = (tl.constexpr(word) for word in range(4))
"""Words of a rank's state: the last epoch, programs that are through with the one under way, whether a wait of this
rank has failed, the last epoch that synchronised the ranks."""
FINISHED_AT = tl.constexpr(32)
"""Words before `finished`."""
FLAGS_AT = tl.constexpr(32 + 64)
"""Words before the flags: there are 64 ranks at most."""
INPUT, ARENA, OUTPUT = (tl.constexpr(space) for space in range(3))
"""Where a piece lies: a row of the caller's value or result, or a byte of this rank's arena."""


@triton.jit
def _starts(space, place, fields, arena, inputs, outputs, ROW_BYTES: tl.constexpr, ALIGNS: tl.constexpr):
    """Pointers to the fields of a piece; `fields` points to where they start in a packed chunk."""
    found = ()
    for field in tl.static_range(len(ALIGNS)):
        packed = arena + place + tl.load(fields + field)
        row = tl.where(space == INPUT, inputs[field], outputs[field]) + place * ROW_BYTES[field]
        address = tl.where(space == ARENA, packed, row).to(tl.pointer_type(tl.uint8))
        found = found + (tl.multiple_of(address, tl.constexpr(ALIGNS[field])),)  # no bare number, in Triton 3.6
    return found


@triton.jit
def _piece(
    word,
    fields,
    arena,
    inputs,
    outputs,
    first,
    rows,
    DTYPES: tl.constexpr,
    ITEMS: tl.constexpr,
    WIDTHS: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    ALIGNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """A tile of the piece that two words tell: its space, and its place there."""
    starts = _starts(tl.load(word), tl.load(word + 1), fields, arena, inputs, outputs, ROW_BYTES, ALIGNS)
    return load(starts, first, rows, DTYPES, ITEMS, WIDTHS, ROWS)


@triton.jit
def _fold(
    word,
    fields,
    arena,
    inputs,
    outputs,
    first,
    rows,
    COMBINE: tl.constexpr,
    CONSTANTS: tl.constexpr,
    DTYPES: tl.constexpr,
    ITEMS: tl.constexpr,
    WIDTHS: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    ALIGNS: tl.constexpr,
    OPERANDS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Fold a tile of some pieces left to right: target, number of operands, operands; returns the word behind.

    The result may be in the place of an operand: all threads read before any writes.
    """
    folded = _piece(
        word + 3, fields, arena, inputs, outputs, first, rows, DTYPES, ITEMS, WIDTHS, ROW_BYTES, ALIGNS, ROWS
    )
    operands = tl.load(word + 2)
    if OPERANDS > 1:
        if operands > 1:
            for operand in tl.static_range(1, OPERANDS):
                right = _piece(
                    word + 3 + 2 * operand, fields, arena, inputs, outputs, first, rows,
                    DTYPES, ITEMS, WIDTHS, ROW_BYTES, ALIGNS, ROWS,
                )  # fmt: skip
                folded = combined(folded, right, COMBINE, CONSTANTS, DTYPES, WIDTHS, ROWS)
    elif OPERANDS == 0:
        for operand in range(1, operands):
            right = _piece(
                word + 3 + 2 * operand, fields, arena, inputs, outputs, first, rows,
                DTYPES, ITEMS, WIDTHS, ROW_BYTES, ALIGNS, ROWS,
            )  # fmt: skip
            folded = combined(folded, right, COMBINE, CONSTANTS, DTYPES, WIDTHS, ROWS)
    tl.debug_barrier()
    starts = _starts(tl.load(word), tl.load(word + 1), fields, arena, inputs, outputs, ROW_BYTES, ALIGNS)
    store(starts, folded, first, rows, DTYPES, ITEMS, WIDTHS, ROWS)
    tl.debug_barrier()
    return word + 3 + 2 * operands


@triton.jit(do_not_specialize=["rank", "ranks", "stages", "tiles", "items", "limit"])
def peer_kernel(
    inputs,
    outputs,
    program,
    memories,
    own,
    control,
    rank,
    ranks,
    arenas_at,
    arena_bytes,
    stages,
    tiles,
    items,
    limit,
    COMBINE: tl.constexpr,
    CONSTANTS: tl.constexpr,
    DTYPES: tl.constexpr,
    ITEMS: tl.constexpr,
    WIDTHS: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    ALIGNS: tl.constexpr,
    ROW_FACTOR: tl.constexpr,
    OPERANDS: tl.constexpr,
    ROWS: tl.constexpr,
    PEERS: tl.constexpr,
    SYNCHRONISES: tl.constexpr,
    BACKEND: tl.constexpr,
):
    """One rank's part of a plan, in one launch; a grid of programs that all have room at the same time.

    Memory is told by its address: that of peers belongs to no tensor.

    Args:
        inputs: Address of every field of this rank's value, rows by rows.
        outputs: Likewise, of its result.
        program: int32 words, as `execute.peer_program` makes them.
        memories: int64 [ranks]: address of every rank's memory as it is mapped here.
        own: Address of this rank's memory.
        control: Address of int32 words in memory that the host sees.
        rank: This rank.
        ranks: How many there are.
        arenas_at: Byte of a memory at which its arenas begin.
        arena_bytes: Of one arena.
        stages: Of the plan.
        tiles: Of the longest chunk.
        items: Tiles of all chunks, as if all were as long. 0 does nothing: so a kernel is loaded before it is needed.
        limit: How long a wait may take, as `gpu_flags.now` counts.
        COMBINE: The operator's function, see `topocomm.TritonCombine`.
        CONSTANTS: Its constants.
        DTYPES: Of every field.
        ITEMS: Of a row of every field.
        WIDTHS: The same padded to powers of two.
        ROW_BYTES: Of a row of every field.
        ALIGNS: Of every field a power of two that divides all addresses at which it starts, at most 16.
        ROW_FACTOR: Likewise, of the chunks' rows.
        OPERANDS: Their number if all folds have as many, so that all are loaded at once; 0: the program says it.
        ROWS: A power of two.
        PEERS: A power of two, the number of ranks or more.
        SYNCHRONISES: Whether nobody gets through before all have begun.
        BACKEND: "cuda", "hip" or "interpreter".
    """
    if items == 0:
        return
    lane = tl.arange(0, PEERS)
    program = program.to(tl.int64).to(tl.pointer_type(tl.int32))  # an address below 2^31 comes as int32
    memories = memories.to(tl.int64).to(tl.pointer_type(tl.int64))
    control = control.to(tl.int64).to(tl.pointer_type(tl.int32))
    state = own.to(tl.int64).to(tl.pointer_type(tl.int64))
    epoch = tl.load(state + EPOCH) + 1
    arena_at = arenas_at + (epoch & 1) * arena_bytes
    arena = own + arena_at
    failed = tl.atomic_or(state + FAILED, tl.full((), 0, tl.int64), sem="relaxed", scope="gpu")
    receivers = tl.load(program)
    if (receivers > 0) & (failed == 0) & (tl.load(state + SYNCHRONISED) != epoch - 1):
        peers = tl.load(program + 1 + lane, mask=lane < receivers, other=0)
        finished = own + (FINISHED_AT + peers) * 8
        failed = wait(finished, peers, lane < receivers, epoch - 2, state + FAILED, control, limit, BACKEND)
    chunks = program + 1 + receivers
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        first = ((item % tiles) * ROWS).to(tl.int64)
        code = program + tl.load(chunks + item // tiles)
        rows = multiple(code, ROW_FACTOR)
        fields = code + 1
        word = fields + len(DTYPES) + 1
        steps = tl.where(first < rows, tl.load(word - 1), 0)
        for _ in range(steps):
            if failed == 0:
                flags_at = (FLAGS_AT + (item * stages + tl.load(word)).to(tl.int64) * ranks) * 8
                sources = tl.load(word + 1)
                word += 2
                for _source in range(sources):
                    value = _piece(
                        word, fields, arena, inputs, outputs, first, rows,
                        DTYPES, ITEMS, WIDTHS, ROW_BYTES, ALIGNS, ROWS,
                    )  # fmt: skip
                    targets = tl.load(word + 2)
                    word += 3
                    for _target in range(targets):
                        there = tl.load(memories + tl.load(word)) + arena_at
                        place = tl.load(word + 1)
                        starts = _starts(ARENA, place, fields, there, inputs, outputs, ROW_BYTES, ALIGNS)
                        store(starts, value, first, rows, DTYPES, ITEMS, WIDTHS, ROWS)
                        word += 2
                told = tl.load(word)
                if told > 0:
                    peers = tl.load(word + 1 + lane, mask=lane < told, other=0)
                    theirs = tl.load(memories + peers) + flags_at + rank * 8
                    raise_flags(theirs, epoch, lane < told, BACKEND)
                word += 1 + told
                awaited = tl.load(word)
                if awaited > 0:
                    peers = tl.load(word + 1 + lane, mask=lane < awaited, other=0)
                    mine = own + flags_at + peers * 8
                    failed = wait(mine, peers, lane < awaited, epoch, state + FAILED, control, limit, BACKEND)
                word += 1 + awaited
                folds = tl.where(failed == 0, tl.load(word), 0)
                word += 1
                for _one in range(folds):
                    word = _fold(
                        word, fields, arena, inputs, outputs, first, rows,
                        COMBINE, CONSTANTS, DTYPES, ITEMS, WIDTHS, ROW_BYTES, ALIGNS, OPERANDS, ROWS,
                    )  # fmt: skip
    tl.debug_barrier()
    arrived = tl.atomic_add(state + ARRIVED, tl.full((), 1, tl.int64), sem="acq_rel", scope="gpu")
    if arrived == tl.num_programs(0) - 1:  # the last one ends the epoch
        failed = tl.atomic_or(state + FAILED, tl.full((), 0, tl.int64), sem="relaxed", scope="gpu")
        if failed == 0:
            if SYNCHRONISES:
                tl.store(state + SYNCHRONISED, epoch)
            else:
                peers = tl.where(lane < ranks, lane, 0)
                theirs = tl.load(memories + peers) + (FINISHED_AT + rank) * 8
                raise_flags(theirs, epoch, lane < ranks, BACKEND)
        tl.store(state + ARRIVED, tl.full((), 0, tl.int64))
        tl.store(state + EPOCH, epoch)
