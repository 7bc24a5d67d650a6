"""Attention under a real mpirun: every method, way, algorithm and gradient, on the ranks of one job after the other."""

from pathlib import Path

import pytest

from tests.mpi import mpirun

PROGRAMS = Path(__file__).parent / "mpi_programs"
LONG = [pytest.param(ranks, marks=pytest.mark.long) for ranks in (1, 3, 4, 8)]


@pytest.mark.parametrize("ranks", [2, *LONG])
def test_every_program(ranks):
    job = mpirun(ranks, ["-m", "mpi4py", PROGRAMS / "every.py"], timeout_s=280.0)
    assert job.returncode == 0, job.stdout + job.stderr[-3000:]
    assert job.stdout.splitlines() == [
        f"every_algorithm: {ranks} ranks: all merges exact, bits equal",
        f"ring_prefill: {ranks} ranks: results and gradients exact, the same bits again",
        "sharded: worst error below 1e-5: True",
        "tree_ways: in canonical order the bits of one rank",
        f"ulysses: {ranks} ranks: results and gradients of all rings exact, the same bits again",
    ]
