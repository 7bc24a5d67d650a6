"""Lines of an NCCL log by communicator and rank.

A log may mix several processes, and several communicators one after the other. A *session* is the lines that one thread
wrote while it set up one communicator; sessions of one communicator share its id or its number of ranks.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from topocomm.topology.readers.nccl.log.nccl_log_lines import Part, Thread

_COMM = re.compile(r"\bcomm (0x[0-9a-fA-F]+) rank (\d+) n[rR]anks (\d+)(?=\s|$)")
_FIELD = re.compile(r"\b(nNodes|localRanks|nvmlDev|busId|commId) (-?[0-9a-fA-FxX]+)(?=\s|$)")
_RCCL = re.compile(r"\bcomm (0x[0-9a-fA-F]+) nRanks (\d+)(?: busId [0-9a-fA-F]+)?(?=\s|$)")
_SETUP = re.compile(
    r"(?:Channel|Ring) \d+(?:/\d+)? ?:(?: +\d+)+\.{0,3}$|Trees? (?:\[\d+\]|\d+ :)|Ring \d+ : -?\d+ -> \d+ -> -?\d+"
)
_ME = re.compile(r"(?:Ring|Tree) \d+ : -?\d+ -> (\d+) -> [-\d/]+(?= (?!->)|$)")
_TREES = re.compile(r"Trees \[\d+\] [-\d/]+->(\d+)->-?\d")
_ORDER = re.compile(r"(?:Channel|Ring) (\d+)(?:/\d+)? ?:((?: +\d+)+)$")
_RING = re.compile(r"Ring \d+ : (\d+) -> (\d+) -> \d+(?= |$)")
_CONNECTION = re.compile(
    r"(?:Channel|Ring|Tree) \d+(?:/\d+)? : (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])?(?: \[(send|receive)\])? via \w"
)
"""The rank before the arrow writes the line, except where it receives."""
MOST_PRINTED = 20
"""Ranks on a `Channel` line of a longer ring."""
GOES_ON = re.compile(r" *\d[ \d]*")
"""Rest of a `Channel` line that a terminal wrapped."""

_END = re.compile(r" - (?:Destroy|Abort|Finalize) (?:START|COMPLETE)")
"""End of a communicator, which any thread may write."""
_SYSTEM = "=== System :"


@dataclass(slots=True)
class Session:
    """Lines of one thread on one communicator. Numbers are None where the log lacks them."""

    thread: Thread | None
    parts: list[Part] = field(default_factory=list)
    rank: int | None = None
    ranks: int | None = None
    nodes: int | None = None
    local_ranks: int | None = None
    nvml_dev: int | None = None
    bus_id: str | None = None
    comm: str | None = None
    comm_id: str | None = None
    done: bool = False
    heads: set[str] = field(default_factory=set)
    """Words that begin its setup lines, each printed once: `Ring 00`, `Channel 01/02`, `Trees [0]`."""
    orders: set[int] = field(default_factory=set)
    """Numbers of ranks in its `Channel` lines."""

    @property
    def host(self) -> str:
        """Name of the host, empty where the log lacks it."""
        return self.thread[0] if self.thread else ""


class Communicator(NamedTuple):
    """The communicator that was read."""

    ranks: int | None
    sessions: list[Session]
    mixed: bool
    """True if two processes have the same rank: communicators of one size that nothing tells apart."""
    others: int
    """Number of other communicators in the log."""


def communicator(parts: list[Part]) -> Communicator:
    """Return the communicator with the most ranks; sessions that name none belong to it if it is alone."""
    sessions = _sessions(parts)
    if all(session.rank is None for session in sessions):
        _name_writers(sessions)
    unknown = [s for s in sessions if s.ranks is None]
    highest = max((s.rank for s in unknown if s.rank is not None), default=0)
    for session in unknown:  # `Channel` lines give the number of ranks, where no rank is greater
        count = max(session.orders, default=0)
        if len(session.orders) != 1 or count <= highest:
            continue
        texts = [part.text.strip() for part in session.parts]
        orders = [match.group(2).split() for text in texts if (match := _ORDER.match(text))]
        ends = {(int(order[-1]), int(order[0])) for order in orders}
        steps = [match for text in texts if (match := _RING.match(text))]
        # Of a long ring the line has the first ranks only, so the first must name the last as the rank before it.
        if count != MOST_PRINTED or any((int(step.group(1)), int(step.group(2))) in ends for step in steps):
            session.ranks = count
    keys = dict.fromkeys((s.comm_id, s.ranks) for s in sessions if s.ranks is not None)
    ids_of = Counter(ranks for comm_id, ranks in keys if comm_id is not None)
    named = [key for key in keys if key[0] is not None or ids_of[key[1]] != 1]
    if not named:
        return Communicator(None, *_first_of_each(sessions), 0)
    comm_id, ranks = max(named, key=lambda key: key[1] or 0)
    ids = (comm_id, None if ids_of[ranks] <= 1 else comm_id)
    alone = len(named) == 1
    members = [s for s in sessions if (s.ranks == ranks and s.comm_id in ids) or (alone and s.ranks is None)]
    return Communicator(ranks, *_first_of_each(members), len(named) - 1)


def _name_writers(sessions: list[Session]) -> None:
    """Set ranks from connections, in a log of nothing else: `0[3000] -> 1[4000] via P2P/IPC`."""
    named: set[int] = set()
    for session in sessions:
        connections = [match for part in session.parts if (match := _CONNECTION.match(part.text.strip()))]
        ranks = {int(match.group(2 if match.group(3) == "receive" else 1)) for match in connections}
        if len(ranks) == 1 and not ranks <= named:
            named |= ranks
            session.rank = min(ranks)


def _sessions(parts: list[Part]) -> list[Session]:
    current: dict[Thread | None, Session] = {}
    sessions: list[Session] = []
    before = None
    for part in parts:
        if part.thread is None and before is not None and GOES_ON.fullmatch(part.text):
            current[before].orders.add(0)  # a wrapped line: its numbers are not all
        elif part.thread is not None:
            before = part.thread
        session = current.get(part.thread)
        if session is None or _starts(session, part):
            session = Session(part.thread)
            current[part.thread] = session
            sessions.append(session)
        session.parts.append(part)
        _note(session, part)
    return sessions


def _starts(session: Session, part: Part) -> bool:
    """Return whether a line sets up another communicator than the session's."""
    text = part.text
    if _END.search(text):
        return False
    if "comm 0x" in text and (match := _COMM.search(text) or _RCCL.search(text)):
        if session.comm is not None and match.group(1) != session.comm:
            return True
        if "Init START" in text and (session.comm is not None or session.done):
            return True
    if _SYSTEM in text:
        return _SYSTEM in session.heads
    if not _SETUP.match(text.lstrip()):
        return False
    return session.done or " ".join(text.split()[:2]) in session.heads


def _note(session: Session, part: Part) -> None:
    text = part.text
    if part.cut:  # maybe inside the last word
        text = text[: max(text.rfind(" "), text.rfind("\t")) + 1]
    stripped = text.lstrip()
    if _SYSTEM in text:
        session.heads.add(_SYSTEM)
    elif _SETUP.match(part.text.lstrip()):
        session.heads.add(" ".join(part.text.split()[:2]))
    if "comm 0x" in text and not _END.search(text) and (match := _COMM.search(text) or _RCCL.search(text)):
        session.comm, session.ranks = match.group(1), int(match.group(3 if match.re is _COMM else 2))
        session.rank = int(match.group(2)) if match.re is _COMM else session.rank
        values = dict(_FIELD.findall(text))
        if re.fullmatch(r"(?:0x)?[0-9a-fA-F]{1,16}", values.get("busId", "")):  # else damage, as `30x00`
            session.bus_id = values["busId"]
        session.comm_id = values.get("commId", session.comm_id)
        whole = {key: int(value) for key, value in values.items() if re.fullmatch(r"-?\d{1,9}", value)}
        session.nodes = whole.get("nNodes", session.nodes)
        session.local_ranks = whole.get("localRanks", session.local_ranks)
        session.nvml_dev = whole.get("nvmlDev", session.nvml_dev)
    if session.rank is None and (match := _ME.match(stripped) or _TREES.match(stripped)):
        session.rank = int(match.group(1))
    if (match := _ORDER.match(stripped)) and not part.cut:
        order = sorted(map(int, match.group(2).split()))
        session.orders.add(len(order) if order == list(range(len(order))) else 0)
        session.rank = session.rank if session.rank is not None else 0
    if "Init COMPLETE" in text:
        session.done = True


def _first_of_each(sessions: list[Session]) -> tuple[list[Session], bool]:
    """Drop later sessions of a thread or rank, as of a second run; return also whether two processes have one rank."""
    threads: set[Thread | None] = set()
    by_rank: dict[int, Session] = {}
    mixed = False
    kept = []
    for session in sessions:
        if session.rank is None and session.thread in threads:
            continue
        if session.rank is not None and (first := by_rank.setdefault(session.rank, session)) is not session:
            a, b = first.thread, session.thread  # a last line may name another device
            if a is not None and b is not None:
                same_device = a[3] == b[3] or (first.comm is not None and first.comm == session.comm)
                mixed = mixed or a[:2] != b[:2] or not same_device
            continue
        threads.add(session.thread)
        kept.append(session)
    return kept, mixed
