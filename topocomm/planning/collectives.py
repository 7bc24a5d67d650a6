"""The collectives that can be planned: who puts a value in, and what each result holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from topocomm.errors import PlanError

CollectiveName = Literal["allreduce", "reduce", "broadcast"]
COLLECTIVES: tuple[str, ...] = get_args(CollectiveName)


@dataclass(frozen=True)
class Collective:
    """One collective over `ranks` ranks; `root` counts for reduce and broadcast only."""

    name: str
    ranks: int
    root: int = 0

    def __post_init__(self) -> None:
        if self.name not in COLLECTIVES:
            raise PlanError(f"unknown collective {self.name!r}; expected one of {', '.join(COLLECTIVES)}")
        if self.ranks < 1:
            raise PlanError(f"a collective needs at least one rank, got {self.ranks}")
        if not 0 <= self.root < self.ranks:
            raise PlanError(f"root {self.root} is outside ranks 0..{self.ranks - 1}")

    @property
    def contributors(self) -> Sequence[int]:
        """Ranks whose value goes in."""
        return [self.root] if self.name == "broadcast" else range(self.ranks)

    @property
    def receivers(self) -> Sequence[int]:
        """Ranks that hold a result."""
        return [self.root] if self.name == "reduce" else range(self.ranks)

    def expected(self, rank: int) -> Sequence[int]:
        """Contributions that the result of `rank` holds, each once."""
        del rank  # the same for every receiver of these collectives
        return self.contributors
