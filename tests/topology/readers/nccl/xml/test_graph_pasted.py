"""NCCL's graph file as it is pasted."""

import pytest

from tests.topology.readers.nccl.xml.test_nccl_graph_xml import TWO_GRAPHS
from tests.topology.ways_to_paste import WAYS, assert_survives


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_paste(way, tmp_path):
    assert_survives(TWO_GRAPHS, tmp_path, way)
