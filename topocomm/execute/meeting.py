"""How the ranks of a new communicator get to know each other: who shares memory, and whose process is whose."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from topocomm.execute.agreement import gather_notes
from topocomm.execute.transports.shared_memory import kernels_available
from topocomm.execute.transports.transport import GATHER_TAG
from topocomm.execute.transports.watch import Watch
from topocomm.execute.waiting import Waiting

RECORD_BYTES = 1024


def meet(waiting: Waiting, hosts: Sequence[str]) -> None:
    """Find out which ranks share memory, and begin to watch the processes of this host; collective.

    Args:
        waiting: The communicator's way to wait; `hosts` and `watch` of its transport are set.
        hosts: The host of every rank by the topology: ranks that it puts on two hosts share no memory.
    """
    transport = waiting.transport
    if transport.in_process or transport.size == 1:
        return
    record = json.dumps([*_kernel(), os.getpid(), kernels_available(), _cores()]).encode()
    notes = gather_notes(waiting, record[:RECORD_BYTES].ljust(RECORD_BYTES), tag=GATHER_TAG, what="the set-up of ranks")
    met = [json.loads(note) for note in notes]
    places = [tuple(one[:2]) for one in met]
    here = [r for r, place in enumerate(places) if place == places[transport.rank] and r != transport.rank]
    transport.watch = Watch({r: met[r][2] for r in here})
    keys = [(places[r], hosts[r]) if able else r for r, (_, _, _, able, _) in enumerate(met)]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    transport.hosts = tuple(numbers[key] for key in keys)
    cores = dict.fromkeys(transport.hosts, 0)
    for host, one in zip(transport.hosts, met, strict=True):
        cores[host] |= int(one[4], 16)
    transport.cores = cores[transport.hosts[transport.rank]].bit_count()


def _cores() -> str:
    """The cores that this process may run on, as a mask in hexadecimal digits."""
    if not hasattr(os, "sched_getaffinity"):  # not Linux
        return format((1 << (os.cpu_count() or 1)) - 1, "x")
    return format(sum(1 << core for core in os.sched_getaffinity(0)), "x")


def _kernel() -> tuple[str, str]:
    """What tells machines and process namespaces apart: within one, /proc shows all processes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot, os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux: nobody shares memory with this rank
        return f"process {os.getpid()} of {os.uname().nodename}", ""
