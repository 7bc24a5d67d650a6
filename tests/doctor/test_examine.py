"""Which checks are made of a process and of all ranks, and in which order."""

import pytest

from topocomm import TopologyError, catalog, run_local
from topocomm.doctor.examine import LOCAL_RANKS, _local_rank, can_join, check_alone, check_process, check_ranks
from topocomm.doctor.finding import Finding


def names(findings):
    return list(dict.fromkeys(finding.check for finding in findings))


def test_checks_of_a_process_come_in_order():
    found = names(check_process(catalog("cpu-2-socket"), None, {}))
    order = ["python", "numpy", "mpi4py", "launcher", "shared memory", "topology", "clock", "settings"]
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
