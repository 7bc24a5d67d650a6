"""Pieces with one owner: as many as owners need, and past the root's host where its rail carries enough."""

import pytest

from tests.machines import hosts
from tests.plans import request_on
from topocomm import SUM, catalog, check_certificate, plan
from topocomm.planning.hierarchical.owned_pieces import OwnedPieces
from topocomm.planning.proof.verify import verify
from topocomm.planning.rank_patterns import RankPatterns
from topocomm.planning.routing.paths import PathFinder

KIB, MOST = 1 << 10, 1 << 19


def owned(system, count, name, payload_bytes):
    machine = catalog(system, hosts=count)
    request = request_on(machine, name, SUM, SUM.default_layout(payload_bytes // 4))
    return OwnedPieces(request, RankPatterns(request, PathFinder(machine)))


@pytest.mark.parametrize(
    ("system", "count", "name", "payload_bytes", "most"),
    [
        ("rtx4090-pcie-8", 123, "allreduce", 20_100, 2.0),  # was 3.27: to 15 hosts at once, four messages in a row
        ("p3dn", 22, "allreduce", 4_392, 2.0),  # 2.62: whole values waited for each other in the NIC
        ("rtx4090-pcie-8-1-socket", 98, "reduce", 28_416, 1.3),  # 2.02
        ("a100-pcie-2", 344, "broadcast", 31_580, 1.55),  # 2.30
        ("cpu-2-socket", 16, "broadcast", 64 * KIB, 1.7),  # 2.24
    ],
)
def test_middle_sizes_over_many_hosts_behind_one_nic(system, count, name, payload_bytes, most):
    machine = catalog(system, hosts=count)
    made = plan(machine, name, payload_bytes=payload_bytes)
    assert made.algorithm.startswith(("rails-by", "rails-straight")) and made.certificate.gap <= most
    check_certificate(machine, made)


def test_few_pieces_serve_where_members_share_a_nic():
    """One or two pieces a host, not one for each of its eight members; of a short value fewer still."""
    assert owned("rtx4090-pcie-8-1-socket", 64, "reduce", 64 * KIB).pieces(MOST) == 8
    assert owned("rtx4090-pcie-8-1-socket", 64, "reduce", 256).pieces(MOST) == 1
    assert owned("dgx-h100", 32, "allreduce", 64 * KIB).pieces(MOST) == 32  # a NIC each
    assert owned("dgx-h100", 32, "allreduce", 64 * KIB).pieces(100) == 0


def test_owners_send_straight_where_the_rail_of_the_root_carries_enough():
    for system, straight in [("rtx4090-pcie-8-1-socket", True), ("cpu-2-socket", True), ("dgx-h100", False)]:
        for name in ("reduce", "broadcast"):
            assert owned(system, 16, name, 256 * KIB).straight == straight
        assert not owned(system, 16, "allreduce", 256 * KIB).straight
    assert owned("gb200-nvl72", 1, "broadcast", 1024 * KIB).pieces(MOST) == 72  # each rank a group: nobody to pass by


@pytest.mark.parametrize("name", ["allreduce", "reduce", "broadcast"])
def test_ranks_that_were_dealt_over_the_hosts(name):
    """In turn, as some launchers do; the plan is proved, and its root in any host."""
    machine = hosts(5, 4)
    dealt = [f"h{host}/{machine.endpoints[place].split('/')[1]}" for place in range(4) for host in range(5)]
    root = {} if name == "allreduce" else {"root": 7}
    made = plan(machine, name, payload_bytes=64 * KIB, ranks=dealt, **root)
    groups = RankPatterns(made.request, PathFinder(machine))
    assert not groups.in_order
    for _, schedule in OwnedPieces(made.request, groups).schedules([("", None)], MOST):
        verify(schedule, made.collective)
