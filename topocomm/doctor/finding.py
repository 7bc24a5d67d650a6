"""What a check says."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, NamedTuple

Level = Literal["ok", "info", "warn", "FAIL"]
Environment = Mapping[str, str]
FindVersion = Callable[[str], str | None]


class Finding(NamedTuple):
    """One check's word: how serious, which check, what was found, and what to do about it."""

    level: Level
    check: str
    text: str
    remedy: str = ""


def installed(package: str) -> str | None:
    """The version of an installed package; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def usable_cores() -> frozenset[int]:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))
