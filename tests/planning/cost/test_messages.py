"""Messages of schedules: the transfers of one round from one rank to another, with their bytes and routes."""

from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.machines import switch
from tests.planning.schedules import any_schedules
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
