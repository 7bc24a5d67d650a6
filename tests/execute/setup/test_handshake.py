"""How ranks of a new communicator meet, under a real mpirun."""

import pytest

from tests.execute.test_mpi import run, said

pytestmark = pytest.mark.alone


def test_settings_that_differ_are_named_on_every_rank():
    texts = said(run(3, "unlike_settings.py", timeout_s=60))
    assert texts == {
        rank: f"rank {rank}: TOPOCOMM_CHECK is ['first', 'always', 'first'] by rank; set it alike on all ranks"
        for rank in range(3)
    }
