"""Which machines an NCCL log describes: the system tree and path matrix of each, and which rank is which GPU.

Every rank prints the tree and the matrix of its machine. Whole trees come first; what ranks of one machine print
differently is not used. Two trees of one host name whose ranks have nothing in common are of two machines (container
names repeat).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from topocomm.topology.readers.nccl.log.nccl_log_comms import Communicator, Session
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
    """True if nothing says which GPU is of which rank; they are numbered in the order printed."""


def machines(comm: Communicator, bus_ids: dict[int, str], warnings: list[str]) -> list[Machine]:
    """The machines that lines of the communicator describe or run on, in order of appearance.

    Args:
        comm: The sessions.
        bus_ids: Bus ids by rank as NCCL writes them, where lines beside the tree say them.
        warnings: Where what had to be passed over is added.
    """
    hosts = dict.fromkeys(s.host for s in comm.sessions if s.thread is not None)
    found: list[Machine] = []
    for host in hosts:
        sessions = [s for s in comm.sessions if s.thread is not None and s.host == host]
        found += _of_host(host, sessions, bus_ids, warnings)
    return found


def _of_host(host: str, sessions: list[Session], bus_ids: dict[int, str], warnings: list[str]) -> list[Machine]:
    trees = [(tree, session) for session in sessions if (tree := _system(session)) is not None]
    members = frozenset(s.rank for s in sessions if s.rank is not None)
    if not trees:
        return [_named(Machine(host, None, _agreed(sessions, warnings), {}, members), bus_ids, warnings)]
    one = any(session.nodes == 1 for session in sessions)
    apart: list[list[tuple[System, Session]]] = []
    for tree, session in sorted(trees, key=lambda pair: _quality(pair[0]), reverse=True):
        mine = set(tree.ranks.values())
        home = next((g for g in apart if one or not tree.whole or not mine or mine & set(g[0][0].ranks.values())), None)
        if home is None:
            apart.append([(tree, session)])
        else:
            home.append((tree, session))
    apart.sort(key=lambda group: min(tree.line for tree, _ in group))
    found = []
    for group in apart:
        best = group[0][0]
        for tree, _ in group[1:]:
            if tree.whole and best.whole and _content(tree) != _content(best):
                warnings.append(f"the system trees of lines {best.line} and {tree.line} differ; the first was read")
        own = [session for _, session in group] if len(apart) > 1 else sessions
        here = frozenset(best.ranks.values()) if len(apart) > 1 else members | frozenset(best.ranks.values())
        found.append(_named(Machine(host, best, _agreed(own, warnings), {}, here), bus_ids, warnings))
    return found


def _system(session: Session) -> System | None:
    """The tree of a session; not whole if the matrix below it has GPUs that it has not."""
    tree = system(session)
    if tree is None or not tree.whole:
        return tree
    lost = {b for _, b in paths(session) if b.type == "GPU"} - {branch.node for branch in tree.branches}
    return tree._replace(whole=False, placed=False) if lost else tree


def _quality(tree: System) -> tuple[bool, bool, int, int]:
    return tree.placed, tree.whole, len(tree.branches), -tree.line


def _content(tree: System) -> object:
    return tree.roots, tree.branches, tree.ranks


def _agreed(sessions: list[Session], warnings: list[str]) -> dict[PathKey, Path]:
    """The path matrix without cells that ranks print differently."""
    found: dict[PathKey, Path] = {}
    bad: dict[PathKey, None] = {}
    for session in sessions:
        for pair, path in paths(session).items():
            if found.setdefault(pair, path) != path:
                bad[pair] = None
    for pair in bad:
        del found[pair]
    if bad:
        a, b = next(iter(bad))
        words = f"{a.type}/{a.id} - {b.type}/{b.id}"
        warnings.append(f"{len(bad)} cells of the path matrix differ between ranks ({words}, ...); not used")
    return found


def _named(machine: Machine, bus_ids: dict[int, str], warnings: list[str]) -> Machine:
    """The machine with the rank of each GPU: from the tree, else by bus id, else in the order of the tree."""
    tree = machine.system
    gpus = dict.fromkeys(branch.node for branch in (tree.branches if tree else ()) if branch.node.type == "GPU")
    gpus.update(dict.fromkeys(b for _, b in machine.paths if b.type == "GPU"))
    gpus.update(dict.fromkeys(a for a, _ in machine.paths if a.type == "GPU"))
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
        warnings.append(f"tree and matrix {why}: GPUs are numbered in the order printed, which may not be their ranks")
        ranks = {gpu: i for i, gpu in enumerate(gpus)}
        machine.guessed, machine.members = True, frozenset()
    lost = [gpu for gpu in gpus if gpu not in ranks]
    if lost:
        warnings.append(f"the rank of GPU/{lost[0].id} is not known; {len(lost)} such GPUs are left out")
    machine.ranks = dict(sorted(ranks.items(), key=lambda item: item[1]))
    machine.members = machine.members | frozenset(ranks.values())
    return machine
