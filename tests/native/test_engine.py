"""Engines in C: what a program does, and that no word of it leads beside memory, arrays and counters."""

import threading
import weakref
from array import array

import numpy as np
import pytest

from topocomm import TopocommError
from topocomm.execute.host.staged_engine import aligned_buffer
from topocomm.native import _native
from topocomm.native._native import FINISHED, STRIDE, THROUGH, TO_FOLD, WAITING

ROWS, RANKS, MEMORY_BYTES, GUARD = 4, 2, 192, 0xA5
SECTIONS = (
    *("PACK", "PACK_OWN", "UNPACK", "KEPT", "MADE", "ADDRESSES", "PULLS"),
    *("OWN", "TARGETS", "CREDITS", "WAITS", "STAGES", "TASKS"),
)


def program(rank):
    """A sum of both ranks' values of 32 bytes, which lie at 0 and 64; the result at 128 is for others to read."""
    return {
        "PACK": [(0, 0, 64 * rank, 32)],
        "PACK_OWN": [],
        "UNPACK": [],
        "KEPT": [(0, 0, 0, 0, 1, 0)],
        "MADE": [(1, 0, 128, 32)],
        "ADDRESSES": [],
        "PULLS": [],
        "OWN": [(0, 1 + rank, 0, 0)],
        "TARGETS": [(0, 0, 1, 0)],
        "CREDITS": [(1 - rank, FINISHED - 2 * STRIDE)],
        "WAITS": [(1 - rank, 1)],
        "STAGES": [(1, 1, 1, 1, 0, 0)],
        "TASKS": [(ROWS, 2, 1, 128, 0, 64)],
    }


def kinds(*sizes, dtype=np.float64, row_items=1, fields=1):
    """The arrays of a value, or of a result, alike in all fields."""
    return ((np.broadcast_to(np.empty((), dtype), sizes), row_items),) * fields


def words_of(sections):
    records = [sections[name] for name in SECTIONS]
    return np.array([*map(len, records), *(word for some in records for record in some for word in record)], np.int64)


class Memory:
    """A memory and the counters of two ranks, with guards before and behind each."""

    def __init__(self):
        self.whole = aligned_buffer(3 * 64 + MEMORY_BYTES + 64 * RANKS)
        self.whole[...] = GUARD
        end = 64 + MEMORY_BYTES
        self.memory = self.whole[64:end]
        self.counters = self.whole[end + 64 :][: 64 * RANKS].view(np.int64)
        self.guards = [self.whole[:64], self.whole[end : end + 64], self.whole[end + 64 + 64 * RANKS :]]
        self.counters[...] = 0

    def engine(self, rank=0, **changes):
        """An engine of this memory."""
        settings = {
            "words": words_of(program(rank)),
            "value": kinds(ROWS),
            "result": kinds(ROWS),
            "memory": self.memory,
            "counters": self.counters,
            "epoch": array("q", [0]),
            "position": rank,
            "looks": 0,
            "final": FINISHED,
            "fold": _native.fold_address("sum", "f8"),
            "calls_before_trial": 8,
        }
        return _native.Engine(**{**settings, **changes})

    def assert_guarded(self):
        assert all(np.all(guard == GUARD) for guard in self.guards)


def arrays(rank):
    return (np.arange(ROWS) + 10.0**rank,), (np.full(ROWS, np.nan),)


def test_ranks_fold_what_the_other_wrote():
    memory = Memory()
    first, second = memory.engine(0), memory.engine(1)
    for _ in range(20):  # over the trial of the ways to write
        (value, result), (value2, result2) = arrays(0), arrays(1)
        assert first.begin(value, result, True) == first.state == WAITING
        assert (first.stage, first.behind()) == (0, [1])
        assert [held is given for held, given in zip(first.results, result, strict=True)] == [True]
        assert second.begin(value2, result2, True) == THROUGH
        assert first.go_on() == first.state == THROUGH
        assert (first.stage, first.behind(), first.results) == (-1, [], ())
        np.testing.assert_array_equal(result[0], value[0] + value2[0])
        np.testing.assert_array_equal(result[0], result2[0])
        np.testing.assert_array_equal(memory.memory[128:160].view(np.float64), result[0])
    memory.assert_guarded()


def test_a_rank_that_is_ahead_waits_for_the_readers_of_its_memory():
    memory = Memory()
    epoch = array("q", [1])
    engine = memory.engine(epoch=epoch)
    value, result = arrays(0)
    assert engine.begin(value, result, True) == WAITING
    assert (engine.stage, engine.behind(), memory.counters[0]) == (-1, [1], 0)
    memory.counters[8] = FINISHED
    assert engine.go_on() == WAITING
    assert (engine.stage, engine.behind(), memory.counters[0]) == (0, [1], 2 * STRIDE + 1)


def test_folds_that_are_not_compiled_are_left_to_the_caller():
    memory = Memory()
    memory.counters[8] = STRIDE + 1
    engine = memory.engine(fold=0)
    value, result = arrays(0)
    assert engine.begin(value, result, True) == engine.state == TO_FOLD
    assert (engine.stage, engine.behind()) == (0, [])
    engine.results[0][...] = 7.0
    assert engine.go_on() == THROUGH
    assert memory.memory[128:160].view(np.float64).tolist() == [7.0] * ROWS


def test_calls_past_the_caches_copy_every_byte():
    """Values that begin anywhere in a cache line and are no whole number of vectors."""
    for length, shift in ((1, 0), (15, 1), (16, 3), (17, 15), (64, 5), (129, 31)):
        memory = Memory()
        sections = {**dict.fromkeys(SECTIONS, ()), "PACK": [(0, 0, shift, length)], "UNPACK": [(1, 0, shift, length)]}
        for streaming in (0, 1):
            both = kinds(length, dtype=np.uint8)
            engine = memory.engine(words=words_of(sections), value=both, result=both, fold=0)
            engine.until_choice, engine.streaming = 100, streaming
            value, result = np.arange(1, length + 1).astype(np.uint8), np.zeros(length, np.uint8)
            memory.memory[...] = GUARD
            assert engine.begin((value,), (result,), True) == THROUGH
            np.testing.assert_array_equal(result, value)
            assert np.all(memory.memory[:shift] == GUARD) and np.all(memory.memory[shift + length :] == GUARD)
            memory.assert_guarded()


def test_the_end_of_an_array_may_begin_another_call():
    """The arrays of the new call are the engine's until that is through."""
    memory = Memory()
    engine = memory.engine(words=words_of({**program(0), "CREDITS": []}), fold=0)
    memory.counters[8] = STRIDE + 1
    value, result = arrays(0)
    held = []

    def begin_another():
        held.append(arrays(0))
        assert engine.begin(*held[0], True) == WAITING  # the other rank is behind in this one

    weakref.finalize(value[0], begin_another)
    callers = [value[0]]
    del value
    assert engine.begin((callers[0],), result, True) == TO_FOLD
    callers.clear()  # the engine has the last reference
    assert engine.go_on() == THROUGH
    (another,) = held
    assert len(engine.results) == 1 and engine.results[0] is another[1][0]


def test_an_engine_that_copies_its_result_stands_in_no_stage():
    """Seen by another thread while the last copies run, after the last stage."""
    size = 1 << 26
    memory = Memory()
    sections = {**dict.fromkeys(SECTIONS, ()), "UNPACK": [(1, 0, 0, size)], "STAGES": [(1, 0, 0, 0, 0, 0)]}
    large = aligned_buffer(size)
    arrays = {"value": kinds(0, dtype=np.uint8), "result": kinds(size, dtype=np.uint8)}
    settings = {**arrays, "fold": 0, "memory": large, "final": 0}
    engine = memory.engine(words=words_of(sections), **settings)
    done, seen = threading.Event(), set()

    def watch():
        while not done.is_set():
            seen.add((engine.stage, *engine.behind()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for _ in range(5):
            assert engine.begin((), (np.empty(size, np.uint8),), True) == THROUGH
    finally:
        done.set()
        watcher.join()
    assert seen <= {(-1,), (0,)}


DAMAGED = {
    "an array that is not there": ("PACK", 0, 2),
    "the value for the result": ("MADE", 0, 0),
    "before the array": ("PACK", 1, -8),
    "behind the array": ("PACK", 1, 8),
    "before memory": ("PACK", 2, -8),
    "behind memory": ("MADE", 2, MEMORY_BYTES),
    "more bytes than there are": ("PACK", 3, 1 << 40),
    "fewer bytes than none": ("PACK", 3, -1),
    "a sum that overflows": ("PACK", 2, (1 << 63) - 8),
    "a task that is not there": ("OWN", 0, 1),
    "an operand that is not there": ("OWN", 1, 3),
    "a result that is an operand": ("TARGETS", 1, 1),
    "an operand that is the result": ("OWN", 1, 0),
    "an operand in an array that is not there": ("OWN", 2, 2),
    "an operand in the result": ("OWN", 2, 1),
    "a result in the value": ("TARGETS", 2, 0),
    "rows behind the value": ("OWN", 3, 8),
    "rows before the result": ("TARGETS", 3, -8),
    "rows beyond all memory": ("OWN", 3, 1 << 62),
    "a place far before the first": ("OWN", 1, -(1 << 63)),
    "rows between items": ("OWN", 3, 4),
    "credits of a rank that is not there": ("CREDITS", 0, RANKS),
    "a rank before the first": ("WAITS", 0, -1),
    "progress of a later call": ("WAITS", 1, STRIDE),
    "progress of long ago": ("CREDITS", 1, -3 * STRIDE),
    "a stage that publishes nothing new": ("STAGES", 0, -1),
    "a stage that publishes another call": ("STAGES", 0, STRIDE),
    "more waits than there are": ("STAGES", 1, 2),
    "waits of no stage": ("STAGES", 1, 0),
    "more folds than there are": ("STAGES", 2, 2),
    "more copies than there are": ("STAGES", 3, 2),
    "fewer folds than none": ("STAGES", 2, -1),
    "more rows than memory": ("TASKS", 0, 25),
    "rows below none": ("TASKS", 0, -1),
    "more operands than words": ("TASKS", 1, 3),
    "a kept piece of a result": ("KEPT", 0, 1),
    "a kept piece outside the value": ("KEPT", 1, 33),
    "a kept piece outside memory": ("KEPT", 2, MEMORY_BYTES + 1),
    "a kept piece that goes to the value": ("KEPT", 4, 0),
    "a kept piece that leaves the result": ("KEPT", 5, 33),
    "no operands": ("TASKS", 1, 0),
    "operands that overflow": ("TASKS", 1, 1 << 62),
    "rows of more items": ("TASKS", 2, 2),
    "a result outside memory": ("TASKS", 3, MEMORY_BYTES - 24),
    "an operand outside memory": ("TASKS", 4, -64),
    "an operand between items": ("TASKS", 5, 68),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_words_are_refused(what):
    section, word, value = DAMAGED[what]
    sections = program(0)
    record = list(sections[section][0])
    record[word] = value
    sections[section] = [tuple(record)]
    with pytest.raises(TopocommError, match=rf"^(?:{section} 0|STAGES|\d+ words follow the last task)"):
        Memory().engine(words=words_of(sections))


@pytest.mark.parametrize("section", range(len(SECTIONS)))
@pytest.mark.parametrize("count", [-1, 2, 100, 1 << 62, -(1 << 63)])
def test_damaged_numbers_of_records_are_refused(section, count):
    words = words_of(program(0))
    words[section] = count
    with pytest.raises(TopocommError, match=r"[A-Z]+|words"):
        Memory().engine(words=words)


@pytest.mark.parametrize("left", [0, 5, 10, 20, -1])
def test_words_that_are_cut_off_are_refused(left):
    with pytest.raises(TopocommError, match=r"[A-Z]+|words"):
        Memory().engine(words=words_of(program(0))[:left])
    with pytest.raises(TopocommError, match="2 words follow the last task"):
        Memory().engine(words=np.append(words_of(program(0)), [0, 0]))


def try_random_damage(rng, times):
    """Whatever the words say, they are refused, or what runs writes to memory and the result only; how many ran."""
    sound = words_of(program(0))
    ran = 0
    for _ in range(times):
        memory, words = Memory(), sound.copy()
        memory.counters[8] = STRIDE + FINISHED
        for at in rng.integers(0, len(words), rng.integers(1, 3)):
            words[at] = rng.choice([words[at] ^ (1 << int(rng.integers(0, 63))), rng.integers(-9, 200), -words[at]])
        value, _ = arrays(0)
        room = np.full(3 * ROWS, 5.0)
        try:
            memory.engine(words=words).begin(value, (room[ROWS : 2 * ROWS],), True)
        except TopocommError:
            continue
        ran += 1
        assert np.all(room[:ROWS] == 5.0) and np.all(room[2 * ROWS :] == 5.0)
        np.testing.assert_array_equal(value[0], arrays(0)[0][0])
        memory.assert_guarded()
    return ran


def test_random_damage_stays_inside():
    assert try_random_damage(np.random.default_rng(7), 2000) > 50


class Sub(np.ndarray):
    pass


SOUND = np.zeros(ROWS)
READ_ONLY = np.zeros(ROWS)
READ_ONLY.flags.writeable = False
MISFITS = {
    "no value": ((), (SOUND,)),
    "no result": ((SOUND,), ()),
    "two arrays": ((SOUND, SOUND), (SOUND,)),
    "no array": ((SOUND.tolist(),), (SOUND,)),
    "a subclass": ((SOUND.view(Sub),), (SOUND,)),
    "fewer bytes": ((SOUND[1:],), (SOUND,)),
    "more bytes": ((SOUND,), (np.zeros(ROWS + 1),)),
    "gaps": ((np.zeros(2 * ROWS)[::2],), (SOUND,)),
    "between items": ((np.zeros(8 * ROWS + 1, np.uint8)[1:].view(np.float64),), (SOUND,)),
    "bytes between items": ((np.zeros(8 * ROWS + 1, np.uint8)[1:],), (SOUND,)),
    "read-only": ((SOUND,), (READ_ONLY,)),
}


@pytest.mark.parametrize("what", MISFITS)
def test_arrays_that_do_not_fit_are_refused(what):
    memory, epoch = Memory(), array("q", [0])
    engine = memory.engine(epoch=epoch)
    with pytest.raises(TopocommError, match="an engine "):
        engine.begin(*MISFITS[what], True)
    assert (engine.state, epoch[0]) == (THROUGH, 0)
    with pytest.raises(TopocommError, match="begins with them"):
        engine.start()


MISFIT_SETTINGS = {
    "value": [kinds(ROWS, fields=_native.MOST_FIELDS + 1), kinds(ROWS, dtype="V0"), kinds(ROWS - 1), ()],
    "result": [kinds(ROWS, row_items=-1), kinds(ROWS, fields=2)],
    "memory": [np.zeros(7, np.uint8), aligned_buffer(MEMORY_BYTES)[1:], aligned_buffer(128)],
    "counters": [np.zeros(0, np.int64), aligned_buffer(64).view(np.int64), aligned_buffer(72).view(np.int64)],
    "epoch": [array("q"), array("q", [0, 0]), array("i", [0])],
    "position": [-1, RANKS],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, some in MISFIT_SETTINGS.items() for value in some])
def test_settings_that_do_not_fit_are_refused(name, value):
    with pytest.raises(TopocommError):
        Memory().engine(**{name: value})


def test_memory_lives_as_long_as_the_engine():
    memory = Memory()
    engine, epoch = memory.engine(), array("q", [0])
    other = memory.engine(1, epoch=epoch)
    with pytest.raises(BufferError):
        epoch.append(0)
    del other
    epoch.append(0)
    assert engine.begin(*arrays(0), True) == WAITING


def test_arrays_are_described_as_they_are():
    for probe in (np.empty((3, 5), np.float32), np.empty((2, 3)).T, np.empty(()), np.empty((0, 2), np.int8)):
        assert _native.describe(probe) == (probe.ctypes.data, True, probe.shape, probe.dtype, probe.flags.num)
    assert not _native.describe(np.empty(3).view(Sub))[1]
    with pytest.raises(TypeError, match="expected a NumPy array, got <class 'list'>"):
        _native.describe([1.0])


def test_calls_without_rows_need_no_memory():
    memory = Memory()
    sections = {**dict.fromkeys(SECTIONS, ()), "STAGES": [(1, 0, 0, 0, 0, 0)], "PACK": [(0, 0, 0, 0)]}
    empty = memory.whole[68:68]
    engine = memory.engine(words=words_of(sections), value=kinds(0), result=kinds(0), memory=empty)
    assert engine.begin((np.empty(0),), (np.empty(0),), True) == THROUGH
