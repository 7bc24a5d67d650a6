"""What transports have in common."""

from types import SimpleNamespace

from topocomm.execute.transports.threads import World
from topocomm.execute.transports.transport import Message, NoDeviceTransport


def test_a_message_has_the_bytes_of_its_ranges():
    assert Message(1, ((0, 8), (64, 4))).payload_bytes == 12 and Message(1, ()).payload_bytes == 0


def test_ranks_are_gone_whose_process_has_ended():
    transport = super(type(World(1).transports()[0]), World(1).transports()[0])
    assert transport.failed() == {} and transport.blamed(RuntimeError()) == {} and transport.all_leave(0.0)


def test_a_watch_is_asked():
    (transport,) = World(1).transports()
    transport.watch = SimpleNamespace(ended=lambda: {1: "has ended (process 7)"})
    assert super(type(transport), transport).failed() == {1: "has ended (process 7)"}


def test_one_rank_alone_moves_nothing_between_devices():
    alone = NoDeviceTransport()
    assert alone.native("allreduce", "float32", "sum") is None and alone.in_graphs
    alone.group(None, [Message(0, ((0, 4),))], [])(None)
    alone.check()
