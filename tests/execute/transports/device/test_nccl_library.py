"""What ranks tell each other of NCCL, and who refuses it."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from topocomm import TopocommError
from topocomm.execute.transports.device.nccl_library import (
    Facts,
    allows_several,
    group_refusal,
    id_to_bytes,
    load_nccl,
    refusal,
    version_text,
)


def fact(gpu, *, version=22703, why="", multi=False, group=False):
    return Facts(f"GPU-{gpu}", f"0000:{gpu:02x}:00.0", version, why, multi, group)


def test_versions_are_written_as_nccl_writes_them():
    assert version_text(22703) == "2.27.3"
    assert version_text(23004) == "2.30.4"
    assert version_text(2708) == "code 2708"


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ([fact(0), fact(1)], None),
        ([fact(0), fact(1, version=None, why="cupy is not installed")], "rank 1: cupy is not installed"),
        ([fact(0), fact(1, version=22809), fact(2)], "NCCL is 2.27.3 on rank 0, 2.28.9 on rank 1"),
        ([fact(3), fact(1), fact(3)], "ranks 0, 2 give tensors on one GPU (0000:03:00.0)"),
        ([fact(3, multi=True), fact(3, multi=True)], "with NCCL 2.30 or later (here: 2.27.3)"),
        ([fact(3, version=23004, multi=True), fact(3, version=23004)], "on all ranks"),
        ([fact(3, version=23004, multi=True), fact(3, version=23004, multi=True)], None),
        ([fact(3, version=23004, multi=True), fact(3, version=23004, multi=True), fact(4, version=23004)], None),
    ],
)
def test_who_refuses_nccl_is_named(facts, reason):
    found = refusal(facts)
    assert (found is None) if reason is None else reason in found


def test_process_groups_serve_where_all_ranks_have_them_and_a_gpu_each():
    assert group_refusal([fact(0, group=True), fact(1, group=True)]) is None
    assert "no process group" in group_refusal([fact(0, group=True), fact(1)])
    assert "share" in group_refusal([fact(1, group=True), fact(1, group=True)])


def test_ids_are_bytes_or_signed_numbers():
    assert id_to_bytes(bytes(range(256))) == bytes(range(256))
    assert id_to_bytes((0, 127, -128, -1)) == bytes([0, 127, 128, 255])


def test_the_environment_says_1():
    assert allows_several({"NCCL_MULTI_RANK_GPU_ENABLE": "1"})
    assert not allows_several({"NCCL_MULTI_RANK_GPU_ENABLE": "0"})
    assert not allows_several({})


def modules(nccl):
    cupy, cuda = ModuleType("cupy"), ModuleType("cupy.cuda")
    cupy.cuda = cuda
    if nccl is not None:
        cuda.nccl = nccl
    return {"cupy": cupy, "cupy.cuda": cuda}


def test_cupy_without_nccl_is_told_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(TopocommError, match=r"cupy.* is not installed; pip install"):
        load_nccl()
    for name, module in modules(SimpleNamespace(available=False)).items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(TopocommError, match="this CuPy has no NCCL"):
        load_nccl()
    for name, module in modules(None).items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(TopocommError, match="CuPy's NCCL cannot be loaded"):
        load_nccl()
    there = SimpleNamespace(available=True)
    for name, module in modules(there).items():
        monkeypatch.setitem(sys.modules, name, module)
    assert load_nccl() is there
