"""Run by test_torch_group on 3 ranks, with what goes wrong as argument; each rank prints what it was told."""

import os
import signal
import sys
import time

import numpy as np
import torch

import topocomm
from tests.machines import ways
from topocomm import SUM
from topocomm.execute.transports.transport import Message

torch.set_num_threads(1)
what, how = sys.argv[1:3]
a, b = np.zeros(4), np.zeros(5)


def fresh(how=how):
    """A communicator on which both values were reduced once."""
    comm = topocomm.Communicator.from_torch(topology=ways(3)[how])
    comm.allreduce(a, SUM)
    comm.allreduce(b, SUM)
    return comm


def told(call, *args):
    try:
        call(*args)
    except topocomm.TopocommError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


first = topocomm.init()
rank = first.rank
odd = rank == 1
if what == "disagree":
    for how in ("shared", "messages"):
        print(f"[{rank}] shape {told(fresh(how).allreduce, np.zeros(7 if odd else 6), SUM)}", flush=True)
        print(f"[{rank}] disorder {told(fresh(how).allreduce, a if odd else b, SUM)}", flush=True)
        comm = fresh(how)
        print(f"[{rank}] barrier {told(comm.barrier) if odd else told(comm.allreduce, a, SUM)}", flush=True)
    first.allreduce(a, SUM)  # other communicators are not concerned
    sys.exit(0)
if what == "late":
    buffer = np.full(2, 6 + rank, np.uint8)
    sends, receives = ((), (1, 2)) if rank == 0 else ((0,), ())
    whole = {peer: Message(peer, ((max(rank, peer) - 1, 1),)) for peer in range(3)}
    batch = first.session.transport.batch(
        buffer, [whole[peer] for peer in sends], [whole[peer] for peer in receives], 100
    )
    if rank == 1:
        time.sleep(2)
    batch.start()
    if rank == 0:
        assert not batch.wait(0.5)
        pending = [message.peer for message in batch.pending()[1]]
    assert batch.wait(20)
    if rank == 0:
        print(f"[0] pending {pending} after the first slice, then all of {buffer.tolist()}", flush=True)
    sys.exit(0)
comm = fresh()
if what == "raise":
    if odd:
        raise KeyError("planted")
    print(f"[{rank}] {told(comm.allreduce, a, SUM)}", flush=True)
    sys.exit(0)
lost, others = int(sys.argv[3]), (comm, fresh(), fresh())
pids = [int(pid.view(np.int64)[0]) for pid in first.allgather_bytes(np.array([os.getpid()]).view(np.uint8))]
if rank == lost:
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL if what == "kill" else signal.SIGSTOP)
for each in others:
    each.session.waiting.timeout_s = 20.0 if what == "kill" else 1.0
began_s = time.monotonic()
print(f"[{rank}] call {told(comm.allreduce, a, SUM)}", flush=True)
print(f"[{rank}] notes {told(others[1].barrier)}", flush=True)
print(f"[{rank}] idle {told(others[2].allreduce, a, SUM)}", flush=True)
print(f"[{rank}] seconds {time.monotonic() - began_s:.1f}", flush=True)
if what == "stop" and rank == (lost + 1) % first.size:
    os.kill(pids[lost], signal.SIGKILL)
