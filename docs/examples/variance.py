"""Mean and deviation of values that lie on several ranks, in one reduction with an operator of our own."""

import numpy as np
from mpi4py import MPI

import topocomm
from topocomm import Field, Operator


def combine(a, b):
    n, delta = a["n"] + b["n"], b["mean"] - a["mean"]
    share = b["n"] / np.maximum(n, 1)
    return {"n": n, "mean": a["mean"] + delta * share, "m2": a["m2"] + b["m2"] + delta**2 * a["n"] * share}


moments = Operator("moments", (Field("n"), Field("mean"), Field("m2")), combine, {"n": 0, "mean": 0, "m2": 0})

with topocomm.Communicator.from_mpi(MPI.COMM_WORLD) as comm:
    mine = np.random.default_rng(comm.rank).normal(5.0, 2.0, size=1000)
    value = {"n": np.float64(mine.size), "mean": mine.mean(), "m2": mine.var() * mine.size}
    total = comm.allreduce(value, moments)
    if comm.rank == 0:
        print(f"{total['n']:.0f} values, mean {total['mean']:.3f}, deviation {np.sqrt(total['m2'] / total['n']):.3f}")
