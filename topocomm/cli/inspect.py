"""`topocomm inspect`: the topology of this machine, of captured dumps, or of a catalogue system, in many formats."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from pathlib import PurePath

from topocomm.cli.output import write_result
from topocomm.cli.sources import add_sources, read_sources, source_words
from topocomm.errors import TopologyError
from topocomm.topology.draw.text import render, to_ascii
from topocomm.topology.model import Topology

FORMATS = {
    "text": "a tree on one screen",
    "matrix": "the layout of `nvidia-smi topo -m`",
    "json": "topology JSON, which --input reads",
    "dot": "Graphviz",
    "svg": "a picture",
    "html": "a picture to move and zoom, with the facts of each part",
    "nccl-xml": "an NCCL topology file",
    "env": "a shell file: network cards and cores for each rank",
}
"""Name and one line of help of every format."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's parser."""
    parser = subparsers.add_parser(
        "inspect",
        help="the topology of a machine",
        description="The topology of this machine, of captured dumps (format recognised by content), "
        "or of a catalogue system.",
    )
    add_sources(parser)
    words = "; ".join(f"{name}: {what}" for name, what in FORMATS.items())
    parser.add_argument("--format", choices=FORMATS, help=f"default: text; {words}")
    parser.add_argument(
        "--compare", metavar="FILE", help="say in text how the topology differs from that in a captured dump or JSON"
    )
    parser.add_argument("--output", metavar="FILE", help="write there instead of stdout, whole or not at all")


def run(args: argparse.Namespace) -> int:
    """Prints or writes the topology.

    Raises:
        TopologyError: The source is unusable, or the format cannot show it.
        OSError: The output cannot be written.
    """
    if args.compare is not None and args.format not in (None, "text"):
        raise TopologyError(f"--compare prints text: leave --format {args.format} out")
    topology = read_sources(args)
    text = _comparison(args, topology) if args.compare is not None else _renderer(args)(topology)
    write_result(text, args.output, plain=to_ascii)
    return 0


RENDERERS = {
    "json": ("readers.topology_json", "dumps"),
    "matrix": ("draw.matrix", "render"),
    "dot": ("draw.dot", "render"),
    "svg": ("draw.machine_svg", "render"),
    "html": ("draw.html_page", "render"),
    "nccl-xml": ("draw.nccl_xml", "render"),
    "env": ("draw.environment", "render"),
}
"""Module and function of each format but text."""


def _renderer(args: argparse.Namespace) -> Callable[[Topology], str]:
    """The format's function; only its own modules are imported, so that each format starts fast."""
    if args.format in RENDERERS:
        module, function = RENDERERS[args.format]
        found: Callable[[Topology], str] = getattr(import_module(f"topocomm.topology.{module}"), function)
        return found
    return lambda topology: render(topology, next_command=_next_command(args, topology))


def _comparison(args: argparse.Namespace, topology: Topology) -> str:
    from topocomm.topology.draw import compare
    from topocomm.topology.recognise import load

    other = load(args.compare)
    name = PurePath(args.compare).name
    mine = args.system or (PurePath(args.input[0]).name if args.input else "this machine")
    if mine == name:
        mine, name = f"{mine} (1)", f"{name} (2)"
    return compare.render(topology, other, names=(mine, name))


def _next_command(args: argparse.Namespace, topology: Topology) -> str:
    """A plan on this topology, or where there is nothing to plan on, a machine that has more."""
    if len(topology.endpoints) < 2:
        return "topocomm plan --system dgx-h100 --bytes 64KiB"
    return " ".join(filter(None, ("topocomm plan", source_words(args), "--bytes 64KiB")))
