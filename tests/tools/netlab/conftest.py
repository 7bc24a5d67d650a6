"""Labs for tests: skipped with the reason where this machine makes none; of long tests only `make netlab` makes any."""

import os
from pathlib import Path

import pytest

from tests.mpi import ENVIRONMENT
from tools.netlab.lab import Lab
from tools.netlab.namespaces import why_not
from tools.netlab.network import racks

ROOT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parent / "programs"


def pytest_collection_modifyitems(config, items):
    """Leave tests marked `netlab` to sessions that ask for them: `pytest -m netlab`."""
    if "netlab" in config.option.markexpr:
        return
    left = [item for item in items if item.get_closest_marker("netlab")]
    if left:
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=left)


@pytest.fixture
def allowed():
    """Skip where no lab can be made."""
    if (reason := why_not()) is not None:
        pytest.skip(f"no lab: this machine {reason}")


@pytest.fixture
def make_lab(allowed, tmp_path):
    """Return a function that makes a lab which lasts as long as the test: hosts, ranks of each, Mbit/s, racks."""
    labs = []

    def make(hosts=2, ranks=2, mbit=100.0, n_racks=1):
        lab = Lab(racks(hosts, ranks, mbit, n_racks))
        labs.append(lab.__enter__())
        return lab

    yield make
    for lab in labs:
        lab.close()


@pytest.fixture
def environment(tmp_path):
    """Variables of the lab's jobs: the repository on the path, records of failures with the test's files."""
    return {**ENVIRONMENT, "PYTHONPATH": str(ROOT), "TOPOCOMM_RECORD_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}


def lines_by_rank(text):
    """Return what each rank printed, of lines `[RANK] TEXT`."""
    found = {}
    for line in text.splitlines():
        rank, closed, rest = line.removeprefix("[").partition("] ")
        if closed and rank.isdecimal():
            found.setdefault(int(rank), []).append(rest)
    return found


def processes_named(word):
    """Return the processes of this machine whose environment has a word: those of a lab have its folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                if word.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
