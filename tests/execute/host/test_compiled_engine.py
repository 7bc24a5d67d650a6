"""What a rank does in shared memory, in one compiled call."""

import gc
import tracemalloc
import weakref
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from attention import LOGSUMEXP
from tests.attention.merging import assert_close, exact, partial
from tests.execute.engine_jobs import (
    CALLS,
    LIMIT_S,
    OPERATORS,
    WAYS,
    Job,
    fast_path,
    jobs,
    plain,
    run,
    through,
)
from tests.machines import hosts, switch
from tests.plans import every_plan
from tests.thinning import covering
from topocomm import Field, Operator
from topocomm.execute.host.call_engine import Span, Work
from topocomm.execute.host.compiled_engine import covers
from topocomm.native import _native
from topocomm.planning.schedule.schedule import split_rows
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder


@pytest.mark.parametrize(
    ("folds", "ranks", "shape"),
    covering(OPERATORS, [1, 2, 3, 4, 5], [((0,), 3), ((1,), 1), ((7,), 16), ((7,), 1), ((2, 3), 3)]),
    ids=str,
)
def test_every_algorithm_merges(folds, ranks, shape):
    rows, dim = shape
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
        for way in (plain, fast_path):
            job.on_threads(lambda rank, job=job, way=way: [way(job, rank, values[rank]) for _ in range(2)])
            assert before == [{name: array.tobytes() for name, array in value.items()} for value in values], name


@pytest.mark.parametrize("streaming", [False, True])
def test_the_way_to_write_that_was_quicker_on_trial_is_taken(streaming):
    value = partial(0, (6,), 4)
    plan, layout = next((job.plan, job.layout) for _, job in jobs(switch(1), (6,), 4))
    job = Job(plan, layout)
    engine, no_time = job.engines[0][1].native, 1 << 62

    def call(left):
        """A call on the engine so many calls before the choice; which ways it took note of."""
        engine.until_choice, engine.quickest_plain, engine.quickest_streamed = left, no_time, no_time
        for _ in range(2):  # the other engine's turn too
            plain(job, 0, value)
        return [engine.quickest_plain < no_time, engine.quickest_streamed < no_time]

    trial = _native.CALLS_A_TRIAL
    engine.streaming = 0
    assert call(2 * trial + 1) == [False, False] and not engine.streaming
    assert call(2 * trial) == [False, False] and engine.streaming  # warms up
    assert call(trial + 1) == [False, True] and engine.streaming
    assert call(trial) == [False, False] and not engine.streaming
    assert call(2) == [True, False] and not engine.streaming
    engine.until_choice = 1
    if streaming:
        engine.quickest_streamed = -1
    else:
        engine.quickest_plain = -1
    plain(job, 0, value)
    assert engine.streaming == streaming
    assert engine.until_choice == _native.CALLS_A_CHOICE - 1
    assert engine.quickest_plain == engine.quickest_streamed == no_time
    job.close()


@pytest.mark.parametrize("folds", OPERATORS)
def test_a_call_keeps_the_callers_arrays_until_it_is_through(folds):
    job = dict(jobs(switch(2), (7,), 5, OPERATORS[folds]))["flat"]
    values = [partial(rank, (7,), 5) for rank in range(2)]
    given = {name: array.copy() for name, array in values[0].items()}
    target = {name: np.zeros_like(array) for name, array in given.items()}
    arrays = [weakref.ref(array) for array in (*given.values(), *target.values())]
    first, second = job.engine(0), job.engine(1)
    assert not first.begin(given, target, True)
    del given, target  # the engine holds them
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
        engines = [weakref.ref(engine) for pair in job.engines for engine in pair]
        gc.disable()  # cycles would keep the shared memory until they are looked for
        try:
            del job.engines, job.fast_path
            assert [engine() for engine in engines] == [None] * 4, name
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

    def awaited(engine):
        stage, sends, receives = engine.awaited()
        assert (stage, sends) == (0, [])
        assert {message.payload_bytes for message in receives} <= {7 * 6 * 4}
        return [message.peer for message in receives]

    engines = [job.engine(rank) for rank in range(3)]
    for rank, others in ((1, [0, 2]), (0, [2])):
        assert not engines[rank].begin(values[rank], targets[rank], True)
        assert awaited(engines[rank]) == others
    assert not engines[1].advance(0.01)
    assert awaited(engines[1]) == [2]
    assert engines[2].begin(values[2], targets[2], True)  # the last one waits for nobody
    for engine in engines:
        assert engine.advance(LIMIT_S)
        assert engine.awaited().receives == []
    for target in targets:
        assert_close(target, exact(values), 3, "flat")


def test_values_of_many_fields_run_otherwise():
    names = [f"field{index}" for index in range(_native.MOST_FIELDS + 1)]
    for used, covered in ((names[:-1], True), (names, False)):
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
