"""Reports without names of hosts and people, paths and addresses."""

from __future__ import annotations

import getpass
import os
import platform
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath

from topocomm.doctor.finding import Environment
from topocomm.topology.inference.host_tree import LEVELS
from topocomm.topology.merge.cluster import NETWORK
from topocomm.topology.model import Link, Pair, Topology

OF_WHAT = (
    "host names (now host0, host1, ...), user names, home directories and other paths, names of input files, "
    "IP and MAC addresses, GUIDs, UUIDs and serial numbers"
)
HOST_VARIABLES = ("HOSTNAME", "HOST", "PMIX_HOSTNAME", "SLURMD_NODENAME", "SLURM_SUBMIT_HOST", "PBS_O_HOST")
USER_VARIABLES = ("USER", "LOGNAME", "USERNAME", "SUDO_USER", "SLURM_JOB_USER", "PBS_O_LOGNAME")
PLAIN_HOSTS = {"localhost", "localhost.localdomain", "(none)", NETWORK.host}
"""Host names that identify nobody."""
PLAIN_USERS = {"root"}
USER = "user"
CATALOGUE = "catalogue"
CODES = {*LEVELS, "GPU", "NIC", "CPU"}

_WORD = r"(?<![A-Za-z0-9])(?:{})(?![A-Za-z0-9])"
_HEX = r"[0-9A-Fa-f]"
_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]*://[^\s,;\"')]+", "(address)"),
        (r"(?<![A-Za-z0-9_.+-])[A-Za-z0-9_.+-]+@[A-Za-z0-9_.-]+", "(address)"),
        (r"(?:[A-Za-z]:)?\\Users\\[^\s:;,\"']+", "~"),
        (r"(?<![\w.])(?:/[\w.+-]+){0,4}/(?:homes?|[Uu]sers?)/[^\s:;,\"')]+", "~"),
        (r"~(?:/[^\s:;,\"')]*)", "~"),
        (
            r"(?<![\w.~)/-])/(?!(?:dev|proc|sys|usr|etc|opt|lib|lib64|bin|sbin|var|run)(?![\w.-]))"
            r"[\w.@+-]+/[^\s:;,\"')]*",
            "(path)",
        ),
        (rf"(?:\b(?:GPU|MIG)-)?(?<!{_HEX}){_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}(?!{_HEX})", "(UUID)"),
        (rf"\b(enx|wlx|wwx){_HEX}{{12}}\b", r"\1(address)"),
        (rf"(?<![\w:])(?:{_HEX}{{1,4}}:){{3,31}}{_HEX}{{1,4}}(?![\w:])(?:%[\w.-]+)?", "(address)"),
        (
            rf"(?<![\w:])(?:{_HEX}{{1,4}}(?::{_HEX}{{1,4}}){{0,6}})?::(?:{_HEX}{{1,4}}(?::{_HEX}{{1,4}}){{0,6}})?"
            r"(?:\.\d{1,3}){0,3}(?:%[\w.-]+)?",
            "(address)",
        ),
        (rf"(?<![\w-])(?:{_HEX}{{2}}-){{5}}{_HEX}{{2}}(?![\w-])", "(address)"),
        (r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\d|\.\d)", "(address)"),
        (r"\bip-\d{1,3}(?:-\d{1,3}){3}\b(?:\.[A-Za-z][\w-]*)*", "(address)"),
        (
            r"(?<![\w.-])(?:[A-Za-z0-9][\w-]{0,62}\.){1,8}"
            r"(?:com|net|org|edu|gov|mil|int|local|localdomain|internal|lan|corp|home|cluster|cloud|example|test|invalid"
            r"|uk|de|fr|ch|jp|cn|kr|us|eu|it|es|nl|fi|se|dk|at|be|ca|au|br|tw|sg|il)(?![\w-])",
            "(address)",
        ),
        (r"(?i)\b(serial(?:[ _]?(?:number|no\.?))?|s/n)(\s*[:=#]\s*|\s+)(?=\S*\d)[\w-]+", r"\1\2(removed)"),
        (rf"(?<!digest )(?<![A-Za-z0-9])(?:0x)?{_HEX}{{12,}}(?![A-Za-z0-9])", "(GUID)"),
        (r"(?<!digest )(?<![\w.])\d{10,}(?![\w.])", "(number)"),
        (r"(?<![^\s:'\"])[^\s:'\"]+(?=:\d{1,9}:\d{1,9} \[\d*\])", "(host)"),
    )
)
"""(pattern, replacement), applied in this order. Bus ids (0000:0c:00.0) have two colons, addresses three or more."""


@dataclass(frozen=True)
class Anonymous:
    """Names to replace in texts."""

    hosts: dict[str, str]
    """Replacement of each host name."""
    users: tuple[str, ...] = ()
    homes: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    """(name without folders, replacement) of each input file."""

    def text(self, text: str) -> str:
        """Return the text without names, paths and addresses."""
        for home in self.homes:
            text = re.sub(re.escape(home) + r"(?![\w.-])(?:/[^\s:;,\"')]*)?", "~", text)
        names, new = self._names

        def renamed(match: re.Match[str]) -> str:
            word = match[0]
            while word not in new:  # a host's name with its domain
                word = word.rpartition(".")[0]
            return new[word]

        if names is not None:
            text = names.sub(renamed, text)
        for pattern, replacement in _RULES:
            text = pattern.sub(replacement, text)
        return text

    def topology(self, topology: Topology) -> Topology:
        """Return the topology with replaced host names and texts; its digest differs."""
        ids = self._ids(topology)
        devices = (
            d._replace(
                id=ids[d.id], host=self.hosts.get(d.host, d.host), name=None if d.name is None else self.text(d.name)
            )
            for d in topology.devices
        )
        return replace(
            topology,
            name=self.machine(topology),
            source=self.text(topology.source),
            devices=tuple(devices),
            links=tuple(Link(ids[link.src], ids[link.dst], *link[2:]) for link in topology.links),
            pairs=tuple(Pair(ids[pair.a], ids[pair.b], *pair[2:]) for pair in topology.pairs),
            ranks=(),
            warnings=tuple(map(self.text, topology.warnings)),
            facts={},
        )

    def machine(self, topology: Topology) -> str:
        """Return the topology's name in a report; names of catalogue systems stay."""
        if topology.source == CATALOGUE or re.fullmatch(r"\d+ hosts", topology.name):
            return topology.name
        return self.hosts.get(topology.name) or next((new for _, new in self.files), "machine")

    def _ids(self, topology: Topology) -> dict[str, str]:
        ids: dict[str, str] = {}
        taken: set[str] = set()
        known: dict[str, str] = {}
        for device in topology.devices:
            own = device.id.startswith(f"{device.host}/")
            local = device.id.removeprefix(f"{device.host}/")
            if local not in known:
                known[local] = self.text(local)
            new = f"{self.hosts.get(device.host, device.host)}/{known[local]}" if own else known[local]
            while new in taken:
                new += f"#{len(taken)}"
            taken.add(new)
            ids[device.id] = new
        return ids

    @cached_property
    def _names(self) -> tuple[re.Pattern[str] | None, dict[str, str]]:
        """One pattern of all names, so that no replacement is replaced again, and the replacement of each."""
        new: dict[str, str] = {}
        patterns: dict[str, str] = {}
        for name, host in self.hosts.items():
            if name.lower() in PLAIN_HOSTS:
                continue
            for word in {name, name.lower(), name.upper()} - CODES:
                new[word] = host
                suffix = r"(?:\.[A-Za-z][A-Za-z0-9-]*)*" if len(word) > 1 else r"(?=[:/])"
                patterns[word] = re.escape(word) + suffix
        for name in self.users:
            new.setdefault(name, USER)
            patterns.setdefault(name, re.escape(name))
        for name, word in self.files:
            new[name] = word
            patterns[name] = re.escape(name)
        if not patterns:
            return None, new
        longest = sorted(patterns, key=len, reverse=True)
        return re.compile(_WORD.format("|".join(patterns[name] for name in longest))), new


def anonymous(topology: Topology | None, environment: Environment, inputs: Sequence[str] = ()) -> Anonymous:
    """Collect the names to replace in a report made here; hosts become host0, host1, ..., the topology's first."""
    hosts: dict[str, str] = {}
    own = [*topology.hosts, *(d.host for d in topology.devices if d.host != NETWORK.host)] if topology else []
    for name in dict.fromkeys(own):
        _number(hosts, [name, name.partition(".")[0]])
    here = [platform.node(), *(environment.get(name, "") for name in HOST_VARIABLES)]
    for name in dict.fromkeys(filter(None, here)):
        _number(hosts, [name, name.partition(".")[0]])
    users = {environment.get(name, "") for name in USER_VARIABLES}
    with suppress(KeyError, OSError, ImportError):  # a container's user without an account
        users.add(getpass.getuser())
    homes = {environment.get("HOME", ""), os.path.expanduser("~")} - {"", "/", "~"}
    names = [PurePath(path).name for path in inputs]
    return Anonymous(
        hosts,
        tuple(sorted(name for name in users - PLAIN_USERS if len(name) > 1)),
        tuple(sorted((home.rstrip("/") for home in homes), key=len, reverse=True)),
        tuple((name, f"input{i}") for i, name in enumerate(names) if name),
    )


def _number(hosts: dict[str, str], names: Sequence[str]) -> None:
    """Map a host's full and short name to one number: an earlier one of either, or the next."""
    number = next((hosts[name] for name in names if name in hosts), None)
    number = number or f"host{len(set(hosts.values()))}"
    for name in names:
        if name and not name.isdecimal():
            hosts.setdefault(name, number)
