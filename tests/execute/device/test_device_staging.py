"""Values on devices that travel through host memory."""

import numpy as np
import pytest
import torch

from tests.execute.device_jobs import X, fake_nccl, run_in
from topocomm import (
    SUM,
    Field,
    Operator,
    OperatorError,
    TopocommError,
)
from topocomm.execute.device.device_staging import StagedCall


@pytest.mark.parametrize("reason", ["no NCCL", "one GPU", "operator", "versions"])
def test_values_are_staged_through_host_memory_where_nothing_else_is_possible(reason, monkeypatch):
    from topocomm.execute.transports.device import nccl_library

    options = {"gpus": [0, 1, 0]} if reason == "one GPU" else {}
    operator = NUMPY_ONLY if reason == "operator" else SUM

    def body(comm):
        x = {"value": X * comm.rank} if reason == "operator" else X * comm.rank
        call = comm.prepare("allreduce", like=x, operator=operator)
        assert isinstance(call, StagedCall)
        assert call.input is None
        for turn in range(3):
            found = call(x)
            assert call._value_copied.asked == turn + 1, "the value had not come to host memory"
            assert call._result_copied.asked == turn + 1, "the result of the call before had not left it"
        handle = call.start(x)
        out = torch.empty(8)
        again = handle.wait()
        given = call(x, out={"value": out} if reason == "operator" else out)
        del given
        root = comm.reduce(x, operator, root=1)
        assert (root is None) == (comm.rank != 1)
        shared = comm.broadcast(X.to(torch.bfloat16) * (comm.rank + 1), root=2)
        assert torch.equal(shared, (X * 3).to(torch.bfloat16))
        with pytest.raises(OperatorError, match="x is missing"):
            call(None)
        values = [r["value"] if isinstance(r, dict) else r for r in (found, again)]
        return [*values, out]

    with fake_nccl(3, **options) as world:
        if reason == "no NCCL":

            def missing():
                raise TopocommError("cupy is not installed")

            monkeypatch.setattr(nccl_library, "load_nccl", missing)
        if reason == "versions":
            world.get_version = lambda: 22703 + world.rank_here()
        for results in run_in(world, body):
            assert all(torch.equal(result, X * 3) for result in results)


NUMPY_ONLY = Operator(
    "sum by NumPy",
    (Field("value"),),
    lambda a, b: {"value": np.add(np.asarray(a["value"]), np.asarray(b["value"]))},
    {"value": 0},
    True,
)
