"""Whose value the result of whom holds, and what must therefore be sent: for `check_certificate`."""

from __future__ import annotations

from topocomm.planning.collectives import IN_PARTS, Collective


class Needs:
    """Whose value the result of whom holds, straight from the definitions of the collectives."""

    def __init__(self, collective: Collective) -> None:
        self.name, self.ranks = collective.name, collective.ranks
        everybody = [True] * self.ranks
        self.gives, self.gets = everybody, everybody
        self.shares = [0.0] * self.ranks
        if collective.name in IN_PARTS:
            rows = sum(collective.parts)
            self.shares = [part / rows if rows else 1 / self.ranks for part in collective.parts]
            some = [share > 0 for share in self.shares]
            self.gives, self.gets = (some, everybody) if collective.name == "allgather" else (everybody, some)
        elif collective.shards:
            self.gives = [collective.shards[rank] < collective.shards[rank + 1] for rank in range(self.ranks)]
        only_root = [rank == collective.root for rank in range(self.ranks)]
        if collective.name == "broadcast":
            self.gives = only_root
        elif collective.name == "reduce":
            self.gets = only_root

    def __call__(self, src: int, dst: int) -> bool:
        """Whether the result of dst holds something of src, another rank."""
        in_order = self.name not in ("scan", "exscan") or src < dst
        return src != dst and self.gives[src] and self.gets[dst] and in_order

    def partners(self, rank: int, side: str) -> list[int]:
        """The other ranks that a rank "hears" of, or "reaches"."""
        if side not in ("hears", "reaches"):
            raise ValueError(f"side {side!r}")
        ranks = range(self.ranks)
        return [other for other in ranks if (self(other, rank) if side == "hears" else self(rank, other))]

    def least_messages(self) -> int:
        """Each rank but one receives (or sends) one message; where all of c givers must reach all, c-1 more."""
        if self.ranks == 1 or self.name in ("scan", "exscan"):
            return self.ranks - 1
        return self.ranks - 1 + min(sum(self.gives), sum(self.gets)) - 1

    def share_into(self, inside: set[int]) -> float:
        """Payloads that must enter a set of ranks."""
        outside = [rank for rank in range(self.ranks) if rank not in inside]
        if self.name in ("scan", "exscan"):
            before, found = 0, set()
            for rank in range(self.ranks):
                before += rank not in inside
                found |= {before} if rank in inside else set()
            return float(len(found - {0}))
        if not any(self.gives[rank] for rank in outside) or not any(self.gets[rank] for rank in inside):
            return 0.0
        if self.name in IN_PARTS:
            return sum(self.shares[rank] for rank in (outside if self.name == "allgather" else inside))
        return 1.0
