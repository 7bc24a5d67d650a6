"""Messages of schedules: the transfers of one round from one rank to another, with their bytes and routes."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.machines import switch
from tests.planning.schedules import any_schedules
from topocomm.native import _native
from topocomm.planning.cost import messages
from topocomm.planning.cost.messages import chunk_bytes, messages_of, routes_of
from topocomm.planning.routing.paths import PathFinder


@examples(100)
@given(any_schedules(), st.sampled_from([0, 1, 12]))
def test_messages_are_the_transfers_of_one_round_and_pair(made, row_bytes):
    schedule, _ = made
    machine = switch(schedule.ranks)
    paths = PathFinder(machine)
    wanted = {}
    for move in schedule.transfer_list():
        wanted.setdefault((move.round, move.src, move.dst), []).append(move)
    columns = messages_of(schedule, chunk_bytes(schedule, row_bytes))
    keys = list(zip(columns.round.tolist(), columns.src.tolist(), columns.dst.tolist(), strict=True))
    assert keys == list(wanted)
    sizes = [sum(schedule.chunks[move.chunk][1] * row_bytes for move in moves) for moves in wanted.values()]
    assert columns.payload_bytes.tolist() == sizes
    parts = [
        [move for move, of in zip(schedule.transfer_list(), columns.of_transfer, strict=True) if of == number]
        for number in range(len(columns))
    ]
    assert parts == list(wanted.values())
    routes = routes_of(columns, schedule, machine.endpoints, paths)
    for number, (_, src, dst) in enumerate(wanted):
        links = routes.links[routes.starts[number] : routes.starts[number + 1]]
        wanted_route = paths.cheapest(machine.endpoints[src], machine.endpoints[dst])
        assert tuple(paths.edges[link] for link in links) == wanted_route.edges
        assert routes.latency_us[number] == wanted_route.latency_us


@pytest.mark.parametrize("seed", range(30))
def test_both_ways_give_the_same_messages(seed):
    """Rounds of few and many transfers, in no order, over several paths, of empty chunks too."""
    rng = np.random.default_rng(seed)
    ranks, n = int(rng.integers(2, 40)), int(rng.integers(0, 3000))
    table = rng.integers(0, ranks, (n, 7)).astype(np.int32)
    table[:, 0] = np.sort(rng.integers(0, 1 + rng.integers(1, 60), n))
    table[:, 6] = rng.integers(-1, 2, n)
    sizes = rng.integers(0, 3, ranks) * (1 << 40)
    for one, other in zip(messages._grouped(table, sizes), messages._grouped_plainly(table, sizes), strict=True):
        assert one.tobytes() == other.tobytes()
    with mock.patch.dict("sys.modules", {"topocomm.native._native": None}):
        assert messages._grouped(table, sizes)[2].tobytes() == messages._grouped_plainly(table, sizes)[2].tobytes()


def test_wrong_arrays_are_refused():
    table, sizes = np.zeros((3, 7), np.int32), np.ones(1, np.int64)
    written = [np.zeros(3, np.int64) for _ in range(3)]
    assert _native.group_messages(table, sizes, *written) == 1
    for place in range(3):
        short = [each[: len(each) - (number == place)] for number, each in enumerate(written)]
        with pytest.raises(ValueError, match="its arrays do not fit each other"):
            _native.group_messages(table, sizes, *short)
    for chunk in (-1, 1):
        table[2, 5] = chunk
        with pytest.raises(ValueError, match="its arrays do not fit each other"):
            _native.group_messages(table, sizes, *written)
    with pytest.raises(ValueError, match="its arrays do not fit each other"):
        _native.group_messages(np.zeros(8, np.int32), sizes, *(np.zeros(1, np.int64) for _ in range(3)))
