"""Every collective over torch process groups: real processes, gloo."""

from pathlib import Path

import pytest

from tests.torch_jobs import said, torchrun

pytest.importorskip("torch.distributed")
PROGRAM = Path(__file__).parent / "torch_programs" / "collectives.py"


@pytest.mark.parametrize("ranks", [pytest.param(3, marks=pytest.mark.long), pytest.param(4, marks=pytest.mark.soak)])
def test_collectives_on_groups_of_up_to_all_ranks(ranks):
    job = torchrun(ranks, [PROGRAM], timeout_s=240)
    assert job.returncode == 0, job.stderr[-3000:]
    assert said(job.stdout) == dict.fromkeys(range(ranks), "ok")
