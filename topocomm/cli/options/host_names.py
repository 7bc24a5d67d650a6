"""`--hosts FILE`: a launcher's names of the topology's hosts, one a line, in the topology's order."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from topocomm.errors import PlanError, TopologyError

_NAME = re.compile(r"[A-Za-z0-9_-]+|[A-Za-z][A-Za-z0-9_.-]*|([0-9]{1,3}\.){3}[0-9]{1,3}")
"""A host name or IPv4 address that PRRTE's rankfile can hold (src/mca/rmaps/rank_file/rmaps_rank_file_lex.l)."""
_WORDS = ("rank", "slot", "slots", "username", "user-name", "user_name")
"""Reserved words of a rankfile."""
_OF_A_HOSTFILE = re.compile(r"(max[_-])?slots=\d+")


def count_or_file(text: str) -> int | str:
    """Parse `--hosts N|FILE`: a number, else a file."""
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else text


def take_host_names(args: argparse.Namespace) -> list[str] | None:
    """Return the names if `--hosts` is a file, and set `args.hosts` to the number of catalogue systems, or None.

    Raises:
        PlanError: A line is no host name or a repeated one, or the file has none.
        TopologyError: The number of names is no multiple of the hosts of a catalogue system.
    """
    if not isinstance(args.hosts, str):
        return None
    path, args.hosts = args.hosts, None
    names = read_host_names(path)
    if args.system is not None:
        from topocomm.topology.catalog.systems import catalog

        each = len(catalog(args.system).hosts)
        if len(names) % each:
            raise TopologyError(f"{path}: {len(names)} host names; a system {args.system} has {each}, expected so many")
        args.hosts = len(names) // each
    return names


def read_host_names(path: str) -> list[str]:
    """Read names from a file, one a line; as in mpirun's hostfile, `slots=N` is ignored and `#` starts a comment.

    Raises:
        PlanError: The file cannot be read, a line is no host name or a repeated one, or there is no name.
    """
    try:
        text = Path(path).read_text("utf-8", "replace")
    except OSError as error:
        raise PlanError(
            f"{path}: cannot be read: {error.strerror}; expected a file of host names, one a line"
        ) from None
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        name, others = words[0], [word for word in words[1:] if not _OF_A_HOSTFILE.fullmatch(word)]
        if others or not _NAME.fullmatch(name) or name in _WORDS:
            raise PlanError(f"{path}:{number}: expected one host name, got {line.strip()[:60]!r}")
        if name in lines:
            raise PlanError(f"{path}:{number}: host {name!r} again, as in line {lines[name]}; expected each host once")
        lines[name] = number
    if not lines:
        raise PlanError(f"{path}: no host name; expected one a line")
    return list(lines)
