"""What each rank's `backward` raises where something goes wrong: `python gradient_errors.py CASE`, once per rank."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from topocomm import Communicator, TopocommError
from topocomm.torch import HookState, ddp_hook


def one_dies(rank, model):
    if rank == 1:
        os._exit(7)


def one_raises(rank, model):
    if rank == 1:
        raise SystemError("out of paper")


def one_is_late(rank, model):
    time.sleep(5 * (rank == 1))


def dtypes_differ(rank, state):
    state.wire_dtype = torch.bfloat16 if rank == 1 else torch.float16


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, case = dist.get_rank(), sys.argv[1]
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    state = HookState(Communicator.from_torch())
    model.register_comm_hook(state, ddp_hook)
    if case != "dtypes_differ":
        model(torch.ones(2, 8)).sum().backward()
    loss = model(torch.ones(2, 8)).sum()
    globals()[case](rank, state)
    try:
        loss.backward()
    except TopocommError as error:
        print(f"[{rank}] {type(error).__name__}: {error}\n", end="", flush=True)
    time.sleep(1)  # who ends at once is the news that others hear first
    os._exit(0)


if __name__ == "__main__":
    main()
