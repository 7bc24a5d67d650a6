"""`topocomm schema`: the JSON Schemas (2020-12) of all documents that commands write and read."""

from __future__ import annotations

import argparse
import json
import sys
from importlib import resources
from textwrap import fill
from typing import Any

from topocomm.errors import PlanError

URN = "urn:topocomm:schema:"
"""Begins the `$id` of every schema, before its name."""


def add_parser(subparsers: Any) -> None:
    """Add the command to the parser of `topocomm`."""
    parser = subparsers.add_parser(
        "schema",
        description="The JSON Schemas (2020-12) of the documents that commands write and read. Fields that a schema "
        "does not name are allowed: later versions add some, and readers pass them over.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="print this one, whole (default: list all)")


def run(args: argparse.Namespace) -> int:
    """List the schemas or print one, and return the exit status.

    Raises:
        PlanError: There is none of this name.
    """
    names = schema_names()
    if args.name is None:
        width = max(map(len, names)) + 2
        for name in names:
            head, rest = f"{name:{width}}", " " * width
            sys.stdout.write(fill(_read(name)["description"], 80, initial_indent=head, subsequent_indent=rest) + "\n")
        return 0
    name = args.name.removeprefix("topocomm.").removesuffix("/1")
    if name not in names:
        raise PlanError(f"schema {args.name!r}: expected one of {', '.join(names)}")
    sys.stdout.write(json.dumps(bundled(name), indent=1) + "\n")
    return 0


def schema_names() -> list[str]:
    """Return the names of all schemas."""
    return sorted(entry.name.removesuffix(".json") for entry in _folder().iterdir() if entry.name.endswith(".json"))


def bundled(name: str) -> dict[str, Any]:
    """Return a schema with those that it refers to among its `$defs`, so that it needs no other file."""
    schema, parts = _read(name), {}
    wanted = _referred(schema)
    while wanted:
        part = wanted.pop()
        if part not in parts:
            parts[part] = _read(part)
            wanted |= _referred(parts[part])
    return schema | ({"$defs": dict(sorted(parts.items()))} if parts else {})


def _referred(schema: Any) -> set[str]:
    """The names of the schemas that one refers to."""
    if isinstance(schema, list):
        return set().union(*map(_referred, schema))
    if not isinstance(schema, dict):
        return set()
    own = schema.get("$ref", "")
    below = set().union(*map(_referred, schema.values()))
    return below | ({own.removeprefix(URN)} if isinstance(own, str) and own.startswith(URN) else set())


def _read(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(_folder().joinpath(f"{name}.json").read_text("utf-8"))
    return schema


def _folder() -> Any:
    return resources.files("topocomm").joinpath("schemas")
