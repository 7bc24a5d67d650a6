"""Topology JSON, `topocomm.topology/1`: in and out without loss."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import PurePath
from typing import Any, NoReturn, TypeVar

from topocomm.errors import TopologyError
from topocomm.topology.model import (
    DEVICE_KINDS,
    FIGURE_SOURCES,
    IN_NETWORK_KINDS,
    Device,
    Link,
    Pair,
    RankPlace,
    Topology,
)
from topocomm.topology.readers.plain import strict_json

SCHEMA = "topocomm.topology/1"

Document = dict[str, Any]
_ABSENT = object()
_OPTIONAL = ("name", "numa", "cpu_affinity", "bus_id", "in_network", "nic", "gb_per_s_source", "latency_us_source")
"""Fields that are left out of the file where they are None; other unknown figures are written as null."""


def to_document(topology: Topology) -> Document:
    """The plain data that `from_document` reads back into an equal topology."""

    def rows(items: tuple[Any, ...]) -> list[Document]:
        return [
            {key: value for key, value in item._asdict().items() if value is not None or key not in _OPTIONAL}
            for item in items
        ]

    return {
        "schema": SCHEMA,
        "name": topology.name,
        "source": topology.source,
        "devices": rows(topology.devices),
        "links": rows(topology.links),
        "pairs": rows(topology.pairs),
        "ranks": rows(topology.ranks),
        "warnings": list(topology.warnings),
        **({} if topology.launch_us is None else {"launch_us": topology.launch_us}),
        **({"facts": dict(topology.facts)} if topology.facts else {}),
    }


def dumps(topology: Topology) -> str:
    """One JSON document, one line per device, link and pair."""
    parts = []
    for key, value in to_document(topology).items():
        if isinstance(value, list) and value:
            text = "[\n  " + ",\n  ".join(json.dumps(item) for item in value) + "\n ]"
        else:
            text = json.dumps(value)
        parts.append(f'"{key}": {text}')
    return "{" + ",\n ".join(parts) + "}\n"


def matches(text: str) -> bool:
    """True if the text can only be meant as a JSON object."""
    return text.lstrip("\ufeff \t\r\n").startswith("{")


def read(text: str, name: str) -> Topology:
    """The topology in a JSON text.

    Args:
        text: The document.
        name: Its file name, for messages and as the topology's name where the document gives none.

    Raises:
        TopologyError: Not JSON, another schema, or a field that breaks its type; names the JSON path.
    """
    try:
        document = strict_json.loads(text)
    except json.JSONDecodeError as error:
        hint = "; it ends too early" if error.pos >= len(text.rstrip()) else ""
        raise TopologyError(f"{name}:{error.lineno}: not JSON: {error.msg} at column {error.colno}{hint}") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, thousands of brackets
        raise TopologyError(f"{name}: not usable JSON: {error}") from None
    return from_document(document, name)


def from_document(document: Any, name: str = "topology") -> Topology:
    """The topology in parsed JSON. Keys that the schema does not know are passed over.

    Args:
        document: An object with at least `devices` and `links`.
        name: What messages call it.

    Raises:
        TopologyError: A field is missing or breaks its type; names the JSON path.
    """
    if not isinstance(document, dict):
        raise TopologyError(f"{name}: expected a JSON object, got {_shown(document)}")
    schema = document.get("schema", SCHEMA)
    if schema != SCHEMA:
        hint = "; give a plan to --plan, not to --input" if str(schema).startswith("topocomm.plan/") else ""
        raise TopologyError(f"{name}: schema: expected {SCHEMA!r}, got {_shown(schema)}{hint}")
    missing = [key for key in ("devices", "links") if key not in document]
    if missing:
        raise TopologyError(f"{name}: a topology needs the keys 'devices' and 'links'; {missing[0]!r} is missing")
    top = _Object(document, name, "")
    devices = tuple(map(_device, top.objects("devices")))
    known: set[str] = set()
    for item in top.objects("devices"):
        if item.identifier("id") in known:
            item.fail("id", "another id than the devices above")
        known.add(item.identifier("id"))
    return Topology(
        name=top.text("name", default=PurePath(name).stem),
        source=top.text("source", default="topology JSON"),
        devices=devices,
        links=_read_joining(top, "links", Link, _link, known),
        pairs=_read_joining(top, "pairs", Pair, _pair, known),
        ranks=tuple(_rank(item, known) for item in top.objects("ranks")),
        warnings=top.texts("warnings"),
        launch_us=top.figure("launch_us", positive=False),
        facts=top.mapping("facts"),
    )


class _Object:
    """One JSON object and where it stands, so that every fault is reported with its path."""

    def __init__(self, value: Mapping[str, Any], file: str, path: str) -> None:
        self._value, self._file, self._path = value, file, path

    def fail(self, key: str, expected: str) -> NoReturn:
        path = f"{self._path}.{key}".lstrip(".")
        got = _shown(self._value[key]) if key in self._value else "nothing"
        raise TopologyError(f"{self._file}: {path}: expected {expected}, got {got}")

    def values(self, key: str) -> list[Any]:
        value = self._value.get(key, [])
        if not isinstance(value, list):
            self.fail(key, "a list")
        return value

    def object(self, key: str, index: int) -> _Object:
        item = self._value[key][index]
        path = f"{self._path}.{key}[{index}]".lstrip(".")
        if not isinstance(item, dict):
            raise TopologyError(f"{self._file}: {path}: expected an object, got {_shown(item)}")
        return _Object(item, self._file, path)

    def objects(self, key: str) -> list[_Object]:
        return [self.object(key, index) for index in range(len(self.values(key)))]

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._value.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and _is_unicode(item) for item in value):
            self.fail(key, "a list of strings")
        return tuple(value)

    def text(self, key: str, default: str) -> str:
        value = self._value.get(key, default)
        if not isinstance(value, str) or not _is_unicode(value):
            self.fail(key, "a string")
        return value

    def mapping(self, key: str) -> dict[str, Any]:
        value = self._value.get(key, {})
        if not isinstance(value, dict):
            self.fail(key, "an object")
        return value

    def maybe_text(self, key: str) -> str | None:
        return None if self._value.get(key) is None else self.text(key, "")

    def identifier(self, key: str, known: set[str] | None = None) -> str:
        """A non-empty printable string; with `known`, the id of a device."""
        value = self._value.get(key)
        if not isinstance(value, str) or not value or not value.isprintable():
            self.fail(key, "a non-empty printable string")
        if known is not None and value not in known:
            self.fail(key, "the id of a device")
        return value

    def choice(self, key: str, choices: tuple[str, ...], optional: bool = False) -> Any:
        value = self._value.get(key)
        if value is None and optional:
            return None
        if value not in choices:
            self.fail(key, "one of " + " ".join(choices))
        return value

    def figure(self, key: str, positive: bool) -> float | None:
        """A finite number, or None for unknown; bandwidths are positive, times at least 0."""
        value = self._value.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(key, "a number or null")
        number = _to_float(value)
        if not isfinite(number) or number < 0 or (positive and number == 0):
            self.fail(key, "a positive finite number or null" if positive else "a finite number of at least 0 or null")
        return number

    def whole(self, key: str, least: int) -> int | None:
        value = self._value.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.fail(key, f"a whole number of at least {least} or null")
        return value

    def numa(self) -> int | str | None:
        if isinstance(self._value.get("numa"), str):
            return self.identifier("numa")
        return self.whole("numa", 0)


_Joining = TypeVar("_Joining", Link, Pair)


def _read_joining(
    top: _Object,
    key: str,
    kind: type[_Joining],
    read_one: Callable[[_Object, set[str]], _Joining],
    known: set[str],
) -> tuple[_Joining, ...]:
    """Links or pairs. In a cluster all but the two ends of most is as in one before: that is checked once."""
    one, other, *fields = kind._fields
    absent = [_ABSENT] * len(fields)
    checked: dict[tuple[object, ...], tuple[Any, ...]] = {}
    found = []
    for index, item in enumerate(top.values(key)):
        mark: tuple[object, ...] | None = None
        known_rest: tuple[Any, ...] = ()
        try:
            a, b = item.get(one), item.get(other)
            rest: tuple[object, ...] = tuple(map(item.get, fields, absent))
            if a in known and b in known and a != b:
                mark = (*rest, *map(type, rest))  # 1, 1.0 and True are equal, and not all of them allowed
                known_rest = checked.get(mark, ())
        except (AttributeError, TypeError):
            mark = None  # no object, or a list or object where a value should be: what is wrong is said below
        if known_rest:
            found.append(kind._make((a, b, *known_rest)))
            continue
        found.append(read_one(top.object(key, index), known))
        if mark is not None:
            checked[mark] = found[-1][2:]
    return tuple(found)


def _device(item: _Object) -> Device:
    kind, in_network = item.choice("kind", DEVICE_KINDS), item.choice("in_network", IN_NETWORK_KINDS, optional=True)
    if in_network is not None and kind != "switch":
        item.fail("in_network", f"null on a {kind}, because only switches reduce on the way")
    return Device(
        id=item.identifier("id"),
        kind=kind,
        host=item.text("host", default="host0"),
        name=item.maybe_text("name"),
        numa=item.numa(),
        cpu_affinity=item.maybe_text("cpu_affinity"),
        bus_id=item.maybe_text("bus_id"),
        in_network=in_network,
    )


def _link(item: _Object, known: set[str]) -> Link:
    src, dst = item.identifier("src", known), item.identifier("dst", known)
    if src == dst:
        item.fail("dst", "another device than src")
    return Link(
        src=src,
        dst=dst,
        kind=item.text("kind", default="unknown"),
        lanes=item.whole("lanes", 1),
        gap_us=item.figure("gap_us", positive=False),
        **_figures(item),
    )


def _pair(item: _Object, known: set[str]) -> Pair:
    a, b = item.identifier("a", known), item.identifier("b", known)
    return Pair(a=a, b=b, code=item.maybe_text("code"), **_figures(item))


def _rank(item: _Object, known: set[str]) -> RankPlace:
    rank = item.whole("rank", 0)
    if rank is None:
        item.fail("rank", "a whole number of at least 0")
    host = item.text("host", default="host0")
    return RankPlace(rank=rank, host=host, device=item.identifier("device", known), nic=item.maybe_text("nic"))


def _figures(item: _Object) -> dict[str, Any]:
    return {
        "gb_per_s": item.figure("gb_per_s", positive=True),
        "latency_us": item.figure("latency_us", positive=False),
        "gb_per_s_source": item.choice("gb_per_s_source", FIGURE_SOURCES, optional=True),
        "latency_us_source": item.choice("latency_us_source", FIGURE_SOURCES, optional=True),
    }


def _to_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _is_unicode(text: str) -> bool:
    """False for lone surrogates, which JSON can spell but no output can encode."""
    return not any("\ud800" <= c <= "\udfff" for c in text)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
