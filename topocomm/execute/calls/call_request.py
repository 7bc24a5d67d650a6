"""What a rank asks for, and the same with its sizes."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

from topocomm.execute.calls.structure import Structure
from topocomm.execute.host.call_engine import Span
from topocomm.execute.host.canonical_nodes import LocalNodes
from topocomm.operators.layout import Layout
from topocomm.operators.operator import Operator
from topocomm.planning.plan import Plan

Shapes = dict[str, tuple[tuple[int, ...], Any]]


@dataclass(frozen=True)
class Request:
    """What a rank asks for.

    Attributes:
        collective: Its name.
        like: A value like those to come.
        operator: None for collectives that combine nothing.
        root: Of reduce and broadcast.
        rows: Entries of axis 0 by rank: what each gives to an all-gather, or gets from a reduce-scatter.
        order: "any" or "canonical".
        shards: Of canonical order, the first virtual shard of every rank and the end of the last; None: one a rank.
        plan: The plan to execute; None takes the planner's.
    """

    collective: str
    like: Any
    operator: Operator | None
    root: int = 0
    rows: tuple[int, ...] | None = None
    order: str = "any"
    shards: tuple[int, ...] | None = None
    plan: Plan | None = None

    @property
    def which(self) -> tuple[Hashable, ...]:
        """What tells calls with equal values apart."""
        return (self.collective, self.operator, self.root, self.rows, self.order, self.shards)


class Bound(NamedTuple):
    """A request whose sizes are known."""

    operator: Operator
    structure: Structure
    layout: Layout
    """Of the whole payload."""
    value: Span
    result: Span
    parts: tuple[int, ...] | None = None
    """Rows of every rank's part, where the collective has parts."""
    local: LocalNodes | None = None
    """What folds this rank's virtual shards, where it has several."""
