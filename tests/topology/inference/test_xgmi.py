"""From weights and min-max bandwidths of XGMI pairs to links."""

from itertools import combinations

from topocomm.topology.inference.xgmi import Joined, joined_by_tables, xgmi_links

RING = [("a", "b"), ("b", "c"), ("c", "d"), ("a", "d")]
ALL = list(combinations("abcd", 2))


def ends(fabric):
    return {(link.src, link.dst) for link in fabric.links}


def test_bandwidth_goes_before_weight():
    bandwidths = {pair: (64_000, 128_000) if pair in RING else (0, 0) for pair in ALL}
    joined, silent = joined_by_tables(ALL, dict.fromkeys(ALL, 15), bandwidths)
    assert joined == {pair: Joined(2 if pair in RING else 0) for pair in ALL}
    assert silent == []


def test_bandwidth_of_0_everywhere_says_nothing():
    joined, silent = joined_by_tables(ALL, dict.fromkeys(ALL, 0), dict.fromkeys(ALL, (0, 0)))
    assert joined == dict.fromkeys(ALL, Joined(None))
    assert silent == ALL


def test_a_bandwidth_that_is_no_number_of_links():
    assert joined_by_tables([("a", "b")], {}, {("a", "b"): (50_000, 120_000)})[0] == {("a", "b"): Joined(None)}
    assert joined_by_tables([("a", "b")], {}, {("a", "b"): (0, 50_000)})[0] == {("a", "b"): Joined(None)}


def test_weights():
    weights = {("a", "b"): 15, ("a", "c"): 13, ("a", "d"): 30, ("b", "c"): 45, ("b", "d"): 0, ("c", "d"): None}
    joined, silent = joined_by_tables(ALL, weights, {})
    assert [pair for pair, figures in joined.items() if figures.lanes == 0] == [("a", "d"), ("b", "c")]
    assert silent == [("b", "d"), ("c", "d")]


def test_only_four_links_tell_the_model():
    two = joined_by_tables(ALL, {}, dict.fromkeys(ALL, (50_000, 100_000)))[0]
    assert two["a", "b"] == Joined(2)
    four = joined_by_tables(ALL, {}, {**dict.fromkeys(ALL, (50_000, 50_000)), ("a", "b"): (50_000, 200_000)})[0]
    assert (four["a", "b"], four["c", "d"]) == (Joined(4, 200.0), Joined(1, 50.0))
    other = joined_by_tables(ALL, {}, {**dict.fromkeys(ALL, (64_000, 64_000)), ("a", "b"): (64_000, 256_000)})[0]
    assert other["a", "b"] == Joined(4)


def test_links_go_both_ways_and_say_where_figures_come_from():
    fabric = xgmi_links({("a", "b"): Joined(2, 128.0)})
    assert ends(fabric) == {("a", "b"), ("b", "a")}
    assert {(x.kind, x.lanes, x.gb_per_s, x.gb_per_s_source, x.latency_us_source) for x in fabric.links} == {
        ("xgmi", 2, 128.0, "read", "assumed")
    }
    assert fabric.pairs["a", "b"].gb_per_s == 128.0 and fabric.warnings == ()


def test_two_gpus_can_only_be_joined_directly():
    fabric = xgmi_links({("a", "b"): Joined(None), ("c", "d"): Joined(None)}, [("a", "b"), ("c", "d")])
    assert len(fabric.links) == 4
    assert [warning[:15] for warning in fabric.warnings] == ["GB/s of xGMI un"]


def test_what_is_assumed_is_said():
    fabric = xgmi_links(dict.fromkeys(ALL, Joined(None)), ALL)
    assert len(fabric.links) == 12
    assert "one between each is assumed" in fabric.warnings[0]


def test_a_pair_that_no_links_join():
    fabric = xgmi_links({("a", "b"): Joined(1, 64.0), ("c", "d"): Joined(1, 64.0), ("a", "c"): Joined(0)})
    assert ends(fabric) == {("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")}
    assert fabric.warnings == ("a-c: XGMI, but no chain of direct links between them is named",)
