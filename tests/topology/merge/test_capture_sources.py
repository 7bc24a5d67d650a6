"""Figures and facts of several captures: what complements, what contradicts."""

from itertools import combinations

from tests.topology.joined import capture, gpus
from topocomm.topology.links import both_ways
from topocomm.topology.merge.capture_sources import SWITCH, LinkSource, agree, better_figures, between, renamed
from topocomm.topology.merge.captures import combine
from topocomm.topology.model import Device, Pair


def test_facts_complement_each_other():
    a = capture("a", gpus(1), facts={"rings": [[0]], "weights": {"GPU0-GPU1": 15}, "rate": 25.0, "legend": True})
    b = capture(
        "b", gpus(1), source="s", facts={"weights": {"GPU0-GPU2": 30}, "rate": 25.781, "legend": False, "hops": None}
    )
    found = combine([a, b])
    assert found.facts == {
        "rings": [[0]],
        "weights": {"GPU0-GPU1": 15, "GPU0-GPU2": 30},
        "rate": 25.0,
        "legend": True,
        "hops": None,
        "by_source": {"s": {"legend": False}},
    }
    assert found.warnings == ()


def test_facts_that_contradict_are_said_and_none_is_lost():
    a = capture("a", gpus(1), facts={"nvswitches": 4})
    b = capture("b", gpus(1), source="s", facts={"nvswitches": 6})
    found = combine([a, b])
    assert found.facts == {"nvswitches": 4, "by_source": {"s": {"nvswitches": 6}}}
    assert found.warnings == (
        "nvswitches: 4 (a (NCCL topology XML)), 6 (b (s)); the first kept, the other is in facts.by_source",
    )


def test_measured_before_read_before_table_before_assumed():
    order = ["measured", "read", "table", "assumed", None]
    for (i, better), (j, worse) in combinations(enumerate(order), 2):
        one = Pair("GPU0", "GPU1", "PIX", 20.0 if better else None, None, better)
        two = Pair("GPU0", "GPU1", "PIX", 10.0 if worse else None, None, worse)
        for pairs in ((one, two), (two, one)):
            found = combine([capture(str(n), gpus(2), pairs=[pair], source=str(n)) for n, pair in enumerate(pairs)])
            assert found.pairs[0].gb_per_s == 20.0 and found.pairs[0].gb_per_s_source == better, (i, j)
            assert found.warnings == ()


def test_figures_that_contradict_are_said():
    pairs = [Pair("GPU0", "GPU1", "PIX", rate, 1.0, "measured", "read") for rate in (20.0, 10.0)]
    found = combine([capture(n, gpus(2), pairs=[p], source=n) for n, p in zip("ab", pairs, strict=True)])
    assert found.pairs[0].gb_per_s == 20.0
    assert found.warnings == ("GPU0-GPU1 20 GB/s against 10 GB/s: a (a) against b (b); the first kept",)


def test_the_fabric_is_apart_from_the_tree_and_summed_up_by_switch():
    devices = [*gpus(1), *(Device(f"s{i}", "switch") for i in range(2)), Device("numa0", "numa")]
    links = [x for i in range(2) for x in both_ways("GPU0", f"s{i}", "nvlink", lanes=6, gb_per_s=150.0)]
    links += both_ways("GPU0", "numa0", "pcie", gb_per_s=32.0)
    source = LinkSource(capture("a", devices, links), {"GPU0": "GPU7"})
    assert ([d.id for d in source.switches], [d.id for d in source.tree_devices]) == (["s0", "s1"], ["numa0"])
    assert source.lanes["GPU7", SWITCH][3:5] == (12, 300.0)
    assert source.covered == source.addressed == {"GPU7"}
    assert [x.gb_per_s for x in source.slots["GPU7"]] == [32.0]


def test_figures_of_a_better_source_replace_others():
    assumed = Pair("a", "b", "PIX", 10.0, 2.0, "assumed", "measured")
    read = Pair("a", "b", "PIX", 20.0, 1.0, "read", "read")
    assert better_figures(assumed, read) == (Pair("a", "b", "PIX", 20.0, 2.0, "read", "measured"), [])
    assert better_figures(read, assumed)[0] == Pair("a", "b", "PIX", 20.0, 2.0, "read", "measured")


def test_figures_within_five_per_cent_agree():
    assert agree(25.0, 25.781) and agree(25.0, 25) and not agree(25.0, 27.0)
    assert not agree(1.0, True) and not agree(25.0, "25.0") and agree("a", "a") and not agree(1, 2)


def test_ids_are_renamed_in_keys_values_and_lists():
    facts = {"weights": {"GPU0-GPU1": 15}, "order": ["GPU1", ["GPU0"]], "n": 3}
    assert renamed(facts, {"GPU0": "GPU1", "GPU1": "GPU0"}) == {
        "weights": {"GPU1-GPU0": 15},
        "order": ["GPU0", ["GPU1"]],
        "n": 3,
    }


def test_links_have_one_name_in_both_directions():
    assert between("b", "a") == between("a", "b") == "a-b"
    assert between("GPU0", SWITCH) == between(SWITCH, "GPU0") == "GPU0-switch"
