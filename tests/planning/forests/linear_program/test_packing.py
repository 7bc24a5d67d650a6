"""Packings on random machines: few columns, weighed again, lose little."""

import pytest

from tests.planning.forests.machines import solved
from topocomm.planning.forests.linear_program.integer_network import network_of
from topocomm.planning.forests.linear_program.packing import pack, repack
from topocomm.planning.forests.linear_program.pricers import DirectedPairs, UndirectedTrees
from topocomm.planning.forests.linear_program.symmetry import no_symmetry
from topocomm.planning.routing.paths import PathFinder


@pytest.mark.parametrize("case", range(32))
def test_sixteen_trees_in_all_lose_little(case):
    topology, optima = solved()[case]
    network = network_of(PathFinder(topology), topology.endpoints)
    symmetry = no_symmetry(network)
    pricer = UndirectedTrees(symmetry) if network.symmetric else DirectedPairs(symmetry)
    packing = pack(pricer, 1e-6, 600)
    few = repack(pricer, [column for _, column in packing.parts[:16]])
    assert sum(weight for weight, _ in few) >= 0.95 * optima["allreduce"]
