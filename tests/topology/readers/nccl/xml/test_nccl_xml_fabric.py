"""Links between GPUs in NCCL topology files: NVLink, xGMI and C2C, to peers, switches, processors and across hosts."""

import pytest

from tests.topology.readers.nccl.xml.reading import codes, links, read
from tests.topology.readers.nccl.xml.texts import GEN5, cpu, gpu, net, nic, nvlink, system
from topocomm.topology.model import Link


def tags(count, links=(), more='sm="80"'):
    """GPUs `0000:0<i>:00.0` under one processor; `links[i]` holds the link elements of GPU i."""
    every = [*links, *[""] * (count - len(links))]
    return system(cpu(0, *(gpu(f"0000:0{i}:00.0", f'dev="{i}" rank="{i}" {more}', every[i]) for i in range(count))))


def test_nvlinks_to_peers_itself_and_elsewhere():
    topology = read(
        tags(
            3,
            [
                nvlink("0000:01:00.0", 4) + nvlink("0000:00:00.0", 2),
                nvlink("0000:00:00.0", 4) + nvlink("0000:77:00.0", 1),
                nvlink("fffffff:ffff:ff", 0, None),
            ],
        )
    )
    assert codes(topology) == {"GPU0-GPU1": "NV4", "GPU0-GPU2": "PHB", "GPU1-GPU2": "PHB"}
    assert links(topology, "nvlink").keys() == {("GPU0", "GPU1"), ("GPU1", "GPU0")}
    assert links(topology)["GPU1", "GPU0"].gb_per_s == 100.0
    assert topology.facts["self_nvlinks"] == {"GPU0": 2}
    assert topology.facts["nvlink_total_per_gpu"] == {"GPU0": 4, "GPU1": 5, "GPU2": 0}
    assert topology.facts["missing_pairs"] == ["GPU0-GPU2", "GPU1-GPU2"]
    assert [w.split(": ", 1)[1] for w in topology.warnings] == [
        "GPU0: NVLinks of a GPU to itself say nothing of its peers; passed over",
        "GPU1 to 0000:77:00.0: links to a device that is not in the file, passed over",
    ]


def test_what_one_gpu_does_not_list_is_taken_from_the_other():
    topology = read(tags(2, [nvlink("0000:01:00.0", 4)]))
    assert codes(topology) == {"GPU0-GPU1": "NV4"}
    assert links(topology)["GPU1", "GPU0"].lanes == 4
    assert topology.warnings == (
        "topo.xml:4: GPU0-GPU1: only the first lists its links to the other; the mirror is added",
    )


def test_counts_that_contradict_each_other_make_no_code():
    topology = read(tags(2, [nvlink("0000:01:00.0", 4), nvlink("0000:00:00.0", 3)]))
    assert codes(topology) == {"GPU0-GPU1": None}
    assert [link.lanes for link in links(topology, "nvlink").values()] == [4, 3]
    assert "different numbers of links" in topology.warnings[0]


@pytest.mark.parametrize("target", ["fffffff:ffff:ff", "fffffff:ff:ff.0", "FFFFFFF:FFFF:FF"])
def test_hidden_switch(target):
    topology = read(tags(2, [nvlink(target, 12, None)] * 2))
    assert codes(topology) == {"GPU0-GPU1": "NV12"}
    assert topology.by_id["nvswitch0"].in_network is None  # A100
    assert topology.facts["nvswitch_busids"] == {target: 12}


def test_switch_that_gpus_reach_by_different_numbers_of_links():
    topology = read(tags(2, [nvlink("0000:c1:00.0", n, "0x068000") for n in (12, 10)]))
    assert [(p.code, p.gb_per_s) for p in topology.pairs] == [("NV10", 250.0)]
    assert topology.facts["nvswitch_busids"] == {"0000:c1:00.0": {"GPU0": 12, "GPU1": 10}}


@pytest.mark.parametrize(
    ("sm", "gb_per_s"),
    [(60, 20.0), (70, 25.0), (75, 25.0), (80, 25.0), (86, 14.0625), (90, 25.0), (100, 50.0), (103, 50.0), (89, None)],
)
def test_nvlink_generation_by_sm(sm, gb_per_s):
    both = [nvlink("0000:01:00.0"), nvlink("0000:00:00.0")]
    assert read(tags(2, both, f'sm="{sm}"')).pairs[0].gb_per_s == gb_per_s


@pytest.mark.parametrize(
    ("gcn", "gb_per_s"),
    [("906", None), ("908", 46.0), ("910", 50.0), ("gfx90a", 50.0), ("942", 64.0), ("gfx942", 64.0), ("gfx950", 76.5)],
)
def test_xgmi_generation_by_gcn(gcn, gb_per_s):
    both = [nvlink(f"0000:0{i}:00.0", 1, "0x038000", "xgmi") for i in (1, 0)]
    topology = read(tags(3, both, f'sm="304" gcn="{gcn}"').replace('version="1"', 'version="2"'))
    assert (topology.pairs[0].code, topology.pairs[0].gb_per_s) == ("XGMI1", gb_per_s)
    facts = topology.facts
    assert (facts["xml_version"], facts["gcn"], facts["compute_units"]) == (2, gcn, 304)
    assert facts["xgmi_total_per_gpu"] == {"GPU0": 1, "GPU1": 1, "GPU2": 0}
    assert facts["xgmi_components"] == [[0, 1], [2]]
    assert "sm" not in facts


def test_c2c_and_nvlink_to_the_processor():
    inside = gpu("0009:01:00.0", 'dev="0" sm="90" rank="0"', '<c2c bw="44712" count="10"/>', link=GEN5)
    topology = read(system(cpu(0, inside, nic("0002:01:00.0", net("mlx5_0", 0)), more='arch="arm64"')))
    assert links(topology, "c2c")["GPU0", "numa0"] == Link(
        "GPU0", "numa0", "c2c", 10, 447.12, 0.7, None, "read", "assumed"
    )
    assert codes(topology) == {"GPU0-mlx5_0": "PHB"}
    power = gpu("0004:04:00.0", 'dev="0" sm="70" rank="0"', nvlink("0004:00:00.0", 3, "0x068001"))
    topology = read(system(cpu(0, power, more='arch="ppc64"'), cpu(8, more='arch="ppc64"')))
    assert links(topology, "nvlink")["GPU0", "numa0"].gb_per_s == 75.0
    assert topology.facts["nvlink_total_per_gpu"] == {"GPU0": 3}
    assert links(topology)["numa8", "host0"].gb_per_s == 32.0


def test_several_hosts():
    """The GPUs of one NVLink domain: ranks number them, processors and NICs carry their host."""

    def host(i):
        inside = [
            gpu(f"0008:0{j}:00.0", f'dev="{j}" sm="100" rank="{2 * i + j}"', nvlink("fffffff:ffff:ff", 18))
            for j in (0, 1)
        ]
        return cpu(0, *inside, nic("0000:03:00.0", net("mlx5_0", 0)), more=f'host_hash="0x{i}a" arch="arm64"')

    topology = read(system(host(0), host(1)))
    assert [d.id for d in topology.devices] == [
        *("GPU0", "GPU1", "GPU2", "GPU3", "host0/mlx5_0", "host1/mlx5_0", "host0/numa0", "host1/numa0", "nvswitch0")
    ]
    assert topology.hosts == ("host0", "host1")
    assert {code for pair, code in codes(topology).items() if "mlx5" not in pair} == {"NV18"}
    assert codes(topology)["GPU0-host0/mlx5_0"] == "PHB"
    assert codes(topology)["GPU0-host1/mlx5_0"] is None
