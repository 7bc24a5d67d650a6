"""A double of `cupy.cuda.nccl`: ranks are threads named rank0, rank1, ..., device memory is host memory.

A communicator ends when all graphs that recorded its messages are gone, as NCCL's since 2.26 (`commDestroySync`).

It moves the bytes between the ranks' buffers as NCCL would: a group starts when those before it on its communicator are
through, messages of a pair meet in order, and a group is through when all its messages are. It writes down what is
done, and fails where NCCL would hang, crash or corrupt memory: `Misuse`, kept in `World.misuse` whoever catches it.
"""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from collections import defaultdict, deque

import numpy as np
import torch

from tests.execute.transports.recording_collectives import Collectives


class NcclError(RuntimeError):
    """What CuPy raises for a status of NCCL's."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Misuse(AssertionError):
    """What must not be asked of NCCL."""


class Stream:
    """A stream of one rank; `stuck` are groups on it that are not through."""

    def __init__(self, world, rank):
        self.world, self.rank, self.stuck = world, rank, []
        world.streams[self.pointer] = self

    @property
    def pointer(self):
        return id(self)

    def wait_event(self, event):
        assert not self.world.capturing, "a graph waits for nothing outside of it"
        self.world.waits.append((self, event.stream))
        self.stuck += [group for group in event.groups if not group.over]


class Operation:
    def __init__(self, kind, rank, peer, pointer, count):
        self.kind, self.rank, self.peer, self.pointer, self.count = kind, rank, peer, pointer, count
        self.group = None

    @property
    def end(self):
        return self.pointer + self.count


class Group:
    def __init__(self, comm, stream, operations):
        self.comm, self.stream, self.operations = comm, stream, operations
        self.left, self.over = len(operations), False
        self.partners = {}  # the group of every peer that this one exchanges messages with
        for operation in operations:
            operation.group = self


class Graph:
    """What a rank has recorded, to be run again."""

    def __init__(self, run):
        self.run = run

    def __call__(self):
        self.run()


class World:
    """What all ranks share.

    Args:
        size: Number of ranks.
        patience_s: How long a group waits for its peers.
        stuck: What happens then: "raise" says it is a misuse, "pend" goes on with a stream that is stuck.
        signed_id: Whether the unique id is a tuple, as before CuPy 14.
        version: NCCL's version code.
        gpus: The GPU of each rank; each its own if None.
    """

    NCCL_INT8, NCCL_UINT8, NCCL_INT32, NCCL_UINT32, NCCL_INT64, NCCL_UINT64 = range(6)
    NCCL_FLOAT16, NCCL_FLOAT32, NCCL_FLOAT64, NCCL_BFLOAT16 = range(6, 10)
    NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN = range(4)

    def __init__(self, size, *, patience_s=30.0, stuck="raise", signed_id=False, version=22703, gpus=None):
        self.size, self.patience_s, self.on_stuck, self.version = size, patience_s, stuck, version
        self.signed_id, self.gpus = signed_id, gpus or list(range(size))
        self.wake = threading.Condition()
        self.streams, self.memories, self.log, self.waits, self.misuse = {}, defaultdict(list), [], [], []
        self.open = defaultdict(list)  # operations of the group that a thread has open, one list per level
        self.posted = defaultdict(lambda: (deque(), deque()))  # (unique id, source, target) -> sends, receives
        self.ids, self.collectives = [], defaultdict(dict)
        self.comms, self.failures = {}, {}  # comms by (unique id, rank in it)
        self.capturing = False
        self.graphs = {}  # the one that a thread records, weakly
        self.id_error = self.init_error = self.blocked = self.send_error = None
        self.ended = set()
        self.current = {}

    # What the ranks' threads have.

    def rank_here(self):
        return int(threading.current_thread().name.removeprefix("rank").partition("-")[0])

    def allocate(self, rank, size_bytes):
        raw = np.full(size_bytes + 256, 255, np.uint8)  # NaN
        start = -raw.ctypes.data % 256
        at = raw.ctypes.data + start
        self.memories[rank].append((at, at + size_bytes, weakref.ref(raw)))
        return torch.from_numpy(raw)[start : start + size_bytes]

    def wrong(self, text):
        error = Misuse(text)
        self.misuse.append(text)
        return error

    # The module's functions.

    available = True
    NcclError = NcclError

    def get_version(self):
        return self.version

    def get_unique_id(self):
        if self.id_error is not None:
            raise NcclError(2, self.id_error)
        unique_id = bytes((number + len(self.ids)) % 256 for number in range(128, 256))
        self.ids.append(unique_id)
        return tuple(byte - 256 if byte > 127 else byte for byte in unique_id) if self.signed_id else unique_id

    def groupStart(self):
        mine = self.open[threading.get_ident()]
        if mine:
            raise self.wrong("a group is started in an open group")
        mine.append([])

    def groupEnd(self):
        mine = self.open[threading.get_ident()]
        if not mine:
            raise self.wrong("groupEnd without groupStart in this thread")
        operations = mine.pop()
        if operations:
            self.launch(operations)

    def NcclCommunicator(self, size, unique_id, rank):
        self.no_open_group("a communicator is made")
        if isinstance(unique_id, bytes) is self.signed_id:
            raise TypeError(f"Argument 'commId' has incorrect type (got {type(unique_id).__name__})")
        told = bytes(number & 255 for number in unique_id)
        with self.wake:
            known = told in self.ids and (told, rank) not in self.comms
            if not known or not 0 <= rank < size <= self.size:
                raise self.wrong(f"rank order: rank {rank} of {size} is made twice or with another id")
            if size == self.size and rank != self.rank_here():
                raise self.wrong(f"rank order: rank {self.rank_here()} makes rank {rank}")
            if self.init_error == rank:
                raise NcclError(2, "NCCL_ERROR_SYSTEM_ERROR: unhandled system error")
            made = self.comms[told, rank] = Communicator(self, self.rank_here(), told)
            self.wake.notify_all()
            others = [(told, other) for other in range(size)]
            self.wake.wait_for(lambda: all(other in self.comms for other in others), self.patience_s)
            made.members = [self.comms[other].rank if other in self.comms else None for other in others]
        return made

    # How groups go on; under the lock.

    def no_open_group(self, what):
        if self.open[threading.get_ident()]:
            raise self.wrong(f"{what} while a group is open")

    def launch(self, operations):
        comms = {operation.comm for operation in operations}
        streams = {operation.stream for operation in operations}
        if len(comms) != 1 or len(streams) != 1:
            raise self.wrong("wrong stream: one group is on several streams or communicators")
        comm, stream = comms.pop(), streams.pop()
        self.check_overlaps(operations)
        group = Group(comm, stream, operations)
        with self.wake:
            if self.blocked == comm.rank:  # the library waits for a peer's connection
                self.wake.wait_for(lambda: comm.state == "aborted", self.patience_s)
            comm.check()
            recorded = self.graphs.get(threading.get_ident(), lambda: None)()
            if recorded is not None:
                comm.graphs.add(recorded)
            comm.queue.append(group)
            if comm.queue[0] is group:
                self.post(group)
            stopped = lambda: group.over or comm.state != "open" or self.misuse  # noqa: E731
            self.wake.wait_for(lambda: stopped() or self.deadlocked(), self.patience_s)
            if group.over or comm.state != "open":
                return
            stream.stuck.append(group)
            if self.on_stuck == "raise" or self.misuse:
                waiting = [f"{o.kind} of {o.count} bytes, rank {o.peer}" for o in group.operations if not o.met]
                self.wake.notify_all()
                raise self.wrong(f"unmatched on rank {comm.rank}: {waiting}")

    def deadlocked(self):
        """Whether every rank has a group posted that none of the others can go on with, or has ended."""
        if self.on_stuck != "raise":
            return False
        waiting = {comm.rank for comm in self.comms.values() if comm.queue}
        return len(waiting | self.ended) == self.size

    def post(self, group):
        for operation in group.operations:
            pair = (operation.rank, operation.peer) if operation.kind == "send" else (operation.peer, operation.rank)
            sends, receives = self.posted[group.comm.unique_id, *pair]
            (sends if operation.kind == "send" else receives).append(operation)
        for pair in list(self.posted):
            sends, receives = self.posted[pair]
            while sends and receives:
                self.move(sends.popleft(), receives.popleft())

    def move(self, send, receive):
        if send.count != receive.count:
            text = f"sizes differ: rank {send.rank} sends {send.count} bytes, rank {receive.rank} takes {receive.count}"
            raise self.wrong(text)
        for operation, other in ((send, receive), (receive, send)):
            self.check_memory(operation)
            if operation.group.partners.setdefault(operation.peer, other.group) is not other.group:
                raise self.wrong(f"one group of rank {operation.rank} meets two of rank {operation.peer}")
        ctypes.memmove(receive.pointer, send.pointer, send.count)
        self.log.append(("move", send.rank, receive.rank, send.count))
        for operation in (send, receive):
            operation.met = True
            group = operation.group
            group.left -= 1
            if not group.left:
                group.over = True
                assert group.comm.queue.popleft() is group
                if group.comm.queue:
                    self.post(group.comm.queue[0])
        self.wake.notify_all()

    def check_memory(self, operation):
        here = [
            alive() is not None
            for start, end, alive in self.memories[operation.rank]
            if start <= operation.pointer and operation.end <= end
        ]
        if not any(here):
            what = "was freed" if here else "is none of its device's"
            raise self.wrong(f"buffer of rank {operation.rank}'s {operation.kind} {what}")

    def check_overlaps(self, operations):
        for one in operations:
            for other in operations:
                apart = one.end <= other.pointer or other.end <= one.pointer
                if one is not other and one.kind == "recv" and not apart:
                    raise self.wrong(f"a receive of rank {one.rank} overlaps a {other.kind} of the same group")

    def end(self, rank):
        """A rank's thread has ended."""
        with self.wake:
            self.ended.add(rank)
            if self.open[threading.get_ident()]:
                self.wrong(f"rank {rank} ends while a group is open")
            self.wake.notify_all()


class Communicator(Collectives):
    """Of one rank; `rank` and `members` are the world's numbers, what callers say are its own."""

    def __init__(self, world, rank, unique_id):
        self.world, self.rank, self.unique_id = world, rank, unique_id
        self.members, self.queue, self.state, self.collectives = [], deque(), "open", 0
        self.graphs = weakref.WeakSet()

    def wait_for_graphs(self):
        """Under the lock, which others get meanwhile; here not for ever."""
        until_s = time.monotonic() + self.world.patience_s
        while self.graphs and time.monotonic() < until_s:
            self.world.wake.wait(0.01)

    def check(self):
        if self.state != "open":
            raise NcclError(5, f"NCCL_ERROR_INVALID_USAGE: the communicator is {self.state}")

    def size(self):
        return len(self.members)

    def send(self, *told):
        self.add("send", *told)

    def recv(self, *told):
        self.add("recv", *told)

    def add(self, kind, pointer, count, datatype, peer, stream):
        world = self.world
        self.check()
        if type(count) is not int or type(pointer) is not int or type(peer) is not int:
            raise world.wrong(f"a count, pointer or peer is no integer: {count!r}, {pointer!r}, {peer!r}")
        member = self.members[peer] if 0 <= peer < len(self.members) else self.rank
        if datatype != world.NCCL_UINT8 or member == self.rank or count <= 0:
            raise world.wrong(f"{kind} of {count} of type {datatype} to rank {peer}")
        peer = member
        if not world.open[threading.get_ident()]:
            raise world.wrong(f"a {kind} outside of a group of its thread")
        found = world.streams.get(stream)
        if found is None or found.rank != self.rank or found is not world.current.get(threading.get_ident(), found):
            raise world.wrong(f"wrong stream: rank {self.rank} is not on it")
        if world.send_error == self.rank:
            raise NcclError(4, "NCCL_ERROR_INVALID_ARGUMENT: invalid argument")
        operation = Operation(kind, self.rank, peer, pointer, count)
        operation.comm, operation.stream, operation.met = self, found, False
        world.check_memory(operation)
        world.log.append((kind, self.rank, peer, count))
        world.open[threading.get_ident()][-1].append(operation)

    def pend(self, stream):
        """A collective is on a stream that does not go on; under the lock."""
        self.queue.append(Group(self, stream, []))
        stream.stuck.append(self.queue[-1])

    def check_async_error(self):
        self.world.no_open_group("an error is asked for")
        self.check()
        if self.rank in self.world.failures:
            raise NcclError(2, self.world.failures[self.rank])

    def abort(self):
        with self.world.wake:
            if self.state == "open":
                self.state = "aborted"
                self.world.log.append(("abort", self.rank))
                for sends, receives in self.world.posted.values():
                    for line in (sends, receives):
                        for operation in [o for o in line if o.comm is self]:
                            line.remove(operation)
                for group in self.queue:
                    group.over = True
                self.queue.clear()
            self.world.wake.notify_all()
            self.wait_for_graphs()
            self.world.log.append(("aborted", self.rank))

    def destroy(self):
        self.world.no_open_group("a communicator is destroyed")
        with self.world.wake:
            if self.queue:
                raise self.world.wrong(f"rank {self.rank} is destroyed while messages are under way")
            self.state = "destroyed"
            self.wait_for_graphs()
            self.world.log.append(("destroy", self.rank))
