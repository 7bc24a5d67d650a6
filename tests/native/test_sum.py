"""The steps of a reduction by a library's SUM in C: what is noted, tested and read, and what is left to Python."""

import ctypes
from array import array
from zlib import crc32

import numpy as np
import pytest

from topocomm import TopocommError
from topocomm.execute.calls.sum_items import SumItems
from topocomm.execute.liveness.recorder import KEPT, SWEEP_MASK, Recorder
from topocomm.operators.layout import BoundField, Layout

native = pytest.importorskip("topocomm.native._native")


class Steps:
    """A sum of two ranks that have the same, and what was asked of it."""

    def __init__(self, dtype=np.float32, *, rows=None, ready=1, precise=True, **changed):
        layout = Layout((BoundField("weight", np.dtype(dtype), ()),), (6,))
        self.items, self.recorder = SumItems(layout, rows, 0, 2), Recorder()
        self.log, self.parts, self.ready, self.precise = [], [], ready, precise
        self.codes = {"start": 0, "test": 0}
        self.x, self.out = {"a": np.zeros(6), "b": np.ones(6)}, {"a": np.zeros(6), "b": np.ones(6)}
        given = {
            "x": self.x,
            "out": self.out,
            "names": ("a", "b"),
            "arrays": (*self.x.values(), *self.out.values()),
            "leading": (2, 3),
            "sends": (self.send,) * len(self.items.blocks),
            "parts": (None,) if rows is None else (slice(0, 1), slice(1, 2)),
            "receive": self.receive,
            "error": RuntimeError,
            "hash": crc32,
            "own": None if rows is None else slice(0, 1),
            "sent": tuple(block.tail for block in self.items.blocks),
            "received": self.items.own.tail,
            **dict.fromkeys(("ours", "theirs", "sums"), bytearray()),
            "requests": self.mpi(),
            "ranks": 2,
            "tag": 34,
            "record": self.recorder.record,
            "sweep_mask": SWEEP_MASK,
        }
        self.run, self.finish = native.bind_sum(**given | changed)

    def send(self, reference):
        self.log.append("send")
        self.parts.append(reference.tolist())
        return self.precise

    def mpi(self):
        """Requests of what stands for MPI: two functions with addresses, which C calls."""
        start_all = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)(self.start)
        whole = ctypes.POINTER(ctypes.c_int)
        test_all = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, whole, ctypes.c_void_p)(self.test)
        self.functions = start_all, test_all
        addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in self.functions]
        return native.Requests(*addresses, bytearray(b"handle Ahandle B"), bytearray(48), count=2, tests=3)

    def start(self, count, requests):
        self.log.append("start")
        assert ctypes.string_at(requests, 8 * count) == b"handle Ahandle B"
        return self.codes["start"]

    def test(self, count, requests, through, statuses):
        self.log.append("test")
        ctypes.memset(statuses, 1, 24 * count)
        self.items.received[:] = 2 * self.items.sent[: self.items.received.size]
        through[0] = self.log.count("test") >= self.ready
        return self.codes["test"]

    def receive(self, reference):
        self.log.append("receive")
        self.parts.append(reference.tolist())
        return self.precise


REFERENCE = np.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_call(dtype):
    steps = Steps(dtype, ready=3)
    assert steps.run(steps.x, REFERENCE, steps.out) == native.DONE
    assert steps.log == ["send", "start", "test", "test", "test", "receive"]
    assert steps.recorder.calls == 1 and steps.recorder.tag(1) == 34 and steps.recorder.record[4] > 0
    sent = bytes(steps.items.blocks[0].tail)
    steps.items.stamp(REFERENCE)  # the digest is the one of sum_items.py
    assert bytes(steps.items.blocks[0].tail) == sent and any(sent) and steps.items.agrees()
    assert steps.parts == [REFERENCE.tolist()] * 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_reduce_scatter(dtype):
    steps = Steps(dtype, rows=(3, 3))
    assert steps.run(steps.x, REFERENCE, steps.out) == native.DONE
    assert steps.log == ["send", "send", "start", "test", "receive"]
    assert steps.parts == [[[0, 1, 2]], [[3, 4, 5]], [[0, 1, 2]]]
    steps.items.stamp(REFERENCE)
    assert steps.items.agrees() and not any(block.imprecise[0] for block in steps.items.blocks)
    steps.precise = False
    assert steps.run(steps.x, REFERENCE, steps.out) == native.IMPRECISE
    assert [block.imprecise[0] for block in steps.items.blocks] == [1, 1] and steps.items.own.imprecise[0] == 2
    assert steps.log.count("receive") == 1  # sums that are not precise are not read


def test_shares_that_are_precise_have_a_precise_sum():
    steps = Steps(rows=(3, 3), receive=lambda reference: False)
    with pytest.raises(TopocommError, match="exact holds for every rank's share and not for their sum"):
        steps.run(steps.x, REFERENCE, steps.out)


def test_what_is_not_precise_differs_or_takes_longer():
    steps = Steps(precise=False)
    assert steps.run(steps.x, REFERENCE, steps.out) == native.IMPRECISE
    late = Steps(ready=5)
    assert late.run(late.x, REFERENCE, late.out) == native.UNDER_WAY and late.log.count("test") == 3
    assert late.finish(REFERENCE) == native.DONE
    late.items.received[-3] += 1
    assert late.finish(REFERENCE) == native.MISMATCH and late.log.count("receive") == 1


def test_a_sweep_that_is_due_is_told():
    steps = Steps()
    steps.recorder.record[0] = SWEEP_MASK
    assert steps.run(steps.x, REFERENCE, steps.out) == native.DONE | native.SWEEP_DUE
    assert steps.run(steps.x, REFERENCE, steps.out) == native.DONE


def test_other_arrays_are_left_to_python():
    steps = Steps()
    cases = [
        ({**steps.x}, REFERENCE, steps.out),
        (steps.x, REFERENCE, {**steps.out}),
        (steps.x, REFERENCE, None),
        (steps.x, REFERENCE.astype(np.float32), steps.out),
        (steps.x, REFERENCE.ravel(), steps.out),
        (steps.x, REFERENCE.reshape(3, 2), steps.out),
        (steps.x, np.asfortranarray(REFERENCE), steps.out),
        (steps.x, REFERENCE.astype(">f8"), steps.out),
        (steps.x, 0.0, steps.out),
        (steps.x, None, steps.out),
    ]
    assert [steps.run(*case) for case in cases] == [None] * len(cases)
    for name, other in (("b", np.ones(6)), ("c", np.ones(6))):
        held = dict(steps.x)
        steps.x[name] = other
        assert steps.run(steps.x, REFERENCE, steps.out) is None
        steps.x.clear()
        steps.x.update(held)
    assert not steps.log and not steps.recorder.calls
    assert steps.run(steps.x, REFERENCE, steps.out) == native.DONE


def test_a_bare_array():
    x, out = np.zeros(6), np.zeros(6)
    steps = Steps(x=x, out=out, names=("value",), arrays=(x, out))
    assert steps.run(x, REFERENCE, out) == native.DONE and steps.run(out, REFERENCE, x) is None


@pytest.mark.parametrize("part", ["sends", "receive", "hash"])
def test_what_raises_is_raised(part):
    def fail(*given):
        raise KeyError(part)

    steps = Steps(**{part: (fail,) if part == "sends" else fail})
    with pytest.raises(KeyError, match=part):
        steps.run(steps.x, REFERENCE, steps.out)


@pytest.mark.parametrize("failing", ["start", "test"])
def test_what_mpi_returns_is_raised(failing):
    steps = Steps(ready=9)
    steps.codes[failing] = 15
    with pytest.raises(RuntimeError, match="15"):
        steps.run(steps.x, REFERENCE, steps.out)
    assert steps.log == (["send", "start"] if failing == "start" else ["send", "start", "test"])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_two_ranks_exchange_is_added(dtype):
    ours, theirs, sums = (np.arange(5, dtype=dtype) * scale for scale in (1, 10, 0))
    steps = Steps(dtype, ready=2, ours=ours, theirs=theirs, sums=sums)
    assert steps.run(steps.x, REFERENCE, steps.out) == native.DONE
    assert (sums == 11 * np.arange(5)).all()


def test_what_does_not_fit_is_refused():
    for changed in (
        {"names": ()},
        {"arrays": ()},
        {"sent": (bytearray(60),)},
        {"sent": (bytearray(64),) * 2},
        {"sent": ()},
        {"sends": ()},
        {"parts": (None, None)},
        {"received": bytearray(128)},
        {"record": array("q", [0] * (2 * KEPT))},
        {"requests": None},
        {"ours": bytearray(4)},
        {"sums": bytearray(4)},
    ):
        with pytest.raises(TopocommError, match="do not fit a sum"):
            Steps(**changed)
    with pytest.raises(TypeError):
        Steps(names=["a", "b"])
    with pytest.raises(TypeError, match="takes a value, a reference and a result"):
        Steps().run(1)
