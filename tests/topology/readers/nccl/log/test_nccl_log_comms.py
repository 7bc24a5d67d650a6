"""Which lines of a log are of which communicator and rank, and how many ranks there are."""

import pytest

from tests.topology.readers.nccl.log.logs import (
    by,
    chain,
    comm,
    orders,
    read,
    rings,
)


def test_two_hosts_of_equal_process_ids():
    texts = rings(4, 1)
    start = "comm 0x{0} rank {0} nranks 4 cudaDev {1} nvmlDev {1} busId {1}a000 commId 0x77 - Init START\n"
    text = "".join(by(r % 2, start.format(r, r % 2) + texts[r], "beta" if r > 1 else "alpha") for r in range(4))
    topology = read(text + by(1, "Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA"))
    assert topology.warnings == ()
    assert [(d.id, d.host, d.bus_id) for d in topology.devices] == [
        ("GPU0", "alpha", "0000:0a:00.0"),
        ("GPU1", "alpha", "0000:1a:00.0"),
        ("GPU2", "beta", "0000:0a:00.0"),
        ("GPU3", "beta", "0000:1a:00.0"),
    ]
    assert topology.facts["rank_busid"] == {"0": "0a000", "1": "1a000", "2": "0a000", "3": "1a000"}
    assert (topology.facts["transport"], topology.facts["transports"]) == ("NET", ["NET/IB/0/GDRDMA"])


def test_the_largest_communicator_is_read():
    start = "comm 0x{0} rank {1} nranks {2} cudaDev {3} busId {3}a000 commId 0x{2}{4} - Init START\n"
    texts = rings(4, 1)
    text = "".join(by(r, start.format(f"1{r}", r, 4, r, 0) + texts[r]) for r in range(4))
    two = rings(2, 1)
    text += "".join(by(r, start.format(f"2{r}", r % 2, 2, r, r // 2) + two[r % 2]) for r in range(4))
    topology = read(text)
    assert topology.facts["rings"] == {"0": [0, 1, 2, 3]}
    assert topology.facts["trees"] == chain(4, 1)
    assert topology.facts["rank_busid"] == {str(r): f"{r}a000" for r in range(4)}
    assert "3 communicators in this log; the one with 4 ranks was read" in topology.warnings[0]


@pytest.mark.parametrize("more", ["Ring 00 : 19 -> 0 -> 1", comm(0, 20)])
def test_twenty_ranks_that_are_all(more):
    topology = read(by(0, f"{orders(20)}\n{more}"))
    assert topology.facts["rings"] == {"0": list(range(20))}
    assert topology.facts["ranks"] == 20


def test_a_ring_that_goes_on_after_twenty_ranks():
    topology = read(by(0, f"{orders(20)}\nRing 00 : 23 -> 0 -> 1"))
    assert "rings" not in topology.facts


def test_another_thread_ends_the_communicators():
    """One process, two GPUs: its main thread writes both last lines, and wrote something before."""
    text = "alpha:4000:4000 [1] NCCL INFO cudaDriverVersion 12040\n"
    for rank, lines in rings(2).items():
        text += f"alpha:4000:{5000 + rank} [{rank}] NCCL INFO {comm(rank, 2, f'0x{rank + 1}')}\n"
        text += "".join(f"alpha:4000:{5000 + rank} [{rank}] NCCL INFO {line}\n" for line in lines.splitlines())
    for rank in range(2):
        end = comm(rank, 2, f"0x{rank + 1}").replace("Init START", "Destroy COMPLETE")
        text += f"alpha:4000:4000 [1] NCCL INFO {end}\n"
    topology = read(text)
    assert topology.warnings == ()
    assert topology.facts["rings"] == {"0": [0, 1], "1": [0, 1]}
    assert topology.facts["trees"] == chain(2)


def test_connections_alone_name_their_writers():
    text = "a:1:11 [1] NCCL INFO Channel 00/0 : 1[4000] -> 0[3000] via P2P/IPC/read\n"
    text += "a:2:12 [0] NCCL INFO Channel 00/0 : 0[3000] -> 3[4000] [send] via NET/IB/0/GDRDMA\n"
    text += "b:3:13 [0] NCCL INFO Channel 00/0 : 1[4000] -> 2[3000] [receive] via NET/IB/0\n"
    topology = read(text)
    assert [(d.id, d.host, d.bus_id) for d in topology.devices] == [
        ("GPU0", "a", "0000:03:00.0"),
        ("GPU1", "a", "0000:04:00.0"),
        ("GPU2", "b", "0000:03:00.0"),
    ]
    assert topology.warnings == ("job.log: 1 of 4 ranks are on hosts whose lines are not in this log: no devices",)
    assert topology.facts["transports"] == ["P2P/IPC/read", "NET/IB/0/GDRDMA", "NET/IB/0"]


@pytest.mark.parametrize("bus_id", ["30x00", "-3000", "x"])
def test_a_damaged_bus_id_is_not_used(bus_id):
    """Found by damage at random: `30x00` is no number, and was a ValueError."""
    topology = read(by(0, f"Trees [0] -1/-1/-1->0->-1 comm 0x5a nRanks 01 busId {bus_id}"))
    assert topology.by_id["GPU0"].bus_id is None
    assert "rank_busid" not in topology.facts
