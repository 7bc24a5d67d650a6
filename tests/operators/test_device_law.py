"""`check_laws` tries the Triton combine of an operator."""

import dataclasses

import numpy as np
import pytest

from topocomm import (
    SUM,
    TritonCombine,
    check_laws,
)

from tests.interpreted import interpreted  # isort: skip first, since it imports triton
import triton.language as tl


@interpreted
def wrong_tiles(left, right):
    return (tl.where(left[0] > 2, left[0], left[0] + right[0]),)


@interpreted
def failing_tiles(left, right):
    return (left[0] + right[1],)


@pytest.mark.parametrize(
    ("function", "told"), [(wrong_tiles, "differs from combine"), (failing_tiles, "it does not run: ")]
)
def test_laws_find_a_triton_combine_that_is_wrong(function, told):
    operator = dataclasses.replace(SUM, triton=lambda layout: TritonCombine("wrong/1", function))
    report = check_laws(operator, dtype=np.int64)
    assert report.broken == ("Triton",)
    assert f"Triton         BROKEN; {told}" in str(report)


def test_laws_say_which_triton_combine_they_tried():
    assert "triton.sum/1" in str(check_laws(SUM, dtype=np.int64))
