"""Logs that writers, launchers and copies damaged: what is certain stays, nothing else is said, and it ends soon."""

import pytest

from tests.topology import damage
from tests.topology.readers.nccl.log.logs import DIRECT, MATRIX, NAME, SWITCHED, by, read, rings
from topocomm.errors import TopologyError
from topocomm.topology.readers.nccl.log import nccl_log


def code(gpu, net):
    """As the tree of `SWITCHED` has it."""
    if (gpu, net) in NEAR:
        return "PIX"
    return "PHB" if (gpu, net) == ("13000", "0") else "SYS"


COMM = "comm 0x5a{0} rank {0} nRanks 4 nNodes 1 localRanks 4 localRank {0} MNNVL 0\n"
GPUS, NETS = ("3000", "13000", "83000", "84000"), ("0", "a", "b")
NEAR = {("3000", "0"), *((gpu, net) for gpu in GPUS[2:] for net in NETS[1:])}
CELLS = {
    gpu: "".join(f"GPU/0-{peer} ({'0/5000.0/LOC' if peer == gpu else '2/240.0/NVL'}) " for peer in GPUS)
    + "".join(f"NET/0-{net} ({4 + ((gpu, net) not in NEAR)}/24.0/{code(gpu, net)}) " for net in NETS)
    for gpu in GPUS
}
FULL_MATRIX = "".join(f"GPU/0-{gpu} :{cells}\n" for gpu, cells in CELLS.items())
WHOLE = "".join(by(r, SWITCHED + FULL_MATRIX + COMM.format(r) + text) for r, text in rings(4).items())


def said(topology):
    """What must never change under damage, as nested dicts."""
    kept = ("ranks", "nchannels", "rings", "trees", "rank_busid", "numa_nodes", "path_bw", "p2p", "transport")
    found = {key: value for key, value in topology.facts.items() if key in kept}
    found["codes"] = {f"{p.a}-{p.b}": p.code for p in topology.pairs}
    found["numa"] = {d.id: d.numa for d in topology.devices if d.kind == "gpu" and d.numa is not None}
    return found


def contradictions(whole, part, path=""):
    if isinstance(whole, dict) and isinstance(part, dict):
        for key, value in part.items():
            yield from contradictions(whole.get(key), value, f"{path}/{key}")
    elif whole != part:
        yield f"{path}: {whole} != {part}"


def test_lines_cut_into_each_other():
    lines = by(0, rings(4)[0]).splitlines()
    text = by(1, COMM.format(1) + "Trees [0] 2/-1/-1->1->0 [1] 2/-1/-1->1->0")
    text += lines[0][:40] + by(2, "Ring 00 : 1 -> 2 -> 3") + by(2, "Trees [0] 3/-1/-1->2->1 [1] 3/-1")[:-1]
    text += by(3, "Ring 00 : 2 -> 3 -> 0")
    topology = read(text)
    assert topology.facts["rings"] == {"0": [0, 1, 2, 3]}
    assert topology.facts["trees"]["0"]["2"] == {"parent": 1, "children": [3]}
    assert set(topology.facts["trees"]["1"]) == {"1"}
    assert "several writers cut each other's lines" in topology.warnings[0]
    assert topology.warnings[0].startswith("job.log:3:")


def test_a_number_at_a_cut_counts_only_if_it_can_have_no_more_digits():
    comm = "comm 0x5a rank {} nRanks {} nNodes 1\n"
    for ranks, known in ((12, False), (9, True)):
        text = by(2, comm.format(2, ranks)) + by(2, "Trees [0] 3/-1/-1->2->1")[:-1] + by(3, "x")
        assert ("trees" in read(text).facts) is known


def test_host_names_glued_to_other_text():
    text = by(0, COMM.format(0)) + "Epoch 1" + by(0, "Ring 00 : 3 -> 0 -> 1") + by(1, "Ring 00 : 0 -> 1 -> 2")
    text += by(1, "comm 0x5b rank 1 nRanks 4 nNodes")[:-1] + by(2, "Ring 00 : 1 -> 2 -> 3")
    topology = read(text)
    assert topology.facts["rings"] == {"0": [0, 1, 2, 3]}
    assert {d.host for d in topology.devices} == {"host0"}


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
    topology = read(by(0, SWITCHED + MATRIX) + by(1, SWITCHED + MATRIX.replace("4/6.0/SYS", "4/6.0/PHB")))
    assert any("cells of the path matrix differ between ranks" in w for w in topology.warnings)
    assert "GPU0-GPU2" not in {f"{p.a}-{p.b}" for p in topology.pairs}


def test_an_order_that_is_not_whole_is_not_used():
    topology = read(by(0, COMM.format(0) + "Channel 00/02 : 0 1 2\nChannel 01/02 : 0 1 2 3"))
    assert topology.facts["rings"] == {"1": [0, 1, 2, 3]}
    assert "job.log:2: the order of ring 0 is not whole; not used" in topology.warnings
    assert "rings" not in read(by(0, "Channel 00/02 : 0 1 2") + by(7, "Ring 00 : 6 -> 7 -> 0")).facts


@pytest.mark.parametrize("text", [SWITCHED, DIRECT])
def test_lost_indentation_gives_no_links(text):
    flat = "".join(line.lstrip() + "\n" for line in text.splitlines())
    topology = read(by(0, flat))
    assert topology.links == ()
    assert "its indentation does not say what hangs on what" in topology.warnings[0]
    gpus = {d.id: d.numa for d in topology.devices if d.kind == "gpu"}
    assert gpus == {d.id: d.numa for d in read(by(0, text)).devices if d.kind == "gpu"}


@pytest.mark.parametrize(
    ("word", "other"), [("NET/0-0", "CPU/0-0"), ("GPU/0-3000", "NET/0-3"), ("NIC/0-4000", "NET/0-7")]
)
def test_a_line_that_names_a_device_of_another_kind_gives_no_links(word, other):
    """Found by damage at random: `NET[25.0] - CPU/0-0` made a NUMA node a network card."""
    assert word in SWITCHED
    topology = read(by(0, SWITCHED.replace(f" - {word}", f" - {other}", 1)))
    assert topology.links == ()


def test_a_lost_cpu_line_leaves_numa_unknown():
    topology = read(by(0, SWITCHED.replace("CPU/0-3 (1/2/-1)\n", "")))
    assert {d.numa for d in topology.devices} == {None}
    assert topology.links == ()
    assert "lines of it are lost or cut" in topology.warnings[0]


def test_a_matrix_without_tree_gives_pcie_links_but_no_ranks():
    topology = read(by(5, MATRIX))
    assert [(d.id, d.bus_id) for d in topology.devices if d.kind == "gpu"] == [
        ("GPU0", "0000:03:00.0"),
        ("GPU1", "0000:83:00.0"),
    ]
    assert topology.links
    assert topology.ranks == ()
    assert "rank_busid" not in topology.facts
    assert "numbered in the order printed, which may not be their ranks" in topology.warnings[0]


def test_logs_that_say_nothing_or_too_much_are_errors():
    with pytest.raises(TopologyError, match=r"job\.log: nothing here names a rank or a GPU; log with NCCL_DEBUG=INFO"):
        read(by(0, "Bootstrap : Using eth0:10.0.0.1<0>"))
    with pytest.raises(TopologyError, match="99999 ranks; more than 1024 are not read"):
        read(by(0, "comm 0x5a rank 0 nRanks 99999 nNodes 1 "))


def test_no_damage_gives_a_wrong_fact():
    whole = said(read(WHOLE))
    changes = [damage.cut, damage.lose_lines(19), damage.glue_line]
    parts, _ = damage.attempts(nccl_log, [WHOLE], changes, seed=7, times=400, most=1, name=NAME)
    assert parts
    assert [text for part in parts for text in contradictions(whole, said(part))] == []


def test_mutated_logs_give_a_topology_or_a_topology_error():
    pieces = ["", *"\n-/09|\t", "->", " : ", "GPU/", "FFFFFFFFFFFFFFFF", "comm 0x1 rank 3 nRanks 5 "]
    short = by(0, DIRECT + MATRIX) + "".join(by(r, COMM.format(r) + text) for r, text in rings(4, 1).items())
    change = damage.put(pieces, range(30))
    damage.attempts(nccl_log, [short], [change], seed=11, times=2000, most=5, name=NAME)


@pytest.mark.parametrize(
    "text",
    [
        "a" * 10**6,
        "a:1:1 [0] " * 10**5,
        by(0, "Channel 00/02 :" + " 1" * 5 * 10**5),
        by(0, "Trees " + "[0] 1/-1/-1->0->-1 " * 5 * 10**4),
        "".join(
            by(i % 900, f"Ring {i % 64:02} : {i % 700} -> {(i + 1) % 700} -> {(i + 2) % 700}") for i in range(15000)
        ),
        "".join(by(i, "Ring 00 : 0 -> 1 -> 2", host=f"host{i}") for i in range(15000)),
        by(0, "GPU/0-1 :" + "".join(f"GPU/0-{i:x} (1/2.0/PHB) " for i in range(40000))),
    ],
    ids=["letters", "prefixes", "order", "trees", "rings", "hosts", "matrix"],
)
def test_a_megabyte_of_anything_is_read(text):
    damage.attempt(nccl_log, text, NAME)
