"""Whole logs: the shared ones with every field of their facts, several hosts, damage that must change no fact."""

import pytest

from tests.topology import damage
from tests.topology.dumps import assert_said, each_of, expected
from tests.topology.readers.nccl.log.logs import COMM, NAME, SWITCHED, by, links, read, rings
from topocomm.errors import TopologyError
from topocomm.topology.readers.nccl.log import nccl_log

NOT_IN_THE_TEXT = {"library", "rings_note"}
"""A version line that the excerpt leaves out, and a remark of the person who read the dump."""


@each_of("nccl-log")
def test_facts(path):
    facts = expected(path)
    topology = nccl_log.read(path.read_text(), path.name)
    assert bool(topology.warnings) == facts["malformed"]
    gpus = [d for d in topology.devices if d.kind == "gpu"]
    said = {
        **topology.facts,
        "gpus": len(gpus),
        "numa_affinity": {d.id: d.numa for d in gpus},
        "links": {f"{p.a}-{p.b}": p.code for p in topology.pairs if p.b.startswith("GPU")},
    }
    assert_said(said, facts, but={"malformed", *NOT_IN_THE_TEXT})
    assert all(key not in topology.facts for key in NOT_IN_THE_TEXT)


def test_hosts_are_joined_by_a_network():
    other = SWITCHED
    for rank in range(4):
        other = other.replace(f" ({rank})\n", f" ({rank + 4})\n")
    topology = read(by(0, SWITCHED) + by(0, other, host="beta"))
    assert topology.hosts == ("alpha", "beta")
    assert [d.id for d in topology.devices if d.kind == "gpu"] == [f"GPU{i}" for i in range(8)]
    assert topology.by_id["beta/NET10"].host == "beta"
    assert links(topology)["alpha/NET0", "network"] == ("network", 25.0)
    assert all(("GPU4" in (p.a, p.b)) <= (p.b not in ("GPU0", "GPU1")) for p in topology.pairs)
    assert read(by(0, SWITCHED) + by(1, other)).hosts == ("alpha", "host1")


def test_ranks_of_hosts_that_are_not_in_the_log_are_no_devices():
    comm = "comm 0x5a rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0\n"
    topology = read(by(0, comm + "Channel 00/01 :" + "".join(f"{i:4}" for i in range(16))))
    assert [d.id for d in topology.devices] == ["GPU0"]
    assert topology.facts["rings"] == {"0": list(range(16))}
    assert (topology.facts["ranks"], topology.facts["nodes"]) == (16, 2)
    assert "15 of 16 ranks are on hosts whose lines are not in this log" in topology.warnings[0]


def test_what_matches():
    assert nccl_log.matches(by(0, "Channel 00/02 : 0 1"))
    assert nccl_log.matches("x\n=== System : maxBw 1.0 totalBw 1.0 ===\n")
    assert not nccl_log.matches("\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n")
    assert not nccl_log.matches('<system version="1"> <!-- for NCCL --> </system>')


def code(gpu, net):
    """As the tree of `SWITCHED` has it."""
    if (gpu, net) in NEAR:
        return "PIX"
    return "PHB" if (gpu, net) == ("13000", "0") else "SYS"


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


def test_logs_that_say_nothing_or_too_much_are_errors():
    with pytest.raises(TopologyError, match=r"job\.log: nothing here names a rank or a GPU; log with NCCL_DEBUG=INFO"):
        read(by(0, "Bootstrap : Using eth0:10.0.0.1<0>"))
    with pytest.raises(TopologyError, match="99999 ranks; more than 1024 are not read"):
        read(by(0, "comm 0x5a rank 0 nRanks 99999 nNodes 1 "))


def test_no_damage_gives_a_wrong_fact():
    whole = said(read(WHOLE))
    changes = [damage.cut, damage.lose_lines(19), damage.glue_line]
    parts, _ = damage.attempts(nccl_log, [WHOLE], changes, seed=7, times=60, most=1, name=NAME)
    assert parts
    assert [text for part in parts for text in contradictions(whole, said(part))] == []


@pytest.mark.soak
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
