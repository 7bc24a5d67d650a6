"""Run by test_library_sums, by mpirun or torchrun: reductions as one SUM of the library's, faults among them."""

import sys
import time

import numpy as np

import topocomm
from tests.execute.sum_cases import check_all
from topocomm import LOGADDEXP
from topocomm.execute.transports.library_sums import library_sum


class BeforeMpi4:
    """A communicator without persistent collectives."""

    Allreduce_init = Reduce_scatter_init = property()

    def __init__(self, comm):
        self.Iallreduce, self.Ireduce_scatter = comm.Iallreduce, comm.Ireduce_scatter
        self.Recv_init, self.Send_init = comm.Recv_init, comm.Send_init


def check_before_mpi_4(transport):
    array, own, size = np.ones(5, np.float32), transport.comm, transport.size
    counts = [2 + (peer == 1) for peer in range(size)]
    sent, received = np.ones(sum(counts)), np.zeros(counts[transport.rank])
    transport.comm = BeforeMpi4(own)
    batches = library_sum(transport, array, array, None), library_sum(transport, sent, received, counts)
    transport.comm = own
    for batch in batches:
        for _ in range(3):
            batch.start()
            while not batch.wait(0.01):
                pass
            assert batch.pending() == ([], [])
        batch.free()
    assert (array == size**3).all() and (received == size).all()


comm = topocomm.init()
moved_by, taken = check_all(comm)
x = np.zeros(3)
if sys.argv[1:] == ["late"]:
    call = comm.prepare_sum(like=x, operator=LOGADDEXP)
    comm.barrier()
    try:
        if comm.rank == comm.size - 1:
            time.sleep(4)
        call(x, reference=0.0)
    except topocomm.TopocommError as error:
        print(f"rank {comm.rank}: {type(error).__name__}: {error}\n", end="", flush=True)
else:
    other = [c for c in (comm.split(0), comm.split(comm.rank % 2)) if c is not None]
    for group in other:
        check_all(group)
        group.close()
    if moved_by == "mpi":
        check_before_mpi_4(comm.session.transport)
    half = comm.prepare_sum(like=x, operator=LOGADDEXP)
    half.free()
    print(f"rank {comm.rank}: {moved_by} {sum(taken.values())}\n", end="", flush=True)
    comm.close()
