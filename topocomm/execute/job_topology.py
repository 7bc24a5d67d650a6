"""The topology of a whole job, found by its ranks together, over any transport."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence

from topocomm.execute.agreement import gather_notes, gather_texts
from topocomm.execute.process_space import process_space
from topocomm.execute.transports.transport import GATHER_TAG
from topocomm.execute.waiting import Waiting
from topocomm.topology.discover import discover, merge_hosts
from topocomm.topology.model import RankPlace, Topology
from topocomm.topology.readers.topology_json import from_document, to_document

WHAT = "the discovery of the job's hosts"
DIGEST_BYTES = 16


def hosts_of_ranks(waiting: Waiting) -> list[bytes]:
    """Which host each rank is on: a digest per rank, equal where ranks can see each other's processes; collective."""
    own = hashlib.blake2b("/".join(process_space()).encode(), digest_size=DIGEST_BYTES).digest()
    return gather_notes(waiting, own, tag=GATHER_TAG, what=WHAT)


def discover_job(waiting: Waiting, hosts: Sequence[bytes]) -> Topology:
    """The topology of all hosts of a job, the same on every rank; collective.

    The first rank of every host discovers it. `ranks` says where each rank sits: ranks of one host are spread
    over its endpoints in order.

    Args:
        waiting: How to wait for the others.
        hosts: `hosts_of_ranks`.
    """
    rank = waiting.transport.rank
    leaders = [hosts.index(host) for host in dict.fromkeys(hosts)]
    document = json.dumps(to_document(discover())).encode() if rank in leaders else b""
    texts = gather_texts(waiting, document, what=WHAT)
    found = [from_document(json.loads(texts[leader])) for leader in leaders]
    merged = merge_hosts(found)
    places: list[RankPlace] = []
    first = 0
    for leader, host in zip(leaders, found, strict=True):
        ends = merged.endpoints[first : first + len(host.endpoints)]  # merge_hosts keeps the order of hosts and devices
        first += len(host.endpoints)
        local = [other for other, name in enumerate(hosts) if name == hosts[leader]]
        places += [
            RankPlace(other, merged.by_id[device].host, device)
            for other, device in zip(local, spread(ends, len(local)), strict=True)
        ]
    return dataclasses.replace(merged, ranks=tuple(sorted(places, key=lambda place: place.rank)))


def spread(ends: Sequence[str], size: int) -> list[str]:
    """`size` ranks on endpoints in order, neighbours near each other."""
    if size <= len(ends):
        return list(ends[:size])
    return [ends[rank * len(ends) // size] for rank in range(size)]
