"""Ways through the system tree of an NCCL log, and the codes that they imply by NCCL's rules."""

from __future__ import annotations

from functools import cached_property

from topocomm.topology.readers.nccl.log.nccl_log_system import Branch, Key, System

FAST = ("NVL", "XGMI")
HANGS = ("PCI", "LOC")
NO_LIMIT = 5000.0
"""GB/s that NCCL writes where a link is no limit, as between a GPU and its board, or for a NIC without a slot."""


class Tree:
    """The links of a system whose lines are whole and placed; of any other, none."""

    def __init__(self, system: System | None) -> None:
        self.branches: list[Branch] = list(dict.fromkeys(system.branches)) if system and system.placed else []
        self.up: dict[Key, tuple[Key, float]] = {}
        self.holders: dict[Key, list[Key]] = {}
        self._fast: dict[Key, dict[Key, str]] = {}
        for branch in self.branches:
            if branch.type in HANGS:
                self.up.setdefault(branch.node, (branch.parent, branch.gb_per_s))
            elif branch.type == "NET":
                self.holders.setdefault(branch.node, []).append(branch.parent)
            elif branch.type in FAST:
                self._fast.setdefault(branch.parent, {})[branch.node] = branch.type

    @cached_property
    def board_gpu(self) -> dict[Key, Key]:
        """The GPU of each board (DEV) that holds one; one with several stays a device of its own."""
        on: dict[Key, list[Key]] = {}
        for node, (parent, _) in self.up.items():
            if node.type == "GPU" and parent.type == "DEV":
                on.setdefault(parent, []).append(node)
        return {board: gpus[0] for board, gpus in on.items() if len(gpus) == 1}

    def way_up(self, node: Key) -> list[tuple[Key, float]]:
        """The nodes above a node with GB/s of the link to each, up to the CPU."""
        way: list[tuple[Key, float]] = []
        while node in self.up and len(way) < 50:
            node, gb_per_s = self.up[node]
            way.append((node, gb_per_s))
        return way

    def code(self, a: Key, b: Key) -> str | None:
        """The code of a GPU and another GPU or NET; None where the tree does not hold both."""
        ways = [self._nodes_up(a), self._nodes_up(b)]
        if not all(way and way[-1].type == "CPU" for way in ways):
            return None
        mine, other = self._reach(a), self._reach(b)
        if b in mine:
            return mine[b]
        common = next((node for node in mine if node in other and node.type == "NVS"), None)
        if common is not None:
            return mine[common]
        meet = next((node for node in ways[0] if node in ways[1]), None)
        if meet is None:
            return "SYS"
        if meet.type == "CPU":
            return "PHB"
        return "PIX" if ways[0].index(meet) == 1 and ways[1].index(meet) == 1 else "PXB"

    def _nodes_up(self, node: Key) -> list[Key]:
        """The way from a device on: a NET stands on its NIC, a GPU on its board."""
        if node.type == "NET":
            holders = self.holders.get(node, [])
            if len(set(holders)) != 1:
                return []
            node = holders[0]
        nodes = [node, *(above for above, _ in self.way_up(node))]
        return nodes[1:] if len(nodes) > 1 and nodes[1] in self.board_gpu else nodes

    def _reach(self, node: Key) -> dict[Key, str]:
        """What a GPU, or the board it is alone on, reaches over one NVLink or xGMI."""
        board = self.up.get(node, (node, 0.0))[0]
        found = {**self._fast.get(node, {}), **(self._fast.get(board, {}) if board in self.board_gpu else {})}
        return {self.board_gpu.get(end, end): code for end, code in found.items()}
