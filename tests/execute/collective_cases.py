"""Every collective on a communicator, against NumPy and string concatenation; for every transport alike.

Values follow from rank and size, so each rank knows every result.
"""

import dataclasses

import numpy as np
import torch

from attention import LOGSUMEXP
from tests.concatenation import CONCAT, in_order, spelled, word
from topocomm import MAX, SUM
from topocomm.operators.layout import Field
from topocomm.operators.operator import Operator

BASE = np.arange(21.0).reshape(7, 3)
REPEATS = 3
"""The first use, and then the prepared call more often than it has memories."""


def total(ranks):
    """The sum of BASE + rank over some ranks."""
    return BASE * len(ranks) + sum(ranks)


def allreduce(comm):
    x = BASE + comm.rank
    everyone = range(comm.size)
    for _ in range(REPEATS):
        np.testing.assert_array_equal(comm.allreduce(x, SUM), total(everyone))
        np.testing.assert_array_equal(comm.allreduce(x, MAX), BASE + comm.size - 1)
        both = x.copy()
        assert comm.allreduce(both, SUM, out=both) is both
        np.testing.assert_array_equal(both, total(everyone))
        assert spelled(comm.allreduce(word(comm.rank, 3), CONCAT)) == [in_order(comm.size)] * 3
    tensor = comm.allreduce(torch.tensor(x), SUM)
    assert torch.equal(tensor, torch.tensor(total(everyone)))


def roots(comm):
    """The first rank and the last: whatever happens between them."""
    return sorted({0, comm.size - 1})


def reduce(comm):
    x = BASE + comm.rank
    for root in roots(comm):
        for _ in range(REPEATS):
            reduced = comm.reduce(x, SUM, root=root)
            assert (reduced is None) == (comm.rank != root)
            if comm.rank == root:
                np.testing.assert_array_equal(reduced, total(range(comm.size)))
            text = comm.reduce(word(comm.rank, 2), CONCAT, root=root)
            assert comm.rank != root or spelled(text) == [in_order(comm.size)] * 2


@dataclasses.dataclass
class Pair:
    name: np.ndarray
    scores: np.ndarray


def broadcast(comm):
    for root in roots(comm):
        for turn in range(REPEATS):
            np.testing.assert_array_equal(comm.broadcast(BASE + comm.rank + turn, root=root), BASE + root + turn)
            both = np.full(5, comm.rank, np.int32)
            assert comm.broadcast(both, root=root, out=both) is both
            assert both.tolist() == [root] * 5
            pair = comm.broadcast(Pair(np.array([comm.rank, 7]), BASE * comm.rank), root=root)
            assert pair.name.tolist() == [root, 7]
            np.testing.assert_array_equal(pair.scores, BASE * root)


def reduce_scatter(comm):
    ranks, whole = comm.size, total(range(comm.size))
    uneven = [0] * ranks
    uneven[-1], uneven[0] = 5, uneven[0] + 2
    for _ in range(REPEATS):
        mine = comm.reduce_scatter(BASE + comm.rank, SUM)
        np.testing.assert_array_equal(mine, whole[7 * comm.rank // ranks : 7 * (comm.rank + 1) // ranks])
        rows = uneven if ranks > 1 else [7]
        mine = comm.reduce_scatter(BASE + comm.rank, SUM, rows=rows)
        first = sum(rows[: comm.rank])
        assert mine.shape == (rows[comm.rank], 3)
        np.testing.assert_array_equal(mine, whole[first : first + rows[comm.rank]])
        text = comm.reduce_scatter(word(comm.rank, ranks), CONCAT)
        assert spelled(text) == [in_order(ranks)]


def allgather(comm):
    for turn in range(REPEATS):
        rows = [(rank * 2 + turn) % 5 for rank in range(comm.size)]
        joined = np.concatenate([(BASE + rank)[:n] for rank, n in enumerate(rows)])
        np.testing.assert_array_equal(comm.allgather((BASE + comm.rank)[: rows[comm.rank]]), joined)
        both = comm.allgather({"id": np.array([comm.rank]), "row": BASE[:1] + comm.rank})
        assert both["id"].tolist() == list(range(comm.size))
        np.testing.assert_array_equal(both["row"], np.concatenate([BASE[:1] + rank for rank in range(comm.size)]))


def gather_and_scatter(comm):
    for root in roots(comm):
        for turn in range(REPEATS):
            rows = [(rank * 2 + turn) % 5 for rank in range(comm.size)]
            joined = np.concatenate([(BASE + rank)[:n] for rank, n in enumerate(rows)])
            got = comm.gather((BASE + comm.rank)[: rows[comm.rank]], root=root)
            assert (got is None) == (comm.rank != root)
            assert got is None or np.array_equal(got, joined)
            both = comm.gather({"id": torch.tensor([comm.rank]), "row": torch.tensor(BASE[:1] + comm.rank)}, root=root)
            assert both is None or both["id"].tolist() == list(range(comm.size))
            part = comm.scatter(BASE + comm.rank, root=root)
            whole, edges = BASE + root, [7 * rank // comm.size for rank in range(comm.size + 1)]
            np.testing.assert_array_equal(part, whole[edges[comm.rank] : edges[comm.rank + 1]])
            uneven = [5 * (rank == 0) + 2 * (rank == comm.size - 1) for rank in range(comm.size)]
            part = comm.scatter({"x": BASE, "y": BASE + comm.rank}, root=root, rows=uneven)["y"]
            first = sum(uneven[: comm.rank])
            np.testing.assert_array_equal(part, whole[first : first + uneven[comm.rank]])


def alltoall(comm):
    ranks, rank = comm.size, comm.rank
    sent = [[(src * 3 + dst * 2) % 5 for dst in range(ranks)] for src in range(ranks)]

    def block(src, dst, rows):
        return np.arange(3.0 * rows).reshape(rows, 3) + 100 * src + 10_000 * dst

    for turn in range(REPEATS):
        even = np.concatenate([block(rank, dst, 2) + turn for dst in range(ranks)])
        wanted = np.concatenate([block(src, rank, 2) + turn for src in range(ranks)])
        np.testing.assert_array_equal(comm.alltoall(even), wanted)
        both = torch.tensor(even)
        assert comm.alltoall(both, out=both) is both
        np.testing.assert_array_equal(both, wanted)
        x = np.concatenate([block(rank, dst, rows) for dst, rows in enumerate(sent[rank])])
        got = comm.alltoall({"x": x, "tag": np.arange(len(x), dtype=np.uint8)}, rows=sent[rank])
        np.testing.assert_array_equal(got["x"], np.concatenate([block(s, rank, sent[s][rank]) for s in range(ranks)]))
        first = [sum(sent[src][:rank]) for src in range(ranks)]
        tags = [range(first[src], first[src] + sent[src][rank]) for src in range(ranks)]
        assert got["tag"].tolist() == [tag for own in tags for tag in own]
        sent = [own[1:] + own[:1] for own in sent]
    for step in (1, ranks - 1):
        before = (rank - step) % ranks
        got = comm.sendrecv(torch.tensor(BASE + rank)[: rank % 3], (rank + step) % ranks)
        np.testing.assert_array_equal(got, (BASE + before)[: before % 3])
    got = comm.sendrecv(BASE[:1] + rank, 0)  # what all send to one is joined
    np.testing.assert_array_equal(got[:, 0], [] if rank else range(ranks))
    np.testing.assert_array_equal(
        comm.alltoall(BASE + rank),
        np.concatenate([(BASE + src)[7 * rank // ranks : 7 * (rank + 1) // ranks] for src in range(ranks)]),
    )


def scan(comm):
    before = range(comm.rank)
    for _ in range(REPEATS):
        np.testing.assert_array_equal(comm.scan(BASE + comm.rank, SUM), total(range(comm.rank + 1)))
        np.testing.assert_array_equal(comm.exscan(BASE + comm.rank, SUM), total(before))
        assert spelled(comm.scan(word(comm.rank, 3), CONCAT)) == [in_order(comm.rank + 1)] * 3
        assert spelled(comm.exscan(word(comm.rank, 3), CONCAT)) == [in_order(comm.rank)] * 3
        low = comm.exscan(np.full(2, comm.rank, np.float32), MAX)
        assert low.tolist() == [comm.rank - 1.0 if comm.rank else -np.inf] * 2


def canonical(comm):
    """The same bits whoever owns the shards; x itself is one shard where nobody says."""
    shards, ranks = 11, comm.size
    draw = np.random.default_rng(7)
    out, lse = draw.standard_normal((shards, 4, 8), np.float32), draw.standard_normal((shards, 4), np.float32)
    words = [word(shard, 2) for shard in range(shards)]
    seen = set()
    for seed in range(REPEATS):
        cuts = np.sort(np.random.default_rng(seed).integers(0, shards + 1, ranks - 1)).tolist()
        low, high = [0, *cuts, shards][comm.rank : comm.rank + 2]
        merged = comm.allreduce(
            {"out": out[low:high], "lse": lse[low:high]}, LOGSUMEXP, order="canonical", shards=(low, high)
        )
        seen.add(merged["out"].tobytes() + merged["lse"].tobytes())
        own = {
            name: np.array([w[name] for w in words[low:high]], a.dtype).reshape(-1, *a.shape)
            for name, a in words[0].items()
        }
        assert spelled(comm.allreduce(own, CONCAT, order="canonical", shards=(low, high))) == [in_order(shards)] * 2
    assert len(seen) == 1
    np.testing.assert_array_equal(comm.allreduce(BASE + comm.rank, SUM, order="canonical"), total(range(ranks)))
    return seen.pop()


def long_payloads(comm):
    """Longer than a slice, of a length that slices do not divide."""
    ranks, rows = comm.size, 200_001
    mine = np.full(rows, comm.rank + 1.0)
    mine[-1] = -comm.rank
    both, room = mine.copy(), np.zeros(2 * rows)
    x, behind = room[:rows], room[rows // 2 : rows // 2 + rows]  # results of slices lie where later ones are read
    x[:] = mine
    for result in (
        comm.allreduce(mine, SUM),
        comm.allreduce(both, SUM, out=both),
        comm.allreduce(x, SUM, out=behind),
    ):
        assert np.all(result[:-1] == ranks * (ranks + 1) / 2)
        assert result[-1] == -ranks * (ranks - 1) / 2
    assert np.all(comm.scan(mine, SUM)[:-1] == (comm.rank + 1) * (comm.rank + 2) / 2)
    assert np.all(comm.broadcast(mine, root=ranks - 1) == [*[ranks] * (rows - 1), 1 - ranks])
    assert comm.allgather(mine)[::rows].tolist() == [rank + 1.0 for rank in range(ranks)]
    joined = comm.gather(mine)
    assert joined is None if comm.rank else joined[::rows].tolist() == [rank + 1.0 for rank in range(ranks)]
    assert np.all(comm.scatter(mine, root=0)[:-1] == 1)
    numbered = np.arange(rows * ranks) + comm.rank * 0.5
    wanted = [np.arange(rows) + comm.rank * rows + src * 0.5 for src in range(ranks)]
    for room in (None, numbered):
        np.testing.assert_array_equal(comm.alltoall(numbered, out=room).reshape(ranks, rows), wanted)
    part = comm.reduce_scatter(mine, PLAIN_SUM)
    assert part[0] == ranks * (ranks + 1) / 2
    assert len(part) == rows * (comm.rank + 1) // ranks - rows * comm.rank // ranks


PLAIN_SUM = Operator(
    "plain sum", (Field("value"),), lambda a, b: {"value": a["value"] + b["value"]}, {"value": 0}, True
)
"""Without a fused kernel."""


def handles(comm):
    """Several prepared calls under way, awaited in another order on every rank."""
    x = BASE + comm.rank
    calls = [
        comm.prepare("allreduce", like=x, operator=SUM),
        comm.prepare("broadcast", like=x),
        comm.prepare("scan", like=x, operator=MAX),
        comm.prepare("allreduce", like=word(0, 1), operator=CONCAT),
        comm.prepare("alltoall", like=np.zeros(comm.size), rows=[1] * comm.size),
        comm.prepare("gather", like=x[: comm.rank], root=comm.size - 1),
        comm.prepare("scatter", like=np.zeros(comm.size), root=comm.size - 1),
    ]
    mine = np.arange(comm.size) + 10.0 * comm.rank
    out = np.empty_like(x)
    for turn in range(6):
        begun = [
            call.start(value)
            for call, value in zip(
                calls[1:], (x + turn, x, word(comm.rank, 1), mine, x[: comm.rank], mine), strict=True
            )
        ]
        begun.insert(0, calls[0].start(x, out=out))
        for handle in begun[:: -1 if comm.rank % 2 else 1]:
            if turn % 2:
                while not handle.test():
                    pass
            handle.wait()
        assert begun[0].wait() is out
        np.testing.assert_array_equal(out, total(range(comm.size)))
        np.testing.assert_array_equal(begun[1].wait(), BASE + turn)
        np.testing.assert_array_equal(begun[2].wait(), x)
        assert spelled(begun[3].wait()) == [in_order(comm.size)]
        np.testing.assert_array_equal(begun[4].wait(), comm.rank + 10.0 * np.arange(comm.size))
        joined = begun[5].wait()
        assert (joined is None) == (comm.rank < comm.size - 1)
        assert joined is None or np.array_equal(joined, np.concatenate([(BASE + r)[:r] for r in range(comm.size)]))
        assert begun[6].wait().tolist() == [comm.rank + 10.0 * (comm.size - 1)]


def split(comm):
    part = comm.split(comm.rank % 2, key=-comm.rank)
    same = [rank for rank in reversed(range(comm.size)) if rank % 2 == comm.rank % 2]
    assert (part.size, part.rank) == (len(same), same.index(comm.rank))
    assert part.allgather(np.array([comm.rank])).tolist() == same == list(part.parent_ranks)
    inner = part.split(None if part.rank else 3)
    assert (inner is None) == (part.rank > 0)
    if inner is not None:
        assert inner.size == 1
        inner.close()
    part.close()
    comm.barrier()


CASES = [
    allreduce,
    reduce,
    broadcast,
    reduce_scatter,
    allgather,
    gather_and_scatter,
    alltoall,
    scan,
    canonical,
    long_payloads,
    handles,
    split,
]


MOMENTS = Operator(
    "moments",
    (Field("total", ("*rows", "dim"), np.float64), Field("count", ("*rows",), np.int64)),
    lambda a, b: {name: a[name] + b[name] for name in a},
    {"total": 0, "count": 0},
    True,
)
