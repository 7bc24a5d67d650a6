"""`topocomm inspect`: the topology of this machine, of captured dumps, or of a catalogue system."""

from __future__ import annotations

import argparse

from topocomm.cli.output import write_result
from topocomm.cli.sources import add_sources, read_sources, source_words
from topocomm.topology.draw.text import render, to_ascii
from topocomm.topology.model import Topology
from topocomm.topology.readers.topology_json import dumps


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's parser."""
    parser = subparsers.add_parser(
        "inspect",
        help="the topology of a machine",
        description="The topology of this machine, of captured dumps (format recognised by content), "
        "or of a catalogue system.",
    )
    add_sources(parser)
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
    parser.add_argument("--output", metavar="FILE", help="write there instead of stdout, whole or not at all")


def run(args: argparse.Namespace) -> int:
    """Prints or writes the topology.

    Raises:
        TopologyError: The source is unusable.
        OSError: The output cannot be written.
    """
    topology = read_sources(args)
    text = dumps(topology) if args.format == "json" else _screen(args, topology)
    write_result(text, args.output, plain=to_ascii)
    return 0


def _screen(args: argparse.Namespace, topology: Topology) -> str:
    return render(topology, next_command=_next_command(args, topology))


def _next_command(args: argparse.Namespace, topology: Topology) -> str:
    """A plan on this topology, or where there is nothing to plan on, a machine that has more."""
    if len(topology.endpoints) < 2:
        return "topocomm plan --system dgx-h100 --bytes 64KiB"
    return " ".join(filter(None, ("topocomm plan", source_words(args), "--bytes 64KiB")))
