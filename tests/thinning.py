"""Cases that are much alike: `make test` runs a part of them, `make test-long` the others."""

import pytest


def thinned(cases, every=2):
    """Mark all but one of `every` cases, the first among them, as long; a case of several arguments is a tuple."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long if number % every else ())
        for number, case in enumerate(cases)
    ]
