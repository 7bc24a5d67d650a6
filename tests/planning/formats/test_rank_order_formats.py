"""Rankfiles put ranks on the cores that are meant, as Open MPI's own mapper says, and bind none of unknown cores."""

import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mpi import ENVIRONMENT, finished
from topocomm import PlanError, catalog, plan
from topocomm.planning.formats.rank_order_formats import rankfile
from topocomm.planning.report.rank_order import Order
from topocomm.topology.inference.cpu_lists import FACT, cpu_ranges
from topocomm.topology.readers.hwloc import hwloc_xml

INTERLEAVED = [[[0, 8], [2, 10], [4, 12], [6, 14]], [[1, 9], [3, 11], [5, 13], [7, 15]]]
"""Even CPUs on one socket, odd ones on the other, second hardware threads after all first ones."""
POWER = [[[0, 1, 8, 9], [16, 17, 24, 25]], [[80, 81, 88, 89], [96, 97, 104, 105]]]
"""CPU numbers with holes, larger than the number of cores."""
UNEQUAL = [[[0, 8], [2, 10]], [[1, 9], [3, 11], [5, 13]], [[4, 12]]]
"""One socket has fewer cores than the others."""
MACHINES = {"interleaved": INTERLEAVED, "power": POWER, "unequal": UNEQUAL}


def ordered(topology, ranks):
    made = plan(topology, payload_bytes=0)
    return Order(tuple(ranks), topology.endpoints, "as given", made, made)


def lines_of(ranks, topology, names=None):
    return rankfile(ordered(topology, ranks), topology, names).splitlines()


def document(packages):
    """hwloc's XML of a machine with these cores, as hwloc itself reads it."""
    serial = iter(range(1, 1000))

    def tag(kind, number, cpus, node, inner=""):
        words = [0] * 4
        for cpu in cpus:
            words[3 - cpu // 32] |= 1 << cpu % 32
        mask = ",".join(f"0x{word:08x}" for word in words)
        sets = f'cpuset="{mask}" complete_cpuset="{mask}" nodeset="{node}" complete_nodeset="{node}"'
        extra = f' allowed_cpuset="{mask}" allowed_nodeset="{node}"' if kind == "Machine" else ""
        return f'<object type="{kind}" os_index="{number}" {sets}{extra} gp_index="{next(serial)}">{inner}</object>'

    body = ""
    for number, cores in enumerate(packages):
        node, cpus = f"0x{1 << number:08x}", [cpu for core in cores for cpu in core]
        inner = tag("NUMANode", number, cpus, node)
        for core in cores:
            inner += tag("Core", core[0], core, node, "".join(tag("PU", cpu, [cpu], node) for cpu in core))
        body += tag("Package", number, cpus, node, inner)
    every = [cpu for cores in packages for core in cores for cpu in core]
    nodes = f"0x{(1 << len(packages)) - 1:08x}"
    head = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n<topology version="2.0">'
    return f"{head}{tag('Machine', 0, every, nodes, body)}</topology>\n"


def mapped(folder, packages, text, ranks, *options):
    """rank -> (package, core in the host) that the mapper of Open MPI binds it to on that machine; None is unbound."""
    (folder / "machine.xml").write_text(document(packages))
    (folder / "ranks").write_text(text)
    command = ["mpirun", "--prtemca", "hwloc_use_topo_file", folder / "machine.xml", "--host", "node:64", "-n", ranks]
    command += ["--do-not-launch", "--display", "map-devel", "--map-by", f"rankfile:file={folder / 'ranks'}", *options]
    beside = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": beside + os.pathsep + os.environ["PATH"], **ENVIRONMENT}
    for name in ("PRTE_MCA_rmaps_default_mapping_policy", "PRTE_MCA_hwloc_default_binding_policy"):
        environment.pop(name)
    done = finished([*map(str, command), "hostname"], environment, 60)
    said = re.findall(r"Data for proc: \[[^,]+,(\d+)\]|Binding: (\S+)", done.stdout + done.stderr)
    if not any(rank for rank, _ in said):
        pytest.fail(done.stdout + done.stderr)
    found, rank = {}, None
    for number, binding in said:
        rank = int(number) if number else rank
        if place := re.fullmatch(r"package\[(\d+)\]\[core:L(\d+)\]", binding):
            found[rank] = (int(place[1]), int(place[2]))
        elif binding == "UNBOUND" and rank is not None:
            found[rank] = None
    return found


def has_open_mpi():
    return shutil.which("prterun", path=str(Path(sys.executable).parent)) is not None


@pytest.mark.skipif(not has_open_mpi(), reason="another MPI than Open MPI 5 is here")
@pytest.mark.parametrize("name", MACHINES)
def test_the_mapper_of_open_mpi_finds_the_cores_that_are_meant(tmp_path, name):
    packages = MACHINES[name]
    topology = hwloc_xml.read(document(packages), "node.xml")
    cores = {cpu_ranges(core): (p, core) for p, own in enumerate(packages) for core in own}
    logical = {cpus: number for number, cpus in enumerate(cores)}
    ends = topology.endpoints[::-1]
    text = rankfile(ordered(topology, ends), topology, ["node"])
    assert "#" not in text
    found = mapped(tmp_path, packages, text, len(ends))
    wanted = {rank: topology.by_id[end].cpu_affinity for rank, end in enumerate(ends)}
    assert found == {rank: (cores[cpus][0], logical[cpus]) for rank, cpus in wanted.items()}


@pytest.mark.skipif(not has_open_mpi(), reason="another MPI than Open MPI 5 is here")
def test_the_mapper_of_open_mpi_binds_nobody_without_a_slot(tmp_path):
    topology = replace(hwloc_xml.read(document(INTERLEAVED), "node.xml"), facts={})
    text = rankfile(ordered(topology, topology.endpoints[2:0:-1]), topology, ["node"])
    assert mapped(tmp_path, INTERLEAVED, text, 2) == {0: None, 1: None}


def test_slots_are_packages_and_cores():
    topology = hwloc_xml.read(document(INTERLEAVED), "node.xml")
    assert lines_of(["cpu5", "cpu0", "cpu3"], topology, ["node"]) == [
        "rank 0=node slot=1:1",
        "rank 1=node slot=0:0",
        "rank 2=node slot=0:3",
    ]
    assert [line[-2:] for line in lines_of(topology.endpoints, catalog("cpu-2-socket"))[-2:]] == [":6", ":7"]


def test_where_packages_differ_cores_are_counted_over_the_host():
    topology = hwloc_xml.read(document(UNEQUAL), "node.xml")
    assert [line.split("slot=")[1] for line in lines_of(topology.endpoints, topology, ["node"])] == list("012345")


def box(affinity, packages=None):
    """Four GPUs with these CPU lists."""
    whole = catalog("rtx4090-pcie-4")
    devices = [
        d._replace(cpu_affinity=affinity[int(d.id[3:])], numa=None) if d.kind == "gpu" else d for d in whole.devices
    ]
    facts = {FACT: [[cpu_ranges(core) for core in own] for own in packages]} if packages else {}
    return replace(whole, devices=tuple(devices), facts=facts)


def test_gpus_get_cores_near_them_each_its_own():
    odd, even = "1,3,5,7,9,11,13,15", "0,2,4,6,8,10,12,14"
    topology = box([odd, odd, even, None], INTERLEAVED)
    assert lines_of(topology.endpoints, topology, ["node"]) == [
        "# node: bound to no core, as none near their endpoints is known and free: ranks 3",
        "rank 0=node slot=1:0",
        "rank 1=node slot=1:1",
        "rank 2=node slot=0:0",
        "rank 3=node",
    ]


def test_more_ranks_than_cores_near_them_share_none():
    topology = box(["0,8"] * 4, INTERLEAVED)
    lines = lines_of(topology.endpoints, topology, ["node"])
    assert "ranks 1, 2, 3" in lines[0]
    assert lines[1:] == ["rank 0=node slot=0:0", "rank 1=node", "rank 2=node", "rank 3=node"]


@pytest.mark.parametrize(
    "told",
    [None, [], [[]], [["0"], []], [["0", "junk"]], [["0", "0-1"]], [[0, 1]], "0-3", [["0", None]], [[["0"], "1"]]],
)
def test_linux_numbers_alone_bind_nobody(told):
    topology = replace(box(["0-3"] * 4), facts={} if told is None else {FACT: told})
    lines = lines_of(topology.endpoints, topology, ["node"])
    assert lines[0].startswith("# node: its ranks are bound to no core, as no source numbers its cores as mpirun does")
    assert lines[1:] == [f"rank {rank}=node" for rank in range(4)]


def test_mixed_cores_that_the_mapper_would_count_as_cpus_bind_nobody():
    topology = box(["0-9"] * 4, [[[0], [1]], [[2, 3], [4, 5], [6, 7]]])
    assert not any("slot=" in line for line in lines_of(topology.endpoints, topology, ["node"]))


def test_hosts_without_names_are_said_and_named_ones_are_not():
    topology = catalog("dgx-h100", hosts=2)
    ends = ["h1/GPU0", "h0/GPU1", "h0/GPU0"]
    lines = lines_of(ends, topology)
    assert lines[0] == "# h1, h0: names of the topology, not of machines; give theirs by --hosts FILE, one a line"
    assert lines[1] == "# h0: CUDA_VISIBLE_DEVICES=1,0"
    named = lines_of(ends, topology, ["left", "right"])
    assert named[0] == "# left: CUDA_VISIBLE_DEVICES=1,0"
    assert named[-3:] == ["rank 0=right", "rank 1=left", "rank 2=left"]
    assert not any("h0" in line or "h1" in line for line in named)
    with pytest.raises(PlanError, match="1 names for 2 hosts; expected one for each"):
        lines_of(ends, topology, ["left"])
    many = catalog("dgx-h100", hosts=6)
    assert lines_of(many.endpoints, many)[0].startswith("# h0, h1, h2, h3, ...: names of the topology")
