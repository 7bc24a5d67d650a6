"""Arguments that name the machine, shared by all commands that work on a topology."""

from __future__ import annotations

import argparse
import shlex

from topocomm.cli.command_ranks import launched_as
from topocomm.cli.options.host_names import count_or_file
from topocomm.command_parser import respelled
from topocomm.errors import TopologyError
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
    words = "how many of the catalogue system (default 1)"
    if named_hosts:
        words += ", or a file with the names of the topology's hosts as mpirun knows them, one a line, in their order"
    hosts_type, metavar = (count_or_file, "N|FILE") if named_hosts else (int, "N")
    parser.add_argument("--hosts", type=hosts_type, metavar=metavar, help=words)


def _system(text: str) -> str:
    """The catalogue's name in its own spelling; an unknown one as it is."""
    from topocomm.topology.catalog.systems import SYSTEMS

    return respelled(text, SYSTEMS) or text


def read_sources(args: argparse.Namespace) -> Topology:
    """Return the topology that the arguments name.

    Raises:
        TopologyError: A file cannot be read, the system is unknown, or --hosts does not fit.
    """
    if args.hosts is not None and args.system is None:
        raise TopologyError("--hosts goes with --system NAME only: files and this machine are the hosts they are")
    if args.system is not None:
        from topocomm.topology.catalog.systems import catalog

        return catalog(args.system, hosts=1 if args.hosts is None else args.hosts)
    if args.input:
        return _from_files(args.input)
    from topocomm.topology.discovery.local_host import discover

    return discover()


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
    if args.system is None:
        return shlex.join(["--input", *args.input] if args.input else [])
    hosts = [] if args.hosts is None else ["--hosts", str(args.hosts)]
    return shlex.join(["--system", args.system, *hosts])
