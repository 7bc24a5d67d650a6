"""Schedules of every algorithm that fits, and random ones, for properties that must hold of all of them."""

import random
from functools import cache

from hypothesis import strategies as st

from tests.machines import hosts, switch
from tests.plans import every_plan
from topocomm import SUM
from topocomm.planning.collectives import COLLECTIVES, ROOTED
from topocomm.planning.proof.verify import verify
from topocomm.planning.schedule.schedule import split_rows
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder
from topocomm.planning.schedule.transforms import split_rounds

SWITCHES = [(1, ranks) for ranks in range(1, 18)]
MACHINES = [*SWITCHES, (2, 2), (4, 2), (3, 5), (4, 4)]
"""Hosts and GPUs of each: one host is a switch. Between hosts not all GPUs have routes, so trees do not fit."""
ROW_BYTES = 4


@cache
def plans(machine, collective, rows, root=0):
    """The plan of every algorithm on one of MACHINES."""
    count, gpus = machine
    topology = switch(gpus) if count == 1 else hosts(count, gpus)
    return every_plan(topology, collective, SUM, SUM.default_layout(rows), root)


@st.composite
def schedules(draw, collectives=COLLECTIVES):
    """(schedule, bytes of a chunk by index): proved; some with ranks that share endpoints, whose rounds are cut."""
    collective = draw(st.sampled_from(collectives))
    machine = draw(st.sampled_from(MACHINES if collective == "allreduce" else SWITCHES))
    ranks = machine[0] * machine[1]
    root = draw(st.integers(0, ranks - 1)) if collective in ROOTED else 0
    rows = draw(st.sampled_from([0, 1, 2, 7, 16, 40]))
    plan = draw(st.sampled_from(plans(machine, collective, rows, root)))
    schedule = plan.schedule
    shared = draw(st.integers(0, ranks))
    if shared:
        schedule = split_rounds(schedule, [str(rank % shared) for rank in range(ranks)], 1)
        verify(schedule, plan.collective)
    return schedule, lambda chunk: schedule.chunks[chunk][1] * ROW_BYTES


@st.composite
def any_schedules(draw):
    """As `schedules`, but of no algorithm and no collective: what was written is sent and folded at random."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    ranks, rounds = chance.randint(1, 5), chance.randint(1, 6)
    chunks = split_rows(chance.choice([1, 20, 40]), chance.randint(1, 3))
    builder = ScheduleBuilder(ranks, chunks)
    written = [[(0, chunk) for chunk in range(len(chunks))] for _ in range(ranks)]
    for round_ in range(rounds):
        arrived = []
        for _ in range(chance.randint(0, 2 * ranks) if ranks > 1 else 0):
            src, dst = chance.sample(range(ranks), 2)
            slot, chunk = chance.choice(written[src])
            arrived.append((dst, (builder.send(round_, src, slot, dst, chunk=chunk), chunk)))
        for dst, piece in arrived:
            written[dst].append(piece)
        for rank in range(ranks):
            for chunk in [chance.randrange(len(chunks)) for _ in range(chance.randint(0, 3))]:
                slots = [slot for slot, which in written[rank] if which == chunk]
                operands = chance.sample(slots, min(len(slots), chance.randint(2, 4)))
                if len(operands) > 1:
                    written[rank].append((builder.fold(round_, rank, operands, chunk=chunk), chunk))
    for rank in range(ranks):
        for chunk in range(len(chunks)):
            builder.output(rank, chance.choice([slot for slot, which in written[rank] if which == chunk]), chunk=chunk)
    schedule = builder.build()
    return schedule, lambda chunk: schedule.chunks[chunk][1] * ROW_BYTES
