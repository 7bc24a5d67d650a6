"""Lanes in one memory, their ranks on threads of one process: the compiled call holds no interpreter lock."""

import gc
import time
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from attention import LOGSUMEXP
from tests.attention.merging import assert_close, exact, partial
from tests.machines import hosts, switch
from topocomm import SUM, Field, Operator
from topocomm.execute.compiled_lane import CompiledLane, covers
from topocomm.execute.kernels import shared_memory as word
from topocomm.execute.lanes import BUSY, Span, Work
from topocomm.execute.quick import quick_bare, quick_pair, quick_tensors
from topocomm.execute.recorder import Recorder
from topocomm.execute.staged_lane import aligned_buffer
from topocomm.execute.transports.shared_memory import COUNTER_BYTES, SharedMemory
from topocomm.operators.operator import ALIGNMENT_BYTES
from topocomm.operators.tensors import BFLOAT16, as_array, as_tensor
from topocomm.planning.planner import every_plan
from topocomm.planning.schedule import split_rows
from topocomm.planning.schedule_builder import ScheduleBuilder
from topocomm.planning.shared_memory import shared_program

CALLS = 40
"""Some more than the two memories see before it is chosen how to write to them."""
OPERATORS = {"compiled": LOGSUMEXP, "in NumPy": replace(LOGSUMEXP, kernel=None)}
LIMIT_S = 30.0
GUARD = 0xA5


class Caller:
    """What the quick way asks of a communicator."""

    refusal: str | None = None

    def __init__(self):
        self.recorder, self.waiting = Recorder(), self

    def for_call(self, call):
        through(call.lane)

    def fail_with(self, error):
        self.refusal = str(error)


def through(lane):
    """Go on with a call until it is through."""
    until_s = time.monotonic() + LIMIT_S
    while not lane.advance(0.05):
        assert time.monotonic() < until_s, f"still waiting for {lane.awaited()}"


def run(lane, fields, target, *, apart):
    lane.begin(fields, target, apart) or through(lane)


class Job:
    """The lanes of all ranks of one plan. Memory not yet written holds NaN; before and behind it stand guards."""

    def __init__(self, plan, layout, operator=LOGSUMEXP):
        self.plan, self.layout = plan, layout
        ranks = range(plan.schedule.ranks)
        span = Span(0, layout.leading)
        works = [Work(plan, plan.schedule, operator, layout, 16, rank, span, span) for rank in ranks]
        assert all(map(covers, works))
        programs = [shared_program(plan.schedule, w.rank, w.chunk_bytes, ALIGNMENT_BYTES) for w in works]
        counters_bytes, size_bytes = len(ranks) * COUNTER_BYTES, 2 * programs[0].total_bytes
        self.whole = aligned_buffer(counters_bytes + size_bytes + 2 * ALIGNMENT_BYTES)
        self.whole[...] = GUARD
        region = self.whole[ALIGNMENT_BYTES:-ALIGNMENT_BYTES]
        region[:counters_bytes], region[counters_bytes:] = 0, 0xFF
        self.shared = [SharedMemory(region, rank, ranks, cores=2) for rank in ranks]
        self.lanes = [
            [CompiledLane(works[rank], programs[rank], self.shared[rank], number) for number in range(2)]
            for rank in ranks
        ]

        self.callers = [Caller() for _ in ranks]
        quick_way = quick_pair if len(layout.fields) > 1 else quick_bare
        self.quick = [quick_way(*pair, layout, 16) for pair in zip(self.callers, self.lanes, strict=True)]

    def lane(self, rank):
        """The lane of a rank's next call."""
        return self.lanes[rank][(self.shared[rank].epoch + 1) & 1]

    def on_threads(self, body):
        """`body(rank)` on a thread of every rank."""
        with ThreadPoolExecutor(len(self.lanes)) as pool:
            return [done.result() for done in [pool.submit(body, rank) for rank in range(len(self.lanes))]]

    def close(self):
        assert np.all(self.whole[:ALIGNMENT_BYTES] == GUARD)
        assert np.all(self.whole[-ALIGNMENT_BYTES:] == GUARD)


def jobs(topology, rows, dim, operator=LOGSUMEXP):
    layout = operator.layout({"out": ((*rows, dim), np.float32), "lse": (rows, np.float32)})
    for plan in every_plan(topology, "allreduce", operator, layout):
        job = Job(plan, layout, operator)
        yield plan.algorithm, job
        job.close()


def askew(value):
    """Copies that start in the middle of a cache line."""
    found = {}
    for name, array in value.items():
        room = aligned_buffer(array.nbytes + ALIGNMENT_BYTES)
        found[name] = room[12 : 12 + array.nbytes].view(array.dtype).reshape(array.shape)
        found[name][...] = array
    return found


def strided(value):
    """Copies with a gap after every item."""
    return {name: np.repeat(array, 2, axis=-1)[..., ::2] for name, array in value.items()}


def plain(job, rank, value):
    target = askew({name: np.zeros_like(array) for name, array in value.items()})
    run(job.lane(rank), value, target, apart=True)
    return target


def in_place(job, rank, value):
    both = askew(value)
    run(job.lane(rank), both, both, apart=False)
    return both


def from_the_send_buffer(job, rank, value):
    views = job.lane(rank).views
    if views is None:  # the plan splits the value
        return plain(job, rank, strided(value))
    for name, array in value.items():
        views[name][...] = array
    target = {name: np.zeros_like(array) for name, array in value.items()}
    run(job.lane(rank), None, target, apart=True)
    return target


def quick(job, rank, value):
    return job.quick[rank](askew(value), None)


def quick_into(job, rank, value):
    given = {name: np.full_like(array, np.nan) for name, array in value.items()}
    assert job.quick[rank](askew(value), given) is given
    return given


def quick_in_place(job, rank, value):
    both = {name: array.copy() for name, array in value.items()}
    assert job.quick[rank](both, both) is both
    return both


WAYS = [plain, in_place, from_the_send_buffer, quick, quick_into, quick_in_place]


@pytest.mark.parametrize("dim", [1, 3, 16])
@pytest.mark.parametrize("rows", [(0,), (1,), (7,), (2, 3)], ids=str)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("folds", OPERATORS)
def test_every_algorithm_merges(folds, ranks, rows, dim):
    # Empty rows may hold NaN where there is something to merge them with; alone, rank 0's value is the result.
    seeds = [0] * CALLS if ranks == 1 else range(0, ranks * CALLS, ranks)
    values = [[partial(rank + seed, rows, dim) for rank in range(ranks)] for seed in seeds]
    algorithms = set()
    for name, job in jobs(switch(ranks), rows, dim, OPERATORS[folds]):
        algorithms.add(name)

        def body(rank, job=job):
            return [WAYS[call // 2 % len(WAYS)](job, rank, values[call][rank]) for call in range(CALLS)]

        outcomes = job.on_threads(body)
        assert [shared.epoch for shared in job.shared] == [CALLS] * ranks
        for call in range(CALLS):
            what = f"{name}, call {call}"
            assert_close(outcomes[0][call], exact(values[call]), ranks, what)
            for results in outcomes:
                for field, array in results[call].items():
                    assert array.tobytes() == outcomes[0][call][field].tobytes(), f"{what}: ranks differ"
    assert algorithms >= {"flat", "binomial", "recursive-doubling", "ring"}


def spread_out(rank, call, shape):
    """Small numbers: every dtype holds them and their sums."""
    return np.arange(np.prod(shape)).reshape(shape) % 7 + rank + call % 5


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("tensors", [False, True], ids=["arrays", "tensors"])
@pytest.mark.parametrize("folds", ["compiled", "in NumPy"])
def test_the_quick_way_of_bare_values(folds, tensors, dtype):
    if tensors:
        pytest.importorskip("torch")
    ranks, shape = 3, (7, 5)
    operator = SUM if folds == "compiled" else replace(SUM, kernel=None)
    layout = operator.layout({"value": (shape, dtype)})
    give, take = (as_tensor, as_array) if tensors else (np.asarray, np.asarray)
    for plan in every_plan(switch(ranks), "allreduce", operator, layout):
        job = Job(plan, layout, operator)
        ways = [quick_tensors(way, [layout.fields[0].dtype], bare=True) if tensors else way for way in job.quick]

        def body(rank, ways=ways):
            results = []
            for call in range(12):
                value = spread_out(rank, call, shape).astype(dtype)
                x, out = give(value.copy()), give(np.zeros(shape, dtype))
                given = (None, out, x)[call % 3]
                result = ways[rank](x, given)
                assert given is None or result is given
                assert given is x or take(x).tobytes() == value.tobytes()
                results.append(take(result))
            return results

        for results in job.on_threads(body):
            for call, result in enumerate(results):
                assert result.dtype == dtype
                wanted = sum(spread_out(rank, call, shape) for rank in range(ranks))
                np.testing.assert_array_equal(result.astype(float), wanted, f"{plan.algorithm}, call {call}")
        job.close()


def test_the_quick_way_of_bare_values_is_one_call_at_a_time():
    told = []

    def combine(a, b):
        told.append([caller.refusal for caller in job.callers])
        return {"value": a["value"] + b["value"]}

    operator = replace(SUM, kernel=None, combine=combine)
    layout = operator.layout({"value": ((4,), np.float32)})
    job = Job(every_plan(switch(2), "allreduce", operator, layout)[0], layout, operator)
    x = np.ones(4, np.float32)
    assert job.quick[0](np.ones(5, np.float32), None) is None
    assert job.callers[0].refusal is None  # such a value is refused, not the next one
    job.callers[0].refusal = "it was closed"
    assert job.quick[0](x, None) is None
    assert (job.shared[0].epoch, job.callers[0].recorder.calls) == (0, 0)
    job.callers[0].refusal = None
    for result in job.on_threads(lambda rank: job.quick[rank](x, None)):
        np.testing.assert_array_equal(result, 2 * x)
    assert told and all(BUSY in refusals for refusals in told)
    assert [caller.refusal for caller in job.callers] == [None, None]
    job.close()


def test_the_quick_way_of_tensors_by_field():
    torch = pytest.importorskip("torch")
    values = [partial(rank, (7,), 5) for rank in range(2)]
    for name, job in jobs(switch(2), (7,), 5):

        def body(rank, job=job):
            quick = quick_tensors(job.quick[rank], [np.dtype(np.float32)], bare=False)
            x = {field: torch.from_numpy(array.copy()) for field, array in values[rank].items()}
            out = {field: torch.zeros_like(part) for field, part in x.items()}
            assert quick(values[rank], None) is None and quick(x, values[rank]) is None  # arrays are none
            fresh = quick(x, None)
            assert quick(x, out) is out and quick(x, x) is x
            return fresh, out, x

        for results in job.on_threads(body):
            for result in results:
                assert_close({field: part.numpy() for field, part in result.items()}, exact(values), 2, name)


@pytest.mark.parametrize(("count", "gpus"), [(2, 2), (2, 3)])
def test_two_levels_merge(count, gpus):
    ranks = count * gpus
    values = [partial(rank, (7,), 5) for rank in range(ranks)]
    found = dict(jobs(hosts(count, gpus), (7,), 5))
    assert any(name.startswith(("rails", "leaders")) for name in found)
    for name, job in found.items():
        for result in job.on_threads(lambda rank, job=job: plain(job, rank, values[rank])):
            assert_close(result, exact(values), ranks, name)


@pytest.mark.parametrize("parts", [2, 3, 9])
def test_chunks_that_every_rank_folds_for_itself(parts):
    ranks, rows = 3, 7
    builder = ScheduleBuilder(ranks, split_rows(rows, parts))
    for rank, chunk in product(range(ranks), range(parts)):
        others = [0 if peer == rank else builder.send(0, peer, 0, rank, chunk=chunk) for peer in range(ranks)]
        builder.output(rank, builder.fold(0, rank, others, chunk=chunk), chunk=chunk)
    layout = LOGSUMEXP.layout({"out": ((rows, 5), np.float32), "lse": ((rows,), np.float32)})
    like = every_plan(switch(ranks), "allreduce", LOGSUMEXP, layout)[0]
    job = Job(replace(like, schedule=builder.build()), layout)
    values = [partial(rank, (rows,), 5) for rank in range(ranks)]
    for results in job.on_threads(lambda rank: [way(job, rank, values[rank]) for way in WAYS for _ in range(2)]):
        for result in results:
            assert_close(result, exact(values), ranks, "flat in chunks")
    job.close()


def test_values_are_left_as_they_are():
    values = [partial(rank, (7,), 5) for rank in range(3)]
    before = [{name: array.tobytes() for name, array in value.items()} for value in values]
    for name, job in jobs(switch(3), (7,), 5):
        for way in (plain, quick):
            job.on_threads(lambda rank, job=job, way=way: [way(job, rank, values[rank]) for _ in range(2)])
            assert before == [{name: array.tobytes() for name, array in value.items()} for value in values], name


class Sub(np.ndarray):
    pass


OUT, LSE = np.zeros((6, 4), np.float32), np.zeros(6, np.float32)
MISFITS = {
    "a field is missing": {"out": OUT},
    "a field has another name": {"out": OUT, "LSE": LSE},
    "dtype": {"out": OUT.astype(np.float64), "lse": LSE},
    "dtype of the same size": {"out": OUT, "lse": LSE.view(np.int32)},
    "byte order": {"out": OUT, "lse": LSE.astype(">f4")},
    "rows": {"out": OUT[:5], "lse": LSE[:5]},
    "the same bytes in other axes": {"out": OUT.reshape(4, 6), "lse": LSE},
    "an axis more": {"out": OUT, "lse": LSE[:, None]},
    "an axis less": {"out": OUT.ravel(), "lse": LSE},
    "strides": {"out": np.zeros((4, 6), np.float32).T, "lse": LSE},
    "alignment": {"out": np.zeros(97, np.uint8)[1:].view(np.float32).reshape(6, 4), "lse": LSE},
    "subclass": {"out": OUT, "lse": LSE.view(Sub)},
    "a list": {"out": OUT, "lse": LSE.tolist()},
    "a scalar": {"out": OUT, "lse": np.float32(0)},
    "None": {"out": None, "lse": LSE},
    "a field more": {"out": OUT, "lse": LSE, "max": LSE},
    "no dict": (OUT, LSE),
}


MISFITS_OF_X = {**MISFITS, "another order of fields": {"lse": LSE, "out": OUT}}
"""Values in another order are another call on ranks that cannot go the quick way."""


@pytest.mark.parametrize("what", MISFITS_OF_X)
def test_the_quick_way_does_nothing_with_values_that_do_not_fit(what):
    values = [partial(rank, (6,), 4) for rank in range(2)]
    for name, job in jobs(switch(2), (6,), 4):
        before = job.whole.tobytes()
        assert job.quick[0](MISFITS_OF_X[what], None) is None
        assert job.whole.tobytes() == before
        assert (job.shared[0].epoch, job.callers[0].recorder.calls, job.callers[0].refusal) == (0, 0, None)
        for result in job.on_threads(lambda rank, job=job: quick(job, rank, values[rank])):
            assert_close(result, exact(values), 2, name)
        assert (job.shared[0].epoch, job.callers[0].recorder.calls, job.callers[0].refusal) == (1, 1, None)


def overlapping():
    whole = np.zeros(36, np.float32)
    return {"out": whole[:24].reshape(6, 4), "lse": whole[20:26]}


X = {"out": np.zeros((6, 4), np.float32), "lse": np.zeros(6, np.float32)}
READ_ONLY = np.zeros(6, np.float32)
READ_ONLY.flags.writeable = False
SHIFTED = np.zeros(7, np.float32)
MISPLACED = {
    "read-only": (X, {"out": OUT, "lse": READ_ONLY}),
    "overlaps itself": (X, overlapping()),
    "one array twice": (X, {"out": OUT, "lse": OUT.reshape(-1)[:6]}),
    "lies in another field of the value": (X, {"out": OUT, "lse": X["out"].reshape(-1)[6:12]}),
    "overlaps its field of the value": ({"out": OUT, "lse": SHIFTED[:6]}, {"out": OUT, "lse": SHIFTED[1:]}),
}


@pytest.mark.parametrize("what", [*MISFITS, *MISPLACED, "the send buffer"])
def test_the_quick_way_does_nothing_where_the_result_does_not_fit(what):
    x, out = MISPLACED.get(what, (X, MISFITS.get(what)))
    values = [partial(rank, (6,), 4) for rank in range(2)]
    for name, job in jobs(switch(2), (6,), 4):
        given = job.lanes[0][0].views if what == "the send buffer" else out
        if given is None:  # the plan splits the value: there is none
            continue
        before = job.whole.tobytes()
        assert job.quick[0](x, given) is None
        assert job.whole.tobytes() == before
        assert (job.shared[0].epoch, job.callers[0].recorder.calls, job.callers[0].refusal) == (0, 0, None)
        for result in job.on_threads(lambda rank, job=job: quick_into(job, rank, values[rank])):
            assert_close(result, exact(values), 2, name)


@pytest.mark.parametrize("streaming", [False, True])
def test_the_way_to_write_that_was_quicker_on_trial_is_taken(streaming):
    value = partial(0, (6,), 4)
    plan, layout = next((job.plan, job.layout) for _, job in jobs(switch(1), (6,), 4))
    job = Job(plan, layout)
    words = job.lanes[0][1].compiled.words
    quickest = slice(word.QUICKEST, word.QUICKEST + 2)

    def call(left):
        """A call on the lane so many calls before it is chosen; which ways it took note of."""
        words[word.UNTIL_CHOICE], words[quickest] = left, word.NO_TIME
        for _ in range(2):  # the other lane's turn too
            plain(job, 0, value)
        return (words[quickest] < word.NO_TIME).tolist()

    trial = word.CALLS_A_WAY
    words[word.STREAMING] = 0
    assert call(2 * trial + 1) == [False, False] and not words[word.STREAMING]
    assert call(2 * trial) == [False, False] and words[word.STREAMING]  # warms up
    assert call(trial + 1) == [False, True] and words[word.STREAMING]
    assert call(trial) == [False, False] and not words[word.STREAMING]
    assert call(2) == [True, False] and not words[word.STREAMING]
    words[word.UNTIL_CHOICE], words[word.QUICKEST + streaming] = 1, -1
    plain(job, 0, value)
    assert words[word.STREAMING] == streaming
    assert words[word.UNTIL_CHOICE] == word.CALLS_A_CHOICE - 1
    assert words[quickest].tolist() == [word.NO_TIME] * 2
    job.close()


@pytest.mark.parametrize("folds", OPERATORS)
def test_a_call_keeps_the_callers_arrays_until_it_is_through(folds):
    job = dict(jobs(switch(2), (7,), 5, OPERATORS[folds]))["flat"]
    values = [partial(rank, (7,), 5) for rank in range(2)]
    given = {name: array.copy() for name, array in values[0].items()}
    target = {name: np.zeros_like(array) for name, array in given.items()}
    arrays = [weakref.ref(array) for array in (*given.values(), *target.values())]
    first, second = job.lane(0), job.lane(1)
    assert not first.begin(given, target, True)
    del given, target  # compiled code knows them by address only
    assert all(array() is not None for array in arrays)
    run(second, values[1], {name: np.zeros_like(array) for name, array in values[1].items()}, apart=True)
    result = {name: array() for name, array in zip(values[0], arrays[2:], strict=True)}
    through(first)
    assert_close(result, exact(values), 2, folds)
    del result
    assert all(array() is None for array in arrays)


@pytest.mark.parametrize("folds", OPERATORS)
def test_lanes_go_with_their_last_user(folds):
    for name, job in jobs(switch(2), (6,), 4, OPERATORS[folds]):
        job.on_threads(lambda rank, job=job: plain(job, rank, partial(rank, (6,), 4)))
        lanes = [weakref.ref(lane) for pair in job.lanes for lane in pair]
        gc.disable()  # cycles would keep the shared memory until they are looked for
        try:
            del job.lanes, job.quick
            assert [lane() for lane in lanes] == [None] * 4, name
        finally:
            gc.enable()


def test_lanes_have_no_memory_for_values_but_the_shared():
    rows, dim = 4096, 15
    for name, job in jobs(switch(2), (rows,), dim):
        tracemalloc.start()
        made = Job(job.plan, job.layout)
        used_bytes = tracemalloc.get_traced_memory()[0] - made.whole.nbytes
        tracemalloc.stop()
        made.close()
        assert used_bytes < rows * (dim + 1) * 4, name


def test_who_waits_knows_for_whom():
    """Ranks of a flat exchange come one after the other: each awaits those that have not."""
    values = [partial(rank, (7,), 5) for rank in range(3)]
    targets = [{name: np.zeros_like(array) for name, array in value.items()} for value in values]
    job = dict(jobs(switch(3), (7,), 5))["flat"]

    def awaited(lane):
        stage, sends, receives = lane.awaited()
        assert (stage, sends) == (0, [])
        assert {message.payload_bytes for message in receives} <= {7 * 6 * 4}
        return [message.peer for message in receives]

    lanes = [job.lane(rank) for rank in range(3)]
    for rank, others in ((1, [0, 2]), (0, [2])):
        assert not lanes[rank].begin(values[rank], targets[rank], True)
        assert awaited(lanes[rank]) == others
    assert not lanes[1].advance(0.01)
    assert awaited(lanes[1]) == [2]
    assert lanes[2].begin(values[2], targets[2], True)  # the last one waits for nobody
    for lane in lanes:
        assert lane.advance(LIMIT_S)
        assert lane.awaited().receives == []
    for target in targets:
        assert_close(target, exact(values), 3, "flat")


def test_values_of_many_fields_run_otherwise():
    names = [f"field{index}" for index in range(5)]
    for used, covered in ((names[:4], True), (names, False)):
        operator = Operator(
            "sums",
            tuple(Field(name) for name in used),
            lambda left, right: {name: left[name] + right[name] for name in left},
            dict.fromkeys(used, 0),
            commutative=True,
        )
        layout = operator.layout(dict.fromkeys(used, ((4,), np.float32)))
        span = Span(0, layout.leading)
        plan = every_plan(switch(2), "allreduce", operator, layout)[0]
        assert covers(Work(plan, plan.schedule, operator, layout, 16, 0, span, span)) == covered
