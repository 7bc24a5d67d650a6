"""Which path the values of ranks on devices take."""

import pytest
import torch

from tests.execute.device_jobs import X, run_on_devices
from topocomm import (
    SUM,
)
from topocomm.execute.device.device_staging import StagedCall


@pytest.mark.parametrize(("version", "asked", "allowed"), [(22907, "1", False), (23007, "1", True), (23007, "", False)])
def test_several_ranks_on_a_gpu(version, asked, allowed, monkeypatch):
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", asked)

    def body(comm):
        call = comm.prepare("allreduce", like=X, operator=SUM)
        return call(X), isinstance(call, StagedCall), comm.session.device_path.reason

    for result, staged, why in run_on_devices(body, 3, gpus=[0, 1, 0], version=version):
        assert torch.equal(result, X * 3)
        assert staged is not allowed
        if not allowed:
            assert "ranks 0, 2 give tensors on one GPU (0000:01:00.0), and NCCL takes one rank a GPU" in why
