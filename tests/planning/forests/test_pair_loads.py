"""What pairs of ranks hold: the same numbers in hosts that are alike, ports before links."""

import numpy as np
import pytest

from topocomm import catalog
from topocomm.planning.forests.pair_loads import PairLoads
from topocomm.planning.routing.paths import PathFinder


def loads_of(system, count, members=8, ports=1):
    machine = catalog(system, hosts=count)
    window = machine.endpoints[: 2 * members]
    src, dst = np.nonzero(~np.eye(len(window), dtype=bool))
    paths = PathFinder(machine)
    made = PairLoads(paths.routes(window, src, dst), (src % members, dst % members), paths, count, ports)
    return made, {pair: number for number, pair in enumerate(zip(src.tolist(), dst.tolist(), strict=True))}


def test_hosts_have_the_same_numbers():
    loads, number = loads_of("mi250x", 3)
    assert loads.loads([number[0, 3]]) == loads.loads([number[8, 11]])
    assert loads.loads([number[0, 3]]) != loads.loads([number[0, 4]])


def test_a_port_is_held_as_long_as_the_route_is_slower_than_the_fastest():
    loads, number = loads_of("dgx-1-v100", 1)
    held = dict(loads.loads([number[0, 1]]))
    assert loads.fastest == 50.0 and (held[0], held[3]) == (2.0, 2.0)  # a single link: rank 0 sends, rank 1 receives
    both = dict(loads_of("dgx-1-v100", 1, ports=2)[0].loads([number[0, 1]]))
    assert (both[0], both[3]) == (1.0, 1.0)


def test_routes_of_a_way_add_up():
    loads, number = loads_of("dgx-1-v100", 1)
    held = dict(loads.loads([number[3, 0], number[0, 4]]))
    assert (held[0], held[1]) == pytest.approx((1.0, 1.0)) and loads.usable([number[3, 0]])
    assert max(held) < loads.rows
