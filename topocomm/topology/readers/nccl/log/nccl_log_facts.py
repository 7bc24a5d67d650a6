"""Facts of an NCCL log: version, bus ids, transports, refused P2P, affinity, searches, bandwidths, hardware.

Bandwidths are GB/s as NCCL reckons them. Processors, PCIe switches and GPUs are named in the words of NCCL's topology
XML, so that it can be written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from topocomm.topology.inference.gpu_vendor import VENDOR
from topocomm.topology.inference.pci_tree import address
from topocomm.topology.readers.nccl.log.nccl_log_comms import Communicator, Session
from topocomm.topology.readers.nccl.log.nccl_log_fabric import numa_of
from topocomm.topology.readers.nccl.log.nccl_log_lines import Part, Warn
from topocomm.topology.readers.nccl.log.nccl_log_machines import Machine
from topocomm.topology.readers.nccl.log.nccl_log_system import FAST, NO_LIMIT, Key, Search, Tree, key, searches
from topocomm.topology.readers.nccl.xml.nccl_graph_xml import PATTERN_NAMES
from topocomm.topology.readers.nccl.xml.nccl_xml_values import BRIDGE_IDS, IDS
from topocomm.topology.readers.plain.paste import same_or_all

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
_AMD = re.compile(r"\bRCCL\b|\+hip\d|\blibrccl|\bXGMI\b|\bROCm\b|\brocm_smi|\bHIP\b|\bgfx\d{3}|\bnRanks \d\d busId")
"""Words of RCCL that NCCL does not write; the last stands behind rings and trees."""
_ARCH = {1: "x86_64", 2: "ppc64", 3: "arm64"}
_VENDOR = {1: "GenuineIntel", 2: "AuthenticAMD", 3: "CentaurHauls"}
_INTEL_MODEL = {1: 0x4F, 2: 0x55, 3: 0x8F, 4: 0xCF}
"""Numbers of `src/include/graph.h`. Of Intel's model a log names only the class, which stands for its first model."""

Figure = float | dict[str, float]
"""One number where the log has all devices and they have the same, else by device."""


def library(parts: list[Part]) -> str | None:
    """Return name and version, if one is printed; `+hip` and RCCL's own word tell RCCL."""
    names = set()
    for part in parts:
        match = _VERSION.search(part.text) if " version" in part.text else None
        if match and not (part.cut and match.end() == len(part.text)):
            names.add(f"{'RCCL' if match.group(3) else match.group(1)} {match.group(2)}")
    names = {name for name in names if name.startswith("RCCL")} or names
    return names.pop() if len(names) == 1 else None


def bus_ids(comm: Communicator, warn: Warn) -> dict[int, str]:
    """Return bus ids by rank as NCCL writes them, from lines beside the tree: those of ranks and of connections.

    The number in brackets behind a rank is its bus id up to NCCL 2.16 and its device number since; three digits or
    more can only be a bus id.
    """
    if comm.mixed:
        return {}
    stated = [(s.rank, s.bus_id) for s in comm.sessions if s.rank is not None and s.bus_id is not None]
    ends = [match.group(*ends) for _, match in _matches(comm, _CONNECTION) for ends in ((1, 2), (3, 4))]
    stated += [(int(rank), bus_id) for rank, bus_id in ends if bus_id is not None and len(bus_id) > 2]
    by_rank: dict[int, dict[str, str]] = {}
    for rank, bus_id in stated:
        by_rank.setdefault(rank, {}).setdefault(bus_id.lower(), bus_id)
    for rank in sorted(rank for rank, spellings in by_rank.items() if len(spellings) > 1):
        warn(f"rank {rank} has several bus ids; none is used")
        del by_rank[rank]
    return {r: next(iter(bus_id.values())) for r, bus_id in by_rank.items() if comm.ranks is None or r < comm.ranks}


def transports(comm: Communicator) -> dict[str, Any]:
    """Return `transport` if all connections use one family (P2P, SHM, NET, COLLNET), and `transports` in words."""
    words = dict.fromkeys(match.group(5) for _, match in _matches(comm, _CONNECTION))
    if not words:
        return {}
    families = {"SHM" if word == "direct shared memory" else word.split("/")[0] for word in words}
    return {"transports": list(words)[:50], **({"transport": families.pop()} if len(families) == 1 else {})}


def refused(comm: Communicator, machines: list[Machine], known: dict[int, str]) -> dict[str, bool]:
    """Return pairs between which P2P could not be enabled, as `{"GPU0-GPU1": false}`."""
    by_host: dict[str, dict[str, int]] = {}
    for machine in machines:
        of_host = by_host.setdefault(machine.host, {})
        of_host.update((node.id, rank) for node, rank in machine.ranks.items())
        of_host.update((key("GPU", known[rank]).id, rank) for rank in machine.members if rank in known)
    if len(machines) == 1:
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
    """Return CPU lists and masks by rank. The number printed is that of the device, so the writer's rank counts."""
    lists: dict[int, str] = {}
    masks: dict[int, str] = {}
    for session, match in (*_matches(comm, _GPU_LIST), *_matches(comm, _SET)):
        text = match.group(1)
        if session.rank is not None and _CPUS.fullmatch(text):
            lists.setdefault(session.rank, text)
        elif session.rank is not None and _MASK.fullmatch(text) and match.re is _SET:
            masks.setdefault(session.rank, text)
    return lists, masks


def nvls(comm: Communicator) -> bool | None:
    """Return whether NVSwitches multicast; None where the log does not say or says both."""
    values = {match.group(1) is None for _, match in _matches(comm, _NVLS)}
    return values.pop() if len(values) == 1 else None


def nic_names(comm: Communicator, host: str) -> dict[int, str]:
    """Return the names of the network devices in use on a host, by number."""
    by_network: dict[str, dict[int, str]] = {}
    used: set[str] = set()
    for session in comm.sessions:
        if session.host != host:
            continue
        for part in session.parts:
            if part.cut or "Using" not in part.text:
                continue
            if match := _USING.match(part.text.strip()):
                names = {int(number): name for number, name in _ONE_NET.findall(match.group(2))}
                if by_network.setdefault(match.group(1), names) != names:
                    return {}
            elif match := _NETWORK.match(part.text.strip()):
                used.add(match.group(1))
    lists = [names for network, names in by_network.items() if not used or any(u.startswith(network) for u in used)]
    return lists[0] if len(lists) == 1 else {}


def graphs(comm: Communicator, machine: Machine, warn: Warn) -> list[dict[str, Any]]:
    """Return what ranks of a machine searched for, as facts of the graph file; `channels` only where whole."""
    best: list[Search] = []
    for session in comm.sessions:
        if session.host != machine.host or (session.rank is not None and session.rank not in machine.members):
            continue
        found = searches(session)
        if any(a[:-1] != b[:-1] for a, b in zip(best, found, strict=False)):
            who = "" if session.rank is None else f" (rank {session.rank})"
            warn(f"ranks of one machine found different patterns{who}; the first were read")
        elif sum(len(s.channels) for s in found) > sum(len(s.channels) for s in best) or len(found) > len(best):
            best = found
    return [_graph(search, machine) for search in best]


def _graph(search: Search, machine: Machine) -> dict[str, Any]:
    graph: dict[str, Any] = {"pattern": search.pattern}
    if search.pattern in PATTERN_NAMES:
        graph["pattern_name"] = PATTERN_NAMES[search.pattern]
    for name, value in zip(search._fields[1:-1], search[1:-1], strict=True):
        if value is not None:
            graph[name] = int(value) if isinstance(value, float) and value.is_integer() else value
    rows: list[tuple[list[int | None], list[int]]] = []
    for channel in search.channels:  # before NCCL 2.20 GPUs are given by rank, in decimal
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
        rows.append((gpus, nets))
    if rows and len(rows) == search.nchannels:
        channels = [[n for n in row if n is not None] for row, _ in rows]
        whole = len(machine.ranks) or len(channels[0])
        if all(None not in row for row, _ in rows) and (search.pattern == 5 or {len(c) for c in channels} == {whole}):
            graph["channels"] = channels
            if any(nets for _, nets in rows):
                graph["nets"] = [nets for _, nets in rows]
    return graph


def _matches(comm: Communicator, pattern: re.Pattern[str]) -> Iterator[tuple[Session, re.Match[str]]]:
    """Yield matches in all lines, without those that end where a line may be cut."""
    for session in comm.sessions:
        for part in session.parts:
            if (match := pattern.search(part.text)) and not (part.cut and match.end() == len(part.text)):
                yield session, match


def figures(hosts: list[Machine]) -> dict[str, Figure]:
    """Return `max_bw`, `total_bw`, `pci_bw`, `sys_bw`, `nvlink_bw` or `xgmi_bw` by GPU, and `path_bw` by pair."""
    facts: dict[str, Figure] = {}
    titles = {(m.system.max_bw, m.system.total_bw) for m in hosts if m.system}
    if len(titles) == 1:
        facts["max_bw"], total_bw = titles.pop()
        if total_bw is not None:
            facts["total_bw"] = total_bw
    pci_bw: dict[str, float] = {}
    sys_bw: dict[str, float] = {}
    fabric_bw: dict[str, dict[str, float]] = {"NVL": {}, "XGMI": {}}
    paths: dict[str, float] = {}
    for i, machine in enumerate(hosts):
        tree = Tree(machine.system)
        prefix = f"host{i}/" if len(hosts) > 1 else ""
        pci_bw |= _pci_bw(machine, tree)
        for branch in tree.branches:
            gpu = tree.board_gpu.get(branch.parent, branch.parent)
            if branch.type == "SYS":
                a, b = sorted((int(branch.parent.id, 16), int(branch.node.id, 16)))
                sys_bw[f"{prefix}CPU{a}-CPU{b}"] = branch.gb_per_s
            elif branch.type in FAST and gpu in machine.ranks:
                sums, name = fabric_bw[branch.type], f"GPU{machine.ranks[gpu]}"
                sums[name] = round(sums.get(name, 0.0) + branch.gb_per_s, 6)
        for (x, rank), (y, other) in combinations(machine.ranks.items(), 2):
            rates = {cell.gb_per_s for cell in (machine.paths.get((x, y)), machine.paths.get((y, x))) if cell}
            if len(rates) == 1:  # in both directions
                paths[f"GPU{rank}-GPU{other}"] = rates.pop()
    whole = all(machine.system is not None and machine.system.whole for machine in hosts)
    by_device = {"pci_bw": pci_bw, "sys_bw": sys_bw, "nvlink_bw": fabric_bw["NVL"], "xgmi_bw": fabric_bw["XGMI"]}
    for fact, values in by_device.items():
        if values:
            facts[fact] = same_or_all(values) if whole else values
    if paths:
        facts["path_bw"] = paths
    return facts


def _pci_bw(machine: Machine, tree: Tree) -> dict[str, float]:
    """Return GB/s between each GPU and its CPU: the least on the path up the tree, else the matrix's best cell."""
    cells: dict[Key, float] = {}
    for (a, b), path in machine.paths.items():
        if b.type == "CPU":
            cells[a] = max(cells.get(a, 0.0), path.gb_per_s)
    rates = {}
    for node, rank in machine.ranks.items():
        steps = [gb_per_s for _, gb_per_s in tree.path_up(node) if gb_per_s < NO_LIMIT]
        if steps or node in cells:
            rates[f"GPU{rank}"] = min(steps) if steps else cells[node]
    return rates


def hardware(comm: Communicator, machines: list[Machine], parts: list[Part]) -> dict[str, Any]:
    """Return `gpu_vendor`, and of one machine `cpus`, `bridge_ids`, `gpu_dev` (the driver's numbers) and `gpu_rank`."""
    facts: dict[str, Any] = {VENDOR: "AMD"} if any(_AMD.search(part.text) for part in parts) else {}
    if len(machines) != 1:  # the numbers of NUMA nodes repeat
        return facts
    machine = machines[0]
    tree = machine.system
    ranks = [] if machine.guessed else sorted(machine.members)
    facts["gpu_rank"] = {f"GPU{rank}": rank for rank in ranks}
    devs = {s.rank: s.nvml_dev for s in comm.sessions if s.rank is not None and s.nvml_dev is not None}
    if ranks and set(ranks) <= set(devs):
        facts["gpu_dev"] = {f"GPU{rank}": devs[rank] for rank in ranks}
    if tree is not None:
        cpus = [(numa_of(machine, cpu), _cpu(tree.about.get(cpu, ""))) for cpu in dict.fromkeys(tree.roots)]
        facts["cpus"] = [{"numaid": str(numa), **words} for numa, words in cpus if numa is not None and words]
        bridges = {address(node.id): text for node, text in tree.about.items() if node.type == "PCI"}
        numbers = {
            bus_id: int(text, 16) if re.fullmatch(r"[0-9a-fA-F]{1,16}", text) else 0 for bus_id, text in bridges.items()
        }
        facts[BRIDGE_IDS] = {  # 16 bits each
            bus_id: {name: f"0x{ids >> shift & 0xFFFF:04x}" for name, shift in zip(IDS, (48, 32, 16, 0), strict=True)}
            for bus_id, ids in numbers.items()
            if bus_id is not None and ids
        }
    return {fact: value for fact, value in facts.items() if value}


def _cpu(about: str) -> dict[str, str]:
    """Return architecture, vendor and model of `1/2/-1`, as far as they are known."""
    numbers = re.fullmatch(r"(-?\d{1,3})/(-?\d{1,3})/(-?\d{1,3})", about)
    if numbers is None:
        return {}
    arch, vendor, model = map(int, numbers.groups())
    words = {"arch": _ARCH[arch]} if arch in _ARCH else {}
    if arch == 1 and vendor in _VENDOR:
        words["vendor"] = _VENDOR[vendor]
        if vendor == 1 and model in _INTEL_MODEL:
            words |= {"familyid": "6", "modelid": str(_INTEL_MODEL[model])}
    return words
