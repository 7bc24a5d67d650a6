"""Figures: every default has a meaning and a source, and a topology's facts replace them."""

import pytest

from topocomm import TopologyError
from topocomm.simulation.libraries.library_figures import DEFAULTS, TABLE, figures_of, is_share, ll128_of


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
