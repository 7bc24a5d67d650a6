"""A linear recurrence h_t = a_t h_(t-1) + b_t over time steps that lie on several ranks: one exclusive scan.

python docs/examples/recurrence.py runs three ranks on threads; under mpirun, srun or torchrun the ranks are the job's.
"""

import numpy as np

import topocomm
from topocomm import AFFINE

STEPS, CHANNELS = 1000, 4
rng = np.random.default_rng(0)  # the same data everywhere, of which each rank keeps its part
decay, drive = rng.uniform(0.9, 1, (STEPS, CHANNELS)), rng.standard_normal((STEPS, CHANNELS))
h_0 = np.ones(CHANNELS)


def states(a, b, h):
    """The loop: h before the first step and after every step."""
    found = [h]
    for a_t, b_t in zip(a, b, strict=True):
        found.append(a_t * found[-1] + b_t)
    return np.array(found)


def recurrence(comm):
    """The states after this rank's steps; a rank may have none."""
    mine = np.array_split(np.arange(STEPS), comm.size)[comm.rank]
    a, b = decay[mine], drive[mine]
    # All steps of this rank together are one map h -> a h + b. The scan composes the maps of the ranks before it.
    together = {"a": np.prod(a, axis=0), "b": states(a, b, np.zeros(CHANNELS))[-1]}
    before = comm.exscan(together, AFFINE)  # on rank 0 the identity, h -> 1 h + 0
    return states(a, b, before["a"] * h_0 + before["b"])[1:]


def main():
    with topocomm.init() as job:
        parts = topocomm.run_local(recurrence, ranks=3) if job.size == 1 else [job.allgather(recurrence(job))]
        found, exact = np.concatenate(parts), states(decay, drive, h_0)[1:]
        np.testing.assert_allclose(found, exact, rtol=1e-12)
        if job.rank == 0:
            print(f"{STEPS} steps; the last state is {np.round(found[-1], 3).tolist()}")
            print(f"largest difference from the loop: {np.abs(found - exact).max():.0e}")


if __name__ == "__main__":
    main()
