"""Calls that go by a library's own collective: a machine and plans where that is chosen, over the recording NCCL."""

from dataclasses import replace

import torch

from tests.execute.device_jobs import fake_nccl, run_in
from tests.machines import switch

DEAR_US = 500.0
"""A launch: schedules of two rounds cost two, the library's collective one."""


def machine(ranks):
    """GPUs on one switch, where long values go by the library."""
    return replace(switch(ranks), launch_us=DEAR_US)


def always_chosen(patch):
    """Have the library's collective chosen wherever it is in question."""
    from topocomm.planning import native

    model = native.call_of

    def soon(*told):
        choice, call_us = model(*told)
        return choice, call_us / 1e9

    patch.setattr(native, "call_of", soon)
    patch.setattr(native, "GROUP_LAUNCH_US", DEAR_US)


def run_natively(body, ranks, patch, **options):
    """What `body(comm)` returns on each rank, and what was asked of NCCL: (function, rank, count)."""
    always_chosen(patch)
    with fake_nccl(ranks, **options) as world:
        results = run_in(world, body, topology=machine(ranks))
    return results, [entry for entry in world.log if entry[0] in ("allReduce", "reduceScatter", "allGather")]


def value(rank, dtype, shape=(24, 3)):
    """Small whole numbers: every fold is exact, in any order."""
    draw = torch.Generator().manual_seed(rank)
    return torch.randint(1, 3, shape, generator=draw).to(getattr(torch, dtype))
