"""Run by test_mpi under mpirun: ranks that fail together, and do not catch their errors."""

import sys
import time

import numpy as np

import topocomm
from topocomm import MAX, SUM

comm = topocomm.init("dgx-h100" if sys.argv[1] == "topology" else None)
odd = comm.rank == comm.size - 1
x = np.ones(3)
match sys.argv[1]:
    case "shape":
        comm.allreduce(np.ones(4 if odd else 3), SUM)
    case "all":
        comm.allreduce([1, 2], SUM)
    case "one wrong":
        comm.allreduce([1, 2] if odd else x, SUM)
    case "disorder":
        comm.allreduce(x, SUM)
        comm.scan(x, SUM)
        comm.scan(x, SUM) if odd else comm.allreduce(x, SUM)
    case "refused later":
        fields = (topocomm.Field("top", dtype="f8"),)
        own = topocomm.Operator("stats", fields, lambda a, b: {"top": a["top"] + b["top"]}, 0)
        comm.allreduce({"top": x}, own)
        comm.allreduce({"top": x.astype("f4") if odd else x}, own)
    case "refused":
        call = comm.prepare("allreduce", like=x, operator=MAX)
        call(np.ones(4) if odd else x)
    case "argument":
        topocomm.catalog("dgx-h10")
    case "argument inside with":
        with comm:
            comm.allreduce(x, SUM)
            topocomm.catalog("dgx-h10")
    case "caught on 0":
        try:
            comm.allreduce(np.ones(4 if odd else 3), SUM)
        except topocomm.MismatchError:
            if comm.rank:
                raise
            time.sleep(60)
    case "handled":
        try:
            raise KeyError("planted")
        except KeyError:
            comm.allreduce(np.ones(4 if odd else 3), SUM)
    case "combine":

        def combine(a, b):
            raise ValueError("planted")

        field = topocomm.Field("value")
        comm.allreduce(x, topocomm.Operator("raises", (field,), combine, 0))
    case "raise":
        if odd:
            raise ValueError("planted")
        comm.allreduce(x, SUM)
