"""Errors: each is a TopocommError, and the built-in error that fits its meaning."""

import inspect

import pytest

import topocomm
from topocomm import errors

KINDS = {
    "TopocommError": Exception,
    "TopologyError": ValueError,
    "PlanError": ValueError,
    "OperatorError": ValueError,
    "MismatchError": ValueError,
    "DeadlineError": TimeoutError,
    "RankFailedError": RuntimeError,
    "MissingExtraError": ImportError,
}


def test_all_errors_are_caught_as_what_they_mean():
    classes = dict(inspect.getmembers(errors, inspect.isclass))
    assert sorted(classes) == sorted(KINDS)
    for name, kind in KINDS.items():
        assert issubclass(classes[name], (errors.TopocommError,)) and issubclass(classes[name], kind)
        assert getattr(topocomm, name) is classes[name]


def test_a_missing_extra_says_what_to_install():
    with pytest.raises(ImportError, match=r"^the MPI transport needs mpi4py, .* run: pip install 'topocomm\[mpi\]'$"):
        raise errors.MissingExtraError("the MPI transport", "mpi4py", "mpi")
