"""The machines of an NCCL log: the system tree and path matrix of each, and the rank of each GPU.

Every rank prints the tree and the matrix of its machine. Whole trees come first; cells that ranks of one machine print
differently are not used. Two trees of one host name whose ranks have nothing in common are of two machines (container
names repeat).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from topocomm.topology.readers.nccl.log.nccl_log_comms import Communicator, Session
from topocomm.topology.readers.nccl.log.nccl_log_lines import Warn
from topocomm.topology.readers.nccl.log.nccl_log_system import Key, Path, System, key, paths, system

PathKey = tuple[Key, Key]


@dataclass
class Machine:
    """One machine of the log. `host` is empty where the log has lost it."""

    host: str
    system: System | None
    paths: dict[PathKey, Path]
    ranks: dict[Key, int] = field(default_factory=dict)
    """Of GPUs."""
    members: frozenset[int] = frozenset()
    """Ranks that are known to run here."""
    guessed: bool = False
    """True if nothing tells the ranks of the GPUs; they are numbered in the order printed."""


def machines(comm: Communicator, bus_ids: dict[int, str], warn: Warn) -> list[Machine]:
    """Return the machines that lines of the communicator describe or run on, in order of appearance.

    `bus_ids` are by rank, as NCCL writes them; `warn` takes what had to be passed over.
    """
    by_host: dict[str, list[Session]] = {}
    for session in comm.sessions:
        if session.thread is not None:
            by_host.setdefault(session.host, []).append(session)
    return [m for host, sessions in by_host.items() for m in _of_host(host, sessions, bus_ids, warn)]


def _of_host(host: str, sessions: list[Session], bus_ids: dict[int, str], warn: Warn) -> list[Machine]:
    trees: list[tuple[System, Session]] = []
    for session in sessions:
        tree = system(session)
        if tree is not None and tree.whole:  # not if the matrix below it has GPUs that it lacks
            tree.whole = {b for _, b in paths(session) if b.type == "GPU"} <= {branch.node for branch in tree.branches}
            tree.placed = tree.placed and tree.whole
        trees += [(tree, session)] if tree is not None else []
    members = frozenset(s.rank for s in sessions if s.rank is not None)
    if not trees:
        return [_named(Machine(host, None, _agreed(sessions, warn), {}, members), bus_ids, warn)]
    is_one = any(session.nodes == 1 for session in sessions)
    groups: list[list[tuple[System, Session]]] = []
    trees.sort(key=lambda pair: (pair[0].placed, pair[0].whole, len(pair[0].branches), -pair[0].line), reverse=True)
    for tree, session in trees:
        ranks = set(tree.ranks.values())
        fits_any = is_one or not tree.whole or not ranks
        group = next((g for g in groups if fits_any or ranks & set(g[0][0].ranks.values())), [])
        groups += [group] if not group else []
        group.append((tree, session))
    groups.sort(key=lambda group: min(tree.line for tree, _ in group))
    machines_of_host = []
    for group in groups:
        best = group[0][0]
        content = best.roots, best.branches, best.ranks
        for tree, _ in group[1:]:
            if tree.whole and best.whole and (tree.roots, tree.branches, tree.ranks) != content:
                warn(f"the system trees of lines {best.line} and {tree.line} differ; the first was read")
        own = [session for _, session in group] if len(groups) > 1 else sessions
        local = frozenset(best.ranks.values()) | (members if len(groups) == 1 else frozenset())
        machines_of_host.append(_named(Machine(host, best, _agreed(own, warn), {}, local), bus_ids, warn))
    return machines_of_host


def _agreed(sessions: list[Session], warn: Warn) -> dict[PathKey, Path]:
    """Return the path matrix without cells that ranks print differently."""
    cells: dict[PathKey, Path] = {}
    printed = [cell for session in sessions for cell in paths(session).items()]
    bad = dict.fromkeys(pair for pair, path in printed if cells.setdefault(pair, path) != path)
    if bad:
        a, b = next(iter(bad))
        words = f"{a.type}/{a.id} - {b.type}/{b.id}"
        warn(f"{len(bad)} cells of the path matrix differ between ranks ({words}, ...); not used")
    return {pair: path for pair, path in cells.items() if pair not in bad}


def _named(machine: Machine, bus_ids: dict[int, str], warn: Warn) -> Machine:
    """Return the machine with the rank of each GPU: from the tree, else by bus id, else in the order of the tree."""
    tree = machine.system
    nodes = [*(branch.node for branch in (tree.branches if tree else ())), *(b for _, b in machine.paths)]
    gpus = dict.fromkeys(node for node in (*nodes, *(a for a, _ in machine.paths)) if node.type == "GPU")
    by_bus = {key("GPU", bus_ids[rank]).id: rank for rank in machine.members if rank in bus_ids}
    if not machine.members:
        by_bus = {key("GPU", bus_id).id: rank for rank, bus_id in bus_ids.items()}
    ranks = dict(tree.ranks) if tree else {}
    for gpu in gpus:
        if gpu not in ranks and gpu.id in by_bus and by_bus[gpu.id] not in ranks.values():
            ranks[gpu] = by_bus[gpu.id]
    twice = len(set(ranks.values())) < len(ranks)
    if gpus and (twice or not ranks):
        why = "give a rank twice" if twice else "name no ranks"
        warn(f"tree and matrix {why}: GPUs are numbered in the order printed, which may not be their ranks")
        ranks = {gpu: i for i, gpu in enumerate(gpus)}
        machine.guessed, machine.members = True, frozenset()
    lost = [gpu for gpu in gpus if gpu not in ranks]
    if lost:
        warn(f"the rank of GPU/{lost[0].id} is not known; {len(lost)} such GPUs are left out")
    machine.ranks = dict(sorted(ranks.items(), key=lambda item: item[1]))
    machine.members = machine.members | frozenset(ranks.values())
    return machine
