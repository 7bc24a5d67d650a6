"""NCCL by CuPy: groups of sends and receives by pointer, on the stream that is current.

NCCL waits on the device, so nothing here waits for other ranks, except that a group may wait in the library while it
connects to a peer or while its queue is full. A guard ends that after the time limit: it aborts the communicator from
another thread, which NCCL allows. What a device waits for is asked of `check`.
"""

from __future__ import annotations

import atexit
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar
from weakref import WeakSet

from topocomm.errors import DeadlineError, RankFailedError, TopocommError
from topocomm.execute.calls.agreement import gather_texts
from topocomm.execute.device.device_library import Device
from topocomm.execute.liveness.pollable import AwaitedMessages, BackgroundCall
from topocomm.execute.liveness.waiting import UnderWay, Waiting
from topocomm.execute.transports.device import nccl_library
from topocomm.execute.transports.device.nccl_library import Facts
from topocomm.execute.transports.transport import GATHER_TAG, DeviceTransport, Message, NativeCall
from topocomm.execute.transports.watch import process_space
from topocomm.planning import native

END_S = 5.0
"""Seconds to wait for the end of a communicator."""
OPERATORS = tuple(operator.name for operator in native.OPERATORS)


class NcclDeviceTransport(DeviceTransport):
    """One rank's NCCL communicator, by the module `cupy.cuda.nccl`; each call into NCCL has the limit `timeout_s`.

    The handle is an NcclCommunicator, which the transport ends.
    """

    name = "nccl"

    def __init__(self, nccl: Any, handle: Any, rank: int, device: Device, timeout_s: float) -> None:
        self._nccl, self._handle, self._rank, self._device = nccl, handle, rank, device
        self._timeout_s = timeout_s
        self._byte = int(nccl.NCCL_UINT8)
        self._lock = threading.Lock()
        self._error: str | None = None
        self._guard = Guard(self.abort, timeout_s)
        _alive.add(self)
        _abort_at_exit()

    def group(self, arena: Any, sends: Sequence[Message], receives: Sequence[Message]) -> Callable[[Any], None]:
        """As `DeviceTransport.group`. Counts go to CuPy as plain ints."""
        start, base = self._nccl.groupStart, int(arena.data_ptr())
        operations = [
            (function, base + int(at), int(length), int(message.peer))
            for function, messages in (("send", sends), ("recv", receives))
            for message in messages
            for at, length in message.ranges
            if length
        ]
        peers = sorted({peer for _, _, _, peer in operations})
        pointer, byte = self._device.pointer, self._byte

        def post(where: Any) -> None:
            start()
            try:
                for function, at, length, peer in operations:
                    getattr(self._handle, function)(at, length, byte, peer, where)
            finally:
                self._nccl.groupEnd()  # whatever has happened: an open group would swallow all later calls

        def run(stream: Any, _alive: Any = arena) -> None:
            self._guarded(post, pointer(stream), peers)

        return run if operations else lambda stream: None

    def native(self, collective: str, dtype: str, operator: str) -> NativeCall | None:
        """As `DeviceTransport.native`; None also where this CuPy has no such dtype."""
        gathers = collective == "allgather"
        if collective not in native.CALLS or not (gathers or (dtype in native.DTYPES and operator in OPERATORS)):
            return None
        kind = self._byte if gathers else getattr(self._nccl, f"NCCL_{dtype.upper()}", None)
        if kind is None:
            return None
        how = () if gathers else (int(getattr(self._nccl, f"NCCL_{operator.upper()}")),)
        name = native.CALLS[collective].removeprefix("nccl")
        function = name[0].lower() + name[1:]
        others = [rank for rank in range(self._handle.size()) if rank != self._rank]

        def run(send: Any, receive: Any, stream: Any) -> None:
            count = receive.numel() if collective == "reduce_scatter" else send.numel()
            count *= send.element_size() if gathers else 1
            arguments = send.data_ptr(), receive.data_ptr(), count, int(kind), *how
            self._guarded(
                lambda where: getattr(self._handle, function)(*arguments, where), self._device.pointer(stream), others
            )

        return run

    def check(self, peers: Sequence[int] = ()) -> None:
        self._usable()
        try:
            self._handle.check_async_error()
        except (RuntimeError, KeyError) as error:
            raise self._failure(error, peers) from error

    def abort(self) -> None:
        """As `DeviceTransport.abort`; may be called from any thread, and again."""
        self._end("abort", "it was aborted")

    def close(self) -> None:
        self._end("destroy", "it was closed")

    def _guarded(self, post: Callable[[Any], None], where: Any, peers: Sequence[int]) -> None:
        """Make a call that enqueues on the stream `where`, with its time limit."""
        self._usable()
        self._guard.begin()
        try:
            post(where)
        except (RuntimeError, KeyError) as error:  # KeyError: a status that CuPy has no name for
            raise self._failure(error, peers) from error
        finally:
            self._guard.end()
        if self._guard.expired:
            raise self._failure(TimeoutError(), peers)

    def _usable(self) -> None:
        if self._error is not None:
            raise TopocommError(f"rank {self._rank}: NCCL takes no call now: {self._error}")

    def _failure(self, error: Exception, peers: Sequence[int]) -> TopocommError:
        """Abort the communicator and return this rank's error for one of NCCL's."""
        names = f"rank{'s' * (len(peers) > 1)} {', '.join(map(str, peers))}"
        whom = f" in messages with {names}" if peers else ""
        if self._guard.expired:
            return DeadlineError(
                f"rank {self._rank}: NCCL still waits{whom} after {self._timeout_s:g} s (limit: TOPOCOMM_TIMEOUT_S)"
            )
        self.abort()
        code = f"status {error.args[0]}" if isinstance(error, KeyError) else str(error)
        return RankFailedError(
            f"rank {self._rank}: NCCL reports {code}{whom}; NCCL_DEBUG=WARN shows more. Another rank may have failed"
        )

    def _end(self, how: str, why: str) -> None:
        """Abort or destroy, once; CuPy's own destructor would hang if a peer is gone."""
        with self._lock:
            if self._error is not None:
                return
            self._error = why
        self._guard.stop()
        _alive.discard(self)
        end_aside(getattr(self._handle, how), self._rank, self._timeout_s)


def end_aside(end: Callable[[], None], rank: int, timeout_s: float) -> None:
    """Destroy a communicator of NCCL, on a thread if it takes long: it waits for all graphs that captured messages.

    Errors of `end` do not matter: nothing more is done with the communicator. It is awaited for `timeout_s`, but at
    most `END_S`.
    """
    limit_s = min(END_S, timeout_s)
    try:
        ending = BackgroundCall(end, "nccl-end")
    except RuntimeError:  # Python 3.12.1 starts no thread while a process ends
        with suppress(RuntimeError, KeyError):
            end()
        return
    if not ending.advance(limit_s):
        sys.stderr.write(
            f"topocomm: rank {rank}: NCCL does not end after {limit_s:g} s: it waits for all CUDA graphs that recorded "
            "its messages; drop them before close(). A thread goes on with it\n"
        )
        sys.stderr.flush()


class Guard:
    """Ends a call into a library that takes longer than `limit_s`; it has `expired` then."""

    def __init__(self, expire: Callable[[], None], limit_s: float) -> None:
        self._expire, self._limit_s = expire, limit_s
        self._since_s: float | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.expired = False

    def begin(self) -> None:
        """Start the limit of a call."""
        self._since_s = time.monotonic()
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="topocomm-nccl-guard", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Stop the limit of a call."""
        self._since_s = None

    def stop(self) -> None:
        """Stop for good."""
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(min(1.0, self._limit_s / 8)):
            since_s = self._since_s
            if since_s is not None and time.monotonic() - since_s > self._limit_s:
                self.expired = True
                self._expire()
                return


_alive: WeakSet[NcclDeviceTransport] = WeakSet()


def _abort_all() -> None:
    """Abort what is left at the end of this process, since destroying would wait for other ranks."""
    for transport in list(_alive):
        with suppress(Exception):
            transport.abort()


_abort_at_exit = cache(partial(atexit.register, _abort_all))


WHAT = "the set-up of NCCL"
AnyFacts = TypeVar("AnyFacts", bound=NamedTuple)


def own_facts(device: Device, *, group: bool, mpi: str) -> Facts:
    """Return this rank's facts for the others."""
    version, why = None, ""
    try:
        version = int(nccl_library.load_nccl().get_version())
    except TopocommError as error:
        why = str(error)
    except (RuntimeError, KeyError) as error:
        why = f"NCCL does not tell its version: {error}"
    address = device.bus_id or f"number {device.index}"
    gpu = device.uuid or "/".join([*process_space(), address])
    return Facts(gpu, address, version, why, nccl_library.allows_several(), group, mpi)


def gather_facts(waiting: Waiting, own: AnyFacts, what: str = WHAT) -> list[AnyFacts]:
    """Gather the facts of all ranks in rank order; collective."""
    return [own._make(json.loads(text)) for text in gather_texts(waiting, json.dumps(own).encode(), what=what)]


def connect(waiting: Waiting, device: Device) -> NcclDeviceTransport:
    """Set up NCCL between all ranks, none of which refuses it; collective.

    Raises:
        TopocommError: Rank 0 makes no id, or NCCL cannot be set up here.
        DeadlineError, RankFailedError: Not all ranks come, or one fails.
    """
    nccl = nccl_library.load_nccl()
    rank = waiting.transport.rank
    unique_id = _share_id(waiting, nccl)
    make = partial(nccl_library.make_communicator, nccl, waiting.transport.size, unique_id, rank)
    making = call_on_all(waiting, device, make, "nccl", WHAT)
    if making.error is not None:
        raise TopocommError(
            f"rank {rank}: NCCL cannot be set up: {making.error}; NCCL_DEBUG=WARN shows more"
        ) from making.error
    return NcclDeviceTransport(nccl, making.made, rank, device, waiting.timeout_s)


def call_on_all(waiting: Waiting, device: Device, call: Callable[[], Any], name: str, what: str) -> BackgroundCall:
    """Make a call of a library that waits for all other ranks, on a thread of that name; return it when it is through.

    The call gives other threads leave to run; one of the ranks may be gone, or have come to an error.

    Raises:
        DeadlineError, RankFailedError: Not all ranks come, or one fails.
    """

    def on_device() -> Any:
        with device.current():
            return call()

    others = [Message(peer, ()) for peer in range(waiting.transport.size) if peer != waiting.transport.rank]
    background = BackgroundCall(on_device, name, AwaitedMessages(0, (), others))
    waiting.for_call(UnderWay(background, GATHER_TAG, waiting.recorder.calls, what))
    return background


def _share_id(waiting: Waiting, nccl: Any) -> bytes:
    """Return rank 0's unique id, or raise its reason on every rank."""
    rank, record = waiting.transport.rank, {}
    if rank == 0:
        try:
            record = {"id": nccl_library.id_to_bytes(nccl.get_unique_id()).hex()}
        except (RuntimeError, KeyError, TypeError, ValueError) as error:
            record = {"why": f"{type(error).__name__}: {error}"}
    first = json.loads(gather_texts(waiting, json.dumps(record).encode(), what=WHAT)[0])
    if "why" in first:
        raise TopocommError(f"rank {rank}: NCCL cannot be set up: rank 0 makes no unique id: {first['why']}")
    unique_id = bytes.fromhex(first["id"])
    if len(unique_id) != nccl_library.ID_BYTES:
        raise TopocommError(
            f"rank {rank}: NCCL cannot be set up: rank 0's unique id has {len(unique_id)} bytes, "
            f"not {nccl_library.ID_BYTES}"
        )
    return unique_id
