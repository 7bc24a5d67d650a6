"""Bounds by lengths of links: by hand on a line, beside all cuts of hosts where some pairs have no link."""

import pytest

from tests.machines import APART, line, switch, two_and_three
from topocomm import catalog, check_certificate, plan
from topocomm.planning.bounds.demand import demand_of
from topocomm.planning.bounds.endpoint_groups import families
from topocomm.planning.bounds.lengths_bound import MOST_ENDS, lengths_bounds
from topocomm.planning.bounds.machine_columns import Machine
from topocomm.planning.bounds.rounds_bound import Bound
from topocomm.planning.bounds.throughput_bound import throughput_bound
from topocomm.planning.collectives import collective_of
from topocomm.planning.planner import every_plan
from topocomm.planning.routing.paths import PathFinder

MIB = 1 << 20


def found(topology, name, ports=1, parts=None):
    """(bounds by lengths, the bound by cuts)."""
    ends, paths = topology.endpoints, PathFinder(topology)
    rows = (
        max(sum(parts[low : low + len(ends)]) for low in range(0, len(parts), len(ends))) if parts else 120 * len(ends)
    )
    made, machine = demand_of(collective_of(name, len(ends), rows, parts=parts)), Machine(ends, paths)
    cut = throughput_bound(made, machine, families(machine))
    return lengths_bounds(made, machine, paths, ports, cut), cut


@pytest.mark.parametrize(("ports", "gb_per_s"), [(1, 7.5), (2, 15.0)])
def test_three_in_a_row(ports, gb_per_s):
    """A third of a payload each; the port of the middle sends four of them at 10 GB/s. A cut lets two a link pass."""
    by_lengths, cut = found(line(3), "alltoall", ports)
    assert cut.value == pytest.approx(15.0) and by_lengths.throughput is None
    assert by_lengths.time.gb_per_s == pytest.approx(gb_per_s, rel=1e-3)
    assert by_lengths.time.least_us == 1.0


def test_where_some_pairs_have_no_link_cuts_allow_too_much():
    """Two GPUs with links to three others, and pairs without a link exchange rows: the cuts allow 4/3 of the flow."""
    by_lengths, cut = found(two_and_three(), "alltoall", parts=[120 * part for part in APART])
    assert cut.value == pytest.approx(20.0)
    assert by_lengths.throughput.value == pytest.approx(15.0, rel=1e-6)
    assert by_lengths.throughput.witness["kind"] == "lengths"


@pytest.mark.parametrize("name", ["gather", "scatter"])
def test_one_port_of_a_root_needs_its_fastest_links(name):
    """DGX-1's GPU0 has two links of 50 GB/s and two of 25: seven eighths of 64 MiB by one port, over the fast ones."""
    by_lengths, _ = found(catalog("dgx-1-v100"), name)
    machine = catalog("dgx-1-v100")
    one = plan(machine, name, payload_bytes=64 * MIB)
    assert by_lengths.time.gb_per_s == pytest.approx(50 * 8 / 7, rel=1e-2)
    assert one.certificate.predicted_lower_bound_us >= 64 * MIB / by_lengths.time.gb_per_s / 1e3
    check_certificate(machine, one)


@pytest.mark.parametrize("name", ["gather", "scatter", "alltoall"])
@pytest.mark.parametrize(
    ("system", "hosts"), [("dgx-1-v100", 1), ("mi250x", 1), ("dgx-h100-taper2", 2), ("p3dn", 2), ("a100-pcie-2", 4)]
)
def test_no_plan_is_better(system, hosts, name):
    machine = catalog(system, hosts=hosts)
    one = plan(machine, name, payload_bytes=4 * MIB)
    gaps = [each.certificate.gap for each in every_plan(machine, one.request)]
    assert len(gaps) > 3 and min(gaps) >= 1 - 1e-9


@pytest.mark.parametrize("hosts", [4, 8])
def test_a_nic_waits_while_the_card_beside_it_sends_inside(hosts):
    """25 GB/s, but 16 while GPU0 sends GPU1 a block at 16: what leaves, and 9 / 16 of a block, over 25."""
    by_lengths, _ = found(catalog("a100-pcie-2", hosts=hosts), "alltoall")
    leaves = 2 * (hosts - 1) * 2 + 9 / 16
    assert by_lengths.time.gb_per_s == pytest.approx(25 / (leaves / (2 * hosts)), rel=2e-3)
    assert by_lengths.time.witness["borders"]


@pytest.mark.parametrize("name", ["allreduce", "reduce", "broadcast", "allgather", "reduce_scatter", "scan"])
def test_what_is_copied_or_folded_has_none(name):
    assert found(line(3), name)[0] == (None, None)


def test_nothing_to_send_and_large_machines_have_none():
    """Of many ranks only those whose pairs a symmetry maps onto each other have one."""
    assert found(line(3), "alltoall", parts=[360, 0, 0, 0, 360, 0, 0, 0, 360])[0] == (None, None)
    assert found(switch(MOST_ENDS + 1), "alltoall")[0] == (None, None)
    assert found(switch(96), "alltoall")[0].time is not None
    assert found(line(65), "gather")[0] == (None, None)


def test_a_bound_that_is_no_less_is_not_kept():
    topology = two_and_three()
    ends, paths = topology.endpoints, PathFinder(topology)
    made = demand_of(collective_of("alltoall", 5, 240, parts=[120 * part for part in APART]))
    assert lengths_bounds(made, Machine(ends, paths), paths, 1, Bound(15.0, "", {})).throughput is None
    assert lengths_bounds(made, Machine(ends, paths), paths, 1, Bound(15.1, "", {})).throughput is not None
