"""Other rates on links, by every kind of name, and what is refused."""

import pytest

from tests.machines import hosts
from topocomm import Link, Topology, TopologyError
from topocomm.planning.cost.events import simulate
from topocomm.simulation.libraries import work_of
from topocomm.topology.merge.link_rates import with_rates

MACHINE = hosts(2, 2)


def changed(*changes):
    own = with_rates(MACHINE, changes)
    return {
        (new.src, new.dst): new.gb_per_s
        for old, new in zip(MACHINE.links, own.links, strict=True)
        if old.gb_per_s != new.gb_per_s
    }


def test_a_link_in_both_directions_or_in_one():
    assert changed("h0/NIC0-rail0=25") == {("h0/NIC0", "rail0"): 25.0, ("rail0", "h0/NIC0"): 25.0}
    assert changed("h0/NIC0->rail0=25") == {("h0/NIC0", "rail0"): 25.0}


def test_a_device_and_a_kind():
    assert set(changed("rail1=12.5")) == {
        ("rail1", "h0/NIC1"), ("rail1", "h1/NIC1"), ("h0/NIC1", "rail1"), ("h1/NIC1", "rail1"),
    }  # fmt: skip
    assert len(changed("nvlink=1")) == len(MACHINE.links)


def test_later_changes_win_and_the_name_says_them():
    assert changed("nvlink=50", "h0/NIC0->rail0=10")["h0/NIC0", "rail0"] == 10.0
    assert with_rates(MACHINE, ["rail1=12.5"]).name == "2 hosts of 2 with rail1=12.5 GB/s"
    assert with_rates(MACHINE, []).name == MACHINE.name


def test_parallel_links_share_the_rate():
    more = Link("h0/NIC0", "rail0", "nvlink", 1, 50.0, 1.0)
    twice = with_rates(Topology("twice", "test", MACHINE.devices, (*MACHINE.links, more)), ["h0/NIC0->rail0=30"])
    rates = [link.gb_per_s for link in twice.links if (link.src, link.dst) == more[:2]]
    assert rates == [15.0, 15.0]


def test_half_the_rate_takes_twice_as_long():
    work = work_of("ring", MACHINE, "allreduce", 4 * 10**8, ranks=("h0/GPU0", "h1/GPU0"))
    slow = simulate(work, with_rates(MACHINE, ["rail0=25"])).total_us
    assert slow == pytest.approx(2 * simulate(work, MACHINE).total_us, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("rail0", "expected LINK=GBPS, GB/s above 0"),
        ("rail0=0", "expected LINK=GBPS, GB/s above 0"),
        ("rail0=-1", "expected LINK=GBPS"),
        ("rail0=inf", "expected LINK=GBPS"),
        ("rail0=fast", "expected LINK=GBPS"),
        ("=25", "expected LINK=GBPS"),
        ("rial0=25", "no link, device or kind of links 'rial0'; kinds are nvlink; near it: rail0"),
        (
            "h0/NIC0-rail1=25",
            "no link, device or kind of links 'h0/NIC0-rail1'; kinds are nvlink; near it: h0/NIC1-rail1,",
        ),
    ],
)
def test_what_is_refused(change, why):
    with pytest.raises(TopologyError) as caught:
        with_rates(MACHINE, [change])
    assert why in str(caught.value)


@pytest.mark.parametrize("name", ["h0/NIC0-rail1", "rail1-h0/NIC0", "nothing like it"])
def test_a_link_is_once_among_those_near(name):
    with pytest.raises(TopologyError, match="near it") as caught:
        with_rates(MACHINE, [f"{name}=25"])
    near = str(caught.value).partition("near it: ")[2].split(", ")
    links = [frozenset(link[:2]) for link in MACHINE.links]
    named = [next((pair for pair in links if one in ("-".join(pair), "-".join([*pair][::-1]))), one) for one in near]
    assert len(named) == len({*named}) >= 4
