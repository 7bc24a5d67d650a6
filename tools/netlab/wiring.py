"""Cables of a lab: veth pairs between namespaces, bridges for switches, addresses, and limits of rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .namespaces import LabError, has_netem, run
from .network import Network
from .traffic import limit_commands

DATA, MANAGEMENT = "lab0", "mgmt0"
"""Interfaces of every host: the network under test, and the one by which mpirun starts and watches ranks."""
SWITCHES = "switches"
"""Name of the holder of all bridges."""
LAUNCHER = "launcher"
"""Name of the holder in which mpirun runs: at the management network alone, so that every host can be lost."""
SETTINGS = {
    "net.ipv4.tcp_congestion_control": "reno",
    "net.ipv4.tcp_slow_start_after_idle": "0",
    "net.ipv4.tcp_no_metrics_save": "1",
    "net.ipv4.tcp_rmem": "4096 4194304 16777216",
    "net.ipv4.tcp_limit_output_bytes": "16384",
    "net.ipv6.conf.all.disable_ipv6": "1",
}
"""Of TCP, so that links are what limits a transfer, not windows that grow from nothing. Of a connection little waits at
the host's own port: else the acknowledgements of what it receives come late, behind what it sends. Reno, since every
network namespace may choose it; BBR sends next to nothing for 0.2 s every ten seconds."""
FIRST_WINDOW = 64
"""Packets that a new connection has under way."""
SEGMENTS = 4
"""Packets that the kernel hands down as one."""


class Ports(NamedTuple):
    """The interfaces of one cable: name at the lower end and its holder, name at the upper end."""

    lower_holder: str
    lower: str
    upper: str


def ports_of(network: Network, number: int) -> Ports:
    """Return the interfaces of a cable; the upper end is always a bridge's port."""
    cable = network.cables[number]
    is_host = cable.lower not in network.switches
    return Ports(cable.lower if is_host else SWITCHES, DATA if is_host else f"d{number}", f"u{number}")


def data_address(network: Network, host: str) -> str:
    """Return a host's address on the network under test."""
    return f"10.98.{_place(network, host)}"


def management_address(network: Network, host: str) -> str:
    """Return a host's address by which mpirun reaches it; the launcher has the last."""
    return f"10.99.{_place(network, host)}"


def hosts_file(network: Network) -> str:
    """Return /etc/hosts: names are management addresses, `NAME-lab` those of the network under test."""
    lines = ["127.0.0.1 localhost"]
    for name in (*(host.name for host in network.hosts), LAUNCHER):
        lines.append(f"{management_address(network, name)} {name}")
        if name != LAUNCHER:
            lines.append(f"{data_address(network, name)} {name}-lab")
    return "\n".join(lines) + "\n"


def connect(network: Network, processes: Mapping[str, int]) -> list[str]:
    """Make all cables between the holders, given by name with their process; return warnings.

    Raises:
        LabError: The kernel refuses one.
    """
    bridges = {name: f"s{number}" for number, name in enumerate(network.switches)}
    everyone = [*(host.name for host in network.hosts), LAUNCHER]
    lines = [f"link add name {bridge} type bridge" for bridge in (*bridges.values(), "m")]
    for number, cable in enumerate(network.cables):
        ports = ports_of(network, number)
        lines += [
            f"link add name {ports.upper} type veth peer name {ports.lower} netns {processes[ports.lower_holder]}",
            f"link set dev {ports.upper} master {bridges[cable.upper]} up",
        ]
        if ports.lower_holder == SWITCHES:
            lines.append(f"link set dev {ports.lower} master {bridges[cable.lower]} up")
    for number, name in enumerate(everyone):
        lines += [
            f"link add name m{number} type veth peer name {MANAGEMENT} netns {processes[name]}",
            f"link set dev m{number} master m up",
        ]
    lines += [f"link set dev {bridge} up" for bridge in (*bridges.values(), "m")]
    _batch("ip", processes[SWITCHES], lines)
    for name in everyone:
        addresses = {MANAGEMENT: management_address(network, name)}
        if name != LAUNCHER:
            addresses[DATA] = data_address(network, name)
        set_up = [f"addr add {address}/16 dev {device}" for device, address in addresses.items()]
        _batch("ip", processes[name], [*set_up, *(f"link set dev {device} up" for device in ("lo", *addresses))])
        if name != LAUNCHER:
            set_up = [f"link set dev {DATA} gso_max_segs {SEGMENTS}"]
            window = f"initcwnd {FIRST_WINDOW} initrwnd {FIRST_WINDOW}"
            set_up.append(f"route change 10.98.0.0/16 dev {DATA} src {addresses[DATA]} {window}")
            _batch("ip", processes[name], set_up)
        for key, value in SETTINGS.items():
            path = f"/proc/sys/{key.replace('.', '/')}"
            run(["sh", "-c", 'test ! -e "$1" || echo "$2" > "$1"', "sh", path, value], processes[name], "-n")
    return _limit(network, processes)


def set_rate(network: Network, number: int, gb_per_s: float, processes: Mapping[str, int]) -> None:
    """Give both directions of a cable another rate, at once.

    Raises:
        LabError: The cable has no limit that could change.
    """
    cable, ports = network.cables[number], ports_of(network, number)
    if cable.up_gb_per_s is None or cable.down_gb_per_s is None:
        raise LabError(f"cable {cable.lower}-{cable.upper} was made without a rate: give it one in the topology")
    for holder, device in ((ports.lower_holder, ports.lower), (SWITCHES, ports.upper)):
        _batch("tc", processes[holder], limit_commands(device, gb_per_s, change=True))


def set_link(network: Network, number: int, up: bool, processes: Mapping[str, int]) -> None:
    """Cut a cable, or mend it: the port of the bridge goes down, and the other end loses its carrier."""
    state = "up" if up else "down"
    _batch("ip", processes[SWITCHES], [f"link set dev {ports_of(network, number).upper} {state}"])


def _limit(network: Network, processes: Mapping[str, int]) -> list[str]:
    delayed = any(cable.delay_us > 0 for cable in network.cables)
    netem = delayed and has_netem(processes[SWITCHES], ports_of(network, 0).upper)
    lines: dict[str, list[str]] = {}
    for number, cable in enumerate(network.cables):
        ports, delay_us = ports_of(network, number), cable.delay_us if netem else 0.0
        lines.setdefault(ports.lower_holder, []).extend(limit_commands(ports.lower, cable.up_gb_per_s, delay_us))
        lines.setdefault(SWITCHES, []).extend(limit_commands(ports.upper, cable.down_gb_per_s, delay_us))
    for holder, some in lines.items():
        _batch("tc", processes[holder], some)
    if delayed and not netem:
        return ["this kernel has no netem: links have their rates, and the latency of the kernel's own way"]
    return []


def _batch(tool: str, process: int, lines: list[str]) -> None:
    if lines:
        run([tool, "-batch", "-"], process, "-n", stdin="\n".join(lines) + "\n")


def _place(network: Network, host: str) -> str:
    number = len(network.hosts) if host == LAUNCHER else [h.name for h in network.hosts].index(host)
    return f"{number // 250}.{number % 250 + 1}"
