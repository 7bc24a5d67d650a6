"""How ranks of a new communicator meet, under a real mpirun."""

import re

import pytest

from tests.execute.test_mpi import run, said


@pytest.mark.long
def test_settings_that_differ_are_named_on_every_rank():
    texts = said(run(3, "unlike_settings.py", timeout_s=60))
    # A rank that another one's error reaches before it has compared says so first.
    texts = {rank: re.sub(r"stopped, since rank \d: ", "", text) for rank, text in texts.items()}
    assert texts == {
        rank: f"rank {rank}: settings differ: TOPOCOMM_CHECK (ranks 0, 2: first; rank 1: always); "
        "set them alike on all ranks"
        for rank in range(3)
    }


def test_bytecode_of_other_versions_of_python_is_not_compared():
    texts = said(run(2, "unlike_python.py", timeout_s=60))
    assert texts == dict.fromkeys(range(2), "False [2.0, 2.0]")
