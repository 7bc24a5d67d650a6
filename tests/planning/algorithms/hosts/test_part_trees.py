"""Parts enter a group once, every rank gets every contribution once, and slices keep the shared link busy."""

import re
from itertools import permutations
from math import inf

import numpy as np
import pytest

from tests.machines import hosts
from tests.planning.replay import replay, word
from topocomm import Device, Link, Topology, catalog
from topocomm.planning.algorithms.hosts.part_trees import NO_PARENT, PartTrees, part_parents
from topocomm.planning.collectives import collective_of
from topocomm.planning.proof.verify import verify
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import split_rows
from topocomm.planning.schedule.transforms import sliced

SHAPES = [(2, 2), (2, 4), (3, 2), (2, 2, 3)]


GATED = [(shape, gate) for shape in SHAPES for gate in (None, *range(shape[1] if len(shape) > 2 else 0))]


def trees_on(machine, coordinates, name, gate=None):
    ends = [end if isinstance(end, str) else end.id for end in machine.endpoints]
    return PartTrees(coordinates, ends, PathFinder(machine), name, gate)


@pytest.mark.parametrize(("shape", "gate"), GATED)
def test_a_part_enters_each_group_once(shape, gate):
    parents, ranks = part_parents(shape, gate), int(np.prod(shape))
    assert (np.argwhere(parents == NO_PARENT) == np.arange(ranks)[:, None]).all()
    for size in np.cumprod(shape[:0:-1]).tolist():
        entering = parents // size != np.arange(ranks) // size
        for own, row in zip(np.arange(ranks), entering & (parents != NO_PARENT), strict=True):
            assert np.bincount(np.flatnonzero(row) // size, minlength=ranks // size).tolist() == [
                int(group != own // size) for group in range(ranks // size)
            ]


@pytest.mark.parametrize(("shape", "gate"), [(shape, gate) for shape, gate in GATED if gate is not None])
def test_parts_pass_between_outermost_groups_by_the_gate_alone(shape, gate):
    parents, ranks = part_parents(shape, gate), int(np.prod(shape))
    size = ranks // shape[0]
    part, rank = np.nonzero((parents != NO_PARENT) & (parents // size != np.arange(ranks) // size))
    for end in (rank, parents[part, rank]):
        assert len(end) == ranks * (shape[0] - 1) and (end % size // (size // shape[1]) == gate).all()


@pytest.mark.parametrize("name", ["allreduce", "allgather", "reduce_scatter"])
@pytest.mark.parametrize(("shape", "gate"), GATED)
def test_results_are_those_of_the_collective(shape, gate, name):
    ranks, rows = int(np.prod(shape)), 12 * int(np.prod(shape))
    trees = trees_on(hosts(shape[0], ranks // shape[0]), shape, name, gate)
    ways = trees.sections()
    assert len(ways) == 1 + (name == "allreduce")
    for sections in ways:
        turns = trees.turns(sections)
        starts, _ = trees.starts(turns, 48.0)
        schedule = trees.schedule(split_rows(rows, ranks), starts)
        collective = collective_of(name, ranks, rows)
        verify(schedule, collective)
        verify(sliced(schedule, 3, turns.period), collective)
        for (rank, chunk), text in replay(sliced(schedule, 1, 1)).items():
            whose = [chunk] if name == "allgather" else range(ranks)
            assert sorted(re.findall("<[^>]*>", text)) == sorted(map(word, whose)), (rank, chunk)


@pytest.mark.parametrize(("system", "count", "shape"), [("rtx4090-pcie-4", 2, (2, 4)), ("a100-pcie-4", 1, (2, 2))])
def test_the_period_is_that_of_the_busiest_port_or_link(system, count, shape):
    """Four parts of 12.5 GB/s over one NIC; over the bus between sockets two of 16, which ports hold as long."""
    for name, times in (("allgather", 1), ("reduce_scatter", 1), ("allreduce", 2)):
        trees = trees_on(catalog(system, hosts=count), shape, name)
        turns = trees.turns(trees.sections()[0])
        least_us = times * {"rtx4090-pcie-4": 4 / 12.5e3, "a100-pcie-4": 2 / 16e3}[system]
        assert trees.is_worth() and turns.period * turns.byte_us == pytest.approx(least_us, rel=0.03)


def test_both_ways_at_once_need_the_bus_between_sockets_once():
    """One socket has the NIC: what leaves the other and what enters it are a whole value each, at 16 GB/s."""
    ends = 16
    apart, at_once = (
        min(trees.load_us(trees.sections()[way]) for trees in mi100_trees("allreduce")) * 16e3 / ends for way in (0, 1)
    )
    assert apart == pytest.approx(1.5) and at_once == pytest.approx(1.0)
    best = min(mi100_trees("allreduce"), key=lambda trees: trees.load_us(trees.sections()[1]))
    turns = best.turns(best.sections()[1])
    assert turns.period * turns.byte_us * 16e3 / ends == pytest.approx(1.0, rel=0.05)


def mi100_trees(name):
    return [trees_on(catalog("mi100-8", hosts=2), (2, 2, 4), name, gate) for gate in (None, 0, 1)]


def test_a_link_for_several_messages_counts_as_several():
    """NICs of 25 GB/s behind PCIe of 12.6: two at a time."""
    trees = trees_on(catalog("v100-4", hosts=2), (2, 4), "allgather")
    across = [own for own, depth in zip(trees.rows, trees.depth.tolist(), strict=True) if depth == 1 and len(own) > 2]
    shared = [row for own in across for row in own[2:]]
    assert across and max(map(shared.count, shared)) == 2


def test_where_nothing_is_shared_it_is_not_worth_it():
    assert not trees_on(catalog("dgx-h100", hosts=2), (2, 8), "allreduce").is_worth()
    assert not trees_on(catalog("dgx-1-v100"), (2, 4), "allgather").is_worth()


def test_without_a_route_for_each_message_the_period_is_infinite():
    """Two rings of four: from one to the other there is none."""
    pairs = [(src, dst) for src, dst in permutations(range(8), 2) if src // 4 == dst // 4]
    links = tuple(Link(f"GPU{src}", f"GPU{dst}", "nvlink", gb_per_s=50.0, latency_us=1.0) for src, dst in pairs)
    machine = Topology("apart", "here", tuple(Device(f"GPU{rank}", "gpu") for rank in range(8)), links)
    trees = PartTrees([2, 4], machine.endpoints, PathFinder(machine), "allgather")
    assert trees.load_us(trees.sections()[0]) == inf and not trees.is_worth()
