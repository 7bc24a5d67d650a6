"""Findings of a machine by its topology alone, on several hosts."""

from tests.doctor.machines import changed_links, with_facts
from topocomm import catalog
from topocomm.doctor.checks.machine_checks import check_parts
from topocomm.topology.merge.cluster import merge_hosts


def test_the_same_finding_of_several_hosts_is_told_once():
    findings = [finding for finding in check_parts(catalog("dgx-h100", hosts=5)) if finding.check == "NVLinks"]
    assert [finding.text for finding in findings] == ["all 5 hosts: 18 on each of 8 GPUs"]
    broken = catalog("dgx-h100", hosts=5)
    for host in ("h1", "h3"):
        broken = changed_links(broken, lambda _: None, ends=(f"{host}/GPU3", f"{host}/nvswitch0"))
    findings = [finding for finding in check_parts(broken) if finding.check == "NVLinks"]
    assert [finding.text.partition(":")[0] for finding in findings] == ["h0,2,4", "h1,3"]


def test_facts_of_merged_hosts_reach_the_checks():
    told = with_facts({"inactive_gpus": ["GPU2"], "active_links_per_gpu": {"GPU0": 4, "GPU2": 0}})
    texts = [finding.text for finding in check_parts(merge_hosts([told, catalog("dgx-h100")]))]
    assert any(text.startswith("host0: all links of GPU2 are inactive") for text in texts)
