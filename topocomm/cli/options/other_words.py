"""Other words for commands, options and names, and arguments that were given without their option."""

from __future__ import annotations

import os
import re
from collections.abc import Container

from topocomm.command_parser import nearest, respelled

OTHER_WORDS = {
    # commands
    "benchmark": "bench",
    "check": "doctor",
    "diagnose": "doctor",
    "fit": "calibrate",
    "info": "inspect",
    "measure": "bench",
    "schedule": "plan",
    "show": "inspect",
    "topo": "inspect",
    "topology": "inspect --input",
    # options
    "file": "--input",
    "gpus": "--ranks",
    "machine": "--system",
    "message": "--bytes",
    "nodes": "--hosts",
    "np": "--ranks",
    "nranks": "--ranks",
    "o": "--output",
    "payload": "--bytes",
    "nprocs": "--ranks",
    # values of options
    "add": "sum",
    "average": "sum",
    "avg": "sum",
    "bandwidth": "throughput",
    "bcast": "broadcast",
    "lse": "attention.logsumexp",
    "mean": "sum",
    "product": "prod",
    "time": "latency",
}
"""What these stand for, the first of it that there is; see `topocomm.command_parser.nearest`."""


def meant_file(message: str) -> str:
    """Return what the file was meant to be that an error does not find: one beside it, or a system; as `meant_by`."""
    from topocomm.topology.catalog.systems import SYSTEMS

    path, _, reason = message.partition(": ")
    if not reason.endswith("No such file or directory"):
        return ""
    if (system := respelled(path, SYSTEMS)) is not None:
        return f"; did you mean --system {system}?"
    folder, name = os.path.split(path)
    near = nearest(name, os.listdir(folder or ".")) if os.path.isdir(folder or ".") else None
    return "" if near is None else f"; did you mean {os.path.join(folder, near)}?"


def meant_by(word: str, options: Container[str]) -> str:
    """Return what an argument without an option was meant to be, to end an error with; empty if that is not plain."""
    from topocomm.topology.catalog.systems import SYSTEMS

    system = respelled(word, SYSTEMS)
    found = {
        f"--system {system}": system is not None,
        f"--input {word}": os.path.exists(word) or word.endswith((".json", ".txt", ".xml")),
        f"--bytes {word}": re.fullmatch(r"[0-9.]+([KMGT]i?B?|B)?", word, re.IGNORECASE) is not None,
    }
    for meant, is_meant in found.items():
        if is_meant and meant.split()[0] in options:
            return f"; did you mean {meant}?"
    return ""
