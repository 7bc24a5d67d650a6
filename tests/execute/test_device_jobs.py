"""Values on devices in real processes, whose host memory counts as device memory: staged, and by torch's groups."""

from pathlib import Path

import pytest

from tests.mpi import mpirun
from tests.torch_jobs import said, torchrun

HERE = Path(__file__).parent


@pytest.mark.long
def test_staged_values_over_mpi_and_shared_memory():
    pytest.importorskip("mpi4py")
    job = mpirun(3, [HERE / "mpi_programs" / "staged.py"], env={"PYTHONPATH": str(HERE.parents[1])})
    assert job.returncode == 0, job.stderr[-3000:]
    assert sorted(job.stdout.split("\n")[:3]) == [f"[{rank}] ok" for rank in range(3)]


@pytest.mark.long
def test_values_over_a_process_group_of_torch():
    pytest.importorskip("torch.distributed")
    job = torchrun(3, [HERE / "torch_programs" / "device_wire.py"], timeout_s=120)
    assert job.returncode == 0, job.stderr[-3000:]
    assert said(job.stdout) == dict.fromkeys(range(3), "ok")
