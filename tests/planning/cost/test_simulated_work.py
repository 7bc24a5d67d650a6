"""Work as columns: what the builder makes, and what is refused."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from topocomm import PlanError
from topocomm.planning.cost.simulated_work import (
    COMPUTE,
    JOIN,
    NO_TASK,
    SEND,
    WorkBuilder,
    check_work,
    describe,
    distinct,
)


def builder():
    return WorkBuilder(("GPU0", "GPU1", "GPU2"))


def test_one_value_serves_many_messages_and_numbers_follow_each_other():
    own = builder()
    first = own.send(0, [1, 2], 100, label="broadcast")
    second = own.compute([1, 2], [3.0, 4.0], after=first, label="attention", round_=1)
    work = own.build()
    assert (first.tolist(), second.tolist(), len(work)) == ([0, 1], [2, 3], 4)
    assert work.src.tolist() == [0, 0, 1, 2]
    assert work.dst.tolist() == [1, 2, 1, 2]
    assert work.payload_bytes.tolist() == [100, 100, 0, 0]
    assert work.before_us.tolist() == [0.0, 0.0, 3.0, 4.0]
    assert work.kind.tolist() == [SEND, SEND, COMPUTE, COMPUTE]
    assert np.isnan(work.latency_us).tolist() == [True, True, False, False]
    assert (work.after_starts.tolist(), work.after.tolist()) == ([0, 0, 0, 1, 2], [0, 1])
    assert [work.labels[label] for label in work.label] == ["broadcast", "broadcast", "attention", "attention"]
    assert (work.messages, work.sent_bytes) == (2, 200)


def test_a_table_of_tasks_gives_each_message_several_to_wait_for():
    own = builder()
    first = own.send([0, 1, 2], [1, 2, 0], 1)
    own.send([0, 1], [1, 2], 1, after=np.array([[first[0], first[2]], [first[1], NO_TASK]]))
    own.send(0, 1, 1, after=first[None, :])
    work = own.build()
    waits = [work.after[low:high].tolist() for low, high in pairwise(work.after_starts)]
    assert waits == [[], [], [], [0, 2], [1], [0, 1, 2]]


def test_columns_are_the_builders_own():
    own, sizes = builder(), np.array([10, 20])
    own.send(0, [1, 2], sizes)
    sizes[:] = 0
    assert own.build().payload_bytes.tolist() == [10, 20]


def test_paths_are_numbered_once():
    own = builder()
    assert own.path(("GPU0", "s", "GPU1")) == own.path(["GPU0", "s", "GPU1"]) == 0
    assert own.path(("GPU1", "s", "GPU0")) == 1
    own.send(0, 1, 8, path=0)
    assert own.build().paths == (("GPU0", "s", "GPU1"), ("GPU1", "s", "GPU0"))


def test_nothing_is_work_too():
    work = builder().build()
    assert (len(work), work.messages, work.sent_bytes) == (0, 0, 0)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"src": 3}, "task 0 x round 0 3 -> GPU1: its source is none of the 3 devices"),
        ({"dst": -1}, "task 0 x round 0 GPU0 -> -1: its destination is none of the 3 devices"),
        ({"payload_bytes": -5}, "expected at least 0 bytes"),
        ({"before_us": -1.0}, "expected a time of at least 0 us before it"),
        ({"before_us": np.nan}, "expected a time of at least 0 us before it"),
        ({"latency_us": -1.0}, "expected a latency of at least 0 us, or NaN"),
        ({"latency_us": np.inf}, "expected a latency of at least 0 us, or NaN"),
        ({"most_gb_per_s": 0.0}, "expected a rate limit above 0 GB/s, infinite for none"),
        ({"most_gb_per_s": np.nan}, "expected a rate limit above 0 GB/s, infinite for none"),
        ({"path": 0}, "its path is none of the 0"),
        ({"after": 0}, "expected that it waits for tasks with lower numbers"),
    ],
)
def test_impossible_tasks_are_named(arguments, why):
    own = builder()
    own.send(**({"src": 0, "dst": 1, "payload_bytes": 8, "label": "x"} | arguments))
    with pytest.raises(PlanError, match=r"^task 0 x round 0 ") as caught:
        own.build()
    assert why in str(caught.value)


def test_a_circle_is_refused():
    own = builder()
    first = own.send(0, 1, 1)
    own.send(1, 2, 1, after=first)
    work = own.build()
    circle = replace(work, after_starts=np.array([0, 1, 2]), after=np.array([1, 0], dtype=np.int32))
    with pytest.raises(PlanError, match="task 0 round 0 GPU0 -> GPU1: expected that it waits for tasks with lower"):
        check_work(circle)


def test_a_phase_is_described_by_its_one_device():
    own = builder()
    own.compute(2, 1.0, label="attention", round_=4)
    assert describe(own.build(), 0) == "0 attention round 4 GPU2"


def test_work_of_others_is_included_after_an_entry():
    inner = WorkBuilder(("GPU2", "GPU0"))
    first = inner.send(0, 1, 8, path=inner.path(("GPU2", "s", "GPU0")), label="merge", round_=3)
    inner.compute(1, 2.0, after=first, label="fold")
    own = builder()
    own.path(("GPU1", "s", "GPU0"))
    entry = own.compute([0, 1, 2], 1.0, label="attention")
    numbers = own.include(inner.build(), np.array([entry[2], NO_TASK]))
    own.join_groups(np.array([1, 0]), np.array([2, 1]), np.array([entry[0], entry[1], numbers[1]]), label="end")
    work = own.build()
    assert numbers.tolist() == [3, 4]
    assert (work.src[3:].tolist(), work.dst[3:].tolist()) == ([2, 0, 1, 0], [0, 0, 1, 0])
    assert work.kind[3:].tolist() == [SEND, COMPUTE, JOIN, JOIN]
    assert work.paths[work.path[3]] == ("GPU2", "s", "GPU0")
    waits = [work.after[low:high].tolist() for low, high in pairwise(work.after_starts)]
    assert waits[3:] == [[2], [3], [0, 1], [4]]
    assert [work.labels[label] for label in work.label[3:]] == ["merge", "fold", "end", "end"]
    named = builder()
    named.include(inner.build(), np.full(2, NO_TASK), "layer")
    assert named.build().labels == ("layer",)


def test_work_on_unknown_devices_is_not_included():
    with pytest.raises(PlanError, match="work on GPU9: expected devices of the builder, GPU0, GPU1, GPU2"):
        builder().include(WorkBuilder(("GPU9",)).build(), np.full(1, NO_TASK))


def test_distinct_numbers():
    for numbers in ([], [4], [3, 1, 3, 2, 1], [5, 5]):
        assert distinct(np.array(numbers, dtype=np.int64)).tolist() == sorted(set(numbers))
