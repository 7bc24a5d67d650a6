"""Throughput plans: trees packed by linear programming, pruned, and written as a pipelined Schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from topocomm.planning.collectives import Collective
from topocomm.planning.forests.height_reduction import reduce_height
from topocomm.planning.forests.linear_program.integer_network import Ints, Network, network_of
from topocomm.planning.forests.linear_program.packing import (
    FIRST_TURNS,
    MANY_ROWS,
    Packing,
    Pair,
    Parts,
    Pricer,
    pack,
    repack,
)
from topocomm.planning.forests.linear_program.pricers import (
    DirectedPairs,
    Gathers,
    OrderedPairs,
    OutTrees,
    RootedTrees,
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
from topocomm.planning.forests.pruning import prune
from topocomm.planning.forests.root_selection import images_keep_order, root_in_order, root_trees
from topocomm.planning.forests.tree import Tree
from topocomm.planning.forests.tree_schedule import schedule_of, whole_rows
from topocomm.planning.forests.units.bounded_tree_count import LOSS, LOW, SMALL, bounded_pairs, bounded_trees
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import Schedule

COLLECTIVES = ("allreduce", "reduce", "broadcast", "allgather", "reduce_scatter")
"""Collectives that trees fit."""
MOST_RANKS = 512
"""Most ranks for which trees are packed."""
MOST_ROOTS = 128
"""Most roots, one per orbit, of programs that price trees from every root."""
MOST_IRREGULAR, MOST_ROWS = 128, 256
"""Most ranks of any machine; beyond, most rows of the program of a regular one."""
SMALL_ORDERED = 16
"""Most ranks for which all plans that keep rank order are searched; beyond, those that work host by host."""
MOST_ORDERED = 32
"""Most ranks of a host, or of a machine without hosts of contiguous ranks, for such plans: a table has the cube."""
FEW = 8
"""Trees of a root that are few: more are used only where they carry more."""
HEIGHT_GAIN = 1e-5
"""Part of its gain that a tree loses per edge of height."""


@dataclass(frozen=True)
class Forest:
    """Packed trees and the schedule made of them.

    Attributes:
        schedule: Chunks in proportion to the weights, in whole rows.
        gb_per_s: Throughput of the trees at their exact weights.
        bound_gb_per_s: Bound of any packing of such trees.
        trees_per_root: Most chunks of one root.
        height: Most edges between a rank and a root.
    """

    schedule: Schedule
    gb_per_s: float
    bound_gb_per_s: float
    trees_per_root: int
    height: int


def forest_of(
    collective: Collective,
    paths: PathFinder,
    endpoints: Sequence[str],
    rows: int,
    *,
    commutative: bool = True,
    max_trees: int | None = None,
) -> Forest | None:
    """Return the best packing of trees for a collective, or None where trees do not fit.

    They do not fit scans, canonical order, payloads without rows, several ranks on one endpoint, endpoints that do not
    reach each other, and machines too large and irregular for the time that a plan may take.

    `rows` are those of the payload, of allgather and reduce_scatter of the whole; `max_trees` is the most chunks of one
    root. Without `commutative` the operands of every fold are in rank order.
    """
    if collective.name not in COLLECTIVES or collective.shards or not rows:
        return None
    if not 1 < len(endpoints) <= MOST_RANKS or len(set(endpoints)) < len(endpoints):
        return None
    network = network_of(paths, endpoints)
    if not network.connected:
        return None
    hosts = [paths.topology.by_id[device].host for device in network.devices]
    request = _Request(collective, network, hosts, max_trees, commutative)
    if collective.name == "allreduce":
        planned = _allreduce(request) if commutative else _ordered_allreduce(request)
    elif collective.name == "broadcast" or (collective.name == "reduce" and commutative):
        planned = _one_root(request)
    elif collective.name == "reduce":
        planned = _interval_plans(request, collective.root)
    else:
        planned = _in_parts(request)
    if planned is None:
        return None
    chunks = _chunks(collective, planned, rows)
    return Forest(
        schedule=schedule_of(chunks, collective, network, paths),
        gb_per_s=planned.gb_per_s,
        bound_gb_per_s=planned.bound_gb_per_s,
        trees_per_root=max(Counter(pair.root for _, pair in chunks).values()),
        height=planned.height,
    )


class _Request(NamedTuple):
    """One collective on one machine, with the host of every device."""

    collective: Collective
    network: Network
    hosts: list[str]
    max_trees: int | None
    commutative: bool


class _Planned(NamedTuple):
    """Weighted trees, the group whose images they stand for, and their throughput."""

    templates: list[tuple[float, Pair]]
    elements: Ints
    gb_per_s: float
    bound_gb_per_s: float

    @property
    def height(self) -> int:
        """Most edges between a rank and a root."""
        return max(pair.height for _, pair in self.templates)


def effort_of(ends: int) -> tuple[float, int, int]:
    """Return the arguments of `pack` for so many ranks: small machines exactly, large ones nearly."""
    if ends <= 16:
        return 1e-6, 600, FIRST_TURNS
    return (2e-4, 400, 120) if ends <= 32 else (5e-3, 200, FIRST_TURNS)


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
    if _is_too_large(pricer):
        return None
    packing = pack(pricer, *effort_of(network.ends))
    parts = packing.parts
    if network.symmetric:
        if pricer.links <= MANY_ROWS:  # the lowest of the best packings
            low = [replace(c, gain=1 - HEIGHT_GAIN * c.pair.tree.least_height) for c in packing.columns]
            parts = repack(pricer, low)
        parts = root_trees(parts, symmetry, request.max_trees)
    planned = _pruned(request, pricer, packing, parts, symmetry)
    if request.max_trees is None or planned.gb_per_s >= planned.bound_gb_per_s * (1 - LOSS) or network.ends > SMALL:
        return planned
    alone = no_symmetry(network)
    plain = UndirectedTrees(alone) if network.symmetric else DirectedPairs(alone)
    few = bounded_pairs(plain, request.max_trees)
    total = plain.total(few)
    if total < planned.gb_per_s * (1 + LOSS):
        return planned
    few = root_trees(few, alone, request.max_trees) if network.symmetric else few
    return planned._replace(templates=_paired(request, few), elements=alone.elements, gb_per_s=total)


def _is_too_large(pricer: Pricer) -> bool:
    return pricer.network.ends > MOST_IRREGULAR and pricer.links > MOST_ROWS


def _one_root(request: _Request) -> _Planned | None:
    """Plan a broadcast, or a reduce as a broadcast on the transposed network."""
    name, root = request.collective.name, request.collective.root
    network = request.network if name == "broadcast" else request.network.transposed()
    symmetry = symmetry_at(network, request.hosts, root, request.max_trees)
    pricer = OutTrees(symmetry, root)
    if _is_too_large(pricer):
        return None
    packing = pack(pricer, *effort_of(network.ends))
    planned = _pruned(request, pricer, packing, packing.parts, symmetry)
    trees = len(planned.templates) * len(planned.elements)
    if request.max_trees is None and trees <= FEW and planned.height <= LOW:
        return planned
    return _lower(_with_few(request, OutTrees(no_symmetry(network), root), planned, [root]), network)


def _with_few(request: _Request, pricer: RootedTrees, planned: _Planned, roots: Sequence[int]) -> _Planned:
    """Return a plan of at most `max_trees` trees (or `FEW`) a root if that loses little, else the plan as it is."""
    most = FEW if request.max_trees is None else request.max_trees
    parts = bounded_trees(pricer, roots, most, planned.bound_gb_per_s, planned.gb_per_s)
    total = pricer.total(parts) if parts else 0.0
    if total < planned.gb_per_s * (1 - LOSS):
        return planned
    elements = no_symmetry(request.network).elements
    return planned._replace(templates=_paired(request, parts), elements=elements, gb_per_s=total)


def _in_parts(request: _Request) -> _Planned | None:
    """Plan an allgather, or a reduce_scatter as an allgather on the transposed network."""
    gathers = request.collective.name == "allgather"
    network = request.network if gathers else request.network.transposed()
    parts = request.collective.parts
    even = max(parts) - min(parts) <= 1
    symmetry = symmetry_of(network, request.hosts) if even else no_symmetry(network)
    if request.max_trees is not None and max(symmetry.images.values()) > 1:
        symmetry = no_symmetry(network)
    if len(symmetry.roots) > MOST_ROOTS:
        return None
    shares = [1 / len(parts)] * len(parts) if even else [rows / sum(parts) for rows in parts]
    pricer = Gathers(symmetry, shares)
    if _is_too_large(pricer):
        return None
    packing = pack(pricer, *effort_of(network.ends))
    kept = packing.parts
    if not gathers and not request.commutative:
        keeping = [c for c in packing.columns if c.carrier and images_keep_order(c.pair.tree, symmetry)]
        kept = repack(pricer, [*pricer.start(), *keeping])
        if {column.pair.root for _, column in kept} != set(pricer.shares):
            return None
    planned = _pruned(request, pricer, packing, kept, symmetry)
    if request.max_trees is None or not even or (not gathers and not request.commutative):
        return planned
    return _lower(_with_few(request, Gathers(no_symmetry(network), shares), planned, range(network.ends)), network)


def _lower(planned: _Planned, network: Network) -> _Planned:
    """Return the plan with lower trees; only for trees of one direction without symmetries."""
    if planned.height <= LOW or len(planned.elements) > 1:
        return planned
    trees = reduce_height(network, [(weight, pair.tree) for weight, pair in planned.templates])
    up = planned.templates[0][1].down is None
    weights = [weight for weight, _ in planned.templates]
    pairs = [Pair(tree, None) if up else Pair(None, tree) for tree in trees]
    return planned._replace(templates=list(zip(weights, pairs, strict=True)))


def _ordered_allreduce(request: _Request) -> _Planned | None:
    """Plan by trees that merge contiguous ranges if they reach the bound, else by interval plans too."""
    network = request.network
    symmetry = symmetry_of(network, request.hosts)
    by_trees = None
    if network.symmetric:
        pricer = UndirectedTrees(symmetry)
        if _is_too_large(pricer):
            return None
        packing = pack(pricer, *effort_of(network.ends))
        columns = root_in_order(packing.columns, symmetry)
        if columns:
            by_trees = _pruned(request, pricer, packing, repack(pricer, columns), symmetry)
            if by_trees.gb_per_s >= packing.bound_gb_per_s * (1 - 2 * LOSS):
                return by_trees
    by_ranges = _interval_plans(request, None)
    plans = [plan for plan in (by_ranges, by_trees) if plan is not None]
    return max(plans, key=lambda plan: plan.gb_per_s, default=None)


def _interval_plans(request: _Request, root: int | None) -> _Planned | None:
    """Plan a reduce, or an allreduce without root, by merging adjacent ranges: of all ranks, or inside each host."""
    network, hosts = request.network, request.hosts
    if network.ends > MOST_IRREGULAR:
        return None
    small = network.ends <= SMALL_ORDERED
    ranges = (None if small else host_ranges(network, hosts)) or [(0, network.ends)]
    symmetry = host_turns(network, hosts) if len(ranges) > 1 and root is None else no_symmetry(network)
    if max(end - low for low, end in ranges) > MOST_ORDERED or len(symmetry.roots) > MOST_ROOTS:
        return None
    pricer = OrderedPairs(symmetry, ranges, root=root)
    packing = pack(pricer, *(effort_of(network.ends) if small else (5e-3, 150, FIRST_TURNS)))
    return _pruned(request, pricer, packing, packing.parts, symmetry)


def _pruned(request: _Request, pricer: Pricer, packing: Packing, parts: Parts, symmetry: Symmetry) -> _Planned:
    kept = prune(pricer, parts, symmetry, most=request.max_trees, loss=LOSS)
    return _Planned(_paired(request, kept), symmetry.elements, pricer.total(kept), packing.bound_gb_per_s)


def _paired(request: _Request, parts: Parts) -> list[tuple[float, Pair]]:
    up = request.collective.name in ("reduce", "reduce_scatter")
    pairs = [(weight, column.pair) for weight, column in parts]
    return [(weight, Pair(pair.down, None) if up and pair.up is None else pair) for weight, pair in pairs]


def _images(templates: Sequence[tuple[float, Pair]], elements: Ints) -> list[tuple[float, Pair]]:
    """Return the images of all trees, equal ones merged."""
    if len(elements) == 1:
        return list(templates)
    images: dict[tuple[object, ...], tuple[float, Pair]] = {}
    for number, (weight, pair) in enumerate(templates):
        for element in elements.tolist():
            up = pair.up and pair.up.mapped(element)
            down = pair.down and pair.down.mapped(element)
            image = Pair(up, up if pair.up is pair.down and isinstance(up, Tree) else down)
            key = (number, *(frozenset(one.edges) if isinstance(one, Tree) else one for one in image))
            weight_so_far = images[key][0] if key in images else 0.0
            images[key] = (weight_so_far + weight / len(elements), image)
    return list(images.values())


def _chunks(collective: Collective, planned: _Planned, rows: int) -> list[tuple[int, Pair]]:
    """Return (rows, trees) of the chunks in the order of the payload; images without rows are left out."""
    images = _images(planned.templates, planned.elements)
    of_parts = [
        (part, [(weight, pair) for weight, pair in images if pair.root == rank])
        for rank, part in enumerate(collective.parts)
    ]
    chunks = []
    for part, own in of_parts or [(rows, images)]:
        shares = whole_rows(part, [weight for weight, _ in own]) if part else []
        chunks += [(n, pair) for n, (_, pair) in zip(shares, own, strict=False) if n]
    return chunks
