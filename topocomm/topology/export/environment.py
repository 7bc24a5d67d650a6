"""Network cards and cores of each rank as a shell file: variables of NCCL and UCX, command lines to bind ranks.

NCCL numbers the cards that a process sees, and ranks of a host compare these numbers: all ranks get the same cards, of
which NCCL uses the nearest (NVIDIA/nccl#1478). UCX gets the nearest cards of each rank. Comments name unknowns.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from topocomm.topology.draw.device_tree import Host, alike, derived_codes, split_hosts
from topocomm.topology.draw.names import plural, ranges
from topocomm.topology.inference.cpu_lists import mask_of
from topocomm.topology.model import Device, Topology

_VERBS = re.compile(r"(?:mlx\d|rocep|ibp|bnxt_re|irdma|hfi1_|rdmap|efa|erdma|hns_|qedr|rxe|siw)\w*")
"""The kernel's names of RDMA devices, for NCCL_IB_HCA and UCX."""
_NETDEV = re.compile(r"(?:en|eth|ib|bond|wl|team)\w*")
"""Names of network interfaces, for NCCL_SOCKET_IFNAME and UCX."""
_RANK = "${OMPI_COMM_WORLD_LOCAL_RANK:-${SLURM_LOCALID:-${LOCAL_RANK:-}}}"
_CPUS = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")
MOST_CPU = 8192
"""Largest number of bits of a CPU mask."""


def render(topology: Topology) -> str:
    """Return the shell file, ending in a newline; hosts that differ have parts, chosen by the host's name."""
    groups = [group for group in alike(split_hosts(topology)) if group[0].devices]
    lines = [
        f"# {_flat(topology.name)} ({_flat(topology.source)}): network cards and cores for each local rank.",
        "# Source it in every rank, one for each GPU (or core) in order of local ranks.",
    ]
    if len(groups) == 1:
        return "\n".join([*lines, *_host(groups[0]), ""])
    lines += ["# The hosts differ: the part of the host's name counts.", "", 'case "$(hostname -s)" in']
    for group in groups:
        quoted = (_flat(host.name).replace("'", "'\\''") for host in group)
        patterns = "|".join(f"'{name}'" for name in quoted)
        lines += [f"{patterns})", *_host(group), ";;"]
    return "\n".join([*lines, "esac", ""])


def _host(group: Sequence[Host]) -> list[str]:
    ranks = _places(group[0])
    hosts = f"{plural(len(group), 'host')}: {_flat(ranges(each.name for each in group))}"
    lines = [f"# {hosts}; {plural(len(ranks), 'local rank')}"]
    if not ranks:
        return [*lines, "# No GPU and no core is known here."]
    lines.append("")
    unnamed = dict.fromkeys(nic.id for place in ranks for nic in place.nics if not nic.name)
    verbs, netdevs = (
        dict.fromkeys(name for place in ranks for name in _names(place, names)) for names in (_VERBS, _NETDEV)
    )
    if unnamed:
        unknown = f"the system names of {_flat(ranges(unnamed))} are not known"
        lines += [f"# cards of NCCL: it chooses, as {unknown}", ""]
    elif verbs or netdevs:  # the nearest of all ranks of the host
        lines.append("# the same for all ranks of a host, or NCCL's numbers of cards do not agree")
        variable = "NCCL_IB_HCA" if verbs else "NCCL_SOCKET_IFNAME"
        lines += [f'export {variable}="={",".join(verbs or netdevs)}"', ""]
    lines.append(f'case "{_RANK}" in')
    for rank, place in enumerate(ranks):
        lines += [f"{rank})", *(f"  {line}" for line in _rank(place)), "  ;;"]
    lines += ['"") echo "local rank not known: set LOCAL_RANK" >&2 ;;', "esac", ""]
    return [*lines, *_binding(ranks)]


def _names(place: Place, names: re.Pattern[str]) -> list[str]:
    return [nic.name for nic in place.nics if nic.name and names.fullmatch(nic.name)]


def _rank(place: Place) -> list[str]:
    near = [f"{nic.id} {nic.name}" if nic.name and nic.name != nic.id else nic.id for nic in place.nics]
    cards = f"{_flat(', '.join(near))}: {place.code or 'the same NUMA node'}"
    lines = [f"# {_flat(place.device.id)}: {cards if near else 'no network card is known to be near'}"]
    verbs, netdevs = _names(place, _VERBS), _names(place, _NETDEV)
    if verbs:
        lines.append(f"export UCX_NET_DEVICES={','.join(f'{name}:1' for name in verbs)}  # port 1 is assumed")
    elif netdevs:
        lines.append(f"export UCX_NET_DEVICES={','.join(netdevs)}")
    for nic in place.nics:
        if nic.name not in (*verbs, *netdevs):
            what = f"{nic.name!r} is no name that NCCL and UCX are known to take" if nic.name else "no name is known"
            lines.append(f"# {_flat(nic.id)}: {_flat(what)}; `ibdev2netdev` or `ls /sys/class/infiniband` tells")
    return [*lines, f"export TOPOCOMM_CPUS={place.cpus}" if place.cpus else "# cores: not known"]


def _binding(ranks: Sequence[Place]) -> list[str]:
    """Command lines that bind ranks to their cores or NUMA nodes, and the ranks of each node."""
    count = len(ranks)
    lists = [place.cpus for place in ranks]
    lines = ["# To bind, with this file as env.sh and your program as ./app:"]
    if None not in lists:
        run = 'bash -c \'. ./env.sh; exec taskset -c "$TOPOCOMM_CPUS" "$@"\' -'
        lines.append(f"#   mpirun -n {count} --bind-to none {run} ./app")
        masks = [mask for cpus in lists if cpus and (mask := mask_of(cpus, MOST_CPU)) is not None]
        if len(masks) == count:
            lines.append(f"#   srun --ntasks-per-node={count} --cpu-bind=mask_cpu:{','.join(map(hex, masks))} ./app")
    else:
        unknown = [place.device.id for place in ranks if place.cpus is None]
        lines.append(f"#   the cores of {_flat(ranges(unknown))} are not known: no line with CPU lists")
    numas = [place.device.numa for place in ranks]
    numbers = [numa for numa in numas if isinstance(numa, int)]
    if len(numbers) == count:
        sizes = Counter(numbers)
        if len(set(sizes.values())) == 1 and sorted(sizes) == list(range(len(sizes))) and numbers == sorted(numbers):
            lines.append(f"#   mpirun -n {count} --map-by ppr:{count // len(sizes)}:numa --bind-to numa ./app")
        nodes = ",".join(map(str, numbers))
        lines.append(f"#   srun --ntasks-per-node={count} --cpu-bind=map_ldom:{nodes} ./app")
    else:
        lines.append("#   not every rank has one NUMA node that is known: no line with NUMA nodes")
    for numa in dict.fromkeys(numa for numa in numas if numa is not None):
        local = [rank for rank, place in enumerate(ranks) if place.device.numa == numa]
        own = list(dict.fromkeys(lists[rank] for rank in local))
        words = own[0] if len(own) == 1 and own[0] else "not the same for all" if any(own) else "not known"
        lines.append(f"# NUMA node {_flat(str(numa))}: local ranks {ranges(map(str, local))}; CPUs {words}")
    return lines


def _flat(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


_ORDER = ("PIX", "PXB", "PHB", "NODE", "SYS", "SOC")


class Place(NamedTuple):
    """One endpoint: its nearest NICs, their code (None where only NUMA numbers match), and its cores."""

    device: Device
    nics: tuple[Device, ...]
    code: str | None
    cpus: str | None


def _places(host: Host) -> list[Place]:
    """The endpoints of one host in order, with the NICs of the best pair code or of the same NUMA node."""
    nics = [d for d in host.devices if d.kind == "nic"]
    kind = "gpu" if any(d.kind == "gpu" for d in host.devices) else "cpu"
    codes = derived_codes(host) if kind == "gpu" and nics and host.links else {}
    codes |= {(pair.a, pair.b): pair.code or "" for pair in host.pairs}
    places = []
    for device in (d for d in host.devices if d.kind == kind):
        known = {nic.id: code for nic in nics if (code := codes.get((device.id, nic.id))) in _ORDER}
        best = min(known.values(), key=_ORDER.index, default=None)
        same_numa = [nic for nic in nics if nic.numa is not None and nic.numa == device.numa]
        near = [nic for nic in nics if known.get(nic.id) == best] if best else same_numa
        own = [d for d in host.devices if d.kind == "numa" and d.numa == device.numa is not None]
        shared = {numa.cpu_affinity for numa in own if numa.cpu_affinity}
        cpus = device.cpu_affinity or (shared.pop() if len(shared) == 1 else None)
        places.append(Place(device, tuple(near), best, cpus if _CPUS.fullmatch(cpus or "") else None))
    return places
