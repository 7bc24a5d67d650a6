"""The backend in torch.distributed, in a process of its own rank alone; with several ranks: test_process_group.py."""

import subprocess
import sys

import pytest

from topocomm import TopocommError

dist = pytest.importorskip("torch.distributed")

import torch  # noqa: E402 - where there is torch

import topocomm.torch  # noqa: E402
from topocomm.torch.creation import register  # noqa: E402


@pytest.fixture
def world():
    dist.init_process_group(topocomm.torch.NAME, store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_the_import_registers_the_backend_once():
    register()
    assert dist.Backend.backend_list.count("topocomm") == 1
    assert dist.Backend.backend_capability["topocomm"] == ["cpu"]
    assert dist.Backend.default_device_backend_map["cpu"] == "gloo"  # who names no backend gets what he got before


def test_a_machine_without_torch_is_told_what_to_install():
    code = "import sys; sys.modules['torch'] = None; import topocomm.torch"
    job = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "MissingExtraError: the torch transport" in job.stderr and "pip install 'torch" in job.stderr


def test_a_group_of_one_rank(world):
    assert isinstance(world, topocomm.torch.TopocommProcessGroup) and dist.get_backend() == "topocomm"
    x = torch.ones(3)
    dist.all_reduce(x, dist.ReduceOp.AVG)
    assert x.tolist() == [1, 1, 1] and world.communicator.size == 1


def test_a_part_of_the_default_group_keeps_its_places(world):
    group = dist.new_group([0])
    assert group.communicator.topology is world.communicator.topology
    assert group.communicator.places == world.communicator.places


def test_options_are_refused(world):
    with pytest.raises(TopocommError, match="pg_options: the backend 'topocomm' takes none, got dict"):
        dist.new_group([0], pg_options={"fast": True})
