"""hwloc's XML as it is pasted."""

import pytest

from tests.topology.readers.hwloc.machines import two_sockets
from tests.topology.ways_to_paste import WAYS, assert_lines_stay, assert_survives


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_paste(way, tmp_path):
    assert_survives(two_sockets().text(), tmp_path, way)


def test_lines_keep_their_numbers():
    assert_lines_stay(two_sockets().text())
