"""Messages of schedules: what goes from one rank to another in one round over one path, with its places and bytes."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.machines import switch
from tests.planning.schedules import any_schedules
from topocomm.planning.cost.messages import chunk_bytes, messages_of, routes_of, steps_of
from topocomm.planning.routing.paths import PathFinder


@settings(max_examples=100, deadline=None)
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
    routes = routes_of(columns, schedule, machine.endpoints, paths)
    steps = steps_of(schedule, machine.endpoints, paths, row_bytes)
    messages = [message for step in steps for message in step.messages]
    for number, (moves, message) in enumerate(zip(wanted.values(), messages, strict=True)):
        assert message.reads == tuple((m.src, m.src_slot, m.chunk) for m in moves)
        assert message.writes == tuple((m.dst, m.dst_slot, m.chunk) for m in moves)
        assert (message.payload_bytes, message.route.latency_us) == (sizes[number], routes.latency_us[number])
    assert [fold for step in steps for fold in step.combines] == schedule.combine_list()
