"""Lanes that run a long payload slice by slice."""

import gc
import weakref

import numpy as np
import pytest

from topocomm.execute.lanes import Lane
from topocomm.execute.sliced_lane import SlicedLane


class Slice(Lane):
    """A lane that is through at once, or after it was advanced."""

    def __init__(self, *, at_once):
        self.memory = np.zeros(0, np.uint8)
        self.takes_value = self.gives_result = True
        self.at_once, self.given = at_once, []

    def begin(self, fields, target, apart):
        self.given.append((fields["value"], target["value"], apart))
        return self.at_once

    def advance(self, timeout_s):
        return True

    def awaited(self):
        raise AssertionError("nobody asks")

    def free(self):
        pass


def through(lane, x, out):
    lane.begin({"value": x}, {"value": out}, True) or lane.advance(0.0)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_value_with_gaps_is_packed_once_for_all_slices(at_once):
    slices = [Slice(at_once=at_once) for _ in range(4)]
    x, out = np.arange(12.0)[::2], np.zeros(6)
    through(SlicedLane(slices), x, out)
    assert [len(one.given) for one in slices] == [1] * 4
    values, targets, apart = zip(*(one.given[0] for one in slices), strict=True)
    assert all(value is values[0] for value in values) and values[0].flags.c_contiguous
    np.testing.assert_array_equal(values[0], x)
    assert all(target is out for target in targets) and apart == (True,) * 4


@pytest.mark.parametrize("at_once", [True, False])
def test_the_callers_arrays_are_let_go(at_once):
    slices = [Slice(at_once=at_once) for _ in range(2)]
    lane, x, out = SlicedLane(slices), np.zeros(3), np.zeros(3)
    kept = [weakref.ref(x), weakref.ref(out)]
    gc.disable()
    try:
        through(lane, x, out)
        for one in slices:
            one.given.clear()
        del x, out
        assert [array() for array in kept] == [None, None]
    finally:
        gc.enable()
