"""The topology of a whole job, found by its ranks together, over any transport."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence

from topocomm.execute.calls.agreement import gather_notes, gather_texts
from topocomm.execute.liveness.waiting import Waiting
from topocomm.execute.setup.rank_placement import Claim, own_claim, place_ranks_of_host
from topocomm.execute.transports.transport import GATHER_TAG
from topocomm.execute.transports.watch import process_space
from topocomm.topology.discovery.local_host import discover
from topocomm.topology.inference.cpu_lists import cpus_of
from topocomm.topology.merge.cluster import merge_hosts
from topocomm.topology.model import RankPlace, Topology
from topocomm.topology.network.switches import addressed_fabric, with_fabric
from topocomm.topology.readers.plain.topology_json import from_document, to_document

WHAT = "the discovery of the job's hosts"
DIGEST_BYTES = 16
SLURM_ADDRESS = ("SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN")
"""Slurm's variables for the switches above a rank's node, and for the kinds of their words."""


def hosts_of_ranks(waiting: Waiting) -> list[bytes]:
    """Return a host digest per rank, equal for ranks that see each other's processes; collective."""
    own = hashlib.blake2b("/".join(process_space()).encode(), digest_size=DIGEST_BYTES).digest()
    return gather_notes(waiting, own, tag=GATHER_TAG, what=WHAT)


def discover_job(waiting: Waiting, hosts: Sequence[bytes]) -> Topology:
    """Discover the topology of all hosts of a job, the same on every rank; collective.

    Every rank says what it knows of its own place; the first rank of every host discovers it, with the CPUs of all its
    ranks. `ranks` says where each rank sits, and near which NIC. Where Slurm names the switches above the hosts they
    stand between them, else one switch that stands for the network. `hosts` is what `hosts_of_ranks` returns.
    """
    rank = waiting.transport.rank
    texts = gather_texts(waiting, json.dumps(own_claim()).encode(), what=WHAT)
    claims = [Claim(cpus, tuple(visible), *rest) for cpus, visible, *rest in map(json.loads, texts)]
    leaders = [hosts.index(host) for host in dict.fromkeys(hosts)]
    local = {leader: [other for other, name in enumerate(hosts) if name == hosts[leader]] for leader in leaders}
    document = b""
    if rank in leaders:
        usable = set().union(*(cpus_of(claims[other].cpus) for other in local[rank]))
        own_host = to_document(discover(usable=usable or None))
        document = json.dumps({"topology": own_host, "address": own_addresses()}).encode()
    texts = gather_texts(waiting, document, what=WHAT)
    documents = [json.loads(texts[leader]) for leader in leaders]
    topologies = [from_document(document["topology"]) for document in documents]
    merged = merge_hosts(topologies)
    places: list[RankPlace] = []
    warnings = list(merged.warnings)
    first = 0
    for leader, host in zip(leaders, topologies, strict=True):
        ends = merged.endpoints[first : first + len(host.endpoints)]  # merge_hosts keeps the order of hosts and devices
        first += len(host.endpoints)
        new_id = dict(zip(host.endpoints, ends, strict=True))
        placed = place_ranks_of_host(host, [claims[other] for other in local[leader]])
        warnings += placed.warnings
        places += [
            RankPlace(other, merged.by_id[new_id[device]].host, new_id[device], nic)
            for other, device, nic in zip(local[leader], placed.devices, placed.nics, strict=True)
        ]
    places.sort(key=lambda place: place.rank)
    merged = dataclasses.replace(merged, ranks=tuple(places), warnings=tuple(dict.fromkeys(warnings)))
    names = [merged.by_id[places[leader].device].host for leader in leaders]
    fabric = addressed_fabric({name: document["address"] for name, document in zip(names, documents, strict=True)})
    return with_fabric(merged, fabric) if fabric is not None and len(leaders) > 1 else merged


def own_addresses() -> list[str]:
    """Return Slurm's switches above this host; empty without Slurm."""
    return [os.environ.get(name, "") for name in SLURM_ADDRESS]
