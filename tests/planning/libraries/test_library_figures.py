"""Figures: every default has a meaning and a source, and a topology's facts replace them."""

from dataclasses import replace

import pytest

import topocomm
from topocomm import TopologyError
from topocomm.planning.libraries.library_figures import (
    DEFAULTS,
    OF_MEASURED,
    TABLE,
    figures_of,
    is_share,
    ll128_of,
    topology_figures,
)


def test_every_figure_says_what_it_is_and_where_from():
    for name, figure in TABLE.items():
        assert figure.value > 0, name
        assert figure.meaning, name
        assert figure.source, name
        assert not is_share(name) or figure.value < 1, name


def test_facts_replace_defaults():
    facts = {"calibration": {"figures": {"nccl.start_us.LL": 5.0}, "has_ll128": False}}
    figures = figures_of(facts)
    assert figures["nccl.start_us.LL"] == 5.0
    assert {name for name in DEFAULTS if figures[name] != DEFAULTS[name]} == {"nccl.start_us.LL"}
    assert ll128_of(facts) is False
    assert figures_of({}) == DEFAULTS
    assert ll128_of({}) is None


@pytest.mark.parametrize(
    ("fact", "message"),
    [
        ([], r"m\.json: fact calibration: expected an object"),
        ({"figures": {"warp_us": 1.0}}, r"m\.json: .*no figure 'warp_us'"),
        ({"figures": {"nccl.start_us.LL": 0}}, r"m\.json: .*nccl.start_us.LL 0: expected a positive number"),
        ({"figures": {"nccl.start_us.LL": "fast"}}, r"expected a positive number"),
    ],
)
def test_bad_facts_are_named(fact, message):
    with pytest.raises(TopologyError, match=message):
        figures_of({"calibration": fact}, source="m.json")


def test_of_measured_links_payloads_get_nearly_all():
    nominal = topocomm.catalog("v100-4", hosts=2)
    links = [x._replace(gb_per_s_source="measured") if x.kind == "network" else x for x in nominal.links]
    measured = replace(nominal, links=tuple(links))
    assert topology_figures(nominal) == DEFAULTS
    figures = topology_figures(measured)
    assert figures["efficiency.network"] == figures["mpi.efficiency"] == OF_MEASURED
    assert figures["efficiency.nvlink"] == DEFAULTS["efficiency.nvlink"]
    fitted = replace(measured, facts={"calibration": {"figures": {"efficiency.network": 0.9}}})
    assert topology_figures(fitted)["mpi.efficiency"] == DEFAULTS["mpi.efficiency"]
