"""Which checks are made of a machine, a process and all ranks, and in which order."""

from dataclasses import replace

import pytest

from tests.doctor.machines import changed_links
from topocomm import TopologyError, catalog, run_local
from topocomm.doctor.checks import system_checks as machine
from topocomm.doctor.checks.gpu_checks import check_pci_gpus
from topocomm.doctor.checks.pcie_checks import check_slots
from topocomm.doctor.examine import (
    LOCAL_RANKS,
    _local_rank,
    can_join,
    check_alone,
    check_machine,
    check_process,
    check_ranks,
)
from topocomm.doctor.finding import Finding
from topocomm.topology.catalog.systems import SYSTEMS


def names(findings):
    return list(dict.fromkeys(finding.check for finding in findings))


def test_checks_of_a_process_come_in_order():
    found = names(check_process(catalog("cpu-2-socket"), None, {}))
    order = ["python", "numpy", "mpi4py", "launcher", "shared memory", "peer memory", "topology", "clock", "settings"]
    assert [check for check in found if check in order] == order


def test_a_machine_that_cannot_be_read_is_a_finding():
    findings = check_process(TopologyError("no such file"), None, {})
    assert [finding.level for finding in findings if finding.check == "topology"] == ["FAIL"]


@pytest.mark.parametrize("check", ["mpi4py", "launcher"])
def test_ranks_are_not_called_where_that_cannot_work(check):
    assert can_join([Finding("FAIL", "numpy", ""), Finding("warn", check, "")])
    assert not can_join([Finding("ok", "python", ""), Finding("FAIL", check, "")])


def test_alone_the_transport_follows_from_the_findings():
    ok = [Finding("ok", "kernels", ""), Finding("ok", "shared memory", "")]
    assert "share memory" in check_alone(ok, None).findings[-1].text
    assert "exchange messages" in check_alone([ok[0], Finding("warn", "shared memory", "")], None).findings[-1].text


def test_findings_of_all_ranks_are_one_list_with_ways():
    def body(comm):
        own = [Finding("warn", "clock", "slow", "wait")] if comm.rank == 1 else []
        return check_ranks(comm, own, ("mpirun", comm.rank, comm.size))

    first, second = run_local(body, ranks=2)
    assert first == second
    assert Finding("warn", "clock", "rank 1: slow", "wait") in first.findings
    assert names(first.findings)[-1] == "transport"
    assert first.ways


@pytest.mark.parametrize(("launcher", "variable"), LOCAL_RANKS.items())
def test_the_rank_on_a_host_is_read_from_the_launcher(launcher, variable):
    assert _local_rank(launcher, {variable: "3"}) == 3
    assert _local_rank(launcher, {variable: "x"}) is None
    assert _local_rank("other", {variable: "3"}) is None


@pytest.mark.parametrize("hosts", [1, 3])
@pytest.mark.parametrize("name", SYSTEMS)
def test_healthy_machines_have_no_complaints(name, hosts):
    findings = check_machine(catalog(name, hosts=hosts))
    assert findings
    assert not [finding for finding in findings if finding.level in ("warn", "FAIL")]


def test_every_complaint_has_a_remedy_and_fits_a_line():
    broken = changed_links(catalog("dgx-h100", hosts=3), lambda _: None, ends=("h1/GPU3", "h1/nvswitch0"))
    for finding in check_machine(replace(broken, warnings=("line 3: a cell is lost",))):
        assert finding.level == "ok" or finding.remedy
        assert len(finding.check) <= 14


def test_checks_are_quick():
    cluster = catalog("dgx-h100", hosts=128)
    check_machine(cluster)


def test_warnings_of_the_reader_are_carried():
    whole = catalog("dgx-h100")
    many = replace(whole, warnings=tuple(f"line {i}: odd" for i in range(40)))
    carried = machine.check_topology(many)[1:]
    assert {finding.level for finding in carried} == {"warn"}
    assert carried[0].text == "line 0: odd"
    assert "28 more warnings" in carried[-1].text
    none = replace(whole, warnings=("No GPU (looked at nvidia-smi)",))
    assert [finding.level for finding in machine.check_topology(none)] == ["ok", "info"]


def test_this_machine_can_be_checked():
    topology = catalog("cpu-2-socket")
    findings = [*check_pci_gpus(topology), *check_slots(topology)]
    assert all(finding.level in ("ok", "info", "warn") for finding in findings)
