import pytest

from topocomm.topology.links import KINDS, PATH_LATENCY_US, PCIE_LANE_GB_PER_S, assume, both_ways, kind_of


def test_every_row_has_figures_and_a_source():
    for name, row in KINDS.items():
        assert row.gb_per_s > 0, name
        assert row.latency_us > 0, name
        assert row.source, name


@pytest.mark.parametrize(
    ("kind", "lanes", "total"),
    [
        ("nvlink1", 4, 80),
        ("nvlink2", 6, 150),
        ("nvlink3", 12, 300),
        ("nvlink4", 18, 450),
        ("nvlink5", 18, 900),
        ("xgmi-mi300", 7, 448),
        ("pcie4", 1, 32),
        ("network-400", 1, 50),
    ],
)
def test_datasheet_totals(kind, lanes, total):
    assert KINDS[kind].gb_per_s * lanes == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize(
    ("family", "sm", "gcn", "kind"),
    [
        ("nvlink", 60, None, "nvlink1"),
        ("nvlink", 72, None, "nvlink2"),
        ("nvlink", 86, None, "nvlink3-rtx"),
        ("nvlink", 103, None, "nvlink5"),
        ("nvlink", 121, None, "nvlink"),
        ("nvlink", None, None, "nvlink"),
        ("xgmi", None, "gfx910", "xgmi-mi250"),
        ("xgmi", 304, " GFX942", "xgmi-mi300"),
        ("xgmi", None, "gfx906", "xgmi"),
        ("xgmi", None, None, "xgmi"),
    ],
)
def test_a_gpu_tells_the_generation_of_its_links(family, sm, gcn, kind):
    assert kind_of(family, sm, gcn) == kind
    assert kind == family or kind in KINDS


def test_lanes_of_pcie_have_the_rates_of_the_table():
    of_table = {
        gts: KINDS[kind].gb_per_s
        for kind, gts in zip(("pcie3", "pcie4", "pcie5", "pcie6"), (8, 16, 32, 64), strict=True)
    }
    assert {gts: 16 * PCIE_LANE_GB_PER_S[gts] for gts in of_table} == of_table
    assert PCIE_LANE_GB_PER_S[128.0] == 2 * PCIE_LANE_GB_PER_S[64.0]


def test_both_ways_takes_figures_from_the_table():
    there, back = both_ways("a", "b", "nvlink4", lanes=18)
    assert (there.src, there.dst, back.src, back.dst) == ("a", "b", "b", "a")
    assert (there.kind, there.lanes, there.gb_per_s, there.gb_per_s_source) == ("nvlink", 18, 450.0, "table")
    assert there.latency_us == 0.7
    assert back._replace(src="a", dst="b") == there


def test_a_family_alone_leaves_the_rate_unknown():
    link, _ = both_ways("a", "b", "pcie")
    assert (link.kind, link.gb_per_s, link.gb_per_s_source) == ("pcie", None, None)
    assert link.latency_us == KINDS["pcie3"].latency_us


def test_a_figure_that_was_read_replaces_the_table():
    link, _ = both_ways("a", "b", "pcie", gb_per_s=8.0)
    assert (link.gb_per_s, link.gb_per_s_source) == (8.0, "read")


@pytest.mark.parametrize("family", sorted({row.family for row in KINDS.values()}))
def test_assumptions_are_the_careful_end_of_a_family(family):
    rows = [row for row in KINDS.values() if row.family == family]
    assert assume(family).gb_per_s == min(row.gb_per_s for row in rows)
    assert assume(family).gb_per_s_source == "assumed"


def test_an_unheard_of_kind_gets_the_slowest_row():
    assert assume("carrier-pigeon").gb_per_s == min(row.gb_per_s for row in KINDS.values())
    link, _ = both_ways("a", "b", "carrier-pigeon")
    assert (link.kind, link.gb_per_s) == ("carrier-pigeon", None)


def test_path_latencies_rise_with_the_level():
    levels = [PATH_LATENCY_US[code] for code in ("PIX", "PXB", "PHB", "NODE", "SYS")]
    assert levels == sorted(set(levels))
    assert PATH_LATENCY_US["SOC"] == PATH_LATENCY_US["SYS"]


def test_every_figure_says_where_it_comes_from():
    for name, kind in KINDS.items():
        assert kind.source, name
        assert kind.latency_source.startswith("assumed: "), name
