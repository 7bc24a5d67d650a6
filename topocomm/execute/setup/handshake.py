"""Handshake of a new communicator's ranks: groups that share memory, and processes to watch."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from sys import version_info

from topocomm.errors import MismatchError
from topocomm.execute.calls.agreement import difference, gather_texts
from topocomm.execute.liveness.waiting import Waiting
from topocomm.execute.transports.shared_memory import kernels_available
from topocomm.execute.transports.watch import Watch, process_space


def meet(waiting: Waiting, hosts: Sequence[str], check: str) -> bool:
    """Find out which ranks share memory, and begin to watch the processes of this host; collective.

    `hosts`, `cores` and `watch` of the transport are set. `hosts` has the host of every rank by the topology: ranks
    that it puts on two hosts share no memory.

    Returns:
        Whether all ranks run one version of Python.

    Raises:
        MismatchError: The setting `check` is not the same on all ranks.
    """
    transport = waiting.transport
    if transport.in_process or transport.size == 1:
        return True
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)  # not Linux
    cores_mask = format(sum(1 << core for core in usable), "x")
    record = json.dumps([*process_space(), os.getpid(), kernels_available(), cores_mask, check, *version_info[:2]])
    records = [json.loads(text) for text in gather_texts(waiting, record.encode(), what="the set-up of ranks")]
    if unlike := difference([{"TOPOCOMM_CHECK": other[5]} for other in records]):
        raise MismatchError(f"rank {transport.rank}: settings differ: {unlike}; set them alike on all ranks")
    places = [tuple(other[:2]) for other in records]
    neighbours = [r for r, place in enumerate(places) if place == places[transport.rank] and r != transport.rank]
    transport.watch = Watch({r: records[r][2] for r in neighbours})
    keys = [(places[r], hosts[r]) if able else r for r, (_, _, _, able, *_) in enumerate(records)]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    transport.hosts = tuple(numbers[key] for key in keys)
    cores = dict.fromkeys(transport.hosts, 0)
    for host, other in zip(transport.hosts, records, strict=True):
        cores[host] |= int(other[4], 16)
    transport.cores = cores[transport.hosts[transport.rank]].bit_count()
    return len({tuple(other[6:]) for other in records}) == 1
