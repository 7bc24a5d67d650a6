"""What switches that reduce on the way could do for a plan, and why not."""

from dataclasses import replace

import pytest

from attention import LOGSUMEXP
from topocomm import MAX, SUM, catalog, plan
from topocomm.planning.report.in_network_advice import in_network_notes

H100 = catalog("dgx-h100")
NVLS = "nvswitch0 (NVLink SHARP)"


def notes(topology=H100, collective="allreduce", operator=SUM, **wanted):
    payload_bytes = 16 * operator.default_layout(1).row_bytes
    return in_network_notes(
        plan(topology, collective, payload_bytes=payload_bytes, operator=operator, **wanted), topology, operator
    )


def test_sums_on_one_switch_have_a_bound_with_it():
    told = f"{NVLS} could reduce sum of float32 on the way; no schedule uses it"
    assert notes() == [f"{told}; with it throughput <= 450.00 GB/s"]
    assert notes(collective="reduce") == notes(collective="reduce_scatter") == [told]
    assert notes(ranks=["GPU0", "GPU1"]) == notes()


def test_the_bound_is_that_of_the_narrowest_endpoint():
    slow = replace(H100, links=tuple(x._replace(gb_per_s=100.0) if x.dst == "GPU3" else x for x in H100.links))
    assert notes(slow)[0].endswith("; with it throughput <= 100.00 GB/s")
    assert notes(slow, ranks=["GPU0", "GPU1"])[0].endswith("; with it throughput <= 450.00 GB/s")


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"operator": LOGSUMEXP}, "they cannot be given attention.logsumexp"),
        ({"operator": MAX}, "they know no max of float32"),
        ({"collective": "scan"}, "they know no scan"),
        ({"order": "canonical"}, "they fold in an order of their own"),
    ],
)
def test_what_cannot_be_used_is_said(wanted, why):
    assert notes(**wanted) == [f"{NVLS} can reduce sum, min, max of numbers on the way; no use here: {why}"]


@pytest.mark.parametrize("collective", ["broadcast", "allgather"])
def test_where_nothing_is_reduced_nothing_is_said(collective):
    assert notes(collective=collective) == []


def test_only_switches_between_the_ranks_are_told_of():
    cluster = catalog("dgx-h100", hosts=5)
    assert notes(catalog("dgx-a100")) == notes(ranks=["GPU0"]) == notes(cluster, ranks=["h0/GPU0", "h1/GPU0"]) == []
    assert notes(cluster, ranks=["h1/GPU0", "h1/GPU1"])[0].startswith("h1/nvswitch0 (NVLink SHARP) could")
    assert notes(cluster)[0].startswith("h0/nvswitch0, h1/nvswitch0, h2/nvswitch0 and 2 more (NVLink SHARP) could")
    assert "throughput" not in notes(cluster)[0]


def test_switches_of_the_network_join_hosts():
    cluster = catalog("dgx-a100", hosts=2)
    sharp = replace(
        cluster,
        devices=tuple(d._replace(in_network="sharp") if d.id.startswith("rail") else d for d in cluster.devices),
    )
    told = "rail0-2 and 5 more (SHARP) could reduce max of float32 on the way; no schedule uses it"
    assert notes(sharp, operator=MAX) == [told]
    assert notes(sharp, ranks=["h0/GPU0", "h0/GPU1"]) == []
