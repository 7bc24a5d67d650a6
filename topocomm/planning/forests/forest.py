"""Throughput plans: trees packed by linear programming, thinned out, and laid out as a pipelined Schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from topocomm.planning.collectives import Collective
from topocomm.planning.forests.height_reduction import lowered
from topocomm.planning.forests.interval import IntervalPlan
from topocomm.planning.forests.linear_program.integer_network import Floats, Ints, Network, network_of
from topocomm.planning.forests.linear_program.packing import (
    FIRST_TURNS,
    MANY_ROWS,
    Column,
    Packing,
    Pair,
    Parts,
    Pricer,
    pack,
    repack,
)
from topocomm.planning.forests.linear_program.partition_witness import Partition, partition_of
from topocomm.planning.forests.linear_program.pricers import (
    DirectedPairs,
    Gathers,
    OrderedPairs,
    OutTrees,
    UndirectedTrees,
)
from topocomm.planning.forests.linear_program.symmetry import (
    Symmetry,
    host_ranges,
    host_turns,
    no_symmetry,
    symmetry_at,
    symmetry_of,
)
from topocomm.planning.forests.pruning import thinned
from topocomm.planning.forests.root_selection import hung, hung_in_order, keeps_order
from topocomm.planning.forests.tree import Edge, Tree
from topocomm.planning.forests.tree_schedule import Chunk, schedule_of, whole_rows
from topocomm.planning.forests.units.bounded_tree_count import LOW, SMALL, Rates, few_pairs, few_trees
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import Schedule

Ways = frozenset[Edge] | IntervalPlan | None

COLLECTIVES = ("allreduce", "reduce", "broadcast", "allgather", "reduce_scatter")
MOST_RANKS = 512
MOST_ROOTS = 128
"""Roots, without those that are alike by symmetry, of programs that look for trees from every one of them."""
MOST_IRREGULAR, MOST_ROWS = 128, 256
"""More ranks than this are for machines so regular that their program has no more rows."""
SMALL_ORDERED = 16
"""Ranks up to which all plans that keep rank order are searched, exactly; beyond, those that work host by host."""
MOST_ORDERED = 32
"""Ranks of a host, or of a machine that has no hosts of contiguous ranks, for such plans: their table has the cube."""
THIN = 4e-4
"""Part of the throughput given up for fewer trees."""
FEW = 8
"""Trees of one root that are few: no more are used where so many do."""
LOWER = 1e-5
"""Part of its throughput that a tree may lose for one edge less of height."""


class Effort(NamedTuple):
    """How near to its bound a packing must come, and after how many turns the search ends anyway (of each kind)."""

    accuracy: float
    turns: int
    first_turns: int = FIRST_TURNS


@dataclass(frozen=True)
class Forest:
    """Packed trees and the schedule made of them.

    Attributes:
        schedule: Chunks by weight: throughput up to `gb_per_s`, less what whole rows cost.
        gb_per_s: Payload per time of the trees at their exact weights.
        bound_gb_per_s: What no packing of such trees exceeds.
        trees_per_root: Most chunks of one root.
        height: Most edges between a rank and a root.
        partition: Of allreduce, groups of devices whose egress may prove the bound.
    """

    schedule: Schedule
    gb_per_s: float
    bound_gb_per_s: float
    trees_per_root: int
    height: int
    partition: Partition | None


def forest_of(
    collective: Collective,
    paths: PathFinder,
    endpoints: Sequence[str],
    rows: int,
    *,
    commutative: bool = True,
    max_trees: int | None = None,
) -> Forest | None:
    """The best packing of trees for a collective, or None where it does not fit.

    It does not fit scans, canonical order, a payload of no rows, several ranks on one endpoint, endpoints that do not
    reach each other, and machines too large and irregular for the time a plan may take.

    Args:
        collective: allreduce, reduce, broadcast, allgather or reduce_scatter.
        paths: Routes on the machine.
        endpoints: Endpoint id of every rank.
        rows: Rows of the payload; of allgather and reduce_scatter, of the whole.
        commutative: False keeps the operands of every fold in rank order.
        max_trees: Most chunks of one root; None: what the packing needs.
    """
    if collective.name not in COLLECTIVES or collective.shards or not rows:
        return None
    if not 1 < len(endpoints) <= MOST_RANKS or len(set(endpoints)) < len(endpoints):
        return None
    network = network_of(paths, endpoints)
    if not network.connected:
        return None
    hosts = [paths.topology.by_id[device].host for device in network.devices]
    planned = _planned(_Request(collective, network, hosts, max_trees, commutative))
    if planned is None:
        return None
    chunks = _chunks(collective, planned.templates, planned.elements, rows)
    return Forest(
        schedule=schedule_of(chunks, collective, network, paths),
        gb_per_s=planned.gb_per_s,
        bound_gb_per_s=planned.bound_gb_per_s,
        trees_per_root=_most_of_a_root(chunks),
        height=planned.height,
        partition=partition_of(network, planned.prices) if collective.name == "allreduce" else None,
    )


class _Request(NamedTuple):
    """One collective on one machine."""

    collective: Collective
    network: Network
    hosts: list[str]
    max_trees: int | None
    commutative: bool


class _Planned(NamedTuple):
    """Templates with their weights, the group whose images they stand for, and what they reach."""

    templates: list[tuple[float, Pair]]
    elements: Ints
    gb_per_s: float
    bound_gb_per_s: float
    prices: list[Floats]

    @property
    def height(self) -> int:
        """Most edges between a rank and a root."""
        return max(pair.height for _, pair in self.templates)

    @property
    def trees(self) -> int:
        """Trees of all roots, images that are equal counted each."""
        return len(self.templates) * len(self.elements)


def effort_of(ends: int) -> Effort:
    """Small machines exactly, large irregular ones nearly."""
    if ends <= 16:
        return Effort(1e-6, 600)
    return Effort(2e-4, 400, 120) if ends <= 32 else Effort(5e-3, 200)


def _planned(request: _Request) -> _Planned | None:
    name = request.collective.name
    if name == "allreduce":
        return _allreduce(request) if request.commutative else _ordered_allreduce(request)
    if name == "broadcast" or (name == "reduce" and request.commutative):
        return _one_root(request)
    if name == "reduce":
        return _interval_plans(request, request.collective.root)
    return _in_parts(request)


def _allreduce(request: _Request) -> _Planned | None:
    network = request.network
    symmetry = symmetry_of(network, request.hosts)
    pricer: UndirectedTrees | DirectedPairs
    if network.symmetric:
        pricer = UndirectedTrees(symmetry)
    elif len(symmetry.roots) <= MOST_ROOTS:
        pricer = DirectedPairs(symmetry)
    else:
        return None
    if _is_too_large(pricer, network):
        return None
    packing = pack(pricer, *effort_of(network.ends))
    parts = packing.parts
    if network.symmetric:
        if pricer.links <= MANY_ROWS:
            parts = repack(pricer, [_cheaper_if_low(column) for column in packing.columns])
        parts = hung(parts, symmetry, request.max_trees)
    planned = _thin(request, pricer, packing, parts, symmetry)
    if request.max_trees is None or planned.gb_per_s >= planned.bound_gb_per_s * (1 - THIN) or network.ends > SMALL:
        return planned
    alone = no_symmetry(network)
    plain = UndirectedTrees(alone) if network.symmetric else DirectedPairs(alone)
    few = few_pairs(plain, request.max_trees)
    total = plain.total(few)
    if total < planned.gb_per_s * (1 + THIN):
        return planned
    few = hung(few, alone, request.max_trees) if network.symmetric else few
    return planned._replace(templates=_paired(request, few), elements=alone.elements, gb_per_s=total)


def _is_too_large(pricer: Pricer, network: Network) -> bool:
    return network.ends > MOST_IRREGULAR and pricer.links > MOST_ROWS


def _cheaper_if_low(column: Column) -> Column:
    """The same tree, gaining a little less the higher it is: among best packings one of low trees is then found."""
    tree = column.pair.tree
    return replace(column, gain=1 - LOWER * tree.at(tree.centres()[0]).height)


def _one_root(request: _Request) -> _Planned | None:
    """Broadcast, or reduce as broadcast on the machine turned round."""
    name, root = request.collective.name, request.collective.root
    network = request.network if name == "broadcast" else request.network.transposed()
    symmetry = symmetry_at(network, request.hosts, root, request.max_trees)
    pricer = OutTrees(symmetry, root)
    if _is_too_large(pricer, network):
        return None
    packing = pack(pricer, *effort_of(network.ends))
    planned = _thin(request, pricer, packing, packing.parts, symmetry)
    if request.max_trees is None and planned.trees <= FEW and planned.height <= LOW:
        return planned
    return _lower(_with_few(request, OutTrees(no_symmetry(network), root), planned, [root]), network)


def _with_few(request: _Request, pricer: OutTrees | Gathers, planned: _Planned, roots: Sequence[int]) -> _Planned:
    """The plan, or one of as few trees as asked for, else of at most `FEW`, if that loses nothing beside it."""
    most = FEW if request.max_trees is None else request.max_trees
    parts = few_trees(pricer, roots, most, Rates(planned.bound_gb_per_s, planned.gb_per_s), THIN)
    if not parts or pricer.total(parts) < planned.gb_per_s * (1 - THIN):
        return planned
    symmetry = no_symmetry(request.network)
    return planned._replace(templates=_paired(request, parts), elements=symmetry.elements, gb_per_s=pricer.total(parts))


def _in_parts(request: _Request) -> _Planned | None:
    """Allgather, or reduce_scatter as allgather on the machine turned round."""
    gathers = request.collective.name == "allgather"
    network = request.network if gathers else request.network.transposed()
    parts = request.collective.parts
    even = max(parts) - min(parts) <= 1
    symmetry = symmetry_of(network, request.hosts) if even else no_symmetry(network)
    if request.max_trees is not None and max(symmetry.images.values()) > 1:
        symmetry = no_symmetry(network)
    if len(symmetry.roots) > MOST_ROOTS:
        return None
    pricer = Gathers(symmetry, [rows / sum(parts) for rows in parts] if not even else [1 / len(parts)] * len(parts))
    if _is_too_large(pricer, network):
        return None
    packing = pack(pricer, *effort_of(network.ends))
    kept = packing.parts
    if not gathers and not request.commutative:
        keeping = [column for column in packing.columns if column.carrier and _in_order(column.pair.tree, symmetry)]
        kept = repack(pricer, [*pricer.start(), *keeping])
        if {column.pair.root for _, column in kept} != set(pricer.shares):
            return None
    planned = _thin(request, pricer, packing, kept, symmetry)
    if request.max_trees is None or not even or (not gathers and not request.commutative):
        return planned
    ranks = range(network.ends)
    few = _with_few(request, Gathers(no_symmetry(network), [1 / len(parts)] * len(parts)), planned, ranks)
    return _lower(few, network)


def _lower(planned: _Planned, network: Network) -> _Planned:
    """The plan with lower trees, each of which goes one way only on this network; as it is where it has symmetries."""
    if planned.height <= LOW or len(planned.elements) > 1:
        return planned
    trees = lowered(network, [(weight, pair.tree) for weight, pair in planned.templates])
    up = planned.templates[0][1].down is None
    pairs = [Pair(tree, None) if up else Pair(None, tree) for tree in trees]
    return planned._replace(
        templates=[(weight, pair) for (weight, _), pair in zip(planned.templates, pairs, strict=True)]
    )


def _ordered_allreduce(request: _Request) -> _Planned | None:
    """By trees that merge contiguous ranges, where these reach what any trees do; else by interval plans too."""
    network = request.network
    symmetry = symmetry_of(network, request.hosts)
    found = None
    if network.symmetric:
        pricer = UndirectedTrees(symmetry)
        if _is_too_large(pricer, network):
            return None
        packing = pack(pricer, *effort_of(network.ends))
        columns = hung_in_order(packing.columns, symmetry)
        if columns:
            found = _thin(request, pricer, packing, repack(pricer, columns), symmetry)
            if found.gb_per_s >= packing.bound_gb_per_s * (1 - 2 * THIN):
                return found
    other = _interval_plans(request, None)
    return max((one for one in (other, found) if one is not None), key=lambda one: one.gb_per_s, default=None)


def _interval_plans(request: _Request, root: int | None) -> _Planned | None:
    """Reduce to a root, or allreduce, by plans that merge adjacent ranges: of all ranks, or of each host's."""
    network, hosts = request.network, request.hosts
    if network.ends > MOST_IRREGULAR:
        return None
    small = network.ends <= SMALL_ORDERED
    found = None if small else host_ranges(network, hosts)
    ranges = found or [(0, network.ends)]
    symmetry = host_turns(network, hosts) if len(ranges) > 1 and root is None else no_symmetry(network)
    if max(end - low for low, end in ranges) > MOST_ORDERED or len(symmetry.roots) > MOST_ROOTS:
        return None
    pricer = OrderedPairs(symmetry, ranges, root=root)
    packing = pack(pricer, *(effort_of(network.ends) if small else Effort(5e-3, 150)))
    return _thin(request, pricer, packing, packing.parts, symmetry)


def _thin(request: _Request, pricer: Pricer, packing: Packing, parts: Parts, symmetry: Symmetry) -> _Planned:
    """The packing with fewer templates, as pairs of what goes up and what goes down."""
    kept = thinned(pricer, parts, symmetry, most=request.max_trees, loss=THIN)
    prices = [vector[pricer.row] for vector in (packing.prices, packing.last_prices)]
    templates = _paired(request, kept)
    return _Planned(templates, symmetry.elements, pricer.total(kept), packing.bound_gb_per_s, prices)


def _paired(request: _Request, parts: Parts) -> list[tuple[float, Pair]]:
    """Weights with what goes up and what goes down."""
    up = request.collective.name in ("reduce", "reduce_scatter")
    pairs = [Pair(column.pair.down, None) if up and column.pair.up is None else column.pair for _, column in parts]
    return [(weight, pair) for (weight, _), pair in zip(parts, pairs, strict=True)]


def _in_order(tree: Tree, symmetry: Symmetry) -> bool:
    return all(keeps_order(tree.mapped(element)) for element in symmetry.elements.tolist())


def _images(templates: Sequence[tuple[float, Pair]], elements: Ints) -> list[tuple[float, Pair]]:
    """The images of all templates, equal ones as one."""
    if len(elements) == 1:
        return list(templates)
    found: dict[tuple[int, Ways, Ways], tuple[float, Pair]] = {}
    for number, (weight, pair) in enumerate(templates):
        for element in elements.tolist():
            up = pair.up and pair.up.mapped(element)
            down = pair.down and pair.down.mapped(element)
            image = Pair(up, up if pair.up is pair.down and isinstance(up, Tree) else down)
            key = (number, _ways(up), _ways(image.down))
            before = found[key][0] if key in found else 0.0
            found[key] = (before + weight / len(elements), image)
    return list(found.values())


def _ways(one: Tree | IntervalPlan | None) -> Ways:
    """What tells a tree or plan from another."""
    return frozenset(one.edges) if isinstance(one, Tree) else one


def _chunks(collective: Collective, templates: Sequence[tuple[float, Pair]], elements: Ints, rows: int) -> list[Chunk]:
    """Whole rows for every image of every template, in the order of the payload; none for those without rows."""
    images = _images(templates, elements)
    if not collective.parts:
        shares = whole_rows(rows, [weight for weight, _ in images])
        return [Chunk(n, pair.up, pair.down) for n, (_, pair) in zip(shares, images, strict=True) if n]
    found = []
    for rank, part in enumerate(collective.parts):
        mine = [(weight, pair) for weight, pair in images if pair.root == rank]
        shares = whole_rows(part, [weight for weight, _ in mine]) if part else []
        found += [Chunk(n, pair.up, pair.down) for n, (_, pair) in zip(shares, mine, strict=False) if n]
    return found


def _most_of_a_root(chunks: Sequence[Chunk]) -> int:
    counts: dict[int, int] = {}
    for chunk in chunks:
        root = Pair(chunk.up, chunk.down).root
        counts[root] = counts.get(root, 0) + 1
    return max(counts.values())
