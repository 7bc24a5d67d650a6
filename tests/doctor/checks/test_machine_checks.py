"""All checks together: healthy machines have no complaints, and many hosts share a line."""

from dataclasses import replace

import pytest

from tests.doctor.machines import changed_links, with_facts
from topocomm import catalog
from topocomm.doctor.checks import system_checks as machine
from topocomm.doctor.checks.machine_checks import check_here, check_machine
from topocomm.topology.catalog.systems import SYSTEMS
from topocomm.topology.merge.cluster import merge_hosts


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


def test_the_same_finding_of_several_hosts_is_told_once():
    findings = [finding for finding in check_machine(catalog("dgx-h100", hosts=5)) if finding.check == "NVLinks"]
    assert [finding.text for finding in findings] == ["all 5 hosts: 18 on each of 8 GPUs"]
    broken = catalog("dgx-h100", hosts=5)
    for host in ("h1", "h3"):
        broken = changed_links(broken, lambda _: None, ends=(f"{host}/GPU3", f"{host}/nvswitch0"))
    findings = [finding for finding in check_machine(broken) if finding.check == "NVLinks"]
    assert [finding.text.partition(":")[0] for finding in findings] == ["h0,2,4", "h1,3"]


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


def test_facts_of_merged_hosts_reach_the_checks():
    told = with_facts({"inactive_gpus": ["GPU2"], "active_links_per_gpu": {"GPU0": 4, "GPU2": 0}})
    texts = [finding.text for finding in check_machine(merge_hosts([told, catalog("dgx-h100")]))]
    assert any(text.startswith("host0: all links of GPU2 are inactive") for text in texts)


def test_this_machine_can_be_checked():
    assert all(finding.level in ("ok", "info", "warn") for finding in check_here(catalog("cpu-2-socket")))
