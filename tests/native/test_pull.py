"""Pulls in C: pieces of values in other processes, in this one, in processes that are gone, at no address at all."""

import ctypes
import errno
import mmap
import os
import subprocess
import sys
from array import array
from contextlib import contextmanager

import numpy as np
import pytest

from tests.native.test_engine import SECTIONS, Memory, kinds, words_of
from topocomm import TopocommError
from topocomm.native import _native
from topocomm.native._native import STRIDE, THROUGH, WAITING

COUNT = 70_000
"""Bytes of a value: several pages and no whole number of them."""
OTHER = f"""
import sys, numpy as np
value = np.arange({COUNT}).astype(np.uint8)
print(value.ctypes.data, flush=True)
sys.stdin.read()
"""


def pulling(*, at=0, to=0, size=COUNT):
    """Rank 0 pulls a piece of what rank 1 has, whose process is at 64 and whose address is at 72."""
    return {
        **dict.fromkeys(SECTIONS, ()),
        "ADDRESSES": [(-1, 0), (0, 8)],
        "PULLS": [(64, 72, at, 1, to, size)],
        "WAITS": [(1, 1), (1, 2)],
        "STAGES": [(1, 1, 0, 0, 1, 0), (2, 1, 0, 0, 0, 0)],
    }


@contextmanager
def another_process():
    """A process with a value, and the address of that there."""
    with subprocess.Popen([sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        yield child, int(child.stdout.readline())
        child.stdin.close()


class Pull:
    """An engine of rank 0 whose peer has published these."""

    def __init__(self, process, address, **piece):
        self.memory = Memory()
        both = kinds(COUNT, dtype=np.uint8)
        self.engine = self.memory.engine(words=words_of(pulling(**piece)), value=both, result=both, fold=0, final=0)
        self.words = self.memory.memory.view(np.int64)
        self.words[8:10] = process, address
        self.memory.counters[8] = STRIDE + 1
        self.value, self.result = np.zeros(COUNT, np.uint8), np.zeros(COUNT, np.uint8)

    def begin(self):
        return self.engine.begin((self.value,), (self.result,), True)


def test_a_piece_comes_from_another_process():
    with another_process() as (child, address):
        pull = Pull(child.pid, address, at=5, to=11, size=COUNT - 20)
        assert pull.begin() == WAITING
        wanted = np.zeros(COUNT, np.uint8)
        wanted[11 : COUNT - 9] = np.arange(5, COUNT - 15).astype(np.uint8)
        np.testing.assert_array_equal(pull.result, wanted)
    assert pull.words[:2].tolist() == [os.getpid(), pull.value.ctypes.data]
    assert (pull.engine.stage, pull.engine.behind(), pull.engine.unread) == (1, [1], 0)
    pull.memory.counters[8] = STRIDE + 2  # the reader of its value has read it
    assert pull.engine.go_on() == THROUGH
    pull.memory.assert_guarded()


def test_a_piece_comes_from_this_process():
    value = np.arange(COUNT).astype(np.uint8)
    pull = Pull(os.getpid(), value.ctypes.data)
    pull.begin()
    np.testing.assert_array_equal(pull.result, value)


def test_nothing_is_pulled_before_its_rank_has_come():
    pull = Pull(os.getpid(), 8)  # no memory is there
    pull.memory.counters[8] = 0
    assert pull.begin() == WAITING
    assert (pull.engine.stage, pull.engine.behind(), pull.engine.unread) == (0, [1], 0)


def test_a_process_that_is_gone_is_awaited():
    with another_process() as (child, address):
        pass
    pull = Pull(child.pid, address)
    assert pull.begin() == pull.engine.go_on() == WAITING
    assert (pull.engine.stage, pull.engine.behind(), pull.engine.unread) == (0, [1], errno.ESRCH)


def test_what_is_no_memory_of_the_other_is_not_read():
    with another_process() as (child, _):
        pull = Pull(child.pid, 8)
        assert pull.begin() == WAITING
        assert (pull.engine.stage, pull.engine.behind(), pull.engine.unread) == (0, [1], errno.EFAULT)


def test_memory_that_ends_is_not_taken_for_read():
    """The system copies what there is, and says how much: the rest is asked for, and refused."""
    room = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    first = np.frombuffer(room, np.uint8).ctypes.data
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(first + mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
    into = np.empty(2 * mmap.PAGESIZE, np.uint8)
    assert _native.read_process(os.getpid(), first, into[: mmap.PAGESIZE]) == 0
    assert _native.read_process(os.getpid(), first, into) == errno.EFAULT


def pulling_call(count):
    """A call on values of this many bytes whose other rank, in this process, is through with all calls."""
    given, epoch = np.zeros(count, np.uint8), array("q", [0])
    engines, both = [], kinds(count, dtype=np.uint8)
    for _ in range(2):
        memory = Memory()
        settings = {"words": words_of(pulling(size=count)), "value": both, "result": both, "fold": 0, "final": 0}
        engines.append(memory.engine(**settings, epoch=epoch))
        memory.memory.view(np.int64)[8:10] = os.getpid(), given.ctypes.data
        memory.counters[8] = 1 << 40
    settings = {"bare": True, "gives": True, "nothing": None, "tag": 1, "sweep_mask": 1}
    call = _native.bind_call(engines=tuple(engines), names=("x",), record=np.zeros(3, np.int64), **settings)
    return lambda value: (given, call(value[:count], None, None))[1] is not None


def test_a_value_is_tried_once_where_it_lies():
    """A call leaves a value that others cannot read to Python, and does not try again what it tried before."""
    short, long = map(pulling_call, (mmap.PAGESIZE, COUNT))
    room = mmap.mmap(-1, 2 * (COUNT // mmap.PAGESIZE + 1) * mmap.PAGESIZE)
    value, other = (np.frombuffer(half, np.uint8)[:COUNT] for half in np.split(np.frombuffer(room, np.uint8), 2))
    assert long(value) and short(other)
    for some in (value, other):
        last = (some.ctypes.data + COUNT) // mmap.PAGESIZE * mmap.PAGESIZE
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(last), mmap.PAGESIZE, 0) == 0
    assert [long(some) for some in (other, value, value, other)] == [False, True, True, False]
    assert short(other)


def test_a_value_that_was_withdrawn_is_not_read():
    value = np.arange(COUNT).astype(np.uint8)
    pull = Pull(0, value.ctypes.data)
    assert pull.begin() == WAITING
    assert pull.engine.unread == errno.ESRCH and not pull.result.any()


def test_a_call_that_failed_withdraws_its_value():
    pull = Pull(os.getpid(), 0, size=0)
    pull.words[0] = 5
    pull.engine.withdraw()
    assert pull.words[0] == 5, "no call is under way"
    assert pull.begin() == WAITING
    assert pull.words[0] == os.getpid()
    pull.engine.withdraw()
    assert pull.words[0] == 0


DAMAGED = {
    "an array of the result": ("ADDRESSES", 0, 1),
    "an array before the process": ("ADDRESSES", 0, -2),
    "an address behind memory": ("ADDRESSES", 1, 192),
    "an address between words": ("ADDRESSES", 1, 4),
    "a process behind memory": ("PULLS", 0, 192),
    "a process between words": ("PULLS", 0, 63),
    "the address of a value before memory": ("PULLS", 1, -8),
    "before the other's value": ("PULLS", 2, -1),
    "to the value": ("PULLS", 3, 0),
    "before the result": ("PULLS", 4, -1),
    "behind the result": ("PULLS", 4, 1),
    "fewer bytes than none": ("PULLS", 5, -1),
    "more pulls than there are": ("STAGES", 4, 2),
    "pulls of no stage": ("STAGES", 4, 0),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_words_are_refused(what):
    section, word, value = DAMAGED[what]
    sections = pulling()
    record = list(sections[section][0])
    record[word] = value
    sections[section] = [tuple(record), *sections[section][1:]]
    both = kinds(COUNT, dtype=np.uint8)
    with pytest.raises(TopocommError, match=rf"^(?:{section} 0|STAGES)"):
        Memory().engine(words=words_of(sections), value=both, result=both, fold=0)


def test_memory_of_a_process_is_read_or_the_reason_told():
    into = np.zeros(COUNT, np.uint8)
    with another_process() as (child, address):
        assert _native.read_process(child.pid, address, into) == 0
        assert _native.read_process(child.pid, 8, into) == errno.EFAULT
    np.testing.assert_array_equal(into, np.arange(COUNT).astype(np.uint8))
    assert _native.read_process(child.pid, address, into) == errno.ESRCH
