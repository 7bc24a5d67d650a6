"""Handshake of a new communicator's ranks: groups that share memory, and processes to watch."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from topocomm.errors import MismatchError
from topocomm.execute.calls.agreement import difference, gather_texts
from topocomm.execute.liveness.waiting import Waiting
from topocomm.execute.transports.shared_memory import kernels_available
from topocomm.execute.transports.watch import Watch, process_space


def meet(waiting: Waiting, hosts: Sequence[str], check: str) -> None:
    """Find out which ranks share memory, and begin to watch the processes of this host; collective.

    Args:
        waiting: The communicator's way to wait; `hosts` and `watch` of its transport are set.
        hosts: The host of every rank by the topology: ranks that it puts on two hosts share no memory.
        check: When this rank proves that all make the same call: the same on all ranks.

    Raises:
        MismatchError: It is not the same on all ranks.
    """
    transport = waiting.transport
    if transport.in_process or transport.size == 1:
        return
    record = json.dumps([*process_space(), os.getpid(), kernels_available(), _cores(), check])
    met = [json.loads(text) for text in gather_texts(waiting, record.encode(), what="the set-up of ranks")]
    if unlike := difference([{"TOPOCOMM_CHECK": one[5]} for one in met]):
        raise MismatchError(f"rank {transport.rank}: settings differ: {unlike}; set them alike on all ranks")
    places = [tuple(one[:2]) for one in met]
    here = [r for r, place in enumerate(places) if place == places[transport.rank] and r != transport.rank]
    transport.watch = Watch({r: met[r][2] for r in here})
    keys = [(places[r], hosts[r]) if able else r for r, (_, _, _, able, *_) in enumerate(met)]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    transport.hosts = tuple(numbers[key] for key in keys)
    cores = dict.fromkeys(transport.hosts, 0)
    for host, one in zip(transport.hosts, met, strict=True):
        cores[host] |= int(one[4], 16)
    transport.cores = cores[transport.hosts[transport.rank]].bit_count()


def _cores() -> str:
    """Return the cores that this process may use, as a mask in hexadecimal digits."""
    if not hasattr(os, "sched_getaffinity"):  # not Linux
        return format((1 << (os.cpu_count() or 1)) - 1, "x")
    return format(sum(1 << core for core in os.sched_getaffinity(0)), "x")
