"""A bound: its value, the argument in words, and a witness from which others derive the value again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Bound:
    """What no schedule can beat.

    Attributes:
        value: Rounds, us or GB/s; None where nothing bounds the throughput.
        argument: Why, in words.
        witness: Plain JSON data: which of the three bounds it is (`bounds`), the `kind` of argument, and the ranks,
            devices and figures that the argument is about (docs/concepts/cost-models.md).
    """

    value: float | None
    argument: str
    witness: dict[str, Any]
