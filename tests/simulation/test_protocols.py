"""Protocols by size: bytes on the wire, handshakes, limits."""

from math import inf

import numpy as np
import pytest

from tests.machines import switch
from topocomm import PlanError
from topocomm.planning.cost.events import simulate
from topocomm.planning.cost.simulated_work import WorkBuilder
from topocomm.simulation.protocols import TRANSPORTS, Protocol, Transport, transport, with_protocols

MACHINE = switch(2)


def work(*sizes):
    builder = WorkBuilder(MACHINE.endpoints)
    builder.send(0, 1, np.array(sizes), before_us=1.0)
    builder.compute(0, 5.0)
    return builder.build()


@pytest.mark.parametrize(
    ("name", "size", "wire"),
    [
        ("none", 1000, 1000),
        ("nccl-ll", 1000, 2000),
        ("nccl-ll128", 120, 128),
        ("nccl-ll128", 121, 130),
        ("nccl-simple", 1000, 1000),
        ("nccl", 16384, 32768),
        ("nccl", 16385, 16385),
        ("nccl", 0, 0),
    ],
)
def test_bytes_on_the_wire(name, size, wire):
    sent = with_protocols(work(size), MACHINE, transport(name))
    assert sent.payload_bytes.tolist() == [wire, 0]
    assert sent.before_us.tolist() == [1.0, 5.0]


def test_a_rendezvous_takes_a_round_trip_before_the_first_byte():
    sent = with_protocols(work(65536, 65537), MACHINE, transport("openmpi-tcp"))
    assert sent.before_us.tolist() == pytest.approx([1.0, 1.0 + 2 * 0.6, 5.0])
    assert simulate(sent, MACHINE).first_byte_us[:2].tolist() == pytest.approx([1.0, 2.2])


def test_figures_of_ones_own_take_the_place_of_the_tables():
    short, long = Protocol("short", 100, before_us=3.0), Protocol("long", inf, 0.8, most_gb_per_s=20.0)
    fitted = Transport("fitted", (short, long))
    sent = with_protocols(work(100, 1000), MACHINE, fitted)
    assert sent.payload_bytes.tolist() == [100, 1250, 0]
    assert sent.before_us.tolist() == [4.0, 1.0, 5.0]
    assert sent.most_gb_per_s.tolist() == [inf, 20.0, inf]


def test_every_protocol_says_where_its_figures_are_from():
    assert all(each.source for used in TRANSPORTS.values() for each in used.protocols)


@pytest.mark.parametrize(
    ("protocols", "why"),
    [
        ((), "expected protocols by ascending size, the last for any size"),
        ((Protocol("a", 100),), "the last for any size"),
        ((Protocol("a", 100), Protocol("b", 100), Protocol("c", inf)), "by ascending size"),
        ((Protocol("a", inf, 0.0),), "transport x, protocol a: expected a share of payload"),
        ((Protocol("a", inf, before_us=-1.0),), "a time of at least 0 us"),
        ((Protocol("a", inf, most_gb_per_s=0.0),), "a rate above 0 GB/s"),
    ],
)
def test_impossible_protocols_are_refused(protocols, why):
    with pytest.raises(PlanError, match=why.replace("(", r"\(")):
        with_protocols(work(8), MACHINE, Transport("x", protocols))


def test_an_unknown_name_is_answered_with_those_known():
    with pytest.raises(PlanError, match="protocols 'nickel': expected one of none, nccl,"):
        transport("nickel")
