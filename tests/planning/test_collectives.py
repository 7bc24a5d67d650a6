"""Who gives what and who holds what, and which collectives are none."""

import numpy as np
import pytest

from topocomm import PlanError
from topocomm.planning.algorithms.canonical_allreduce import flat_canonical
from topocomm.planning.algorithms.flat import flat_allgather, flat_allreduce, flat_broadcast
from topocomm.planning.collectives import Collective
from topocomm.planning.schedule.schedule import input_pieces, part_chunks


def test_parts_follow_each_other():
    collective = Collective("allgather", 4, parts=(3, 0, 2, 1))
    assert [collective.part(rank) for rank in range(4)] == [(0, 3), (3, 0), (3, 2), (5, 1)]
    assert collective.owners([(0, 1), (1, 2), (3, 2), (5, 1)]) == (0, 0, 2, 3)
    assert Collective("allgather", 2, parts=(0, 0)).owners([(0, 0), (0, 0)]) == (0, 1)
    assert Collective("allgather", 2, parts=(0, 0)).owners([(0, 0)] * 6) == (0, 0, 0, 1, 1, 1)
    assert Collective("allreduce", 4).owners([(0, 6)]) == ()


def test_chunks_that_no_rank_owns_are_refused():
    collective = Collective("reduce_scatter", 3, parts=(3, 0, 2))
    for chunks in ([(0, 5)], [(2, 2)], [(3, 0)], [(0, 3), (3, 3)]):
        with pytest.raises(PlanError, match=r"reduce_scatter: chunk \d, rows \d to \d, is within no rank's part"):
            collective.owners(chunks)
    with pytest.raises(PlanError, match=r"allgather of no rows: 1 chunks, expected one per rank, 2"):
        Collective("allgather", 2, parts=(0, 0)).owners([(0, 0)])


def test_one_chunk_for_every_part_with_rows():
    assert part_chunks((3, 0, 2)) == (((0, 3), (3, 2)), (0, 2))
    assert part_chunks((0, 0)) == (((0, 0), (0, 0)), (0, 1))


@pytest.mark.parametrize(
    ("collective", "receivers", "held"),
    [
        (Collective("allreduce", 3), [0, 1, 2], [0, 1, 2]),
        (Collective("reduce", 3, 1), [1], [0, 1, 2]),
        (Collective("broadcast", 3, 1), [0, 1, 2], [1]),
        (Collective("allgather", 3, parts=(1, 1, 1)), [0, 1, 2], [2]),
        (Collective("reduce_scatter", 3, parts=(1, 1, 1)), [2], [0, 1, 2]),
        (Collective("scan", 3), [0, 1, 2], [0, 1, 2]),
        (Collective("exscan", 3), [1, 2], [0, 1]),
        (Collective("allreduce", 3, shards=(0, 0, 5, 9)), [0, 1, 2], [*range(9)]),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_what_the_result_of_the_last_rank_holds(collective, receivers, held):
    """Of the chunks of rank 2's part, where there are parts."""
    owner = 2 if collective.parts else None
    ranks = np.arange(3)
    assert np.flatnonzero(collective.receive_columns(ranks, np.full(3, owner or 0))).tolist() == receivers
    assert list(collective.expected(2, owner)) == held


def test_inputs_are_there_before_the_first_round():
    assert input_pieces(flat_allreduce(3, 8), 1) == ((0, 0),)
    assert [input_pieces(flat_broadcast(3, 8, 1), rank) for rank in range(3)] == [(), ((0, 0),), ()]
    gather = flat_allgather((3, 0, 2))
    assert [input_pieces(gather, rank) for rank in range(3)] == [((0, 0),), (), ((0, 1),)]
    canonical = flat_canonical((0, 3, 3, 8), 8)
    assert canonical.nodes == ((0, 2), (2, 3), (3, 4), (4, 8))
    assert [input_pieces(canonical, rank) for rank in range(3)] == [((0, 0), (1, 0)), (), ((0, 0), (1, 0))]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("barrier", 3), "unknown collective 'barrier'; expected one of allreduce, reduce, broadcast, allgather"),
        (("scan", 0), "a collective needs at least one rank, got 0"),
        (("reduce", 3, 3), "root 3 is outside ranks 0..2"),
        (("allgather", 3), r"allgather: parts \(\): expected the rows of each of 3 ranks, 0 or more"),
        (("allgather", 12, 0, (1,) * 11), r"parts \(1, 1, 1, 1, 1, 1, 1, 1, ... 11 in all\)"),
        (
            ("allreduce", 2, 0, (1, 1)),
            r"parts \(1, 1\): allreduce has none; they go with allgather, gather",
        ),
        (("broadcast", 2, 0, (), (0, 1, 2)), "broadcast in canonical order: expected allreduce, the only collective"),
        (("allreduce", 2, 0, (), (0, 2)), r"shards \(0, 2\): expected the first virtual shard of each of 2 ranks"),
    ],
)
def test_what_is_no_collective_is_named(fields, message):
    with pytest.raises(PlanError, match=message):
        Collective(*fields)
