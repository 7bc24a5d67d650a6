"""The shared dumps of real machines with hand-checked facts; they lie beside the repository and may be absent."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[3] / "shared/topologies"
ENDING = ".expect.json"
NO_FACTS = {"kind", "notes"}
"""What the person who checked a dump wrote beside its facts."""


def each_of(*kinds: str) -> pytest.MarkDecorator:
    """Runs a test with the `path` of every dump of these kinds, one after the other; skips it without any."""
    absent = pytest.mark.skip(reason="no shared dumps beside the repository")
    dumps: list[Any] = [
        path for kind in kinds for path in sorted((FOLDER / kind).glob("*")) if not path.name.endswith(ENDING)
    ] or [pytest.param(None, marks=absent, id="absent")]
    return pytest.mark.parametrize("path", dumps, ids=lambda path: path.stem)


def expected(path: Path) -> dict[str, Any]:
    """The facts beside a dump."""
    facts: dict[str, Any] = json.loads(path.with_suffix(ENDING).read_text())
    return facts


def assert_said(
    said: Mapping[str, Any], facts: Mapping[str, Any], *, but: Collection[str] = (), absent: object = "absent"
) -> None:
    """Every expected fact but these is said; `absent` is what counts as said where nothing is."""
    for key in facts.keys() - NO_FACTS - set(but):
        assert said.get(key, absent) == facts[key], key
