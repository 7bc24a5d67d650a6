"""Shifts that do not fit are refused before anything moves."""

import numpy as np
import pytest
import torch

from tests.execute.device_jobs import run_on_devices
from topocomm import (
    SUM,
    OperatorError,
    TopocommError,
    run_local,
)


def test_shift_of_another_number_of_messages_is_refused():
    def body(comm):
        shift = comm.prepare_shift(2)
        one = [np.zeros(4, np.uint8)]
        with pytest.raises(TopocommError, match="2 messages each way, got 1 to send and 2 to receive"):
            shift.start(one, one * 2)
        return comm.allreduce(np.ones(1), SUM).tolist()

    assert run_local(body, ranks=2) == [[2.0]] * 2


def test_errors_name_what_is_wrong():
    def body(comm):
        shift = comm.prepare_shift(1)
        good = torch.zeros(8, dtype=torch.uint8)
        with pytest.raises(OperatorError, match=r"contiguous torch.uint8 tensors, got torch.float32 \[2\]"):
            shift.start([torch.zeros(2)], [good])
        with pytest.raises(OperatorError, match="several memories"):
            shift.start([good], [np.zeros(8, np.uint8)])
        with pytest.raises(TopocommError, match="1 messages each way, got 2"):
            shift.start([good, good], [good])
        return comm.allreduce(torch.ones(1), SUM).tolist()

    assert run_on_devices(body, 2) == [[2.0]] * 2
