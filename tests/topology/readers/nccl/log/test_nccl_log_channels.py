"""Rings, trees, ranks and what else lines of NCCL's INIT and GRAPH subsystems say, whole and by several writers."""

import pytest

from tests.topology.readers.nccl.log.logs import (
    COMM,
    by,
    chain,
    comm,
    interleaved,
    orders,
    read,
    rings,
)


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("ranks", [2, 4, 13])
def test_rings_and_trees_of_both_notations(ranks, new):
    topology = read(interleaved(rings(ranks, 3, new)))
    assert topology.warnings == ()
    assert [d.id for d in topology.devices] == [f"GPU{i}" for i in range(ranks)]
    assert [(p.rank, p.host, p.device) for p in topology.ranks] == [(i, "host0", f"GPU{i}") for i in range(ranks)]
    assert topology.facts["ranks"] == ranks
    assert topology.facts["nchannels"] == 3
    assert topology.facts["rings"] == {str(c): list(range(ranks)) for c in range(3)}
    assert topology.facts["trees"] == chain(ranks, 3)
    assert "trees_broadcast" not in topology.facts


def test_a_lone_rank():
    topology = read(by(0, "Channel 00/32 :    0\nTrees [0] -1/-1/-1->0->-1"))
    assert topology.facts["rings"] == {"0": [0]}
    assert topology.facts["trees"] == {"0": {"0": {"parent": -1, "children": []}}}
    assert (topology.facts["nchannels"], topology.facts["ranks"]) == (32, 1)


def test_notations_of_single_trees_and_of_the_first_versions():
    text = by(0, "Tree 0 : -1 -> 0 -> 1/2/-1") + by(1, "Trees [0] 0->1->-1/-1/-1")
    text += by(2, "Trees [0] -1/-1/-1->2->0 comm 0x5a nRanks 03 busId 4000")
    topology = read(text)
    assert topology.facts["trees"] == {
        "0": {
            "0": {"parent": -1, "children": [1, 2]},
            "1": {"parent": 0, "children": []},
            "2": {"parent": 0, "children": []},
        }
    }
    assert topology.facts["ranks"] == 3
    assert topology.facts["rank_busid"] == {"2": "4000"}


def test_halves_that_differ_are_told_apart():
    text = by(0, "Trees [0] 1/-1/-1->0->-1|-1->0->-1/-1/-1") + by(1, "Trees [0] -1/-1/-1->1->0|-1->1->-1/-1/-1")
    facts = read(text).facts
    assert facts["trees"]["0"]["0"] == {"parent": -1, "children": [1]}
    assert facts["trees_broadcast"]["0"]["0"] == {"parent": -1, "children": []}


def test_a_ring_that_starts_elsewhere_is_turned_to_rank_0():
    assert read(by(0, "Channel 00/01 : 2 1 0 3")).facts["rings"] == {"0": [0, 3, 2, 1]}


def test_a_ring_is_stitched_from_places_that_leave_no_choice():
    comm = "comm 0x5a rank {} nRanks 4 nNodes 1 localRanks 4 localRank {} MNNVL 0\n"
    text = by(1, comm.format(1, 1) + "Ring 00 : 3 -> 1 -> 0") + by(0, "Ring 00 : 1 -> 0 -> 2")
    assert read(text).facts["rings"] == {"0": [0, 2, 3, 1]}
    assert "rings" not in read(by(1, comm.format(1, 1) + "Ring 00 : 3 -> 1 -> 0")).facts


def test_a_wrapped_channel_line_is_joined():
    whole = by(0, "Channel 00/01 :" + "".join(f"{i:4}" for i in range(40)))
    at = whole.index("  17") + 4
    for text in (whole[:at] + "\n" + whole[at:], whole[: at - 1] + "\n" + whole[at - 1 :]):
        topology = read(text)
        assert topology.facts["rings"] == {"0": list(range(40))}
        assert len(topology.devices) == 40


def test_rings_of_version_2_3():
    text = by(0, "Ring 00 :    0   2   1\nRing 01 :    0   1   2\nRing 00 : 0[0] -> 2[2] via P2P/IPC")
    text += by(1, "Ring 00 : 1 -> 0 via P2P/common device") + by(2, "Ring 00 : 2[2] -> 1[1] via direct shared memory")
    facts = read(text).facts
    assert facts["rings"] == {"0": [0, 2, 1], "1": [0, 1, 2]}
    assert facts["transports"] == ["P2P/IPC", "P2P/common device", "direct shared memory"]


def test_twenty_ranks_may_be_the_beginning_of_more():
    topology = read(by(0, orders(20)))
    assert [device.id for device in topology.devices] == ["GPU0"]
    assert "rings" not in topology.facts
    assert topology.warnings == ("job.log:1: the order of ring 0 is not whole; not used",)


def test_dots_for_the_rest_of_a_ring():
    topology = read(by(0, f"{comm(0, 64)}\n{orders(40, end=' 4...')}"))
    assert "rings" not in topology.facts
    assert topology.warnings[0] == "job.log:2: the order of ring 0 is not whole; not used"


def test_a_ring_written_out_is_no_place_of_a_rank():
    topology = read(by(0, f"{orders(3)}\nRing 00 : 0 -> 1 -> 2 -> 0\nTrees [0] 1/-1/-1->0->-1"))
    assert topology.warnings == ()
    assert topology.facts["trees"] == {"0": {"0": {"parent": -1, "children": [1]}}}


def test_trees_that_a_mail_wrapped():
    text = by(2, comm(2, 4)) + by(2, "Trees [0] 3/-1/-1->2->1 [1] 3/-1/-1->2->1")
    topology = read(f"{text}[2] -1/-1/-1->2->1 [3] 3/-1/-\n1->2->1\n")
    assert list(topology.facts["trees"]) == ["0", "1", "2"]
    assert "nchannels" not in topology.facts


def test_disagreement_is_not_used():
    text = by(0, "Channel 00/01 : 0 1 2 3") + by(2, "Ring 00 : 3 -> 2 -> 0")
    topology = read(text)
    assert "rings" not in topology.facts
    assert "ring 0: its order and the place of rank 2 (3, 0) disagree; not used" in topology.warnings[0]
    topology = read(
        by(0, "Trees [0] 1/-1/-1->0->-1") + by(1, "Trees [0] -1/-1/-1->1->2") + by(2, "Ring 00 : 1 -> 2 -> 3")
    )
    assert "trees" not in topology.facts
    assert any("tree 0: what the log says of rank 1 disagrees" in w for w in topology.warnings)


def test_an_order_that_is_not_whole_is_not_used():
    topology = read(by(0, COMM.format(0) + "Channel 00/02 : 0 1 2\nChannel 01/02 : 0 1 2 3"))
    assert topology.facts["rings"] == {"1": [0, 1, 2, 3]}
    assert "job.log:2: the order of ring 0 is not whole; not used" in topology.warnings
    assert "rings" not in read(by(0, "Channel 00/02 : 0 1 2") + by(7, "Ring 00 : 6 -> 7 -> 0")).facts


def test_a_number_at_a_cut_counts_only_if_it_can_have_no_more_digits():
    comm = "comm 0x5a rank {} nRanks {} nNodes 1\n"
    for ranks, known in ((12, False), (9, True)):
        text = by(2, comm.format(2, ranks)) + by(2, "Trees [0] 3/-1/-1->2->1")[:-1] + by(3, "x")
        assert ("trees" in read(text).facts) is known
