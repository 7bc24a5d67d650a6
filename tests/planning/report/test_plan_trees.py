"""The messages of one result are those that it is made of, and trees of parts are trees over all ranks."""

import pytest

from tests.machines import switch
from topocomm import catalog, plan
from topocomm.planning.collectives import COLLECTIVES
from topocomm.planning.report.plan_trees import focus, part_trees


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_messages_of_a_result_hand_on_only_what_came_before_to_its_rank(collective, ranks):
    made = plan(switch(ranks), collective, payload_bytes=4096 * ranks)
    tree = focus(made)
    assert tree.moves and set(tree.moves) <= set(made.schedule.transfer_list())
    ends = {out[:2] + out[2:] for out in map(tuple, made.schedule.outputs.tolist())}
    for move in tree.moves:  # each is read by a later one, or is folded or got by the rank itself
        later = [m for m in tree.moves if m.src == move.dst and m.round > move.round]
        folded = any(fold.rank == move.dst and move.dst_slot in fold.operands for fold in made.schedule.combine_list())
        assert later or folded or (move.dst, move.dst_slot, move.chunk) in ends


def test_a_result_hears_from_every_rank():
    made = plan(catalog("dgx-h100", hosts=2), "allreduce", payload_bytes=1024)
    tree = focus(made)
    heard = {tree.rank}
    for move in sorted(tree.moves, key=lambda move: -move.round):
        if move.dst in heard:
            heard.add(move.src)
    assert heard == set(range(16))
    assert tree.words == "How rank 0 gets its result; all else at the same time is pale"


@pytest.mark.parametrize(
    ("collective", "root", "rank", "words"),
    [
        ("reduce", 3, 3, "How rank 3 gets its result"),
        ("broadcast", 2, 2, "How rank 2's value reaches all ranks"),
        ("scan", 0, 4, "How rank 4 gets its result; all else at the same time is pale"),
    ],
)
def test_whose_result_it_is(collective, root, rank, words):
    tree = focus(plan(switch(5), collective, payload_bytes=64, root=root))
    assert (tree.rank, tree.words) == (rank, words)


def test_of_a_value_in_parts_the_first_is_followed():
    made = plan(catalog("dgx-h100", hosts=32), "allreduce", payload_bytes=1 << 17)
    tree = focus(made)
    assert "the first 1/256 of it" in tree.words
    assert {move.chunk for move in tree.moves} == {0}


def test_trees_of_parts_span_all_ranks_and_their_shares_are_the_whole():
    trees = part_trees(plan(catalog("dgx-1-v100"), "allreduce", payload_bytes=1 << 20, objective="throughput"))
    assert len(trees) > 8
    assert sum(tree.share for tree in trees) == pytest.approx(1)
    assert [tree.share for tree in trees] == sorted((tree.share for tree in trees), reverse=True)
    for tree in trees:
        assert len(tree.edges) == 7
        assert {end for edge in tree.edges for end in edge} == set(range(8))


def test_the_root_of_a_star_is_its_middle():
    trees = part_trees(plan(catalog("mi300x-8"), "allreduce", payload_bytes=1 << 26))
    assert [tree.root for tree in sorted(trees, key=lambda tree: tree.root)] == list(range(8))
    for tree in trees:
        assert all(tree.root in edge for edge in tree.edges)


def test_a_value_whose_rows_all_take_the_same_messages_has_no_trees_of_parts():
    assert part_trees(plan(switch(8), "allreduce", payload_bytes=4096, objective="rounds")) == []
    assert part_trees(plan(switch(8), "alltoall", payload_bytes=4096)) == []


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_the_root_of_trees_from_or_to_a_root_is_that_rank(collective):
    wanted = {"payload_bytes": 1 << 22, "objective": "throughput", "root": 2}
    trees = part_trees(plan(catalog("dgx-1-v100"), collective, **wanted))
    assert len(trees) > 1
    assert {tree.root for tree in trees} == {2}
