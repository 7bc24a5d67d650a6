"""Arguments that name the machine and what is different about it, shared by all commands that work on a topology."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from topocomm.cli.command_ranks import launched_as
from topocomm.cli.options.host_names import count_or_file
from topocomm.command_parser import respelled
from topocomm.errors import TopologyError

if TYPE_CHECKING:
    from topocomm.topology.model import Topology


def add_sources(parser: argparse.ArgumentParser, *, named_hosts: bool = False) -> None:
    """Add `--input FILE ... | --system NAME [--hosts N]`; the default is this machine or job.

    With `named_hosts`, `--hosts` also takes a file of host names (`host_names.take_host_names`).
    """
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--input",
        nargs="+",
        action="extend",
        metavar="FILE",
        help="captured output of a tool (nvidia-smi, rocm-smi, amd-smi, lstopo, lspci, NCCL's XML and logs) or "
        "topology JSON; several of one kind are one host each, of several kinds one machine; a Slurm topology.conf or "
        "topograph YAML among them says how switches join the hosts",
    )
    source.add_argument("--system", type=_system, metavar="NAME", help="a catalogue system, such as dgx-h100")
    words = "how many of the catalogue system, or of the one host in --input (default 1)"
    if named_hosts:
        words += ", or a file with the names of the topology's hosts as mpirun knows them, one a line, in their order"
    hosts_type, metavar = (count_or_file, "N|FILE") if named_hosts else (int, "N")
    parser.add_argument("--hosts", type=hosts_type, metavar=metavar, help=words)


def _system(text: str) -> str:
    """The catalogue's name in its own spelling; an unknown one as it is."""
    from topocomm.topology.catalog.systems import SYSTEMS

    return respelled(text, SYSTEMS) or text


def add_changes(parser: argparse.ArgumentParser) -> None:
    """Add `--without LINK` and `--what-if LINK=GBPS`, of commands that take a machine as if it were another."""
    parser.add_argument(
        "--without",
        action="append",
        metavar="LINK",
        help="as if this were down: GPU3-NIC3 (both directions), 'GPU0->GPU1' (one), or a device (h2/NIC3, rail3: all "
        "its links); repeatable",
    )
    parser.add_argument(
        "--what-if",
        action="append",
        metavar="LINK=GBPS",
        help="as if this link had this rate: GPU3-NIC3=25, 'GPU0->GPU1=10', rail3=100, network=100; repeatable",
    )


def changed(args: argparse.Namespace, whole: Topology) -> Topology:
    """Return the machine without what is down, and with the rates that `--what-if` gives.

    Raises:
        TopologyError: Nothing has a name that is given, or a rate is impossible.
    """
    from topocomm.topology.merge.degradation import without
    from topocomm.topology.merge.link_rates import with_rates

    topology = without(whole, args.without) if args.without else whole
    return with_rates(topology, args.what_if) if args.what_if else topology


def read_sources(args: argparse.Namespace) -> Topology:
    """Return the topology that the arguments name.

    Raises:
        TopologyError: A file cannot be read, the system is unknown, or --hosts does not fit.
    """
    if args.system is not None:
        from topocomm.topology.catalog.systems import catalog

        return catalog(args.system, hosts=1 if args.hosts is None else args.hosts)
    if args.input:
        machine = _from_files(args.input)
        return machine if args.hosts is None else _copies(machine, args.hosts)
    if args.hosts is not None:
        raise TopologyError(
            "--hosts goes with --system NAME, or with --input FILE of one host: this machine is the one host it is"
        )
    from topocomm.topology.discovery.local_host import discover

    return discover()


def _copies(machine: Topology, hosts: int) -> Topology:
    """Return a cluster of so many hosts like the one of a capture, joined by their NICs."""
    from dataclasses import replace

    from topocomm.topology.merge.cluster import host_name, merge_hosts

    if hosts < 1:
        raise TopologyError(f"--hosts {hosts}: expected at least 1")
    host_name(machine, "--hosts makes copies of one host: leave it out for a cluster")
    if hosts == 1:
        return machine
    return replace(merge_hosts([machine] * hosts), name=f"{machine.name} x {hosts}", warnings=machine.warnings)


def read_job(args: argparse.Namespace) -> Topology:
    """As `read_sources`; under a launcher without sources, the whole job's topology: then collective."""
    launched = launched_as()
    if args.system is not None or args.input or args.hosts is not None or launched is None or launched[2] == 1:
        return read_sources(args)
    from topocomm.execute.start import init

    with init() as comm:
        return comm.topology


def _from_files(paths: list[str]) -> Topology:
    """Read one machine or several hosts, and the switches between them if a file names these."""
    from topocomm.topology.merge.captures import combine, same_host
    from topocomm.topology.merge.cluster import merge_hosts
    from topocomm.topology.network import switches as fabric
    from topocomm.topology.recognise import load_text, read

    texts = [(path, load_text(path)) for path in paths]
    of_switches = [fabric.matches(text) for _, text in texts]
    fabrics = [fabric.read(text, path) for (path, text), of in zip(texts, of_switches, strict=True) if of]
    machines = [read(text, path) for (path, text), of in zip(texts, of_switches, strict=True) if not of]
    if len(fabrics) > 1 or (fabrics and len(machines) < 2):
        raise TopologyError(
            f"--input: {len(fabrics)} files name switches between hosts, {len(machines)} are of machines; give one of "
            "switches beside those of two hosts or more"
        )
    if len(machines) > 1 and same_host(machines):
        return combine(machines)
    merged = merge_hosts(machines)
    return fabric.with_fabric(merged, fabrics[0]) if fabrics else merged


def source_words(args: argparse.Namespace) -> str:
    """Return the arguments as shell words for a proposed command; empty for this machine."""
    source = ["--system", args.system] if args.system is not None else ["--input", *args.input] if args.input else []
    return shlex.join([*source, *([] if args.hosts is None else ["--hosts", str(args.hosts)])])
