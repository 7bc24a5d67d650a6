"""Mean and deviation of every column of a table whose rows lie on several ranks, in one reduction: an MPI job.

mpirun -n 4 python docs/examples/welford.py, or without mpirun for one rank.
"""

import numpy as np
from mpi4py import MPI

import topocomm


def rows_of(rank):
    """The rows that a rank holds: any number; rank 1 holds none."""
    return np.random.default_rng(rank).normal([0, 5, 1e4], [1, 2, 3], size=(0 if rank == 1 else 1000 + rank, 3))


def main():
    with topocomm.Communicator.from_mpi(MPI.COMM_WORLD) as comm:
        mine = rows_of(comm.rank)
        mean = mine.sum(axis=0) / max(len(mine), 1)
        value = {"count": np.full(3, len(mine)), "mean": mean, "m2": ((mine - mean) ** 2).sum(axis=0)}
        total = comm.allreduce(value, topocomm.WELFORD)

        table = np.concatenate([rows_of(rank) for rank in range(comm.size)])  # everything at once, for comparison
        deviation = np.sqrt(total["m2"] / total["count"])
        assert (total["count"] == len(table)).all()
        np.testing.assert_allclose(total["mean"], table.mean(axis=0), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(deviation, table.std(axis=0), rtol=1e-9)
        if comm.rank == 0:
            for column in range(3):
                mean, spread = total["mean"][column], deviation[column]
                print(f"column {column}: {total['count'][column]} values, mean {mean:.3f}, deviation {spread:.3f}")


if __name__ == "__main__":
    main()
