"""Cases that are much alike: `make test` runs a part of them, `make test-long` or `make soak` the others."""

from itertools import combinations, product

import pytest


def thinned(cases, every=2):
    """Mark all but one of `every` cases, the first among them, as long; a case of several arguments is a tuple."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long if number % every else ())
        for number, case in enumerate(cases)
    ]


def alternating(first, second, every=2, others=pytest.mark.soak):
    """All cases of two axes: of so many diagonals one, in which every value meets others in turn; a mark for others."""
    return [
        pytest.param(one, other, marks=others if (row + column) % every else ())
        for (row, one), (column, other) in product(enumerate(first), enumerate(second))
    ]


def covering(*axes, long=()):
    """All cases of these axes: few, in which every two values of two axes meet, and the others marked as soak.

    Of the few, those with a value that is in `long` are marked as long.
    """
    cases = list(product(*map(list, axes)))
    pairs = {case: set(combinations(enumerate(case), 2)) for case in cases}
    missing, few = set().union(*pairs.values()), set()
    while missing:
        best = max(cases, key=lambda case: len(pairs[case] & missing))
        missing -= pairs[best]
        few.add(best)
    far = {*long}
    return [
        pytest.param(*case, marks=pytest.mark.soak if case not in few else pytest.mark.long if far & {*case} else ())
        for case in cases
    ]
