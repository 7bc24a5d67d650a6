"""What an NCCL log says beside trees and rings: version, bus ids, transports, refused P2P, affinity, searches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from topocomm.topology.readers.nccl.log.nccl_log_comms import Communicator, Session
from topocomm.topology.readers.nccl.log.nccl_log_lines import Part
from topocomm.topology.readers.nccl.log.nccl_log_machines import Machine
from topocomm.topology.readers.nccl.log.nccl_log_system import Search, key, searches
from topocomm.topology.readers.nccl.xml.nccl_graph_xml import PATTERN_NAMES

_VERSION = re.compile(r"\b([RN]CCL) version *:? *(\d{1,3}\.\d{1,3}(?:\.\d{1,3})?)(?![\d.])(\+hip)?")
_CONNECTION = re.compile(
    r"(?:Channel|Ring|Tree) \d+(?:/\d+)? : "
    r"(\d{1,6})(?:\[([0-9a-fA-F]{1,12})\])? -> (\d{1,6})(?:\[([0-9a-fA-F]{1,12})\])?(?: \[\w+\])? "
    r"via (direct shared memory|P2P/(?:direct pointer|common device)\S*|NET/AWS Libfabric\S*"
    r"|(?:P2P|SHM|NET|COLLNET)\S*)(?= |$)"
)
_REFUSED = re.compile(r"Could not enable P2P between dev \d+\(=([0-9a-fA-F]+)\) and dev \d+\(=([0-9a-fA-F]+)\)")
_DISABLED = re.compile(r"P2P is disabled between connected GPUs (\d{1,6}) and (\d{1,6})\.")
_SET = re.compile(r"Setting affinity for GPU \d+ to ([0-9a-fA-F,-]+)$")
_GPU_LIST = re.compile(r"\(GPU affinity = ([\d,-]+) ; ")
_CPUS = re.compile(r"\d+-\d+(?:,\d+(?:-\d+)?)*|\d+(?:,\d+)*,\d+-\d+(?:,\d+(?:-\d+)?)*")
_MASK = re.compile(r"[0-9a-fA-F]{1,8}(?:,[0-9a-fA-F]{8})*")
_USING = re.compile(r"NET/(\w+) : Using (\[0\].*)")
_ONE_NET = re.compile(r"\[(\d{1,4})\]([\w.+-]{1,60})(?=[:/ ])")
_NETWORK = re.compile(r"Using network (\w+)")
_NVLS = re.compile(r"NVLS multicast support is (not )?available on dev")

Warn = Callable[[str], None]


def library(parts: list[Part]) -> str | None:
    """Name and version, if one is printed; `+hip` and RCCL's own word tell RCCL."""
    found = {}
    for part in parts:
        if " version" in part.text and (match := _VERSION.search(part.text)):
            if part.cut and match.end() == len(part.text):
                continue
            name = "RCCL" if match.group(3) else match.group(1)
            found[f"{name} {match.group(2)}"] = name
    rccl = [words for words, name in found.items() if name == "RCCL"]
    words = rccl or list(found)
    return words[0] if len(words) == 1 else None


def bus_ids(comm: Communicator, warn: Warn) -> dict[int, str]:
    """Bus ids by rank as NCCL writes them, from lines beside the tree: those of ranks and of connections.

    The number in brackets behind a rank is its bus id up to NCCL 2.16 and its device number since; three digits or
    more can only be a bus id.
    """
    found: dict[int, str] = {}
    bad: set[int] = set()
    if comm.mixed:
        return found

    def take(rank: int, bus_id: str) -> None:
        if found.setdefault(rank, bus_id).lower() != bus_id.lower():
            bad.add(rank)

    for session in comm.sessions:
        if session.rank is not None and session.bus_id is not None:
            take(session.rank, session.bus_id)
    for _, match in _matches(comm, _CONNECTION):
        for rank, bus_id in ((match.group(1), match.group(2)), (match.group(3), match.group(4))):
            if bus_id is not None and len(bus_id) > 2:
                take(int(rank), bus_id)
    for rank in sorted(bad):
        warn(f"rank {rank} has several bus ids; none is used")
        del found[rank]
    return {rank: bus_id for rank, bus_id in found.items() if comm.ranks is None or rank < comm.ranks}


def transports(comm: Communicator) -> dict[str, Any]:
    """`transport` if all connections use one family (P2P, SHM, NET, COLLNET), and all that are used in words."""
    words = dict.fromkeys(match.group(5) for _, match in _matches(comm, _CONNECTION))
    if not words:
        return {}
    families = {"SHM" if word == "direct shared memory" else word.split("/")[0] for word in words}
    found: dict[str, Any] = {"transports": list(words)[:50]}
    if len(families) == 1:
        found["transport"] = families.pop()
    return found


def refused(comm: Communicator, machines: list[Machine], known: dict[int, str]) -> dict[str, bool]:
    """Pairs between which P2P could not be enabled, as `{"GPU0-GPU1": false}`."""
    by_host: dict[str, dict[str, int]] = {}
    for machine in machines:
        of_host = by_host.setdefault(machine.host, {})
        of_host.update((node.id, rank) for node, rank in machine.ranks.items())
        of_host.update((key("GPU", known[rank]).id, rank) for rank in machine.members if rank in known)
    only = len(machines) == 1
    if only:
        by_host[machines[0].host].update((key("GPU", bus_id).id, rank) for rank, bus_id in known.items())
    pairs = set()
    for session, match in _matches(comm, _REFUSED):
        of_host = by_host.get(session.host, {})
        pairs.add(tuple(of_host.get(key("GPU", bus_id).id) for bus_id in match.groups()))
    by_dev = {(s.host, s.nvml_dev): s.rank for s in comm.sessions if s.nvml_dev is not None}
    for session, match in _matches(comm, _DISABLED):
        pairs.add(tuple(by_dev.get((session.host, int(dev))) for dev in match.groups()))
    whole = sorted({tuple(sorted(pair)) for pair in pairs if None not in pair and len(set(pair)) == 2})  # type: ignore
    return {f"GPU{a}-GPU{b}": False for a, b in whole}


def affinities(comm: Communicator) -> tuple[dict[int, str], dict[int, str]]:
    """CPU lists and CPU masks by rank. The number printed is that of the device, so the writer's rank counts."""
    lists: dict[int, str] = {}
    masks: dict[int, str] = {}
    for session, match in (*_matches(comm, _GPU_LIST), *_matches(comm, _SET)):
        text = match.group(1)
        if session.rank is None:
            continue
        if _CPUS.fullmatch(text):
            lists.setdefault(session.rank, text)
        elif _MASK.fullmatch(text) and match.re is _SET:
            masks.setdefault(session.rank, text)
    return lists, masks


def nvls(comm: Communicator) -> bool | None:
    """Whether NVSwitches multicast; None where the log does not say or says both."""
    said = {match.group(1) is None for _, match in _matches(comm, _NVLS)}
    return said.pop() if len(said) == 1 else None


def nic_names(comm: Communicator, host: str) -> dict[int, str]:
    """Names of the network devices in use on a host, by number."""
    by_network: dict[str, dict[int, str]] = {}
    used: set[str] = set()
    for session in comm.sessions:
        if session.host != host:
            continue
        for part in session.parts:
            if part.cut or "Using" not in part.text:
                continue
            if match := _USING.match(part.text.strip()):
                found = {int(number): name for number, name in _ONE_NET.findall(match.group(2))}
                if by_network.setdefault(match.group(1), found) != found:
                    return {}
            elif match := _NETWORK.match(part.text.strip()):
                used.add(match.group(1))
    lists = [names for network, names in by_network.items() if not used or any(u.startswith(network) for u in used)]
    return lists[0] if len(lists) == 1 else {}


def graphs(comm: Communicator, machine: Machine, warn: Warn) -> list[dict[str, Any]]:
    """What ranks of a machine searched for, in the shape of the graph file's facts; `channels` only where whole."""
    best: list[Search] = []
    for session in comm.sessions:
        if session.host != machine.host or (session.rank is not None and session.rank not in machine.members):
            continue
        found = searches(session)
        if any(a[:-1] != b[:-1] for a, b in zip(best, found, strict=False)):
            warn(f"ranks of one machine found different patterns (rank {session.rank}); the first were read")
        elif sum(len(s.channels) for s in found) > sum(len(s.channels) for s in best) or len(found) > len(best):
            best = found
    return [_graph(search, machine) for search in best]


def _graph(search: Search, machine: Machine) -> dict[str, Any]:
    graph: dict[str, Any] = {"pattern": search.pattern}
    if search.pattern in PATTERN_NAMES:
        graph["pattern_name"] = PATTERN_NAMES[search.pattern]
    graph.update(crossnic=search.crossnic, nchannels=search.nchannels)
    for name, speed in zip(("speedintra", "speedinter"), search.speeds, strict=True):
        graph[name] = int(speed) if speed.is_integer() else speed
    types = zip(("typeintra", "typeinter"), search.types, strict=True)
    graph.update({name: kind for name, kind in types if kind is not None})
    graph["samechannels"] = search.samechannels
    rows = [_row(channel, machine) for channel in search.channels]
    if rows and len(rows) == search.nchannels:
        channels = [[n for n in row if n is not None] for row, _ in rows]
        whole = len(machine.ranks) or len(channels[0])
        if all(None not in row for row, _ in rows) and (search.pattern == 5 or {len(c) for c in channels} == {whole}):
            graph["channels"] = channels
            if any(nets for _, nets in rows):
                graph["nets"] = [nets for _, nets in rows]
    return graph


def _row(channel: tuple[str, ...], machine: Machine) -> tuple[list[int | None], list[int]]:
    """Ranks and network devices of a channel. Before NCCL 2.20 GPUs are given by rank, in decimal."""
    gpus: list[int | None] = []
    nets: list[int] = []
    for word in channel:
        kind, _, printed = word.partition("/")
        if kind == "NET":
            nets.append(int(key(kind, printed).id, 16))
        elif kind == "GPU" and "-" in printed:
            gpus.append(machine.ranks.get(key(kind, printed)))
        elif kind == "GPU" and printed.isdecimal():
            gpus.append(int(printed[:6]))
    return gpus, nets


def _matches(comm: Communicator, pattern: re.Pattern[str]) -> Iterator[tuple[Session, re.Match[str]]]:
    """Matches in all lines; not such as end where a line may be cut."""
    for session in comm.sessions:
        for part in session.parts:
            if (match := pattern.search(part.text)) and not (part.cut and match.end() == len(part.text)):
                yield session, match
