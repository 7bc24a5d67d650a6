"""A torch process group's end: its NCCL waits for graphs too. What it moves is tried by `test_device_jobs`."""

import threading
import types

import pytest

from tests.execute.fake_device import FakeDevice, wait_until
from tests.execute.transports.recording_nccl import World
from topocomm.execute.transports import nccl, torch_wire


@pytest.mark.parametrize("end", ["abort", "close"])
def test_a_group_that_does_not_end_is_left_to_a_thread(monkeypatch, capfd, end):
    over, ended = threading.Event(), []

    class Group:
        def rank(self):
            return 1

        def abort(self):
            ended.append(over.wait(20))

    distributed = types.SimpleNamespace(
        get_process_group_ranks=lambda group: [0, 1],
        get_backend_config=lambda group: "cuda:nccl",
        new_group=lambda *told, **options: Group(),
        all_reduce=lambda tensor, group: None,
        destroy_process_group=Group.abort,
    )
    monkeypatch.setattr(torch_wire, "load_torch", lambda: types.SimpleNamespace(distributed=distributed))
    monkeypatch.setattr(nccl, "END_S", 0.1)
    wire = torch_wire.TorchWire(Group(), FakeDevice(World(2), 1), 60.0)
    getattr(wire, end)()
    assert "topocomm: rank 1: NCCL does not end after 0.1 s" in capfd.readouterr().err
    assert not ended
    over.set()
    wait_until(lambda: ended == [True])
    wire.close()  # again: nothing
