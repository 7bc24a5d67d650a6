"""The model of NCCL's collectives against numbers worked out by hand from its source."""

import pytest

from topocomm.planning.cost.nccl_model import Nvls, Ranks, times_us

H100 = Ranks(8, 1, True, 450 * 8 / 14, Nvls(450.0, 0.0))
FOUR = Ranks(32, 4, True, 250.0, Nvls(450.0, 400.0))


def test_an_allreduce_on_one_switch():
    found = times_us("allreduce", H100, 0)
    assert found == {
        "ring LL": pytest.approx(6.6 + 14 * 0.6),
        "ring LL128": pytest.approx(14 + 14 * 1.9),
        "ring Simple": pytest.approx(8.4 + 14 * 3.4),
        "tree LL": pytest.approx(6.8 + 14 * 0.6),
        "tree LL128": pytest.approx(14 + 14 * 1.25),
        "tree Simple": pytest.approx(8.4 + 14 * 4.0),
        "NVLS": 25.0,
    }


@pytest.mark.parametrize(
    ("name", "gb_per_s"),
    [
        ("ring LL", 450 * 8 / 14 / 2),
        ("ring LL128", 450 * 8 / 14 * 0.92),
        ("ring Simple", 450 * 8 / 14),
        ("tree LL", 225 * 0.92 / 3.8),  # from 64 B x 2^19 on nothing is taken off
        ("tree LL128", 225 * 0.92 * 7 / 9 * 0.9),
        ("tree Simple", 225 * 0.92 * 0.7),
        ("NVLS", 2 * 450 * 0.85 * 15 / 16 * 8 / 14),
    ],
)
def test_bytes_on_one_switch(name, gb_per_s):
    payload_bytes = 64 << 19
    took_us = times_us("allreduce", H100, payload_bytes)[name] - times_us("allreduce", H100, 0)[name]
    assert took_us == pytest.approx(payload_bytes / gb_per_s / 1e3)


def test_blackwell_has_figures_of_its_own():
    where = H100._replace(gb_per_s=900 * 8 / 14, nvls=Nvls(900.0, 0.0))
    took_us = times_us("allreduce", where, 1 << 30)["NVLS"] - 25.0
    assert took_us == pytest.approx((1 << 30) / (2 * 900 * 0.74 * 23 / 24 * 8 / 14) / 1e3)


def test_nothing_beats_the_links_of_a_rank_or_of_a_node():
    pair = Ranks(2, 1, True, 450.0, Nvls(450.0, 0.0))
    assert times_us("allreduce", pair, 1 << 30)["NVLS"] - 25.0 == pytest.approx((1 << 30) / 450 / 1e3)
    took_us = times_us("allreduce", FOUR, 1 << 30)["NVLS tree"] - 25.0 - 2 * 2 * 20.9
    assert took_us == pytest.approx((1 << 30) / (400 * 32 / 62) / 1e3)
    two = FOUR._replace(ranks=16, nodes=2, nvls=Nvls(450.0, 40.0))
    took_us = times_us("allreduce", two, 1 << 30)["NVLS tree"] - 25.0 - 2 * 20.9
    assert took_us == pytest.approx((1 << 30) / 40 / 1e3)  # every value leaves each of two nodes once


def test_rings_over_nodes():
    found = times_us("allreduce", FOUR, 0)
    assert found["ring LL"] == pytest.approx(6.6 + 56 * 1.0 + 6 * 2.7)
    assert found["ring Simple"] == pytest.approx(1.4 * (8.4 + 56 * 3.4 + 6 * 14.0))
    assert found["tree LL"] == pytest.approx(6.8 + 2 * (7 * 0.6 + 2 * 5.0))
    assert times_us("allgather", FOUR, 0)["ring Simple"] == pytest.approx(8.4 + 28 * 3.4 + 3 * 14.0)
    assert times_us("allreduce", FOUR._replace(nodes=32), 0)["ring LL"] == pytest.approx(6.6 + 62 * 5.0)


def test_parts_go_by_rings_alone_and_pcie_has_no_ll128():
    assert set(times_us("reduce_scatter", H100, 64)) == {"ring LL", "ring LL128", "ring Simple"}
    slow = H100._replace(nvlink=False, nvls=None)
    assert times_us("allgather", slow, 0) == {
        "ring LL": pytest.approx(6.6 + 7 * 1.0),
        "ring Simple": pytest.approx(8.4 + 7 * 5.7),
    }
    assert not [name for name in times_us("allreduce", slow, 64) if "LL128" in name or "NVLS" in name]
