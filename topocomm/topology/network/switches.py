"""Switches between hosts: from a job scheduler's files to a cluster whose NICs are linked to leaf switches.

Sources are Slurm's `topology.conf` and `topology.yaml` (tree), the model files of topograph, and the switch path that
Slurm gives every task. They have no rates, so that GB/s of links between switches stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from topocomm.errors import TopologyError
from topocomm.topology.inference.host_tree import group_words
from topocomm.topology.links import FABRIC_HOP_US, both_ways
from topocomm.topology.merge.cluster import NETWORK
from topocomm.topology.model import Device, Link, Topology
from topocomm.topology.network.switch_formats import Fabric, checked, read_conf, read_document

__all__ = ["Fabric", "addressed_fabric", "matches", "read", "with_fabric"]

_MODEL_KEY = re.compile(r"""^[ \t]*(?:-[ \t]+)?["']?(?:switches|capacity_blocks)["']?[ \t]*:""", re.MULTILINE)
_CONF_LINE = re.compile(r"^[ \t]*(?:SwitchName|BlockName)[ \t]*=", re.IGNORECASE | re.MULTILINE)


def matches(text: str) -> bool:
    """Return whether the text describes switches: `topology.conf`, or YAML or JSON of that."""
    lowered = text.lower()  # the line-by-line search is slow, and few texts have these words
    if ("switchname" in lowered or "blockname" in lowered) and _CONF_LINE.search(text):
        return True
    return ("switches" in text or "capacity_blocks" in text) and _MODEL_KEY.search(text) is not None


def read(text: str, name: str) -> Fabric:
    """Return the fabric in a text: `topology.conf`, `topology.yaml` or a topograph model.

    Raises:
        TopologyError: It is damaged or contradictory; names file and line.
    """
    parse = read_conf if _CONF_LINE.search(text) and text.lstrip()[:1] not in ("{", "[") else read_document
    return checked(parse(text, name), name)


def addressed_fabric(addresses: Mapping[str, Sequence[str]]) -> Fabric | None:
    """Return the fabric of a job from the switch paths that Slurm gives its tasks.

    By host, these are the values of SLURM_TOPOLOGY_ADDR (`root.leaf3.node7`) and SLURM_TOPOLOGY_ADDR_PATTERN
    (`switch.switch.node`), empty where they are not set. The fabric is None where a path has no
    switches, as without Slurm's tree plugin.
    """
    switches: dict[str, dict[str, None]] = {}
    hosts: dict[str, list[str]] = {}
    for host, (address, pattern) in addresses.items():
        kinds, words = pattern.split("."), address.split(".")
        path = words[: kinds.count("switch")]
        if not path or kinds != ["switch"] * len(path) + ["node"] or len(words) < len(kinds) or "" in path:
            return None
        for upper, lower in pairwise(path):
            switches.setdefault(upper, {})[lower] = None
        switches.setdefault(path[-1], {})
        hosts.setdefault(path[-1], []).append(host)
    below, own = ({name: tuple(names) for name, names in lists.items()} for lists in (switches, hosts))
    fabric = Fabric("job", "SLURM_TOPOLOGY_ADDR", below, own)
    try:
        return checked(fabric, "SLURM_TOPOLOGY_ADDR")
    except TopologyError:  # a node below several leaves has them all in one word, `[s1,s2]`
        return None


def with_fabric(topology: Topology, fabric: Fabric) -> Topology:
    """Return the cluster with the fabric's switches in place of the network device.

    Hosts match if their names are equal, at least up to the first dot. Links of a host's NICs lead to its leaf switch
    with their figures. Switches above no host of the cluster are left out; a switch with one switch below becomes part
    of the link. Several trees, and hosts that the fabric lacks, stay joined by the network device.

    Raises:
        TopologyError: No host of the cluster is in the fabric.
    """
    full: dict[str, str] = {}
    short: dict[str, str] = {}
    for switch, below in fabric.hosts.items():
        for host in below:
            full.setdefault(host, switch)
            short.setdefault(host.partition(".")[0], switch)
    leaves = {host: full.get(host) or short.get(host.partition(".")[0]) for host in topology.hosts}
    leaf_of = {host: switch for host, switch in leaves.items() if switch is not None}
    if not leaf_of:
        raise TopologyError(
            f"{fabric.name}: none of the hosts {group_words(topology.hosts)} is below a switch of {fabric.source}; it "
            f"has {group_words([h for below in fabric.hosts.values() for h in below])}"
        )
    kept = _kept(fabric, leaf_of)
    roots = [name for name, upper in kept.items() if upper is None]
    missing = [host for host in topology.hosts if host not in leaf_of]
    warnings = [*topology.warnings, *fabric.warnings]
    if missing:
        warnings.append(
            f"{fabric.name}: {group_words(missing)}: below no switch; taken to be at the top of the network"
        )
    taken = {d.id for d in topology.devices}
    ids = {name: f"switch {name}" if name in taken else name for name in kept}
    links: list[Link] = []
    for link in topology.links:
        src, dst = topology.by_id[link.src], topology.by_id[link.dst]
        if dst.id == NETWORK.id and src.host in leaf_of:
            link = link._replace(dst=ids[leaf_of[src.host]])
        elif src.id == NETWORK.id and dst.host in leaf_of:
            link = link._replace(src=ids[leaf_of[dst.host]])
        links.append(link)
    top = len(roots) > 1 or bool(missing)
    for lower, up in kept.items():
        if up is not None:
            links += both_ways(ids[lower], ids[up[0]], "network", latency_us=up[1] * FABRIC_HOP_US)
    for root in roots if top else ():
        links += both_ways(ids[root], NETWORK.id, "network", latency_us=FABRIC_HOP_US)
    own = [d for d in topology.devices if d.id != NETWORK.id]
    rest = [d for d in topology.devices if d.id == NETWORK.id and top]
    switches = [Device(ids[name], "switch", NETWORK.host, f"{name}, a switch of {fabric.source}") for name in kept]
    return replace(
        topology, devices=(*own, *switches, *rest), links=tuple(links), warnings=tuple(dict.fromkeys(warnings))
    )


def _kept(fabric: Fabric, leaf_of: Mapping[str, str]) -> dict[str, tuple[str, int] | None]:
    """Return the switches that join hosts of the cluster; with the next one above and the number of links up to it."""
    above = {lower: upper for upper, below in fabric.switches.items() for lower in below}

    def up(name: str) -> list[str]:
        path = [name]
        while path[-1] in above:
            path.append(above[path[-1]])
        return path

    keep = set(leaf_of.values())
    branches: dict[str, set[str]] = {}
    for leaf in leaf_of.values():
        for lower, upper in pairwise(up(leaf)):
            branches.setdefault(upper, set()).add(lower)
    keep |= {name for name, below in branches.items() if len(below) > 1}
    return {
        name: next(((upper, hops) for hops, upper in enumerate(up(name)) if hops and upper in keep), None)
        for name in fabric.switches
        if name in keep
    }
