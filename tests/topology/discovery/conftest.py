"""A machine of its own for the tests of discovery."""

import os
import sys

import pytest

from tests.topology.discovery.test_sysfs import two_sockets


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A machine of its own: empty PATH folder, sysfs with two sockets, empty procfs."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "proc").mkdir()
    (tmp_path / "dev").mkdir()
    two_sockets(tmp_path / "sys")
    for module in ("pynvml", "amdsmi"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    return tmp_path
