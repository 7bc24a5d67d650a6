"""Backends for tensors on devices, beside ours for host memory."""

from datetime import timedelta

import pytest

from topocomm import TopocommError

dist = pytest.importorskip("torch.distributed")

import torch  # noqa: E402 - where there is torch

from topocomm.torch.other_devices import OtherDevices  # noqa: E402


@pytest.fixture
def others():
    return OtherDevices(dist.HashStore(), 0, 1, timedelta(seconds=5))


def test_the_backend_that_the_program_names_is_made_once(others):
    group = others.group(torch.device("cuda:1"), "cuda:gloo,cpu:topocomm")
    assert isinstance(group._get_backend(torch.device("cuda")), dist.ProcessGroupGloo)
    assert others.group(torch.device("cuda:0"), "cuda:gloo,cpu:topocomm") is group
    others.close()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("cpu:topocomm", r"a tensor is on cuda:0, and this group serves cpu:topocomm; name a backend"),
        ("cuda:mpi,cpu:topocomm", r"cuda:mpi beside cpu:topocomm: expected nccl, of a torch built with it, or gloo"),
    ],
)
def test_devices_without_a_backend(others, config, words):
    with pytest.raises(TopocommError, match=words):
        others.group(torch.device("cuda:0"), config)
