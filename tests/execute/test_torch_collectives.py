"""Every collective over torch process groups: real processes, gloo."""

from pathlib import Path

import pytest

from tests.torch_jobs import said, torchrun

pytest.importorskip("torch.distributed")
PROGRAM = Path(__file__).parent / "torch_programs" / "collectives.py"


@pytest.mark.long
def test_collectives_on_groups_of_1_to_4_ranks():
    job = torchrun(4, [PROGRAM], timeout_s=240)
    assert job.returncode == 0, job.stderr[-3000:]
    assert said(job.stdout) == dict.fromkeys(range(4), "ok")
