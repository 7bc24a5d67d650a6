"""The time of a levels witness, counted apart from the bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from topocomm.planning.bounds.hierarchy_bound import Levels, least_time_us
from topocomm.planning.certificate_checker.hierarchy_witness import least_levels_us


@examples(40)
@given(
    st.sampled_from([(0.6, 5.0), (1.0, 2.0), (1.4, 2.0), (0.3, 0.7)]),
    st.integers(1, 9),
    st.integers(1, 40),
    st.integers(1, 4),
    st.integers(1, 9),
    st.integers(0, 20),
)
def test_two_ways_of_counting_levels_agree(us, own, foreign, ports, ends, others):
    """`others` members of the group have no value that counts."""
    group_ports = ports * min(own, ends)
    levels = Levels(*us, members=own + others, most_own=own, total=own + foreign, ports=ports, group_ports=group_ports)
    again = least_levels_us(
        *us, members=own + others, most_own=own, ports=ports, group_ports=group_ports, wanted=(own, foreign)
    )
    assert least_time_us(levels, (own, foreign)) == pytest.approx(again)
