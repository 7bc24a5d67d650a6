"""Trees and the values they are folded from, against strings: numbers are equal where the brackets are."""

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.planning.schedules import any_schedules, schedules
from topocomm.planning.proof.dataflow import dataflow
from topocomm.planning.proof.expressions import SHORT_RUN, CountedTwiceError, Trees


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
@given(any_schedules() | schedules(), st.sampled_from([1, 2, 4, SHORT_RUN]))
def test_a_tree_is_its_expression(made, short_run):
    """Also where folds that do not wait for each other are dealt with at once."""
    schedule, _ = made
    values, outputs = spelled(schedule)
    flow = dataflow(schedule)
    leaves = range(len(schedule.inputs))
    trees = Trees(leaves, [leaf + 1 for leaf in leaves])
    twice = [i for i, (_, held) in enumerate(values) if len(set(held)) < len(held)]
    error = None
    try:
        with patch("topocomm.planning.proof.expressions.SHORT_RUN", short_run):
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
        assert (tree in trees.bits) == (max(held) - min(held) >= len(held))
        assert trees.in_order[tree] == (held == list(range(held[0], held[-1] + 1)))
    assert len(set(numbers.values())) == len(numbers), "one expression has two numbers"
    assert [values[value] for value in flow.outputs.tolist()] == outputs
