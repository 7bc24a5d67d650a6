"""Files about labs: whose they are, and what is cleaned."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tools.netlab import records
from tools.netlab.namespaces import LabError
from tools.netlab.records import Record, clean, find, identity, is_running


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def dead_process():
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        return identity(process.pid)


def record(owner, holders=()):
    directory = records.new_directory()
    made = Record(str(directory), owner, dict(holders), str(directory / "topology.json"))
    made.save()
    return made


def test_a_record_comes_back_whole():
    made = record(identity(os.getpid()), {"host0": (7, 8)})
    assert list(records.records()) == [made]
    assert made.owner_is_alive
    assert Path(made.directory).name.startswith(f"topocomm-netlab-{os.getpid()}-")


def test_a_process_is_known_by_its_start():
    process, started = identity(os.getpid())
    assert is_running(process, started)
    assert not is_running(process, started + 1)  # a later process of the same number
    assert not is_running(*dead_process())
    assert identity(2**22 + 1) == (2**22 + 1, 0)


def test_clean_ends_what_dead_owners_left_and_nothing_else():
    with subprocess.Popen(["sleep", "60"]) as left, subprocess.Popen(["sleep", "60"]) as other:
        mine = record(identity(os.getpid()), {"host0": identity(other.pid)})
        record(dead_process(), {"host0": identity(left.pid), "host1": (other.pid, 1)})
        (name,) = clean()
        assert left.wait(10) == -9
        assert other.poll() is None
        assert not Path(tempfile.gettempdir(), name).exists()
        assert Path(mine.directory).exists()
        assert clean() == []
        other.kill()


def test_a_folder_that_its_owner_could_not_fill_goes_too():
    made = Path(tempfile.gettempdir(), f"{records.PREFIX}{dead_process()[0]}-x")
    made.mkdir()
    assert clean() == [made.name]


def test_a_damaged_file_is_passed_over():
    made = record(identity(os.getpid()))
    Path(made.directory, records.FILE).write_text('{"owner": [1')
    assert list(records.records()) == []


def test_the_lab_that_is_meant():
    with pytest.raises(LabError, match=r"no lab runs; `python -m tools.netlab up TOPOLOGY` makes one"):
        find()
    first = record(identity(os.getpid()))
    assert find() == find(os.getpid()) == first
    record(identity(os.getppid()))
    with pytest.raises(LabError, match=r"2 labs run, of processes .*: say which by --lab PID"):
        find()
    with pytest.raises(LabError, match="no lab of process 1 runs"):
        find(1)
