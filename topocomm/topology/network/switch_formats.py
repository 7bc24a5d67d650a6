"""The files that describe a fabric: Slurm's `topology.conf` and `topology.yaml`, and topograph's models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import PurePath
from typing import Any, NamedTuple, NoReturn

from topocomm.errors import TopologyError
from topocomm.topology.readers.plain import plain_yaml, strict_json

_WORD = re.compile(r"(\w++)\s*+=\s*+(\S++)\s*+")
_KEYS = ("switchname", "switches", "nodes", "linkspeed")
_CONF_REMEDY = "expected lines `SwitchName=NAME Nodes=node[1-4]` or `SwitchName=NAME Switches=NAME,NAME`"
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\],]+)")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
MAX_NAMES = 65_536
"""Largest number of host names in one file."""
MAX_SWITCHES, MAX_LEVELS = 16_384, 64
"""Largest number of switches, and of switches above one another."""


class Fabric(NamedTuple):
    """A forest of switches and the hosts below them, by switch; and warnings."""

    name: str
    source: str
    switches: Mapping[str, tuple[str, ...]]
    """Names of the switches right below each."""
    hosts: Mapping[str, tuple[str, ...]]
    """Names of the hosts right below each."""
    warnings: tuple[str, ...] = ()


def checked(fabric: Fabric, file: str) -> Fabric:
    """Return the fabric, if it is a forest of described switches.

    Raises:
        TopologyError: A switch is below two others or itself, or is not described; or there are too many.
    """
    if len(fabric.switches) > MAX_SWITCHES:
        raise TopologyError(f"{file}: {len(fabric.switches)} switches; expected at most {MAX_SWITCHES}")
    above: dict[str, str] = {}
    for switch, below in fabric.switches.items():
        for lower in below:
            if lower not in fabric.switches:
                raise TopologyError(
                    f"{file}: switch {switch!r} has {lower!r} below it, which is not described; add a line for it"
                )
            if lower in above:
                raise TopologyError(
                    f"{file}: switch {lower!r} is below {above[lower]!r} and {switch!r}; expected a tree"
                )
            above[lower] = switch
    for start in fabric.switches:
        path, at = {start}, start
        while at in above:
            at = above[at]
            if at in path:
                raise TopologyError(f"{file}: switch {at!r} is below itself; expected a tree")
            if len(path) > MAX_LEVELS:
                raise TopologyError(f"{file}: more than {MAX_LEVELS} switches above one another at {start!r}")
            path.add(at)
    return fabric


class _Builder:
    def __init__(self, file: str) -> None:
        self.file = file
        self.switches: dict[str, tuple[str, ...]] = {}
        self.hosts: dict[str, tuple[str, ...]] = {}
        self.warnings: list[str] = []
        self._count = 0

    def fail(self, line: int | None, what: str) -> NoReturn:
        raise TopologyError(f"{self.file}{'' if line is None else f':{line}'}: {what}")

    def names(self, text: str, line: int | None) -> list[str]:
        try:
            names = expand(text)
        except ValueError as error:
            self.fail(line, str(error))
        self._count += len(names)
        if self._count > MAX_NAMES:
            self.fail(line, f"more than {MAX_NAMES} names in one file")
        return names

    def add(self, name: str, switches: Sequence[str], hosts: Sequence[str], line: int | None) -> None:
        if name in self.switches:
            self.fail(line, f"switch {name!r} is described twice")
        if not name.isprintable() or not name:
            self.fail(line, f"{name!r} is no name of a switch")
        self.switches[name], self.hosts[name] = tuple(switches), tuple(hosts)

    def fabric(self, source: str) -> Fabric:
        if not self.switches:
            self.fail(None, f"no switch in it; {_CONF_REMEDY}, or `switches:` in YAML or JSON")
        base = PurePath(self.file).name
        at: dict[str, str] = {}
        for switch, hosts in self.hosts.items():
            for host in hosts:
                if at.setdefault(host, switch) != switch:
                    self.warnings.append(f"{base}: {host} is below {at[host]} and {switch}: the first counts")
        return Fabric(base, source, self.switches, self.hosts, tuple(self.warnings[:20]))


def read_conf(text: str, name: str) -> Fabric:
    """Return the fabric of a `topology.conf`; blocks (NVLink domains) are no switches and are counted in a warning.

    Raises:
        TopologyError: A line is not understood; names file and line.
    """
    build = _Builder(name)
    blocks = 0
    for number, line in _conf_lines(text):
        values: dict[str, str] = {}  # by key in lower case
        end = 0
        while (match := _WORD.match(line, end)) is not None:
            end = match.end()
            if match[1].lower() in values:
                build.fail(number, f"{match[1]} is there twice")
            values[match[1].lower()] = match[2]
        if end != len(line):
            build.fail(number, f"{line[end:].strip()[:40]!r} is not understood; {_CONF_REMEDY}")
        if "blockname" in values:
            blocks += 1
        elif "switchname" in values:
            if odd := [key for key in values if key not in _KEYS]:
                build.fail(number, f"{odd[0]!r} is not known; {_CONF_REMEDY}")
            below, hosts = (build.names(values[key], number) if key in values else [] for key in ("switches", "nodes"))
            if not below and not hosts:
                build.fail(number, f"switch {values['switchname']!r} has neither Nodes nor Switches; {_CONF_REMEDY}")
            build.add(values["switchname"], below, hosts, number)
        elif not set(values) <= {"blocksizes", "default"}:
            build.fail(number, f"{line.strip()[:40]!r} is not understood; {_CONF_REMEDY}")
    if blocks:
        build.warnings.append(f"{PurePath(name).name}: {blocks} blocks are no switches and are passed over")
    return build.fabric("topology.conf")


def _conf_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, without comments; a backslash at the end joins the next line."""
    held, first = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        first = first if held else number
        if line.endswith("\\"):
            held += line[:-1] + " "
            continue
        line = (held + line).strip()
        held = ""
        if line:
            yield first, line
    if held.strip():
        yield first, held.strip()


def read_document(text: str, name: str) -> Fabric:
    """Return the fabric of a `topology.yaml` or of a topograph model, in YAML or JSON.

    Raises:
        TopologyError: It is neither; names file and line, or the place in the document.
    """
    build = _Builder(name)
    try:
        document = (strict_json if text.lstrip()[:1] in ("{", "[") else plain_yaml).loads(text)
    except json.JSONDecodeError as error:
        raise TopologyError(f"{name}:{error.lineno}: not JSON: {error.msg} at column {error.colno}") from None
    except plain_yaml.PlainYamlError as error:
        raise TopologyError(f"{name}:{error.line}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise TopologyError(f"{name}: not usable JSON: {error}") from None
    if isinstance(document, list):
        _read_slurm(build, document)
        return build.fabric("topology.yaml")
    if not isinstance(document, dict) or "switches" not in document:
        build.fail(None, "expected a list of topologies (topology.yaml) or a mapping with `switches` (topograph)")
    _read_model(build, document)
    return build.fabric("topograph")


def _read_slurm(build: _Builder, document: list[Any]) -> None:
    """Add the tree of the default topology, or of the first that has entry."""
    trees = [entry for entry in document if isinstance(entry, dict) and isinstance(entry.get("tree"), dict)]
    if not trees:
        build.fail(None, "no topology with a `tree` in it; blocks and flat topologies name no switches")
    chosen = next((entry for entry in trees if str(entry.get("cluster_default")).lower() == "true"), trees[0])
    if len(trees) > 1:
        base = PurePath(build.file).name
        build.warnings.append(f"{base}: {len(trees)} trees; {chosen.get('topology')!r} is used")
    for index, entry in enumerate(_objects(build, chosen["tree"], "switches", "tree.switches")):
        place = f"tree.switches[{index}]"
        switch = _text(build, entry, "switch", place)
        below, hosts = (
            build.names(_text(build, entry, key, place), None) if entry.get(key) else []
            for key in ("children", "nodes")
        )
        build.add(switch, below, hosts, None)


def _read_model(build: _Builder, document: dict[str, Any]) -> None:
    """Add topograph's model: switches name switches and nodes, or capacity blocks, which name nodes."""
    blocks: dict[str, list[str]] = {}
    for place, name, entry in _named(build, document, "capacity_blocks"):
        blocks[name] = _list(build, entry, "nodes", place)
    for place, name, entry in _named(build, document, "switches"):
        hosts = _list(build, entry, "nodes", place)
        for block in _list(build, entry, "capacity_blocks", place):
            if block not in blocks:
                build.fail(None, f"{place}: the capacity block {block!r} is not described")
            hosts += blocks[block]
        build.add(name, _list(build, entry, "switches", place), hosts, None)


def _named(build: _Builder, document: dict[str, Any], key: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Place, name and object of each entry of a list of objects with names, or of a mapping from names."""
    value = document.get(key) or []
    if isinstance(value, dict):
        if not all(isinstance(entry, dict) for entry in value.values()):
            build.fail(None, f"{key}: expected a mapping of mappings")
        return [(f"{key}.{name}", name, entry) for name, entry in value.items()]
    entries = []
    for index, entry in enumerate(_objects(build, document, key, key) if value else []):
        place = f"{key}[{index}]"
        entries.append((place, _text(build, entry, "name", place), entry))
    return entries


def _objects(build: _Builder, holder: dict[str, Any], key: str, place: str) -> list[dict[str, Any]]:
    value = holder.get(key)
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        build.fail(None, f"{place}: expected a list of mappings")
    return value


def _text(build: _Builder, entry: dict[str, Any], key: str, place: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value:
        build.fail(None, f"{place}.{key}: expected a name, got {str(value)[:40]}")
    return value


def _list(build: _Builder, entry: dict[str, Any], key: str, place: str) -> list[str]:
    """Names of a list of texts, or of one text; each may be a range."""
    value = entry.get(key) or []
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        build.fail(None, f"{place}.{key}: expected a list of names")
    return [name for word in words for name in build.names(word, None)]


def expand(text: str) -> list[str]:
    """Return the names of one of Slurm's lists, in order: `node[1-3,07],login` is node1 node2 node3 node07 login.

    Raises:
        ValueError: It is no list; says what was expected.
    """
    names: list[str] = []
    words, depth, start = [], 0, 0
    for i, character in enumerate(f"{text},"):
        depth += (character == "[") - (character == "]")
        if character == "," and (depth == 0 or i == len(text)):  # a comma outside brackets, or the end
            words.append(text[start:i].strip())
            start = i + 1
    for word in words:
        parts: list[list[str]] = []
        end = 0
        for piece in _PIECE.finditer(word):
            if piece.start() != end:
                break
            end = piece.end()
            parts.append(_numbers(piece[1]) if piece[1] is not None else [piece[2]])
        if end != len(word) or not parts:
            raise ValueError(f"{word!r} is no name and no list; expected names such as node[1-4,7]")
        if prod(map(len, parts)) + len(names) > MAX_NAMES:
            raise ValueError(f"{word!r} gives more than {MAX_NAMES} names")
        names += map("".join, product(*parts))
    return names


def _numbers(text: str) -> list[str]:
    """Numbers of ranges, with leading zeros: `1-3,07` is 1 2 3 07."""
    numbers: list[str] = []
    for part in text.split(","):
        ends = _RANGE.fullmatch(part.strip())
        low, high = (int(ends[1]), int(ends[2] or ends[1])) if ends else (1, 0)
        if ends is None or high < low:
            raise ValueError(f"{part.strip()!r} in brackets is no range; expected numbers such as 1-4")
        if high - low >= MAX_NAMES:
            raise ValueError(f"{part.strip()!r} gives more than {MAX_NAMES} names")
        numbers += [str(number).zfill(len(ends[1])) for number in range(low, high + 1)]
    return numbers
