"""Plans whose rounds repeat, executed over threads: by messages, in one memory, and both."""

from dataclasses import replace

import numpy as np
import pytest

from tests.concatenation import CAPACITY, CONCAT, spelled
from tests.machines import joined
from tests.plans import every_plan
from tests.thinning import alternating
from topocomm import SUM, Plan, run_local
from topocomm.planning.schedule.schedule import Repeat
from topocomm.planning.schedule.traffic import count_messages

MACHINES = {"messages": [1] * 4, "one memory": [4], "two levels": [2, 2], "five": [1] * 5}
ROWS = 20


def words(rank, rows):
    """A value that says whose it is and which row."""
    texts = [f"<{rank}.{row}>".encode() for row in range(rows)]
    text = np.zeros((rows, CAPACITY), np.uint8)
    for row, spelling in enumerate(texts):
        text[row, : len(spelling)] = np.frombuffer(spelling, np.uint8)
    return {"text": text, "length": np.array([len(spelling) for spelling in texts], np.int32)}


def joined_words(ranks, rows):
    """What the words of these ranks spell, row by row."""
    return ["".join(f"<{rank}.{row}>" for rank in ranks) for row in rows]


def pipelined(plan, repeat):
    """The plan with its rounds repeated."""
    schedule = replace(plan.schedule, repeat=repeat)
    rounds, messages = count_messages(schedule)
    return replace(plan, schedule=schedule, figures=replace(plan.figures, rounds=rounds, transfers=messages))


@pytest.mark.parametrize(
    ("machine", "repeat"), alternating(MACHINES, [Repeat(4, 1), Repeat(3, 0), Repeat(2, 5)]), ids=str
)
def test_an_allreduce_in_slices_keeps_order_and_rows(tmp_path, machine, repeat):
    topology = joined(MACHINES[machine])
    ranks = len(topology.endpoints)
    plans = every_plan(topology, "allreduce", CONCAT, CONCAT.default_layout(ROWS))
    files = {plan.algorithm: tmp_path / f"{plan.algorithm}.json" for plan in plans}
    assert len(files) > 2
    for plan in plans:
        pipelined(plan, repeat).save(files[plan.algorithm])

    def body(comm):
        found = {}
        for name, file in files.items():
            plan = Plan.load(file)
            call = comm.prepare("allreduce", like=words(comm.rank, ROWS), operator=CONCAT, plan=plan)
            assert call.plan.digest == plan.digest
            found[name] = [spelled(call(words(comm.rank, ROWS))) for _ in range(3)]
        return found

    wanted = joined_words(range(ranks), range(ROWS))
    for found in run_local(body, ranks=ranks, topology=topology):
        for name, results in found.items():
            assert results == [wanted] * 3, name


@pytest.mark.parametrize("name", ["reduce", "broadcast", "allgather", "reduce_scatter", "scan", "exscan"])
@pytest.mark.parametrize("machine", ["messages", "one memory"])
def test_the_other_collectives_in_slices(machine, name):
    topology = joined(MACHINES[machine])
    ranks, repeat = len(topology.endpoints), Repeat(5, 1)
    root = 2 if name in ("reduce", "broadcast") else 0
    rows = 5 if name == "allgather" else ROWS
    plans = [
        pipelined(plan, repeat) for plan in every_plan(topology, name, CONCAT, CONCAT.default_layout(ROWS), root=root)
    ]

    def body(comm):
        operator = None if name in ("broadcast", "allgather") else CONCAT
        x, found = words(comm.rank, rows), []
        for plan in plans:
            named = plan if operator else replace(plan, operator=comm.explain(name, like=x, root=root).operator)
            result = comm.prepare(name, like=x, operator=operator, root=root, plan=named)(x)
            found.append(None if result is None else spelled(result))
        return found

    everyone, every = range(ranks), range(ROWS)
    wanted = {
        "reduce": lambda rank: joined_words(everyone, every) if rank == root else None,
        "broadcast": lambda rank: joined_words([root], every),
        "allgather": lambda rank: [text for own in everyone for text in joined_words([own], range(rows))],
        "reduce_scatter": lambda rank: joined_words(everyone, every[5 * rank : 5 * rank + 5]),
        "scan": lambda rank: joined_words(range(rank + 1), every),
        "exscan": lambda rank: joined_words(range(rank), every),
    }[name]
    for rank, found in enumerate(run_local(body, ranks=ranks, topology=topology)):
        for plan, result in zip(plans, found, strict=True):
            assert result == wanted(rank), plan.algorithm


@pytest.mark.parametrize("sizes", [(2, 2, 2), (3, 2, 3, 3, 1)])
def test_long_values_over_rails(sizes):
    """Halved over groups, whole and in slices, by messages between hosts and in shared memory inside."""
    topology, rows = joined(sizes), 1 << 17
    plans = [made for made in every_plan(topology, "allreduce", SUM, SUM.default_layout(rows)) if made.payload_bytes]
    plans = [made for made in plans if made.algorithm.startswith("rails-halving")]
    assert len({made.schedule.repeat and made.schedule.repeat.count for made in plans}) > 1

    def body(comm):
        x = np.arange(rows, dtype=np.float32) % 1000 + comm.rank
        return [comm.prepare("allreduce", like=x, operator=SUM, plan=made)(x).copy() for made in plans]

    ranks = sum(sizes)
    wanted = np.arange(rows, dtype=np.float32) % 1000 * ranks + sum(range(ranks))
    for results in run_local(body, ranks=ranks, topology=topology):
        for made, result in zip(plans, results, strict=True):
            np.testing.assert_array_equal(result, wanted, made.algorithm)
