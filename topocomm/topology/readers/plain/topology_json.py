"""Topology JSON, `topocomm.topology/1`: in and out without loss."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import inf, isfinite
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
from topocomm.topology.readers.plain.json_line import line_of

SCHEMA = "topocomm.topology/1"

Document = dict[str, Any]
_ABSENT = object()
_OPTIONAL = ("name", "numa", "cpu_affinity", "bus_id", "in_network", "nic", "gb_per_s_source", "latency_us_source")
"""Fields that are left out of the file where they are None; other unknown figures are written as null."""


def to_document(topology: Topology) -> Document:
    """Return the plain data that `from_document` reads back into an equal topology."""

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
    """Return one JSON document, one line per device, link and pair."""
    parts = []
    for key, value in to_document(topology).items():
        if isinstance(value, list) and value:
            text = "[\n  " + ",\n  ".join(json.dumps(item) for item in value) + "\n ]"
        else:
            text = json.dumps(value)
        parts.append(f'"{key}": {text}')
    return "{" + ",\n ".join(parts) + "}\n"


def matches(text: str) -> bool:
    """Return whether the text can only be meant as a JSON object."""
    return text.lstrip("\ufeff \t\r\n").startswith("{")


def read(text: str, name: str) -> Topology:
    """Return the topology in a JSON text; the file's name names one without a name."""
    try:
        document = strict_json.loads(text)
    except json.JSONDecodeError as error:
        hint = "; it ends too early" if error.pos >= len(text.rstrip()) else ""
        raise TopologyError(f"{name}:{error.lineno}: not JSON: {error.msg} at column {error.colno}{hint}") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, thousands of brackets
        raise TopologyError(f"{name}: not usable JSON: {error}") from None
    try:
        return from_document(document, name)
    except _FieldError as error:
        line = line_of(text, error.path)
        raise TopologyError(f"{name}:{line}:{str(error).removeprefix(f'{name}:')}") from None


def from_document(document: Any, name: str = "topology") -> Topology:
    """Return the topology in parsed JSON; keys that the schema does not know are passed over.

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
    items = top.objects("devices")
    devices = tuple(map(_device, items))
    known: set[str] = set()
    for item, device in zip(items, devices, strict=True):
        if device.id in known:
            item.fail("id", "another id than the devices above")
        known.add(device.id)
    return Topology(
        name=top.text("name", default=PurePath(name).stem),
        source=top.text("source", default="topology JSON"),
        devices=devices,
        links=_read_joining(top, "links", Link, _link, known),
        pairs=_read_joining(top, "pairs", Pair, _pair, known),
        ranks=tuple(_rank(item, known) for item in top.objects("ranks")),
        warnings=tuple(
            top.checked("warnings", "a list of strings", lambda v: isinstance(v, list) and all(map(_is_text, v)), [])
        ),
        launch_us=top.figure("launch_us", positive=False),
        facts=top.checked("facts", "an object", lambda value: isinstance(value, dict), {}),
    )


class _FieldError(TopologyError):
    """The value at a path of a document is wrong."""

    def __init__(self, file: str, path: str, what: str) -> None:
        super().__init__(f"{file}: {path}: {what}")
        self.path = path


class _Object:
    """One JSON object and its path in the document, so that every fault is reported with its path."""

    def __init__(self, value: Mapping[str, Any], file: str, path: str) -> None:
        self._value, self._file, self._path = value, file, path

    def fail(self, key: str, expected: str) -> NoReturn:
        path = f"{self._path}.{key}".lstrip(".")
        got = _shown(self._value[key]) if key in self._value else "nothing"
        raise _FieldError(self._file, path, f"expected {expected}, got {got}")

    def checked(self, key: str, expected: str, accepts: Callable[[Any], bool], default: Any = None) -> Any:
        value = self._value.get(key, default)
        if not accepts(value):
            self.fail(key, expected)
        return value

    def values(self, key: str) -> list[Any]:
        values: list[Any] = self.checked(key, "a list", lambda value: isinstance(value, list), [])
        return values

    def object(self, key: str, index: int) -> _Object:
        item = self._value[key][index]
        path = f"{self._path}.{key}[{index}]".lstrip(".")
        if not isinstance(item, dict):
            raise _FieldError(self._file, path, f"expected an object, got {_shown(item)}")
        return _Object(item, self._file, path)

    def objects(self, key: str) -> list[_Object]:
        return [self.object(key, index) for index in range(len(self.values(key)))]

    def text(self, key: str, default: str | None) -> Any:
        """Return a string; with the default None, null too."""
        return self.checked(key, "a string", lambda v: _is_text(v) or (v is None and default is None), default)

    def identifier(self, key: str, known: set[str] | None = None) -> str:
        """Return a non-empty printable string; with `known`, the id of a device."""
        value: str = self.checked(
            key, "a non-empty printable string", lambda v: isinstance(v, str) and bool(v) and v.isprintable()
        )
        if known is not None and value not in known:
            self.fail(key, "the id of a device")
        return value

    def choice(self, key: str, choices: tuple[str, ...], optional: bool = False) -> Any:
        return self.checked(key, "one of " + " ".join(choices), lambda v: v in choices or (v is None and optional))

    def figure(self, key: str, positive: bool) -> float | None:
        """Return a finite number, or None for unknown; bandwidths are positive, times at least 0."""
        value = self.checked(key, "a number or null", lambda v: v is None or _is_number(v, int | float))
        if value is None:
            return None
        try:
            number = float(value)
        except OverflowError:
            number = inf
        if not isfinite(number) or number < 0 or (positive and number == 0):
            self.fail(key, "a positive finite number or null" if positive else "a finite number of at least 0 or null")
        return number

    def whole(self, key: str, least: int) -> int | None:
        expected = f"a whole number of at least {least} or null"
        value: int | None = self.checked(key, expected, lambda v: v is None or (_is_number(v, int) and v >= least))
        return value

    def numa(self) -> int | str | None:
        return self.identifier("numa") if isinstance(self._value.get("numa"), str) else self.whole("numa", 0)


_Joining = TypeVar("_Joining", Link, Pair)


def _read_joining(
    top: _Object,
    key: str,
    kind: type[_Joining],
    read: Callable[[_Object, set[str]], _Joining],
    known: set[str],
) -> tuple[_Joining, ...]:
    """Return links or pairs. In a cluster most are alike in all but their ends: the rest is checked once."""
    src, dst, *fields = kind._fields
    absent = [_ABSENT] * len(fields)
    checked: dict[tuple[object, ...], tuple[Any, ...]] = {}
    joining = []
    for index, item in enumerate(top.values(key)):
        mark: tuple[object, ...] | None = None
        rest: tuple[Any, ...] = ()
        try:
            a, b = item.get(src), item.get(dst)
            raw: tuple[object, ...] = tuple(map(item.get, fields, absent))
            if a in known and b in known and a != b:
                mark = (*raw, *map(type, raw))  # 1, 1.0 and True are equal, and not all of them allowed
                rest = checked.get(mark, ())
        except (AttributeError, TypeError):
            mark = None  # no object, or a list or object in place of a value: `read` says so
        if rest:
            joining.append(kind._make((a, b, *rest)))
            continue
        joining.append(read(top.object(key, index), known))
        if mark is not None:
            checked[mark] = joining[-1][2:]
    return tuple(joining)


def _device(item: _Object) -> Device:
    kind, in_network = item.choice("kind", DEVICE_KINDS), item.choice("in_network", IN_NETWORK_KINDS, optional=True)
    if in_network is not None and kind != "switch":
        item.fail("in_network", f"null on a {kind}, because only switches reduce on the way")
    return Device(
        id=item.identifier("id"),
        kind=kind,
        host=item.text("host", default="host0"),
        name=item.text("name", None),
        numa=item.numa(),
        cpu_affinity=item.text("cpu_affinity", None),
        bus_id=item.text("bus_id", None),
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
    return Pair(a=a, b=b, code=item.text("code", None), **_figures(item))


def _rank(item: _Object, known: set[str]) -> RankPlace:
    rank = item.whole("rank", 0)
    if rank is None:
        item.fail("rank", "a whole number of at least 0")
    host = item.text("host", default="host0")
    return RankPlace(rank=rank, host=host, device=item.identifier("device", known), nic=item.text("nic", None))


def _figures(item: _Object) -> dict[str, Any]:
    return {
        "gb_per_s": item.figure("gb_per_s", positive=True),
        "latency_us": item.figure("latency_us", positive=False),
        "gb_per_s_source": item.choice("gb_per_s_source", FIGURE_SOURCES, optional=True),
        "latency_us_source": item.choice("latency_us_source", FIGURE_SOURCES, optional=True),
    }


def _is_number(value: Any, kinds: Any) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    """Return whether this is a string without lone surrogates, which JSON can spell but no output can encode."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
