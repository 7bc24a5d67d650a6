"""The MSCCL++ execution plan (JSON) of a plan for sums, as microsoft/mscclpp's executor reads it.

A rank writes into the peer's memory (`put`), then signals the channel to it, and the peer waits for that signal. GPUs
of one host have a memory channel, GPUs of two hosts a port channel. A rank's program is serial and cut in stages
(`slot_memory.py`): put everything, signal, wait for everything, reduce. Puts and signals do not block and a stage is a
range of whole rounds, so the least incomplete round always proceeds: no deadlock.

Before the first stage every rank signals the ranks that write to it that it has begun: until then the previous call may
use its memory. `nop` is the barrier of a thread block, needed between operations that touch the same memory, before a
signal and after a wait. A thread block holds few operations and channels: a long program continues in the next one,
which a semaphore starts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, TypeVar

from topocomm.errors import PlanError
from topocomm.planning.formats.gpu_program import Memory, Place, Units, check_exportable, equal_units, program_name
from topocomm.planning.plan import Plan
from topocomm.planning.program.slot_memory import stages_of
from topocomm.planning.schedule.schedule import Combine, Piece, Schedule, Transfer
from topocomm.planning.schedule.transforms import unrolled
from topocomm.topology.model import Topology

FORM = "mscclpp-json"
MOST_OPERATIONS = 64
"""Operations of a thread block."""
MOST_CHANNELS = 16
"""Channels, and remote buffers, of one kind in a thread block."""
MOST_FUSED = 8
"""Channels of one operation."""
MOST_OPERANDS = 10
"""Operands of one reduction."""
MOST_SEMAPHORES = 16
ALIGNMENT_BYTES = 16
MOST_BYTES = 2**64 - 1

Document = dict[str, Any]
T = TypeVar("T")


def dumps(plan: Plan, topology: Topology) -> str:
    """Return the plan as an MSCCL++ execution plan.

    Raises:
        PlanError: The format cannot express the plan; the message says why.
    """
    check_exportable(plan, topology, FORM)
    once, units = equal_units(plan.collective, plan.schedule, FORM)
    hosts = [topology.by_id[end].host for end in plan.ranks]
    if once.repeat is not None:
        try:
            return _program(plan, unrolled(once), units.sliced(once.repeat.count), hosts)
        except TooLongError:  # whole chunks give the same sums, and slices gain little with serial thread blocks
            once = replace(once, repeat=None)
    return _program(plan, once, units, hosts)


def _program(plan: Plan, schedule: Schedule, units: Units, hosts: list[str]) -> str:
    memory = _Memory(schedule, units)
    document = {
        "name": program_name(plan),
        "collective": {"reduce_scatter": "reducescatter"}.get(plan.collective.name, plan.collective.name),
        "protocol": "Simple",
        "inplace": not units.part,
        "reuse_resources": False,
        "gpus": [_Rank(rank, memory, hosts).document() for rank in range(schedule.ranks)],
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": ALIGNMENT_BYTES,
        "min_message_size": 0,
        "max_message_size": MOST_BYTES,
    }
    return json.dumps(document)


class TooLongError(PlanError):
    """A rank has more operations than its thread blocks hold."""


class _Memory(Memory):
    """Place of every piece of every rank; all ranks know it, since they write into their peers' memory."""

    def __init__(self, schedule: Schedule, units: Units) -> None:
        super().__init__(schedule, units)
        self.schedule = schedule
        for move in schedule.transfer_list():  # a peer may write where the rank has no input of the chunk at any time
            self.place(move.dst, (move.dst_slot, move.chunk), not self._inputs(move.dst, move.chunk))
        for fold in schedule.combine_list():
            self.place(fold.rank, (fold.out_slot, fold.chunk), self._read_before(fold))

    def _inputs(self, rank: int, chunk: int) -> list[Piece]:
        return [piece for piece in self.uses[rank].inputs if piece[1] == chunk]

    def _read_before(self, fold: Combine) -> bool:
        """Whether the input of the chunk is read no later than by the fold, which takes one operation."""
        reads = self.uses[fold.rank].reads
        events = [event for piece in self._inputs(fold.rank, fold.chunk) for event in reads.get(piece, ())]
        late = [e for e in events if e.round > fold.round or (e.round == fold.round and isinstance(e, Combine))]
        return all(event == fold for event in late) and len(fold.operands) <= MOST_OPERANDS


@dataclass
class _Block:
    """One thread block: its operations, and the GPU's channels and buffers that they refer to by number."""

    ops: list[Document] = field(default_factory=list)
    channels: dict[str, list[int]] = field(default_factory=lambda: {"memory": [], "port": []})
    buffers: dict[str, list[int]] = field(default_factory=lambda: {"memory": [], "port": []})


class _Rank:
    def __init__(self, rank: int, memory: _Memory, hosts: list[str]) -> None:
        self.rank, self.memory, self.hosts = rank, memory, hosts
        self.moves = memory.schedule.transfers_of(rank)
        peers = sorted({move.src + move.dst - rank for move in self.moves})
        self.peers = {kind: [peer for peer in peers if self._kind(peer) == kind] for kind in ("memory", "port")}
        self.remote: list[tuple[int, str, str]] = []
        self.blocks = [_Block()]
        self.touched: dict[Place, bool] = {}
        """Places read (False) or written (True) since the last barrier."""
        self.waited = self.wrote = False
        """Whether a wait, and whether a write into a peer, came since the last barrier."""
        self.last = {move.dst: move for move in self.moves if move.src == rank}
        """Last move to every peer."""
        self._program()

    def document(self) -> Document:
        units = self.memory.units
        if len(self.blocks) - 1 > MOST_SEMAPHORES:
            raise TooLongError(
                f"{FORM}: rank {self.rank} has {len(self.blocks)} thread blocks of {MOST_OPERATIONS} operations: "
                f"expected at most {MOST_SEMAPHORES + 1}; choose an algorithm with fewer rounds, as "
                "--objective latency does"
            )
        return {
            "id": self.rank,
            "input_chunks": units.input,
            "output_chunks": units.output,
            "scratch_chunks": self.memory.scratch[self.rank],
            "threadblocks": [
                {
                    "id": index,
                    "ops": block.ops,
                    "channels": [{"channel_type": k, "channel_ids": ids} for k, ids in block.channels.items() if ids],
                    "remote_buffer_refs": [
                        {"access_channel_type": k, "remote_buffer_ids": ids} for k, ids in block.buffers.items() if ids
                    ],
                }
                for index, block in enumerate(self.blocks)
            ],
            "channels": [{"channel_type": k, "connected_to": peers} for k, peers in self.peers.items() if peers],
            "remote_buffers": [
                {"rank": peer, "type": buffer, "access_channel_types": [kind]} for peer, buffer, kind in self.remote
            ],
            "semaphores": [{"init_value": 0} for _ in self.blocks[1:]],
        }

    def _kind(self, peer: int) -> str:
        return "memory" if self.hosts[peer] == self.hosts[self.rank] else "port"

    def _program(self) -> None:
        self._notify("signal", sorted({move.src for move in self.moves if move.dst == self.rank}))
        self._wait(sorted({move.dst for move in self.moves if move.src == self.rank}))
        messages: dict[tuple[int, int, int], list[Transfer]] = {}
        for move in self.moves:
            if move.src == self.rank:
                messages.setdefault((move.round, move.dst, move.path), []).append(move)
        for stage in stages_of(self.memory.schedule, self.rank):
            sends = [(key[1], messages[key]) for key in stage.sends]
            near = [peer for peer, _ in sends if self._kind(peer) == "memory"]
            self._put([move for peer, moves in sends if self._kind(peer) == "memory" for move in moves])
            for peer, moves in sends:
                if self._kind(peer) == "port":
                    self._put_through_port(moves)
            if near and self.wrote:
                self._barrier()
            self._notify("signal", near)
            self._wait([key[1] for key in stage.receives])
            for fold in stage.folds:
                self._fold(fold)
        places = self.memory.places[self.rank]
        for piece in sorted(self.memory.uses[self.rank].outputs):
            if places[piece][0] != "o":
                result = self.memory.units.place("o", self.rank, piece[1])
                self._compute("copy", [places[piece]], result, piece[1])

    def _put(self, moves: list[Transfer]) -> None:
        """Add writes into peers of the same host, fused where they are from one buffer and of one size."""

        def source(move: Transfer) -> tuple[str, int]:
            return self.memory.places[self.rank][move.src_slot, move.chunk][0], self.memory.units.count[move.chunk]

        for _, alike in groupby(moves, key=source):
            group = list(alike)
            for first in range(0, len(group), MOST_FUSED):
                self._write("put", group[first : first + MOST_FUSED])
        self.wrote = self.wrote or bool(moves)

    def _put_through_port(self, moves: list[Transfer]) -> None:
        """Add writes into one peer of another host; the last one signals.

        A port copies asynchronously. Memory that is overwritten later, and the last message, are waited for (`pwsf`;
        the executor's own `flush` does nothing).
        """
        own = self.memory.uses[self.rank].inputs
        flush = self.last[moves[0].dst] == moves[-1] or any((m.src_slot, m.chunk) in own for m in moves)
        for move in moves[:-1]:
            self._write("put", [move])
        self._write("pwsf" if flush else "pws", moves[-1:])

    def _write(self, name: str, moves: list[Transfer]) -> None:
        """Add one operation that writes into peers; through a port it is one move."""
        kind = self._kind(moves[0].dst)
        reads = [(self.memory.places[self.rank][m.src_slot, m.chunk], m.chunk) for m in moves]
        block = self._room([m.dst for m in moves], [self._target(m)[0] for m in moves])
        self._touch(reads, [])
        targets = []
        for move in moves:
            buffer, unit = self._target(move)
            number = _number(block.buffers[kind], _number(self.remote, buffer))
            targets.append({"buffer_id": number, "index": unit, "size": self.memory.units.count[move.chunk]})
        sources = [self._local(place, chunk) for place, chunk in reads]
        op: Document = {"name": name, "src_buff": sources, "dst_buff": targets}
        if kind == "port":
            op["channel_ids"] = [self._channel(block, moves[0].dst)]
        block.ops.append(op | {"channel_type": kind})

    def _wait(self, peers: list[int]) -> None:
        self._notify("wait", peers)
        self.waited = self.waited or bool(peers)

    def _notify(self, name: str, peers: list[int]) -> None:
        """Add signals or waits, several channels in one operation, each once."""
        for kind in ("memory", "port"):
            rest = [peer for peer in peers if self._kind(peer) == kind]
            while rest:
                now = list(dict.fromkeys(rest))[:MOST_FUSED]
                for peer in now:
                    rest.remove(peer)
                block = self._room(now, [])
                ids = [self._channel(block, peer) for peer in now]
                block.ops.append({"name": name, "channel_ids": ids, "channel_type": kind})

    def _fold(self, fold: Combine) -> None:
        """Add a left fold; one operation takes a few operands, so a long one adds to its own result."""
        places = self.memory.places[self.rank]
        out = places[fold.out_slot, fold.chunk]
        operands = [places[slot, fold.chunk] for slot in fold.operands]
        while operands:
            now, operands = operands[:MOST_OPERANDS], operands[MOST_OPERANDS:]
            self._compute("re", now, out, fold.chunk, reduce_op="sum")
            operands = [out, *operands] if operands else []

    def _compute(self, name: str, operands: list[Place], out: Place, chunk: int, **more: str) -> None:
        block = self._room([], [])
        self._touch([(place, chunk) for place in operands], [(out, chunk)])
        sources = [self._local(place, chunk) for place in operands]
        block.ops.append({"name": name, "src_buff": sources, "dst_buff": [self._local(out, chunk)], **more})

    def _touch(self, reads: list[tuple[Place, int]], writes: list[tuple[Place, int]]) -> None:
        """Add a barrier if the operation conflicts with one since the last barrier, or follows a wait."""
        accesses = {address: False for place, chunk in reads for address in self._addresses(place, chunk)}
        accesses |= {address: True for place, chunk in writes for address in self._addresses(place, chunk)}
        clash = any(at in self.touched and (written or self.touched[at]) for at, written in accesses.items())
        if self.waited or clash:
            self._barrier()
        for address, written in accesses.items():
            self.touched[address] = written or self.touched.get(address, False)

    def _addresses(self, place: Place, chunk: int) -> list[Place]:
        """The units of a place, with input and output as one buffer, as they are in place."""
        buffer, low = place
        if buffer != "s":
            buffer, low = "io", self.memory.units.first[chunk]
        return [(buffer, low + at) for at in range(self.memory.units.count[chunk])]

    def _barrier(self) -> None:
        self.blocks[-1].ops.append({"name": "nop"})
        self.touched.clear()
        self.waited = self.wrote = False

    def _room(self, peers: list[int], buffers: list[tuple[int, str, str]]) -> _Block:
        """The thread block with room for one more operation on these channels and buffers, and a barrier before it."""
        block = self.blocks[-1]
        full = len(block.ops) >= MOST_OPERATIONS - 4
        for kind in dict.fromkeys(map(self._kind, peers)):
            ids = {self.peers[kind].index(peer) for peer in peers if self._kind(peer) == kind}
            full = full or len(ids | set(block.channels[kind])) > MOST_CHANNELS
            remote = {_number(self.remote, buffer) for buffer in buffers if buffer[2] == kind}
            full = full or len(remote | set(block.buffers[kind])) > MOST_CHANNELS
        if not full:
            return block
        semaphore = len(self.blocks) - 1
        self._barrier()
        block.ops.append({"name": "sem_release", "semaphore_ids": [semaphore]})
        follower = _Block([{"name": "sem_acquire", "semaphore_ids": [semaphore]}, {"name": "nop"}])
        self.blocks.append(follower)
        return follower

    def _target(self, move: Transfer) -> tuple[tuple[int, str, str], int]:
        """The target of a message: (peer, its buffer, kind of channel), and the unit."""
        place = self.memory.places[move.dst][move.dst_slot, move.chunk]
        return (move.dst, place[0], self._kind(move.dst)), place[1]

    def _channel(self, block: _Block, peer: int) -> int:
        kind = self._kind(peer)
        return _number(block.channels[kind], self.peers[kind].index(peer))

    def _local(self, place: Place, chunk: int) -> Document:
        return {"type": place[0], "index": place[1], "size": self.memory.units.count[chunk]}


def _number(known: list[T], entry: T) -> int:
    """Index of an entry in a list; the entry is added if it is missing."""
    if entry not in known:
        known.append(entry)
    return known.index(entry)
