"""Attention under a real mpirun: every method, way, algorithm and gradient, on the ranks of one job after the other."""

from functools import cache
from pathlib import Path

import pytest

from tests.mpi import mpirun

PROGRAMS = Path(__file__).parent / "mpi_programs"


@cache
def digest_alone():
    """What one rank prints: the bits of canonical order."""
    job = mpirun(1, ["-m", "mpi4py", PROGRAMS / "tree_ways.py"])
    assert job.returncode == 0, job.stderr
    return job.stdout.strip()


@pytest.mark.parametrize("ranks", [2, *(pytest.param(ranks, marks=pytest.mark.long) for ranks in (1, 3, 4, 8))])
def test_every_program(ranks):
    job = mpirun(ranks, ["-m", "mpi4py", PROGRAMS / "every.py"], timeout_s=280.0)
    assert job.returncode == 0, job.stdout + job.stderr[-3000:]
    assert len(digest_alone()) == 64
    assert job.stdout.splitlines() == [
        f"every_algorithm: {ranks} ranks: all merges exact, bits equal",
        f"ring_prefill: {ranks} ranks: results and gradients exact, the same bits again",
        "sharded: worst error below 1e-5: True",
        f"tree_ways: {digest_alone()}",
    ]
