"""At most so many trees of a root: what they still carry."""

from itertools import combinations

import pytest

from tests.machines import switch
from tests.planning.forests.machines import check, forest, network, solved, without
from topocomm import Topology
from topocomm.planning.forests.forest import COLLECTIVES
from topocomm.planning.forests.linear_program.packing import pack, repack
from topocomm.planning.forests.linear_program.pricers import OutTrees
from topocomm.planning.forests.linear_program.symmetry import no_symmetry
from topocomm.planning.forests.units.bounded_tree_count import exchange_columns
from topocomm.topology.catalog.systems import SYSTEMS, catalog


@pytest.mark.parametrize("most", [1, 2, 4])
def test_trees_of_a_root_are_limited(most):
    full = forest(catalog("dgx-1-v100"), "allreduce")
    found, reached = check(catalog("dgx-1-v100"), "allreduce", max_trees=most)
    assert found.trees_per_root <= most
    assert reached >= {1: 0.79, 2: 0.98, 4: 0.999}[most] * full.gb_per_s


LARGE = ("gb200-nvl72", "cpu-2-socket-64")
"""Systems of many ranks, which take long."""
EIGHT = [
    *(pytest.param(name, 1, marks=pytest.mark.long if name in LARGE else ()) for name in SYSTEMS),
    ("dgx-h100", 2),
    ("dgx-1-v100", 2),
    ("mi250x", 2),
    ("mi300x-8", 4),
]


@pytest.mark.parametrize(("name", "count"), EIGHT)
def test_eight_trees_of_a_root_reach_the_bound_across_hosts(name, count):
    for collective in ("broadcast", "reduce"):
        machine = catalog(name, hosts=count)
        found, reached = check(machine, collective, root=min(3, len(machine.endpoints) - 1))
        assert found.trees_per_root <= 8
        assert reached >= 0.999 * found.bound_gb_per_s


ONE_ROOT = {1: 0.25, 4: 0.78, 16: 0.99}


EVERY_ROOT = {1: 0.6, 2: 0.8, 4: 0.99}


@pytest.mark.parametrize("case", [3, pytest.param(28, marks=pytest.mark.long)])
def test_few_trees_on_random_machines(case):
    topology, optima = solved()[case]
    for name, least in (("broadcast", ONE_ROOT), ("allgather", EVERY_ROOT)):
        for most, part in least.items():
            found, reached = check(topology, name, max_trees=most)
            assert found.trees_per_root <= most
            assert reached >= part * optima[name]


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-a100", "cpu-2-socket"])
def test_one_tree_is_enough_on_a_switch(name):
    for collective in ("broadcast", "reduce"):
        found, reached = check(catalog(name), collective, max_trees=1)
        assert reached >= 0.999 * found.bound_gb_per_s, "a chain"


@pytest.mark.parametrize("name", COLLECTIVES)
def test_trees_of_a_root_are_limited_for_every_collective(name):
    machine = without(catalog("dgx-h100", hosts=3), ("h2/NIC3", "rail3"))
    for most in (2, 8):
        found, reached = check(machine if name in ("allreduce", "reduce") else switch(6), name, max_trees=most)
        assert found.trees_per_root <= most
        assert reached >= (0.2 if most == 2 else 0.5) * found.bound_gb_per_s


@pytest.mark.parametrize(
    ("rates", "most"),
    [({25.0: 22.41, 50.0: 44.73}, None), ({6.0: 5.83, 16.0: 12.37, 25.0: 22.41, 50.0: 44.73}, 64)],
)
def test_rates_that_have_no_unit_in_common(rates, most):
    """Measured ones: trees with the rates of links as weights would take millions of units."""
    whole = catalog("dgx-1-v100")
    links = tuple(link._replace(gb_per_s=rates.get(link.gb_per_s, link.gb_per_s)) for link in whole.links)
    found, reached = check(Topology(whole.name, "test", whole.devices, links), "broadcast", max_trees=most)
    assert reached >= 0.99 * found.bound_gb_per_s


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("case", [0, 3, 6, 11, 17, 28])
def test_no_choice_from_the_pool_is_much_better(case, most):
    pricer = OutTrees(no_symmetry(network(solved()[case][0])), 0)
    pool = [column for _, column in pack(pricer, 1e-6, 600).parts]
    parts = exchange_columns(pricer, pool[-most:], pool, lambda parts: len(parts) <= most)
    assert 0 < len(parts) <= most
    assert pricer.total(parts) >= pricer.total(repack(pricer, pool[-most:])) * (1 - 1e-9)
    best = max(pricer.total(repack(pricer, some)) for some in combinations(pool[:10], min(most, len(pool))))
    assert pricer.total(parts) >= 0.9 * best
