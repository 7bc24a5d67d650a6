"""Libraries by the words of benchmarks."""

import pytest

import topocomm
from topocomm.planning.libraries.job_shape import job_shape
from topocomm.planning.libraries.library_figures import DEFAULTS
from topocomm.planning.libraries.nccl_choice import NEWEST
from topocomm.simulation.libraries.library_times import Library, library_named, library_us, with_settings


@pytest.mark.parametrize(
    ("words", "kind", "version"),
    [
        ("NCCL 2.8.4-1, nccl-tests 0b30de5", "nccl", (2, 8)),
        ("NCCL 2.16.5+cuda11.8", "nccl", (2, 16)),
        ("NCCL (dgxc recipe)", "nccl", NEWEST),
        ("RCCL (MSCCL kernels from 1 KiB), rccl-tests", "rccl", NEWEST),
        ("Open MPI 4.0.5 + UCX, OSU 5.7", "openmpi", (4, 0)),
        ("Intel MPI 2021.9", "mpich", (5, 0)),
        ("MPI, OSU 7.4", "openmpi", (5, 0)),
    ],
)
def test_names(words, kind, version):
    assert library_named(words, on_device=False)[:3] == (kind, version, False)


def test_without_a_name():
    assert library_named("all_reduce_bench.py, bf16", on_device=True).kind == "nccl"
    assert library_named("MVAPICH2-GDR 2.3.7", on_device=True).kind == "mpich"
    assert library_named("a benchmark", on_device=False).kind == "openmpi"


def test_each_kind_has_times():
    shape = job_shape(topocomm.catalog("mi300x-8"))
    times = {
        kind: library_us(Library(kind, NEWEST, kind != "mpich"), shape, DEFAULTS, "allreduce", 1 << 20)
        for kind in ("nccl", "rccl", "openmpi", "mpich")
    }
    assert min(times.values()) > 0
    assert times["rccl"] < times["openmpi"]


def test_settings_restrict_what_nccl_takes():
    plain = library_named("NCCL 2.27.3", on_device=True)
    shape = job_shape(topocomm.catalog("dgx-h100"))

    def time_us(env):
        return library_us(with_settings(plain, env), shape, DEFAULTS, "allreduce", 1 << 28)

    assert time_us({}) < time_us({"NCCL_ALGO": "Ring"}) < time_us({"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"})
    assert time_us({"NCCL_ALGO": "^Ring"}) == time_us({})
    assert with_settings(plain, {"NCCL_ALGO": "NVLSTree,Ring"}).algorithms == ("nvls-tree", "ring")
