"""Who started a process, by its environment."""

import pytest

from topocomm.execute.setup.launchers import LAUNCHERS, launched

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "7",
    "RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29400",
}
BY_HAND = {name: value for name, value in TORCHRUN.items() if name != "TORCHELASTIC_RUN_ID"}
SRUN = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "8"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "5"}
HYDRA = {"PMI_RANK": "0", "PMI_SIZE": "6"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        (TORCHRUN, ("torchrun", 1, 4)),
        (OPEN_MPI, ("Open MPI's mpirun", 3, 5)),
        (HYDRA, ("mpiexec", 0, 6)),
        (BY_HAND, ("RANK and MASTER_ADDR", 1, 4)),
        (SRUN, ("srun", 2, 8)),
        (SRUN | TORCHRUN, ("torchrun", 1, 4)),  # torchrun once per node
        (OPEN_MPI | TORCHRUN, ("torchrun", 1, 4)),
        (SRUN | OPEN_MPI, ("Open MPI's mpirun", 3, 5)),  # mpirun in an allocation
        (SRUN | BY_HAND, ("RANK and MASTER_ADDR", 1, 4)),  # a script that sets them from srun's
        (OPEN_MPI | BY_HAND, ("Open MPI's mpirun", 3, 5)),
        (SRUN | {"SLURM_STEP_NUM_TASKS": "1"}, None),  # a batch script
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),  # the same, without a step
        ({"RANK": "1", "WORLD_SIZE": "4"}, None),
        (OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "many"}, None),
    ],
)
def test_launchers_are_told_by_their_variables_in_order(variables, expected):
    found = launched(variables)
    assert (None if found is None else (found.by.name, found.rank, found.size)) == expected


def test_every_launcher_is_tested():
    assert len(LAUNCHERS) == len([TORCHRUN, OPEN_MPI, HYDRA, BY_HAND, SRUN])
