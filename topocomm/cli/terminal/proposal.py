"""What `topocomm inspect` proposes to run next, for the machine that it shows."""

from __future__ import annotations

import argparse
import shlex

from topocomm.cli.command_ranks import launched_as
from topocomm.cli.options.sources import source_words
from topocomm.topology.model import Topology

EXAMPLE = "topocomm plan --system dgx-h100 --bytes 64KiB"
SIZE = "--bytes 64KiB"
MOST_NAMED = 16
"""Endpoints of the longest list of ranks that is proposed."""
CAPTURE = {"rocm": "amd-smi topology", "amd": "rocm-smi --showtopo"}
"""What prints the links between GPUs, by the beginning of the source of a capture that lacks them."""


def next_commands(args: argparse.Namespace, topology: Topology, *, is_faulty: bool) -> str:
    """Return the commands to propose, a line each: a plan on this topology, a capture that it lacks, or an example.

    Args:
        args: The options of `inspect`.
        topology: What they name.
        is_faulty: Whether something is wrong with the machine, which `doctor` says what to do about.
    """
    source = source_words(args)
    lines = [f"topocomm doctor {source}"] if is_faulty and source else ["topocomm doctor"] if is_faulty else []
    launched = launched_as()
    launcher = ""
    if launched is not None and launched[2] > 1 and not source:
        name, _, ranks = launched
        launcher = f"torchrun --nproc-per-node {ranks} --no-python " if name == "torchrun" else f"{name} -n {ranks} "
    if args.measure:
        lines.append(f"{launcher}topocomm inspect --measure --json --output machine.json")
        source, launcher = "--input machine.json", ""
    together = largest_piece(topology)
    if len(topology.endpoints) < 2:
        lines.append(EXAMPLE)
    elif len(together) == len(topology.endpoints):
        lines.append(launcher + " ".join(filter(None, ("topocomm plan", source, SIZE))))
    elif 1 < len(together) <= MOST_NAMED:
        ranks_words = shlex.join(["--ranks", ",".join(together)])
        lines.append(" ".join(filter(None, ("topocomm plan", source, ranks_words, SIZE))))
    elif args.input:
        tool = next((tool for name, tool in CAPTURE.items() if topology.source.startswith(name)), "nvidia-smi topo -m")
        lines += [f"{tool} > links.txt", f"topocomm inspect {source} links.txt"]
    else:
        lines.append(EXAMPLE)
    return "\n".join(lines)


def largest_piece(topology: Topology) -> list[str]:
    """Return the most endpoints that links join, over devices of any kind, in the order of the topology."""
    near: dict[str, list[str]] = {}
    for link in topology.links:
        near.setdefault(link.src, []).append(link.dst)
        near.setdefault(link.dst, []).append(link.src)
    piece_of: dict[str, int] = {}
    for number, start in enumerate(topology.endpoints):
        open_ = [start] if start not in piece_of else []
        while open_:
            device = open_.pop()
            if device not in piece_of:
                piece_of[device] = number
                open_ += near.get(device, ())
    pieces: dict[int, list[str]] = {}
    for end in topology.endpoints:
        pieces.setdefault(piece_of[end], []).append(end)
    return max(pieces.values(), key=len, default=[])
