"""Collectives of the double of NCCL: all ranks must make the same call, and the order of the fold is none of ours."""

import ctypes
import threading

import ml_dtypes
import numpy as np

DTYPES = [
    np.dtype(name) for name in ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
] + [np.dtype(ml_dtypes.bfloat16)]
OPERATORS = (np.add, np.multiply, np.maximum, np.minimum)
"""By NCCL's numbers."""


def write(pointer, values):
    raw = np.ascontiguousarray(values).view(np.uint8)
    ctypes.memmove(pointer, raw.ctypes.data, raw.size)


class Collectives:
    """Of one rank's communicator, which has `world`, `rank`, `members`, `unique_id`, `collectives` and `graphs`."""

    def allReduce(self, send, receive, count, datatype, op, stream):
        total = self.reduced("allReduce", (send, count, datatype, op), stream)
        if send != receive:
            self.check_apart(send, receive, total.nbytes, total.nbytes)
        write(receive, total)

    def reduceScatter(self, send, receive, count, datatype, op, stream):
        size = len(self.members)
        total = self.reduced("reduceScatter", (send, count * size, datatype, op), stream)
        self.check_apart(send, receive, count * size * total.itemsize, count * total.itemsize)
        write(receive, np.split(total, size)[self.members.index(self.rank)])

    def allGather(self, send, receive, count, datatype, stream):
        given = self.meet("allGather", (send, count, datatype, None), stream)
        size_bytes = count * DTYPES[datatype].itemsize
        self.check_apart(send, receive, size_bytes, size_bytes * len(given))
        write(receive, np.concatenate(given))

    def reduced(self, kind, told, stream):
        """The fold in an order that is none of ours, from the last rank to the first."""
        given = self.meet(kind, told, stream)[::-1]
        total = given[0]
        for values in given[1:]:
            with np.errstate(over="ignore"):
                total = OPERATORS[told[3]](total, values)
        return total.astype(given[0].dtype)

    def check_apart(self, send, receive, sent_bytes, got_bytes):
        if send < receive + got_bytes and receive < send + sent_bytes:
            raise self.world.wrong(f"rank {self.rank}: value and result of a collective overlap")

    def meet(self, kind, told, stream):
        """The values of all members, when all have made the same call."""
        world = self.world
        world.no_open_group(kind)
        self.check()
        found = world.streams.get(stream)
        if found is None or found.rank != self.rank or found is not world.current.get(threading.get_ident(), found):
            raise world.wrong(f"{kind}: rank {self.rank} is not on the stream")
        recorded = world.graphs.get(threading.get_ident(), lambda: None)()
        if recorded is not None:
            self.graphs.add(recorded)
        pointer, count, datatype, op = told
        if not all(type(number) is int for number in (pointer, count, datatype)):
            raise world.wrong(f"{kind} of {told}: no integers")
        size_bytes = count * DTYPES[datatype].itemsize
        raw = np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(pointer)).copy()
        self.collectives += 1
        with world.wake:
            given = world.collectives[self.unique_id, self.collectives]
            given[self.rank] = (kind, count, datatype, op), raw.view(DTYPES[datatype])
            if len({alike for alike, _ in given.values()}) > 1:
                raise world.wrong(f"ranks disagree: {[alike for alike, _ in given.values()]}")
            world.log.append((kind, self.rank, count))
            world.wake.notify_all()
            world.wake.wait_for(lambda: len(given) == len(self.members) or self.state != "open", world.patience_s)
            self.check()
            if len(given) < len(self.members):
                if world.on_stuck == "raise":
                    raise world.wrong(f"{kind}: rank {self.rank} waits for others")
                self.pend(found)
            return [given.get(rank, given[self.rank])[1] for rank in self.members]
