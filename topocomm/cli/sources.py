"""The arguments that say which machine is meant, shared by every command that works on a topology."""

from __future__ import annotations

import argparse
import shlex

from topocomm.errors import TopologyError
from topocomm.topology.model import Topology


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Adds `--input FILE ... | --system NAME [--hosts N]`; without them this machine is meant."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--input",
        nargs="+",
        metavar="FILE",
        help="captured output of `nvidia-smi topo -m`, or topology JSON; several files are one host each",
    )
    source.add_argument("--system", metavar="NAME", help="a catalogue system, such as dgx-h100")
    parser.add_argument("--hosts", type=int, metavar="N", help="how many of the catalogue system (default 1)")


def read_sources(args: argparse.Namespace) -> Topology:
    """The topology that the arguments name.

    Raises:
        TopologyError: A file is unusable, the system is unknown, or --hosts does not fit.
    """
    if args.hosts is not None and args.system is None:
        raise TopologyError("--hosts goes with --system NAME only: files and this machine are the hosts they are")
    if args.system is not None:
        from topocomm.topology.catalog import catalog

        return catalog(args.system, hosts=1 if args.hosts is None else args.hosts)
    if args.input:
        from topocomm.topology.merge import merge_hosts
        from topocomm.topology.recognise import load

        return merge_hosts([load(path) for path in args.input])
    from topocomm.topology.discover import discover

    return discover()


def source_words(args: argparse.Namespace) -> str:
    """The same arguments as shell words, for a command to propose next; empty for this machine."""
    words: list[str] = []
    if args.system is not None:
        words = ["--system", args.system]
        if args.hosts is not None:
            words += ["--hosts", str(args.hosts)]
    elif args.input:
        words = ["--input", *args.input]
    return shlex.join(words)
