"""The words of the peer kernel: every plan, run word by word, gives what its combines give."""

from tests.thinning import alternating

from tests.interpreted import interpreted  # isort: skip first, since it imports triton

import numpy as np
import pytest

from tests.concatenation import ANY_ORDER, CONCAT, word
from tests.execute.peer_work import WordsRun, cut, expected, work_of
from tests.machines import hosts, switch
from tests.plans import every_plan
from topocomm import SUM
from topocomm.execute.device.peer import peer_memory
from topocomm.execute.device.peer import peer_program as programs
from topocomm.execute.device.peer.peer_program import peer_program
from topocomm.operators.kernels import gpu_peer

assert interpreted
ROWS = 7


def words(ranks):
    return [word(rank, ROWS) for rank in range(ranks)]


def layout_of_words():
    return CONCAT.layout({name: (part.shape, part.dtype) for name, part in word(0, ROWS).items()})


def assert_runs(plan, operator, layout, values):
    want = expected(plan, operator, layout, values)
    run = WordsRun(plan, operator, layout, values)
    given = [{name: part.copy() for name, part in value.items()} for value in run.inputs]
    made = run.run(seed=plan.schedule.ranks)
    for rank, (one, other) in enumerate(zip(made, want, strict=True)):
        for name, array in (other or {}).items():
            assert one[name].tobytes() == array.tobytes(), (plan.algorithm, rank, name)
        for name, array in given[rank].items():
            assert run.inputs[rank][name].tobytes() == array.tobytes(), "a value was written to"


@pytest.mark.parametrize(
    ("collective", "ranks"),
    alternating(["allreduce", "reduce", "scan", "exscan", "reduce_scatter"], [1, 2, 3, 4, 5, 8, 9]),
)
def test_every_plan_of_a_switch(collective, ranks):
    layout = layout_of_words()
    for operator in (CONCAT, ANY_ORDER):
        plans = every_plan(switch(ranks), collective, operator, layout, root=ranks - 1 if collective == "reduce" else 0)
        assert plans
        for plan in plans:
            assert_runs(plan, operator, layout, words(ranks))


@pytest.mark.parametrize("collective", ["broadcast", "allgather"])
def test_values_that_are_moved_only(collective):
    layout = layout_of_words()
    for ranks in (1, 2, 3, 5, 8):
        for plan in every_plan(switch(ranks), collective, CONCAT, layout, root=0):
            assert_runs(plan, CONCAT, layout, words(ranks))


def test_plans_with_leaders_and_relays():
    layout = layout_of_words()
    for plan in every_plan(hosts(3, 3), "allreduce", ANY_ORDER, layout):
        assert_runs(plan, ANY_ORDER, layout, words(9))


def test_uneven_parts_and_values_without_rows():
    layout = layout_of_words()
    for collective in ("reduce_scatter", "allgather"):
        for plan in every_plan(switch(3), collective, CONCAT, layout, parts=(5, 0, 2)):
            assert_runs(plan, CONCAT, layout, words(3))
    empty = SUM.layout({"value": ((0, 3), np.float32)})
    for plan in every_plan(switch(3), "allreduce", SUM, empty):
        assert_runs(plan, SUM, empty, [{"value": np.zeros((0, 3), np.float32)}] * 3)


def test_a_flat_plan_is_one_stage_and_writes_its_result_itself():
    layout = SUM.layout({"value": ((8,), np.float32)})
    plan = next(plan for plan in every_plan(switch(4), "allreduce", SUM, layout) if plan.algorithm == "flat")
    program = peer_program(work_of(plan, SUM, layout, 2))
    assert program.stages == 1 and program.operands == 4 and program.arena_bytes == 4 * 256
    step = program.words[program.words[0] + 1 :][1:].tolist()
    assert step[:2] == [8, 0]  # rows, where the field starts
    assert step[2:4] == [1, 0]  # one step, of stage 0
    assert step[4:8] == [1, 0, 0, 3]  # one piece is sent: row 0 of the value, to three ranks
    assert step[-12:-8] == [1, 2, 0, 4]  # one fold, to row 0 of the result, of four


def test_parts_of_a_value_are_rows_of_it():
    layout = SUM.layout({"value": ((6, 2), np.float32)})
    plan = every_plan(switch(3), "reduce_scatter", SUM, layout)[0]
    for rank in range(3):
        work = work_of(plan, SUM, layout, rank)
        value = {"value": np.arange(12, dtype=np.float32).reshape(6, 2)}
        assert cut(value, work.result, layout)["value"][0, 0] == rank * 4
        assert peer_program(work).rows == {0, 4, 8}


def test_the_kernel_has_the_same_words():
    spaces = [gpu_peer.INPUT, gpu_peer.ARENA, gpu_peer.OUTPUT]
    assert [space.value for space in spaces] == [programs.INPUT, programs.ARENA, programs.OUTPUT]
    assert peer_memory.FLAG_BYTES * gpu_peer.FLAGS_AT.value == peer_memory.FLAGS_AT_BYTES
    assert gpu_peer.FLAGS_AT.value - gpu_peer.FINISHED_AT.value == peer_memory.MOST_RANKS
