"""What every rank of a group is told when something goes wrong: `python errors.py CASE...`, started once per rank.

Each case has a group of its own; those in which a rank ends come last.
"""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import topocomm.torch
from topocomm import TopocommError

LIMIT = timedelta(seconds=2)


def shapes_differ(rank, group):
    dist.all_reduce(torch.ones(3 + rank % 2), group=group)


def operators_differ(rank, group):
    dist.all_reduce(torch.ones(3), dist.ReduceOp.SUM if rank else dist.ReduceOp.MAX, group=group)


def calls_differ(rank, group):
    dist.barrier(group) if rank == 2 else dist.all_reduce(torch.ones(3), group=group)


def wrong_on_one(rank, group):
    dist.all_gather([torch.ones(2)] * (2 if rank == 1 else 3), torch.ones(2), group=group)


def one_is_late(rank, group):
    dist.all_reduce(torch.ones(4), group=group)  # now the call is known: the next wait is for its data
    time.sleep(4 * (rank == 1))
    dist.all_reduce(torch.ones(4), group=group)


def one_is_late_for_a_barrier(rank, group):
    time.sleep(3 * (rank == 1))
    dist.barrier(group, timeout=timedelta(seconds=1))


def handle_is_late(rank, group):
    time.sleep(4 * (rank == 1))
    work = dist.all_reduce(torch.ones(4), group=group, async_op=True)
    try:
        work.get_future().wait()
    except TopocommError as error:
        print(f"[{rank}] handle_is_late, future: {type(error).__name__}\n", end="", flush=True)
    assert work.is_completed() and not work.is_success() and isinstance(work.exception(), TopocommError)
    work.wait()


def nobody_sends(rank, group):
    if rank == 0:
        dist.recv(torch.ones(1), 1, group=group)
    raise TopocommError("nothing")


def no_such_device(rank, group):
    dist.all_reduce(torch.ones(3, device="meta"), group=group)


def one_raises(rank, group):
    if rank == 1:
        raise SystemError("out of paper")  # not caught below
    dist.all_reduce(torch.ones(4), group=group)


def one_dies(rank, group):
    if rank == 1:
        os._exit(7)
    dist.all_reduce(torch.ones(4), group=group)


def main():
    dist.init_process_group(topocomm.torch.NAME, timeout=LIMIT)
    gloo = dist.new_group(backend="gloo")
    rank = dist.get_rank()
    for name in sys.argv[1:]:
        group = dist.new_group(timeout=LIMIT)
        dist.barrier(gloo)
        try:
            globals()[name](rank, group)
        except TopocommError as error:
            print(f"[{rank}] {name}: {type(error).__name__}: {error}\n", end="", flush=True)
        if name not in ("one_dies", "one_raises"):
            dist.barrier(gloo)
    time.sleep(1)  # who ends at once is the news that others hear first
    os._exit(0)


if __name__ == "__main__":
    main()
