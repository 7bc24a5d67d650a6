"""What collectives need, against the definitions of the checker, which share no code with it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.bounds.collectives import collectives
from topocomm.planning.bounds.demand import demand_of
from topocomm.planning.certificate_checker.witnesses import Needs


@given(st.integers(1, 6).flatmap(collectives))
def test_partners_and_counts(collective):
    demand, needs, ranks = demand_of(collective), Needs(collective), range(collective.ranks)
    for side, counts in (("hears", demand.heard()), ("reaches", demand.reached())):
        partners = [needs.partners(rank, side) for rank in ranks]
        assert [np.flatnonzero(demand.partners(rank, side)).tolist() for rank in ranks] == partners
        assert counts.tolist() == [len(others) + 1 for others in partners]
    assert demand.least_messages() == needs.least_messages()


@given(st.integers(2, 6).flatmap(collectives), st.data())
def test_what_crosses_the_border_of_a_group(collective, data):
    everybody = set(range(collective.ranks))
    labels = np.array(data.draw(st.lists(st.integers(0, 2), min_size=len(everybody), max_size=len(everybody))))
    enters, leaves = demand_of(collective).crossing(labels, 3)
    needs = Needs(collective)
    for group in range(3):
        inside = {rank for rank in everybody if labels[rank] == group}
        if inside and inside != everybody:
            assert enters[group] == pytest.approx(needs.share_into(inside))
            if collective.name not in ("scan", "exscan"):  # of those leaving and entering count other stretches
                assert leaves[group] == pytest.approx(needs.share_into(everybody - inside))
