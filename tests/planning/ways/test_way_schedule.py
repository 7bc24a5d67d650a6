"""Parts over the ways of a flow: proved and replayed on lines, meshes and hosts, with parts of any size."""

import numpy as np
import pytest

from tests.machines import line
from tests.planning.algorithms.offered import messages
from tests.planning.replay import expected, replay
from topocomm import catalog
from topocomm.planning.collectives import Collective
from topocomm.planning.proof.verify import verify
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import NO_PATH
from topocomm.planning.ways.list_scheduling import Piece, list_schedule
from topocomm.planning.ways.member_ways import member_ways
from topocomm.planning.ways.way_schedule import MOST_BETWEEN, blocks_of, in_rounds, way_schedule

MACHINES = {
    "line": line(5),
    "mesh": catalog("dgx-1-v100"),
    "two": catalog("mi250x", hosts=2),
    "taper": catalog("dgx-h100-taper2", hosts=2),
}


def made(name, machine, slices, root=1):
    ranks = len(machine.endpoints)
    count = ranks**2 if name == "alltoall" else ranks
    parts = tuple((7 * part) % 5 for part in range(count))
    collective = Collective(name, ranks, root if name != "alltoall" else 0, parts=parts)
    blocks = blocks_of(collective)
    wanted = np.zeros((ranks, ranks))
    for giver, taker, rows in blocks:
        wanted[giver, taker] = rows if giver != taker else 0
    ways = member_ways(machine.endpoints, PathFinder(machine), wanted, 1)
    return collective, way_schedule(blocks, ways, slices, 4, root=root if name == "scatter" else None)


@pytest.mark.parametrize("slices", [1, 2, 16])
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", ["gather", "scatter", "alltoall"])
def test_every_part_comes_once(name, machine, slices):
    collective, schedule = made(name, MACHINES[machine], slices)
    paths = PathFinder(MACHINES[machine])
    assert verify(schedule, collective, paths=paths, endpoints=MACHINES[machine].endpoints).complete
    assert replay(schedule) == expected(collective, schedule.chunks)


def test_a_port_has_one_message_a_round_and_relays_read_what_came_before():
    _, schedule = made("alltoall", MACHINES["mesh"], 4)
    at = [(round_, side, rank) for round_, *ends in messages(schedule) for side, rank in enumerate(ends)]
    assert len(set(at)) == len(at)


def test_a_way_off_the_cheapest_route_names_its_path():
    _, schedule = made("alltoall", MACHINES["taper"], 1)
    named = schedule.transfers[schedule.transfers[:, 6] != NO_PATH]
    assert len(schedule.paths) == len(set(schedule.paths)) and set(named[:, 6].tolist()) == set(
        range(len(schedule.paths))
    )
    ends = MACHINES["taper"].endpoints
    assert all((schedule.paths[row[6]][0], schedule.paths[row[6]][-1]) == (ends[row[1]], ends[row[3]]) for row in named)


def test_rounds_between_those_of_others():
    """Messages that start in the time of the second round of others come after those of the first."""
    machine = line(2)
    ways = member_ways(machine.endpoints, PathFinder(machine), 1.0 - np.eye(2), 1)
    pieces = [Piece(10_000, (0,)) for _ in range(4)]
    round_, line_, piece = in_rounds(ways, list_schedule(ways.lines, pieces)[1], [0.0, 1.5, 10.0])
    assert round_.tolist() == [0, 1, MOST_BETWEEN, MOST_BETWEEN + 1]  # of 1 us each, two before 1.5 us
    assert line_.tolist() == [0] * 4 and sorted(piece.tolist()) == [0, 1, 2, 3]
