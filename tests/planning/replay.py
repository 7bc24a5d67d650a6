"""A schedule run on strings, by an interpreter that shares no code with `verify`; and what must come out."""

from topocomm import SUM
from topocomm.planning.candidates import candidate_builds
from topocomm.planning.collectives import IN_PARTS, Collective
from topocomm.planning.request import Request
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import Schedule, split_rows


def word(rank):
    """What a rank puts in."""
    return f"<{rank}>"


def shards_word(low, high):
    """The canonical tree over virtual shards low..high-1 with all its brackets, by its definition."""
    if high - low == 1:
        return str(low)
    split = 1
    while 2 * split < high - low:
        split *= 2
    return f"({shards_word(low, low + split)}{shards_word(low + split, high)})"


def replay(schedule: Schedule, brackets: bool = False) -> dict[tuple[int, int], str]:
    """(rank, chunk) -> what the results spell, in every slice. KeyError where a value is missing that is read."""
    slices, stagger = range(1), 0
    if schedule.repeat is not None:
        slices, stagger = range(schedule.repeat.count), schedule.repeat.stagger_rounds
    held = {}
    for rank, slot, index in schedule.inputs.tolist():
        text = shards_word(*schedule.nodes[index]) if schedule.nodes else word(index)
        for chunk in range(len(schedule.chunks)):
            if not schedule.owners or schedule.owners[chunk] == rank:
                held |= {(rank, slot, chunk, i): text for i in slices}
    moves, folds = schedule.transfer_list(), schedule.combine_list()
    for time in range(schedule.rounds + slices[-1] * stagger):
        here = [(t, i) for t in moves for i in slices if t.round + i * stagger == time]
        for t, i, text in [(t, i, held[t.src, t.src_slot, t.chunk, i]) for t, i in here]:
            held[t.dst, t.dst_slot, t.chunk, i] = text
        for f, i in ((f, i) for f in folds for i in slices if f.round + i * stagger == time):
            text, *others = (held[f.rank, slot, f.chunk, i] for slot in f.operands)
            for other in others:
                text = f"({text}{other})" if brackets else text + other
            held[f.rank, f.out_slot, f.chunk, i] = text
    spelled = {}
    for rank, slot, chunk in schedule.outputs.tolist():
        (spelled[rank, chunk],) = {held[rank, slot, chunk, i] for i in slices}  # as the rows of a chunk
    return spelled


def expected(collective: Collective, chunks) -> dict[tuple[int, int], str]:
    """(rank, chunk) -> what the result must spell where rank order is kept."""
    starts = [sum(collective.parts[:rank]) for rank in range(len(collective.parts) + 1)]
    every = "".join(map(word, range(collective.ranks)))
    wanted = {}
    for chunk, (first, rows) in enumerate(chunks):
        owner = chunk  # of no rows
        if collective.parts and rows:
            (owner,) = (r for r in range(len(collective.parts)) if starts[r] <= first and first + rows <= starts[r + 1])
        for rank in range(collective.ranks):
            text = {
                "allreduce": every,
                "reduce": every if rank == collective.root else None,
                "broadcast": word(collective.root),
                "allgather": word(owner),
                "alltoall": word(owner // collective.ranks) if rank == owner % collective.ranks else None,
                "gather": word(owner) if rank == collective.root else None,
                "scatter": word(collective.root) if rank == owner else None,
                "reduce_scatter": every if rank == owner else None,
                "scan": "".join(map(word, range(rank + 1))),
                "exscan": "".join(map(word, range(rank))) if rank else None,
            }[collective.name]
            if text is not None:
                wanted[rank, chunk] = text
    return wanted


def same(got, wanted, in_order):
    """Whether the results are those wanted, in any order of their words where order is not kept."""
    if in_order:
        return got == wanted
    return got.keys() == wanted.keys() and all(
        sorted(got[place].split("<")) == sorted(wanted[place].split("<")) for place in wanted
    )


def part_count(name, ranks):
    """In how many parts a payload is cut."""
    return ranks**2 if name == "alltoall" else ranks


def collective_of(name, ranks, *, root=0, parts=None, shards=(), rows=16):
    """The collective, with even parts where it has parts and none are given."""
    if name in IN_PARTS and parts is None:
        parts = [size for _, size in split_rows(rows, part_count(name, ranks))]
    return Collective(name, ranks, root, tuple(parts or ()), tuple(shards))


def builds(topology, collective, rows, operator=SUM, *, objective="auto", ports=1):
    """Name and builder of every algorithm that the planner offers, as a dict."""
    ends = topology.endpoints
    request = Request(collective, operator, operator.default_layout(rows), ends, objective, ports, "loggp")
    return dict(candidate_builds(request, PathFinder(topology)))
