"""Checks of NVLink and xGMI: links that are down, and channels that leave links idle."""

from __future__ import annotations

from collections.abc import Mapping

from topocomm.doctor.checks.host_views import Host, hosts_of
from topocomm.doctor.finding import Finding
from topocomm.topology.draw.device_tree import FABRICS
from topocomm.topology.draw.names import plural, ranges, some
from topocomm.topology.model import Topology

CHECK = "NVLinks"
REMEDY = (
    "`nvidia-smi nvlink -s` and `nvidia-smi nvlink -e` show links that are down and their errors; "
    "`systemctl status nvidia-fabricmanager`; `dmesg | grep -i xid`; then reseat the bridge or replace the board"
)
XGMI_REMEDY = "`amd-smi xgmi` and `rocm-smi --showtopo` show links that are down; `dmesg | grep -i xgmi`; then reset"
CHANNELS_REMEDY = "NCCL_MIN_NCHANNELS=N, and NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=GRAPH shows what limits the search"
RING = 0
"""Id of the ring graph in NCCL's graph files."""
FULL = 0.75
"""Share of the links' rate from which channels count as full: NCCL counts NVLinks at about 0.8 of their rate."""


def check_fabric(topology: Topology) -> list[Finding]:
    """Find GPUs with fewer NVLinks or xGMI links than their peers."""
    findings: list[Finding] = []
    for host in hosts_of(topology):
        is_xgmi = any(link.kind == "xgmi" for link in host.links)
        check, remedy = ("xGMI links", XGMI_REMEDY) if is_xgmi else (CHECK, REMEDY)
        own = [host.finding("warn", check, text, remedy) for text in _missing_links(host)] + _inactive(host)
        if not own and (lanes := host.lanes()):
            counts = sorted(set(lanes.values()))
            own = [host.finding("ok", check, f"{' or '.join(map(str, counts))} on each of {len(lanes)} GPUs")]
        findings += own
    return findings


def _missing_links(host: Host) -> list[str]:
    """Describe GPUs with fewer lanes or peers than most, or without a link into the switch that others have.

    Unequal direct links can be by design (dies of MI250X, GPUs of a cube mesh) and then form groups of equal size, so
    only a minority is suspect. Into a switch every GPU has the same number.
    """
    peers: dict[str, set[str]] = {gpu.id: set() for gpu in host.gpus}
    for link in host.links:
        if link.kind in FABRICS and link.src in peers:
            peers[link.src].add(link.dst)
    has_switch = any(own - peers.keys() for own in peers.values())
    lanes = host.lanes()
    most = max(lanes.values(), default=0)
    low = [f"{host.local(name)} has {count}" for name, count in lanes.items() if count < most]
    texts = []
    if low and (has_switch or 2 * len(low) < len(lanes)):
        texts.append(f"{some(low)} of the {most} that the others have: links are down, or their peers are hidden")
    lost = [host.local(name) for name in peers if name not in lanes]
    if has_switch and lost:
        texts.append(f"no link of {ranges(lost)} into the switch that the other {len(lanes)} GPUs have")
    if texts or has_switch:
        return texts
    degrees = {name: len(own) for name, own in peers.items() if own}
    most = max(degrees.values(), default=0)
    low = [f"{host.local(name)} is joined to {count}" for name, count in degrees.items() if count < most]
    return [f"{some(low)} GPUs, the others to {most}"] if low and 2 * len(low) < len(degrees) else []


def _inactive(host: Host) -> list[Finding]:
    """Check the link counts that `nvidia-smi nvlink -s` printed for each GPU."""
    active, built = (_counts(host.facts.get(key)) for key in ("active_links_per_gpu", "links_per_gpu"))
    named = host.facts.get("inactive_gpus")
    dead = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    dead += [name for name, count in active.items() if not count and name not in dead]
    live = {name: count for name, count in active.items() if count}
    findings = []
    if dead and live:
        text = f"all links of {ranges(dead)} are inactive; {max(live.values())} are active on {ranges(live)}"
        remedy = f"harmless where no bridge or switch joins {ranges(dead)}; else {REMEDY}"
        findings.append(host.finding("warn", CHECK, text, remedy))
    elif dead:
        text = f"all links of {ranges(dead)} are inactive"
        findings.append(host.finding("info", CHECK, text, f"harmless without bridges and switches; else {REMEDY}"))
    if not host.lanes():  # else the links have said it
        most = max(live.values(), default=0)
        low = [f"{name} has {count} of {built.get(name, most)}" for name, count in live.items() if count < most]
        low = low or [f"{name} has {live[name]} of {built[name]}" for name in live if built.get(name, 0) > live[name]]
        if low:
            findings.append(host.finding("warn", CHECK, f"links are down: {some(low)}", REMEDY))
        elif live and not dead:
            findings.append(host.finding("ok", CHECK, f"{most} active on each of {len(live)} GPUs"))
    return findings


def _counts(reported: object) -> dict[str, int]:
    """Return links by GPU, without values that are no whole numbers."""
    if not isinstance(reported, dict):
        return {}
    return {str(name): count for name, count in reported.items() if type(count) is int}


def check_channels(topology: Topology) -> list[Finding]:
    """Find NCCL rings with fewer channels than a GPU has NVLinks."""
    findings = []
    for host in hosts_of(topology):
        lanes = host.lanes() or _counts(host.facts.get("nvlink_total_per_gpu"))
        links = max(lanes.values(), default=0)
        channels, speed = _ring(host.facts)
        if not links or not channels:
            continue
        rates: dict[str, float] = {}
        for link in host.links:
            if link.src in lanes and link.kind in FABRICS and link.gb_per_s is not None:
                rates[link.src] = rates.get(link.src, 0.0) + link.gb_per_s
        full = max(rates.values(), default=0)
        is_full = channels >= links
        text = f"{plural(channels, 'channel')} for {plural(links, 'link')} of a GPU"
        if speed is not None and full:
            is_full = channels * speed >= FULL * full
            text = f"{plural(channels, 'channel')} of {speed:g} GB/s for {links} links of {full:g} GB/s together"
        if is_full:
            findings.append(host.finding("ok", "NCCL rings", text))
        else:
            findings.append(host.finding("info", "NCCL rings", f"{text}: links may be idle", CHANNELS_REMEDY))
    return findings


def _ring(facts: Mapping[str, object]) -> tuple[int, float | None]:
    """Return the number of ring channels in NCCL's log or graph file, and GB/s of one if the source has it."""
    graphs = facts.get("graphs")
    for graph in graphs if isinstance(graphs, list) else []:
        if isinstance(graph, dict) and graph.get("id") == RING and isinstance(graph.get("nchannels"), int):
            speed = graph.get("speedintra")
            return graph["nchannels"], float(speed) if isinstance(speed, int | float) else None
    count, rings = facts.get("nchannels"), facts.get("rings")
    if isinstance(count, int):
        return count, None
    return (sum(isinstance(ring, list) for ring in rings.values()) if isinstance(rings, dict) else 0), None
