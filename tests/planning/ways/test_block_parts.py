"""Blocks of a message one after the other, by hand."""

import numpy as np
import pytest

from tests.planning.ways.test_folded_hosts import folded
from topocomm import catalog
from topocomm.planning.ways.block_parts import next_blocks


def test_blocks_to_other_hosts_follow_each_other():
    hosts = folded(catalog("a100-pcie-2", hosts=4), (0, 2, 4, 6, 8))
    away, cut = hosts.number(0, 1, away=True), [0.0] * 6
    assert list(next_blocks(hosts, away, 1.25, cut)) == [(1, 1.0), (2, pytest.approx(0.25))]
    assert list(next_blocks(hosts, away, np.inf, cut)) == [(2, pytest.approx(0.75)), (3, pytest.approx(1.0))]
    assert list(next_blocks(hosts, away, np.inf, cut)) == []
    assert list(next_blocks(hosts, hosts.number(0, 1, away=False), 9.0, cut)) == [(0, 1.0)]
