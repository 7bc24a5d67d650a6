"""Trees and the values they are folded from, against strings: numbers are equal where the brackets are."""

from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.planning.schedules import any_schedules, schedules
from topocomm.native._native import fold_trees
from topocomm.planning.proof.dataflow import dataflow
from topocomm.planning.proof.expressions import GAPS, IN_ORDER, CountedTwiceError, Trees


def spelled(schedule):
    """(brackets, leaves) of every input piece and every combine, and of every output; leaves are rows of `inputs`."""
    held, values = {}, []
    for row, (rank, slot, _) in enumerate(schedule.inputs.tolist()):
        for chunk in range(len(schedule.chunks)):
            if not schedule.owners or schedule.owners[chunk] == rank:
                held[rank, slot, chunk] = str(row), [row]
                values.append(held[rank, slot, chunk])
    moves, folds = schedule.transfer_list(), schedule.combine_list()
    for round_ in range(schedule.rounds):
        arriving = [(m, held[m.src, m.src_slot, m.chunk]) for m in moves if m.round == round_]
        held |= {(m.dst, m.dst_slot, m.chunk): value for m, value in arriving}
        for f in (f for f in folds if f.round == round_):
            text, leaves = held[f.rank, f.operands[0], f.chunk]
            for slot in f.operands[1:]:
                other, more = held[f.rank, slot, f.chunk]
                text, leaves = f"({text} {other})", leaves + more
            held[f.rank, f.out_slot, f.chunk] = text, leaves
            values.append((text, leaves))
    return values, [held[rank, slot, chunk] for rank, slot, chunk in schedule.outputs.tolist()]


@examples(120)
@given(any_schedules() | schedules(), st.booleans())
def test_a_tree_is_its_expression(made, compiled):
    schedule, _ = made
    values, outputs = spelled(schedule)
    flow = dataflow(schedule)
    leaves = range(len(schedule.inputs))
    trees = Trees(leaves, [leaf + 1 for leaf in leaves])
    twice = [i for i, (_, held) in enumerate(values) if len(set(held)) < len(held)]
    error = None
    try:
        with patch.dict("sys.modules", {} if compiled else {"topocomm.native._native": None}):
            found = trees.fold(flow.inputs[:, 3], flow.operands, schedule.operand_starts).tolist()
    except CountedTwiceError as raised:
        error = raised
    if twice:
        held = values[twice[0]][1]
        shared = {leaf for leaf in leaves if error.both >> leaf & 1}
        assert error.fold == twice[0] - len(flow.inputs)
        assert shared and all(held.count(leaf) > 1 for leaf in shared)
        return
    assert error is None
    numbers = {}
    for tree, (text, held) in zip(found, values, strict=True):
        assert numbers.setdefault(tree, text) == text
        assert trees.members(tree) == sum(1 << leaf for leaf in held)
        assert bool(trees.flags[tree] & GAPS) == (max(held) - min(held) >= len(held))
        assert bool(trees.flags[tree] & IN_ORDER) == (held == list(range(held[0], held[-1] + 1)))
    assert len(set(numbers.values())) == len(numbers), "one expression has two numbers"
    assert [values[value] for value in flow.outputs.tolist()] == outputs


def folded(leaves, folds, compiled):
    """What is folded of leaves [low, high) by lists of values, or the fold that counts twice."""
    trees = Trees(*zip(*leaves, strict=True))
    operands = np.array([value for fold in folds for value in fold], dtype=np.int64)
    starts = np.cumsum([0, *map(len, folds)]).astype(np.int32)
    with patch.dict("sys.modules", {} if compiled else {"topocomm.native._native": None}):
        try:
            tree_of = trees.fold(np.arange(len(leaves)), operands, starts)
        except CountedTwiceError as twice:
            return twice.fold, twice.both
    columns = (trees.low, trees.high, *trees.parts, trees.flags)
    return [tree_of.tolist(), *(column.tolist() for column in columns)], [
        trees.members(tree) for tree in range(len(trees.low))
    ]


@examples(150)
@given(st.data())
def test_both_ways_give_the_same_trees(data):
    """Of leaves up to several words apart, some of more than one contribution, with and without a fault."""
    step = data.draw(st.sampled_from([1, 7, 64, 100]))
    edges = sorted(data.draw(st.sets(st.integers(0, 40), min_size=4, max_size=16)))
    leaves = data.draw(st.permutations([(step * low, step * high) for low, high in pairwise(edges)]))
    folds, parts = [], {leaf: {leaf} for leaf in range(len(leaves))}
    for _ in range(data.draw(st.integers(1, 20))):
        value = data.draw(st.sampled_from(range(len(parts))))
        apart = [other for other in parts if not parts[other] & parts[value]]
        if not apart:
            continue
        other = data.draw(st.sampled_from(apart))
        third = [more for more in apart if not parts[more] & parts[other]]
        fold = [value, other, *data.draw(st.lists(st.sampled_from(third), max_size=1) if third else st.just([]))]
        parts[len(leaves) + len(folds)] = set().union(*(parts[each] for each in fold))
        folds.append(fold)
    if data.draw(st.booleans()):
        folds.append([len(parts) - 1, data.draw(st.sampled_from([*parts]))])
    assert folded(leaves, folds, compiled=True) == folded(leaves, folds, compiled=False)


def test_many_trees_are_told_apart():
    """More than the first table has: all pairs of a hundred leaves, each twice."""
    pairs = [[a, b] for a in range(100) for b in range(100) if a != b]
    found, plain = (folded([(leaf, leaf + 1) for leaf in range(100)], pairs * 2, kind) for kind in (True, False))
    assert found == plain and len(found[0][1]) == 100 + len(pairs)


def test_columns_that_do_not_fit_each_other_are_refused():
    """Each would be read or written past its end."""

    def columns():
        ints = (np.array(column, dtype=np.int64) for column in ([0, 1], [0, 1]))
        trees = (np.array(column, dtype=np.int32) for column in ([0, 1, 0], [1, 2, 0], [-1, -1, 0], [-1, -1, 0]))
        return [*ints, np.array([0, 2], np.int32), np.zeros(3, np.int64), *trees, np.array([3, 3, 0], np.uint8)]

    assert fold_trees(*(good := columns())) == 3
    assert [column.tolist() for column in good[3:]] == [
        [0, 1, 2],
        [0, 1, 0],
        [1, 2, 2],
        [-1, -1, 0],
        [-1, -1, 1],
        [3, 3, 3],
    ]
    for which in range(9):
        wrong = columns()
        wrong[which] = wrong[which][:-1]
        with pytest.raises(ValueError, match="do not fit each other"):
            fold_trees(*wrong)
    for which, value in [(0, 2), (0, -1), (1, 2), (1, -1), (2, 1), (4, -1), (5, -1)]:
        wrong = columns()
        wrong[which][0] = value
        with pytest.raises(ValueError, match="do not fit each other"):
            fold_trees(*wrong)
