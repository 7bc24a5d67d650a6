"""Calls in C: what they take from the interpreter and give it (dicts, arrays, references)."""

import array as numbers
import sys
import weakref

import numpy as np
import pytest

from tests.attention.merging import assert_close, exact, partial
from tests.execute.engine_jobs import CALLS, Job, fast_path, jobs, through
from tests.machines import switch
from tests.plans import every_plan
from topocomm import SUM, Field, Operator, TopocommError
from topocomm.execute.calls.binding import carrier
from topocomm.execute.host.call_engine import Unsettled
from topocomm.execute.host.row_flags import LINE_WORDS, SharedFlags
from topocomm.native import _native


def misfit(value):
    """Its second field has another dtype, found out when the arrays of the result were made."""
    return {"out": value["out"], "lse": value["lse"].astype(np.float64)}


@pytest.mark.parametrize("rank", [0, 1])
def test_calls_leave_no_references(rank):
    values = [partial(rank, (7,), 5) for rank in range(2)]
    misfits = [misfit(value) for value in values]
    job = dict(jobs(switch(2), (7,), 5))["flat"]
    watched = [*values[rank].values(), values[rank], None]

    def body(mine):
        for _ in range(3 * CALLS):
            fast_path(job, mine, values[mine])
            assert job.fast_path[mine](misfits[mine], None) is None

    body_counts = []
    for _ in range(2):
        job.on_threads(body)
        body_counts.append([sys.getrefcount(one) for one in watched])
    for before, after in zip(*body_counts, strict=True):
        assert abs(after - before) < CALLS
    job.close()


def test_results_are_the_callers_own():
    """Nobody else holds the dict, its arrays, their dtype or their names when the call is through."""
    job = dict(jobs(switch(1), (7,), 5))["flat"]
    value = partial(0, (7,), 5)
    named = [*value, np.dtype(np.float32), job.layout.fields[0].dtype]
    before = [sys.getrefcount(one) for one in named]
    for _ in range(CALLS):
        result = job.fast_path[0](value, None)
        assert list(result) == ["out", "lse"]
        alone = {"out": np.empty(1), "lse": np.empty(1)}
        assert sys.getrefcount(result) == sys.getrefcount(alone)
        for name, array in result.items():
            assert sys.getrefcount(array) == sys.getrefcount(alone[name]) + 1  # `array` itself
            assert array.base is None and array.flags.owndata and array.flags.writeable
        assert job.fast_path[0](misfit(value), None) is None
        del result, array
    for one, earlier in zip(named, before, strict=True):
        assert abs(sys.getrefcount(one) - earlier) < CALLS
    job.close()


def test_fields_are_told_by_name_not_by_object():
    """Names that a program puts together are equal to those it was written with, and no more."""
    job = dict(jobs(switch(1), (6,), 4))["flat"]
    value = partial(0, (6,), 4)
    made = {"".join(["o", "ut"]): value["out"], "".join(["l", "se"]): value["lse"]}
    assert all(one is not other for one, other in zip(made, value, strict=True))
    assert_close(job.fast_path[0](made, None), exact([value]), 1, "flat")

    class Text(str):
        pass

    assert job.fast_path[0]({Text("out"): value["out"], "lse": value["lse"]}, None) is None
    assert job.fast_path[0]({0: value["out"], "lse": value["lse"]}, None) is None
    job.close()


@pytest.mark.parametrize("fields", range(1, _native.MOST_FIELDS + 1))
def test_the_fast_path_of_every_number_of_fields(fields):
    axes = (2, 3, 4, *[1] * fields)
    shapes = {f"field{index}": (5, *axes[:index]) for index in range(fields)}  # an axis more each
    names = list(shapes)

    def add(a, b):
        return {name: a[name] + b[name] for name in names}

    told = tuple(Field(name, ("*rows", *(f"n{axis}" for axis in range(index)))) for index, name in enumerate(names))
    operator = Operator("sums", told, add, dict.fromkeys(names, 0.0))
    layout = operator.layout({name: (shape, np.float32) for name, shape in shapes.items()})
    job = Job(every_plan(switch(2), "allreduce", operator, layout)[0], layout, operator, bare=False)

    def body(rank):
        x = {name: np.full(shape, rank + index, np.float32) for index, (name, shape) in enumerate(shapes.items())}
        return job.fast_path[rank](x, None)

    for result in job.on_threads(body):
        assert list(result) == names
        for index, (name, shape) in enumerate(shapes.items()):
            np.testing.assert_array_equal(result[name], np.full(shape, 1 + 2 * index))
    job.close()


@pytest.mark.parametrize("name", ["broadcast", "scatter"])
@pytest.mark.parametrize("bare", [True, False], ids=["bare", "dict"])
def test_ranks_that_put_nothing_in_give_none(name, bare):
    ranks, root, value = 3, 1, np.arange(12, dtype=np.float32)
    operator = carrier(value, by_rows=name if name == "scatter" else "")
    field = operator.fields[0].name
    layout = operator.layout({field: (value.shape, np.float32)})
    job = Job(every_plan(switch(ranks), name, operator, layout, root=root)[0], layout, operator, bare=bare)

    def body(rank):
        own = value if name == "broadcast" else value[4 * rank : 4 * rank + 4]
        for turn in range(4):
            given = value + turn if rank == root else None
            out = np.full_like(own, np.nan) if turn % 2 else None
            named = [x if x is None or bare else {field: x} for x in (given, out)]
            assert rank != root or job.fast_path[rank](None, named[1]) is None, "the root has to give something"
            got = job.fast_path[rank](*named)
            assert out is None or got is named[1]
            np.testing.assert_array_equal(got if bare else got[field], own + turn)

    job.on_threads(body)
    job.close()


@pytest.mark.parametrize("algorithm", ["flat", "doubling", "chain"])
def test_in_place_after_waiting_for_credits(algorithm):
    """A call that waits before it has begun goes on with folds that do not read what they write."""
    ranks, late = 4, 3
    layout = SUM.layout({"value": ((5,), np.float32)})
    plan = next(one for one in every_plan(switch(ranks), "scan", SUM, layout) if one.algorithm == algorithm)
    job, standing = Job(plan, layout, SUM), []
    for caller in job.callers:
        caller.for_call = lambda call: standing.append(call.engine)
    for call in (1, 2):
        values = [np.full(5, call * 10**rank, np.float32) for rank in range(ranks)]
        for rank in range(late):
            assert job.fast_path[rank](values[rank], values[rank]) is values[rank]
        if call == 1:
            assert not standing
            own = np.full(5, 10**late, np.float32)
            first = values
    assert standing, "a sender waits for the late rank"
    job.fast_path[late](own, own)
    for engine in standing:
        through(engine)
    standing.clear()
    job.fast_path[late](values[late], values[late])
    assert not standing
    np.testing.assert_array_equal(own, np.full(5, 1111))
    for call, found in ((1, first[:late]), (2, values)):
        for rank, result in enumerate(found):
            np.testing.assert_array_equal(result, np.full(5, call * int("1" * (rank + 1))), f"call {call}, rank {rank}")
    job.close()


@pytest.mark.parametrize("into", [False, True], ids=["fresh", "given"])
def test_a_call_that_waits_keeps_the_arrays_that_it_began_with(into):
    """Another thread may put others into the dict: these are not read, and the first ones stay alive."""
    job = dict(jobs(switch(2), (7,), 5))["flat"]
    values = [partial(rank, (7,), 5) for rank in range(2)]
    x, others = dict(values[0]), {name: np.full_like(array, np.nan) for name, array in values[0].items()}
    out = {name: np.zeros_like(array) for name, array in x.items()} if into else None
    given = dict(out or {})
    watched = [weakref.ref(array) for array in x.values()]
    standing = []
    job.callers[0].for_call = lambda call: standing.append(call.engine)
    result = job.fast_path[0](x, out)
    assert standing
    values[0] = None
    x.update(others)
    if into:
        out.update(others)
    assert all(array() is not None for array in watched)
    other = job.fast_path[1](values[1], None)
    through(standing[0])
    for name, array in (given if into else result).items():
        np.testing.assert_array_equal(array, other[name])
    assert all(array() is None for array in watched), "let go of when it is through"
    job.close()


@pytest.mark.parametrize("changed", [False, True])
def test_flags_are_set_and_read_beside_the_call(changed):
    """Rank 0 by its call in C; rank 1, whose rows may be others, before a call without flags.

    A call that had to wait for long is left to Python, which gives its result unsettled, whatever the flags say.
    """
    settled = []
    job = dict(jobs(switch(2), (7,), 5))["flat"]
    memory = np.zeros(2 * 2 * LINE_WORDS * 8, np.uint8)
    flags = [SharedFlags(memory, rank, 2) for rank in range(2)]
    values = [partial(rank, (7,), 5) for rank in range(2)]

    def body(rank):
        for _ in range(CALLS):
            if rank:
                flags[1].tell(changed)
                job.fast_path[1](values[1], None)
                assert flags[1].advance(10) and flags[1].heard() is changed
            else:
                own = {name: array.copy() for name, array in values[0].items()}
                assert job.fast_path[0](misfit(values[0]), None, flags[0].memory) is None
                assert job.fast_path[0](own, own, flags[0].memory) is None  # a value that is lost where it counts not
                result = job.fast_path[0](values[0], None, flags[0].memory)
                settled.append(type(result) is not Unsettled)
                assert flags[0].heard() is changed
                assert_close(result if settled[-1] else result.result, exact(values), 1, "flat")

    job.on_threads(body)
    assert any(settled) is not changed
    with pytest.raises(TopocommError, match="two cache lines a rank"):
        job.fast_path[0](values[0], None, memoryview(bytearray(64)))
    job.close()


def test_calls_take_engines_that_fit():
    job, other = (dict(jobs(switch(1), (7,), 5))["flat"] for _ in range(2))
    recorder, (first, second) = job.callers[0].recorder, job.engines[0]
    sound = {
        "engines": (first.native, second.native),
        "names": ("out", "lse"),
        "bare": False,
        "gives": True,
        "nothing": None,
        "tag": 1,
        "record": recorder.record,
        "sweep_mask": 1,
    }
    assert _native.bind_call(**sound)(partial(0, (7,), 5), None, None).keys() == {"out", "lse"}
    misfits = {
        "engines": [
            (first.native, None),
            (_native.bind_call(**sound), second.native),
            (first.native, other.engines[0][1].native),  # not of one communicator
        ],
        "names": [("out",), ("out", "lse", "more"), ()],
        "bare": [True],
        "gives": [False],
        "record": [numbers.array("q", [0] * words) for words in (0, 1, 2, 7)],
    }
    for name, values in misfits.items():
        for value in values:
            with pytest.raises(TopocommError, match="do not fit a call"):
                _native.bind_call(**{**sound, name: value})
    job.close()
    other.close()
