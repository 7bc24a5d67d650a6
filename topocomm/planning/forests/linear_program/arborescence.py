"""The cheapest directed spanning tree from a root in a dense graph (Chu, Liu 1965; Edmonds 1967).

Cycles are contracted along one growing path, whole rows at a time: O(n^2) element operations in O(n) array steps.
"""

from __future__ import annotations

from math import fsum, inf

import numpy as np
from numpy.typing import NDArray


def cheapest_arborescence(costs: NDArray[np.float64], root: int) -> list[int] | None:
    """Return the parent of every node, -1 at the root; None where some node is out of reach.

    `costs` float64 [n, n] has that of the edge from row to column, infinite where there is none.
    """
    try:
        from topocomm.native._native import cheapest_parents
    except ImportError:
        return _parents_plainly(costs, root)
    parents = np.empty(len(costs), dtype=np.int64)
    found = cheapest_parents(np.ascontiguousarray(costs, dtype=np.float64), parents, root)
    return parents.tolist() if found else None


def _parents_plainly(costs: NDArray[np.float64], root: int) -> list[int] | None:
    """As `cheapest_arborescence`, without the compiled part."""
    count = len(costs)
    work = _Contraction(costs, root)
    for start in range(count):
        if not work.grow(start):
            return None
    return work.expand()


def cheapest_costs(costs: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return the cost of the cheapest tree from every root, float64 [n]; None where a node cannot reach another.

    Contraction down to one node does not depend on the root (Gabow, Galil, Spencer, Tarjan 1986): a tree pays the
    cheapest edge into every contracted set that does not contain its root.
    """
    work = _Contraction(costs, None)
    work.grow(0)
    if work.within.count(-1) > 1:
        return None
    total = fsum(work.paid.values())
    costs_of = np.empty(len(costs))
    for root in range(len(costs)):
        saved, name = [], root
        while name >= 0:
            saved.append(work.paid.get(name, 0.0))
            name = work.within[name]
        costs_of[root] = total - fsum(saved)
    return costs_of


class _Contraction:
    """Nodes and contracted cycles, each with the edge that enters it; without a root all become one if possible."""

    def __init__(self, costs: NDArray[np.float64], root: int | None) -> None:
        self.count, self.root = len(costs), root
        self.costs = costs.copy()
        np.fill_diagonal(self.costs, inf)
        if root is not None:
            self.costs[:, root] = inf
        self.sources = np.broadcast_to(np.arange(self.count)[:, None], costs.shape).copy()
        self.targets = np.broadcast_to(np.arange(self.count), costs.shape).copy()
        """Ends of the edge of the graph behind an edge between contracted nodes, [row, column]."""
        self.name = list(range(self.count))
        """Name of the node in a row: its own, or that of the cycle contracted into it last."""
        self.row = list(range(self.count))
        """Row by name."""
        self.within: list[int] = [-1] * self.count
        """Cycle that contains a node, by name; -1: none."""
        self.cycles: dict[int, list[int]] = {}
        self.edge: dict[int, tuple[int, int]] = {}
        self.paid: dict[int, float] = {}
        """Cost of the cheapest edge into a node, less what nodes inside it paid, by name."""
        self.reached = {root}

    def grow(self, start: int) -> bool:
        """Follow cheapest entering edges back from a node to a reached one; False where there is none."""
        name = start
        while self.within[name] >= 0:
            name = self.within[name]
        path: list[int] = []
        on_path: set[int] = set()
        while name not in self.reached:
            path.append(name)
            on_path.add(name)
            row = self.row[name]
            column = self.costs[:, row]
            best = int(np.argmin(column))
            if column[best] == inf:
                return False
            self.edge[name] = (int(self.sources[best, row]), int(self.targets[best, row]))
            self.paid[name] = float(column[best])
            self.costs[:, row] = column - column[best]
            other = self.name[best]
            if other in on_path:
                at = path.index(other)
                cycle, path = path[at:], path[:at]
                on_path -= set(cycle)
                name = self._contract(cycle)
            else:
                name = other
        self.reached.update(path)
        return True

    def expand(self) -> list[int]:
        """Open the cycles from the outermost and return the parents; an edge into a cycle replaces one of its edges."""
        parents = [-1] * self.count
        todo = [name for name in range(len(self.within)) if self.within[name] < 0 and name != self.root]
        for name in todo:
            source, target = self.edge[name]
            parents[target] = source
            inside = target
            while inside != name:
                todo += [other for other in self.cycles[self.within[inside]] if other != inside]
                inside = self.within[inside]
        return parents

    def _contract(self, cycle: list[int]) -> int:
        rows = [self.row[name] for name in cycle]
        keep = min(rows)
        for row in rows:
            if row == keep:
                continue
            better = self.costs[row] < self.costs[keep]
            for table in (self.costs, self.sources, self.targets):
                table[keep] = np.where(better, table[row], table[keep])
            better = self.costs[:, row] < self.costs[:, keep]
            for table in (self.costs, self.sources, self.targets):
                table[:, keep] = np.where(better, table[:, row], table[:, keep])
            self.costs[row] = inf
            self.costs[:, row] = inf
        self.costs[keep, keep] = inf
        new = len(self.within)
        self.within.append(-1)
        self.row.append(keep)
        self.name[keep] = new
        self.cycles[new] = cycle
        for name in cycle:
            self.within[name] = new
        return new
