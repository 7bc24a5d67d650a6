"""How ranks were started: launcher, world, cores and binding, fault tolerance."""

import pytest

from tests.doctor.findings import OPEN_MPI, found
from topocomm.doctor.checks import launch_checks as launch

MPICH, INTEL = "MPICH Version: 5.0.2", "Intel(R) MPI Library 2021.16"


def test_launcher_and_world():
    found(launch.check_launcher(None, None), "info", "alone", "mpirun -n 2 topocomm doctor")
    found(launch.check_launcher(("mpirun", 0, 4), OPEN_MPI), "ok", "mpirun started 4 ranks")
    found(launch.check_launcher(("mpirun", 2, 4), "MPICH Version: 5"), "FAIL", "rank 2 of 4", "MPICH", "MPI4PY_LIBMPI=")
    found(launch.check_world(("mpiexec", 0, 4), 4), "ok", "4 of 4 ranks see each other")
    found(launch.check_world(("mpiexec", 0, 4), 1), "FAIL", "started 4 ranks, MPI sees 1", "two MPI", "MPI4PY_LIBMPI=")


def placed(*cores):
    return [launch.Placed(rank, frozenset(own)) for rank, own in enumerate(cores)]


def test_cores_and_binding():
    (one,) = launch.check_cores(placed({0, 1}, {0, 1}), OPEN_MPI, {})
    found(one, "ok", "2 ranks on 2 cores")
    (one,) = launch.check_cores(placed({0}, {0}, {1, 2}), OPEN_MPI, {})
    found(one, "warn", "ranks 0, 1 are bound to fewer cores", "--bind-to none")
    crowd = placed({0, 1}, {0, 1}, {0, 1})
    one, other = launch.check_cores(crowd, OPEN_MPI, {})
    found(one, "warn", "3 ranks on 2 cores", "mpirun -n 2")
    found(other, "warn", "export OMPI_MCA_mpi_yield_when_idle=1")
    assert len(launch.check_cores(crowd, OPEN_MPI, {"OMPI_MCA_mpi_yield_when_idle": "1"})) == 1
    assert len(launch.check_cores(crowd, "MPICH Version: 5", {})) == 1


def test_faults():
    found(launch.check_faults(OPEN_MPI, True), "ok", "shrink")
    found(launch.check_faults(OPEN_MPI, False), "info", "--with-ft ulfm", "--mca btl tcp,self")
    found(launch.check_faults("MPICH Version: 5", False), "info", "MPICH", "ends the job")


@pytest.mark.parametrize(
    ("launched", "library", "environment", "level", "parts"),
    [
        (("mpirun", 1, 4), MPICH, {}, "FAIL", ("Open MPI's mpirun", "rank 1 of 4", "MPICH", "MPI4PY_LIBMPI=")),
        (("mpirun", 1, 4), INTEL, {}, "FAIL", ("Intel",)),
        (("mpirun", 1, 4), OPEN_MPI, {}, "ok", ()),
        (("mpirun", 1, 4), None, {}, "ok", ()),
        (("mpiexec", 1, 4), OPEN_MPI, {"PMI_RANK": "1"}, "FAIL", ("mpiexec of MPICH or Intel MPI", "which -a mpirun")),
        (("mpiexec", 1, 4), OPEN_MPI, {"PMI_RANK": "1", "PMIX_RANK": "1"}, "ok", ()),
        (("mpiexec", 1, 4), OPEN_MPI, {"PMI_RANK": "1", "SLURM_PROCID": "1"}, "ok", ()),
        (("mpiexec", 1, 4), MPICH, {"PMI_RANK": "1"}, "ok", ()),
        (("srun", 1, 4), OPEN_MPI, {"SLURM_PROCID": "1"}, "FAIL", ("without PMI or PMIx", "srun --mpi=pmix")),
        (("srun", 1, 4), MPICH, {"SLURM_PROCID": "1"}, "warn", ("without PMI or PMIx", "srun --mpi=list")),
        (("srun", 1, 4), OPEN_MPI, {"PMI_FD": "3"}, "warn", ("without PMIx",)),
        (("srun", 1, 4), OPEN_MPI, {"PMIX_RANK": "1"}, "ok", ()),
        (("srun", 0, 1), OPEN_MPI, {}, "ok", ("started 1 rank",)),
        (("torchrun", 0, 4), MPICH, {}, "ok", ("torchrun started 4 ranks",)),
    ],
)
def test_launchers_and_libraries(launched, library, environment, level, parts):
    finding = launch.check_launcher(launched, library, environment)
    assert finding.check == "launcher"
    found(finding, level, *parts)
