"""A process is killed under mpirun while a model generates: the example of the guide, at random ranks and steps."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mpi import environment

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "lost_rank.py"
LIMIT_S = 120


def run(ranks, *arguments):
    """The output of the example under an mpirun that survives the loss of processes."""
    path = os.pathsep.join([str(EXAMPLE.parents[2]), os.environ.get("PYTHONPATH", "")])
    command = ["mpirun", "--with-ft", "ulfm", "-n", str(ranks), sys.executable, str(EXAMPLE), *map(str, arguments)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(PYTHONPATH=path),
        start_new_session=True,
    ) as process:
        try:
            return process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise


@pytest.mark.parametrize(
    ("ranks", "replicas", "seed"),
    [
        pytest.param(3, 1, 1, marks=pytest.mark.long),
        *(pytest.param(*case, marks=pytest.mark.soak) for case in ((3, 2, 2), (4, 1, 3))),
    ],
)
def test_the_others_bring_the_tokens_of_an_undisturbed_run(ranks, replicas, seed):
    chance = random.Random(seed)
    victim, last_pass = chance.randrange(ranks), chance.randint(2, 40)
    stdout, stderr = run(ranks, victim, last_pass, replicas)
    lines = stdout.splitlines()
    told = [line for line in lines if f"rank {victim} held positions" in line]
    assert len(told) == ranks - 1, (victim, last_pass, stdout, stderr)
    what = "no copy is left of positions" if replicas == 1 else "copies of all are left"
    assert all(what in line for line in told)
    same = {line for line in lines if "the same tokens as an undisturbed run" in line}
    assert same == {f"rank {rank}: the same tokens as an undisturbed run" for rank in range(ranks - 1)}, stderr
