"""Cores in hwloc's order from sysfs, and facts that may be anything."""

import pytest

from tests.topology.discovery.test_sysfs import add_cpus, write
from topocomm import catalog
from topocomm.topology.discovery.local_host import discover
from topocomm.topology.discovery.sysfs import sysfs_cores
from topocomm.topology.inference.cpu_lists import FACT, core_facts, cpu_ranges, read_cores
from topocomm.topology.readers.hwloc import lstopo


def add_packages(root, packages):
    add_cpus(root, [core for cores in packages for core in cores])
    for cores in packages:
        own = cpu_ranges([cpu for core in cores for cpu in core])
        for core in cores:
            for cpu in core:
                write(root, f"devices/system/cpu/cpu{cpu}/topology/package_cpus_list", own)


def frozen(packages):
    return [[frozenset(core) for core in cores] for cores in packages]


INTERLEAVED = [[[0, 8], [2, 10], [4, 12], [6, 14]], [[1, 9], [3, 11], [5, 13], [7, 15]]]


def test_packages_and_cores_by_their_first_cpus(tmp_path):
    add_packages(tmp_path, INTERLEAVED[::-1])
    assert sysfs_cores(tmp_path, range(16)) == frozen(INTERLEAVED)


@pytest.mark.parametrize("what", ["node", "cache"])
def test_what_shares_a_node_or_cache_stands_together(tmp_path, what):
    """Sub-NUMA clusters of one socket whose cores Linux numbers in turn."""
    add_packages(tmp_path, [[[0], [1], [2], [3], [4], [5]]])
    for number, cpus in enumerate(([0, 2, 5], [1, 3, 4])):
        if what == "node":
            write(tmp_path, f"devices/system/node/node{number}/cpulist", cpu_ranges(cpus))
        else:
            for cpu in cpus:
                write(tmp_path, f"devices/system/cpu/cpu{cpu}/cache/index3/shared_cpu_list", cpu_ranges(cpus))
    assert sysfs_cores(tmp_path, range(6)) == frozen([[[0], [2], [5], [1], [3], [4]]])


def test_names_of_files_before_linux_5_4(tmp_path):
    for cpu in range(2):
        write(tmp_path, f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", str(cpu))
        write(tmp_path, f"devices/system/cpu/cpu{cpu}/topology/core_siblings_list", "0-1")
    write(tmp_path, "devices/system/cpu/online", "0-1")
    assert sysfs_cores(tmp_path, range(2)) == frozen([[[0], [1]]])


def test_nothing_where_it_cannot_be_known(tmp_path):
    add_packages(tmp_path, INTERLEAVED)
    assert sysfs_cores(tmp_path, range(15)) == []  # some are withheld, or this process is bound: nobody can tell
    assert sysfs_cores(tmp_path / "nowhere", range(16)) == []
    write(tmp_path, "devices/system/cpu/cpu3/topology/core_cpus_list", "")
    assert sysfs_cores(tmp_path, range(16)) == []


def test_no_package_no_cores(tmp_path):
    add_cpus(tmp_path, [[0], [1]])
    assert sysfs_cores(tmp_path, range(2)) == []


def test_facts_there_and_back():
    facts = core_facts(INTERLEAVED)
    assert facts == {FACT: [["0,8", "2,10", "4,12", "6,14"], ["1,9", "3,11", "5,13", "7,15"]]}
    assert read_cores(facts) == frozen(INTERLEAVED)
    assert read_cores({}) == read_cores({FACT: [["0"], ["0"]]}) == []


def test_discover_and_the_catalogue_tell_them(tmp_path):
    add_packages(tmp_path, INTERLEAVED)
    nothing = tmp_path / "nothing"
    found = discover(sysfs=tmp_path, proc=nothing, dev=nothing, usable=range(16))
    assert read_cores(found.facts) == frozen(INTERLEAVED)
    bound = discover(sysfs=tmp_path, proc=nothing, dev=nothing, usable=range(4))
    assert FACT not in bound.facts
    pair = catalog("cpu-2-socket", hosts=2)
    assert [len(own) for own in read_cores(pair.facts["h1"])] == [8, 8]
    assert FACT not in catalog("dgx-h100").facts


LSTOPO = """Machine (8GB total)
  Package L#0
    NUMANode L#0 (P#0 4GB)
    Core L#0
      PU L#0 (P#0)
      PU L#1 (P#4)
    Core L#1
      PU L#2 (P#2)
      PU L#3 (P#6)
  Package L#1
    NUMANode L#1 (P#1 4GB)
    Core L#2
      PU L#4 (P#1)
      PU L#5 (P#5)
    Core L#3
      PU L#6 (P#3)
      PU L#7 (P#7)
"""


def test_lstopo_tells_them_unless_lines_were_left_out():
    assert lstopo.read(LSTOPO, "a.txt").facts[FACT] == [["0,4", "2,6"], ["1,5", "3,7"]]
    cut = LSTOPO.replace("      PU L#1 (P#4)\n    Core L#1\n", "      ...\n")
    assert FACT not in lstopo.read(cut, "a.txt").facts
