"""Members that send in time: every block, no port twice at a time, and relays after what they relay has come."""

import numpy as np
import pytest

from tests.planning.ways.test_matching_program import SYSTEMS, hosts_of, wanted
from topocomm.planning.ways.matching_order import in_order
from topocomm.planning.ways.matching_program import best_mix


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("runs", [1, 8])
def test_all_blocks_are_sent(name, runs):
    hosts = hosts_of(name)
    mix = best_mix(hosts, wanted(hosts))
    parts = in_order(hosts, mix, np.full(len(hosts.ends), float(runs)))
    blocks = np.zeros((len(hosts.ends), hosts.count))
    for part in parts:
        blocks[part.of, part.step] += part.blocks
        turns, messages = zip(*part.hops, strict=True)
        assert list(turns) == sorted(set(turns))
        assert sum(hosts.away[list(messages)]) == hosts.away[part.of]
        ends = hosts.ends[list(messages)]
        assert (ends[0, 0], ends[-1, 1]) == tuple(hosts.ends[part.of]) and (ends[1:, 0] == ends[:-1, 1]).all()
    assert blocks[hosts.away, 1:] == pytest.approx(1.0)
    assert blocks[~hosts.away, 0] == pytest.approx(1.0)
    assert sum(len(part.hops) > 1 for part in parts) >= len(mix.relays)
