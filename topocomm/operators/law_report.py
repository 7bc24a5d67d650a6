"""What trying the laws of an operator found: one entry a law, and all of them as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Law(NamedTuple):
    """One law: whether it holds on all values tried, the measured difference, and a counterexample.

    One that the operator does not claim, commutativity, cannot be broken.
    """

    name: str
    holds: bool
    detail: str = ""
    counterexample: str = ""
    claimed: bool = True

    def __str__(self) -> str:
        word = "not claimed" if not self.claimed else "holds" if self.holds else "BROKEN"
        text = f"{self.name:14} {word}{'; ' + self.detail if self.detail else ''}"
        return text + (f"\n{'':15}{self.counterexample}" if self.counterexample else "")


@dataclass(frozen=True)
class LawReport:
    """Report of `check_laws`; printable.

    Attributes:
        operator: Its name.
        layout: The fields with their dtypes and shapes.
        laws: shapes, purity, rows, identity, associativity, commutativity and kernel, as far as they were tried:
            after a broken `shapes` none is.
        worst_rounding_ulp: The greatest difference between (a.b).c and a.(b.c), in units of the last place of the
            greatest number involved; 0 where rounding never moved anything.
        sampled: Whether values came from the operator's `sample`, and were not any arrays of the dtypes.
        tried: Number of triples of rows (of whole values, of an operator without rows) that every law was tried on; 0
            where a broken `shapes` or `purity` ended it.
    """

    operator: str
    layout: str
    laws: tuple[Law, ...]
    worst_rounding_ulp: float
    sampled: bool = True
    tried: int = 0

    @property
    def ok(self) -> bool:
        """Whether every law tried holds."""
        return all(law.holds for law in self.laws)

    @property
    def broken(self) -> tuple[str, ...]:
        """Names of the broken laws."""
        return tuple(law.name for law in self.laws if not law.holds)

    def __str__(self) -> str:
        head = (
            f"operator {self.operator!r} on {self.layout}: {'ok' if self.ok else 'broken: ' + ', '.join(self.broken)}"
        )
        lines = [head, *(f"  {law}" for law in self.laws)]
        if not self.sampled and {*self.broken} - {"shapes", "purity"}:
            lines.append("  The values tried are any arrays; where only some are values, give the operator a `sample`.")
        source = "from the operator's `sample`" if self.sampled else "of ordinary numbers and extremes of the dtypes"
        end = (
            f"Tried, not proved: {self.tried} triples {source}." if self.tried else "Stopped there: no other was tried."
        )
        lines.append(f"  {end}")
        return "\n".join(lines)
