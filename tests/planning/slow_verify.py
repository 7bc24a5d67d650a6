"""`verify` once more, slow and simple, sharing no code with it: values are strings with all their brackets."""

import re
from collections import Counter
from itertools import pairwise

from tests.planning.replay import expected, shards_word


class RefusedError(Exception):
    """The schedule breaks a rule; the message says which, for a person who looks into a failing test."""


def need(holds, *rule):
    if not holds:
        raise RefusedError(*rule)


def slow_verify(schedule, collective, *, keep_order=False, ports=None, routes=None):
    """Whether rank order is kept; raises RefusedError where the schedule must not be accepted.

    Args:
        schedule: What to run.
        collective: What it must compute.
        keep_order: Whether it must keep rank order.
        ports: Messages that a rank may send, and receive, in one round; None: any number.
        routes: Of every pair of ranks the explicit paths that lead from one to the other, None among them where the
            cheapest path exists; None: every pair is joined.
    """
    check_chunks(schedule, collective)
    count, stagger = (1, 0) if schedule.repeat is None else (schedule.repeat.count, schedule.repeat.stagger_rounds)
    held = {(i, *place): value for i in range(count) for place, value in inputs(schedule, collective).items()}
    moves, folds = schedule.transfer_list(), schedule.combine_list()
    check_messages(schedule, moves, routes)
    need(all(0 <= one.round < schedule.rounds for one in (*moves, *folds)), "rounds")
    for time in range(schedule.rounds + (count - 1) * stagger):
        here = [(i, m) for i in range(count) for m in moves if m.round + i * stagger == time]
        check_ports(here, ports)
        for key, value in [
            ((i, m.dst, m.dst_slot, m.chunk), read(held, i, m.src, m.src_slot, m.chunk)) for i, m in here
        ]:
            write(held, key, value)
        for i, f in [(i, f) for i in range(count) for f in folds if f.round + i * stagger == time]:
            need(0 <= f.rank < schedule.ranks and 0 <= f.chunk < len(schedule.chunks), f)
            write(held, (i, f.rank, f.out_slot, f.chunk), fold([read(held, i, f.rank, s, f.chunk) for s in f.operands]))
    kept = [check_outputs(schedule, collective, held, i, keep_order) for i in range(count)]
    return all(kept)


def check_chunks(schedule, collective):
    need(schedule.ranks == collective.ranks, "ranks")
    row = 0
    for first, rows in schedule.chunks:
        need(first == row and rows >= 0, "chunks abut")
        row += rows
    need(not collective.parts or row == sum(collective.parts), "rows of parts")
    if schedule.repeat is not None:
        count, stagger = schedule.repeat.count, schedule.repeat.stagger_rounds
        need(count >= 1 and stagger >= 0, "repeat")
        need(all(rows == 0 or rows >= count for _, rows in schedule.chunks), "slices have rows")


def part_owners(schedule, collective):
    """Whose part each chunk lies in."""
    if not sum(collective.parts):
        need(len(schedule.chunks) == len(collective.parts), "a chunk a part")
        return list(range(len(collective.parts)))
    starts = [sum(collective.parts[:part]) for part in range(len(collective.parts) + 1)]
    owners = []
    for first, rows in schedule.chunks:
        within = [r for r, (a, b) in enumerate(pairwise(starts)) if rows and a <= first and first + rows <= b]
        need(len(within) == 1, "within a part")
        owners += within
    return owners


def tree_nodes(low, high):
    """All nodes of the canonical tree over low..high-1, by its definition."""
    if high - low == 1:
        return {(low, high)}
    split = 1
    while 2 * split < high - low:
        split *= 2
    return {(low, high)} | tree_nodes(low, low + split) | tree_nodes(low + split, high)


def inputs(schedule, collective):
    """(rank, slot, chunk) -> what is there first."""
    owners = part_owners(schedule, collective) if collective.parts else []
    if collective.name == "alltoall":
        owners = [pair // collective.ranks for pair in owners]
    need(list(schedule.owners) == (owners if collective.name in ("allgather", "gather", "alltoall") else []), "owners")
    need(bool(collective.shards) or not schedule.nodes, "nodes")
    held, seen = {}, set()
    for rank, slot, index in schedule.inputs.tolist():
        need(0 <= rank < schedule.ranks and (rank, index) not in seen, "inputs")
        seen.add((rank, index))
        if collective.shards:
            need(0 <= index < len(schedule.nodes), "nodes")
            low, high = schedule.nodes[index]
            start, end = collective.shards[rank : rank + 2]
            inside = {n for n in tree_nodes(0, collective.shards[-1]) if start <= n[0] and n[1] <= end}
            largest = {n for n in inside if not any(o != n and o[0] <= n[0] and n[1] <= o[1] for o in inside)}
            need((low, high) in largest, "canonical nodes")
            need(sum((rank, i) in seen for i, n in enumerate(schedule.nodes) if n == (low, high)) == 1, "a node once")
            value = shards_word(low, high), tuple(range(low, high))
        else:
            need(
                rank == index and (collective.name not in ("broadcast", "scatter") or rank == collective.root),
                "inputs at home",
            )
            value = f"<{index}>", (index,)
        for chunk in range(len(schedule.chunks)):
            if not schedule.owners or schedule.owners[chunk] == rank:
                write(held, (rank, slot, chunk), value)
    return held


def check_messages(schedule, moves, routes):
    ranks, chunks = range(schedule.ranks), range(len(schedule.chunks))
    for m in moves:
        need(m.src in ranks and m.dst in ranks and m.chunk in chunks and m.src != m.dst, m)
        need(-1 <= m.path < len(schedule.paths), m)
        if routes is not None:
            need((None if m.path < 0 else schedule.paths[m.path]) in routes.get((m.src, m.dst), ()), m)


def check_ports(here, ports):
    messages = {(m.src, m.dst, m.path) for _, m in here}
    for side in (0, 1):
        busy = Counter(message[side] for message in messages)
        need(ports is None or max(busy.values(), default=0) <= ports, "ports")


def read(held, *key):
    need(key in held, "read", key)
    return held[key]


def write(held, key, value):
    need(key not in held, "written twice", key)
    held[key] = value


def fold(values):
    need(len(values) > 1, "operands")
    (text, leaves), *others = values
    for other, more in others:
        need(not set(leaves) & set(more), "counted twice")
        text, leaves = f"({text}{other})", leaves + more
    return text, leaves


def check_outputs(schedule, collective, held, index, keep_order):
    """Whether the results of one slice keep rank order."""
    if collective.shards:
        shards = tuple(range(collective.shards[-1]))
        wanted = {(r, c): shards for r in range(schedule.ranks) for c in range(len(schedule.chunks))}
    else:
        words = expected(collective, schedule.chunks)
        wanted = {place: tuple(map(int, re.findall(r"<(\d+)>", text))) for place, text in words.items()}
    got = {}
    for rank, slot, chunk in schedule.outputs.tolist():
        need((rank, chunk) in wanted and (rank, chunk) not in got, "outputs")
        got[rank, chunk] = read(held, index, rank, slot, chunk)
    need(got.keys() == wanted.keys(), "outputs missing")
    trees = {}
    for (rank, chunk), (text, leaves) in got.items():
        need(sorted(leaves) == list(wanted[rank, chunk]), "complete")
        trees.setdefault((chunk, wanted[rank, chunk]), set()).add(text)
    need(all(len(same) == 1 for same in trees.values()), "uniform")
    if collective.shards:
        whole = shards_word(0, collective.shards[-1])
        need(all(same == {whole} for same in trees.values()), "canonical")
    in_order = all(leaves == wanted[place] for place, (_, leaves) in got.items())
    need(in_order or not keep_order, "order")
    return in_order
