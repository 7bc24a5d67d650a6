"""Errors: each is a TopocommError, and the built-in error that fits its meaning."""

import inspect
import shlex
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from packaging.requirements import Requirement

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
    with pytest.raises(ImportError, match=r"^the MPI transport needs mpi4py, .* run: pip install 'mpi4py") as caught:
        raise errors.MissingExtraError("the MPI transport", "mpi4py", "mpi")
    assert caught.value.name == "mpi4py"


@pytest.mark.parametrize("extra", ["mpi", "attention", "nccl-cu12", "nccl-cu13", "demo", "serve", "jax"])
def test_the_command_installs_what_the_extra_brings(extra):
    program, *wanted = shlex.split(errors.install_command(extra).removeprefix("pip "))
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    declared = map(Requirement, project["optional-dependencies"][extra])
    assert program == "install" and len(wanted) > 0
    assert {(made.name, made.specifier) for made in map(Requirement, wanted)} == {
        (made.name, made.specifier) for made in declared
    }


def test_a_copy_that_was_never_installed_names_its_folder(monkeypatch):
    def unknown(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.requires", unknown)
    assert errors.install_command("mpi") == "pip install '.[mpi]' in topocomm's folder"
