"""Registration of the backend, and what torch calls to make a group of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from topocomm.errors import TopocommError
from topocomm.execute.communicator import Communicator
from topocomm.execute.setup.bootstrap import from_store
from topocomm.execute.setup.settings import Settings
from topocomm.topology.model import Topology
from topocomm.torch.process_group import TopocommProcessGroup

NAME = "topocomm"
"""Name of the backend in torch.distributed."""
LIMIT = "the group's timeout"
REMEDY = (
    "destroy_process_group(), then init_process_group() with those left; torchrun --max-restarts=N starts all again"
)


def register() -> None:
    """Make the backend known to torch.distributed, once."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])


def create(options: Any, more: Any = None) -> TopocommProcessGroup:
    """Return the group that `options`, torch's `_DistributedBackendOptions`, describes; collective over its ranks.

    Raises:
        TopocommError: `more`, the `pg_options` of the program, is given: this backend has none.
        DeadlineError: Not all ranks come within the timeout.
    """
    if more is not None:
        raise TopocommError(f"pg_options: the backend {NAME!r} takes none, got {type(more).__name__}")
    timeout = options.timeout if isinstance(options.timeout, timedelta) else timedelta(seconds=options.timeout)
    settings = replace(Settings.from_environment().with_timeout(timeout.total_seconds(), LIMIT), remedy=REMEDY)
    rank, size = options.group_rank, options.group_size
    machine = _known_machine(list(options.global_ranks_in_group), size)
    store = PrefixStore("topocomm/calls", options.store)
    session = from_store(store, rank, size, settings, machine)
    return TopocommProcessGroup(options.store, Communicator(session), timeout)


def _known_machine(ranks: list[int], size: int) -> tuple[Topology, tuple[str, ...]] | None:
    """The machine and the places of some ranks of the default group; None where they are not known to all of them."""
    world = dist.group.WORLD
    if not isinstance(world, TopocommProcessGroup) or len(ranks) != size:
        return None
    comm = world.communicator
    return comm.topology, tuple(comm.places[rank] for rank in ranks)
