"""Parts of a long value down trees in slices whose messages have turns, on machines of one port a rank."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np

from topocomm.planning.algorithms.hosts.part_trees import PartTrees, Turns
from topocomm.planning.hierarchical.long_values import is_long, slice_bytes
from topocomm.planning.rank_patterns import RankPatterns
from topocomm.planning.request import Builds, Request
from topocomm.planning.routing.hierarchy import cuts_of
from topocomm.planning.schedule.schedule import Schedule, part_chunks, split_rows
from topocomm.planning.schedule.transforms import relabelled, sliced
from topocomm.planning.shared_results import SharedResults

MOST_TURNED_RANKS, TURNED_SLICES = 32, (1, 2, 4, 8, 16, 32)
"""Most ranks for parts whose messages have turns, P^2 a slice; and their slices."""
_known_turns: SharedResults[tuple[str, tuple[str, ...], str], list[tuple[PartTrees, Turns]]] = SharedResults(most=64)
"""By machine, endpoints and collective: they depend on no payload."""


def in_turns(request: Request, groups: RankPatterns) -> Builds:
    """Yield name and builder for parts down trees in slices whose messages have turns (`part_trees.py`)."""
    name, parts, count = request.collective.name, request.collective.parts, request.collective.ranks
    ends = tuple(request.endpoints[rank] for rank in groups.order)
    if not _may_take_turns(request, groups) or (coordinates := _coordinates(ends, groups)) is None:
        return
    if name == "allreduce" and len(coordinates) > 2 and groups.hosts.count > 1:  # `host_forests` crosses buses less
        return
    known = _known_turns.get(
        (groups.paths.topology.digest, ends, name), lambda: _turns_of(coordinates, ends, groups, name)
    )
    if not known:
        return
    options = []
    for (which, (trees, turns)), slices in product(enumerate(known), TURNED_SLICES):
        part_bytes = request.payload_bytes / count / slices
        if slices == 1 or part_bytes >= slice_bytes(request, groups):
            starts, first_us = trees.starts(turns, part_bytes)
            us = first_us + (slices - 1) * turns.period * turns.byte_us * part_bytes
            options.append((us, slices, which, starts))
    _, slices, which, starts = min(options, key=lambda option: option[:3])
    trees, turns = known[which]
    chunks = part_chunks(parts)[0] if parts else split_rows(request.layout.rows, count)

    def build() -> Schedule:
        schedule = trees.schedule(chunks, starts)
        return sliced(schedule if groups.in_order else relabelled(schedule, groups.order), slices, turns.period)

    yield f"turns-{slices}", build


def _may_take_turns(request: Request, groups: RankPatterns) -> bool:
    """Whether turns help: one port sends by its NIC or inside its host. Rounds must cost nothing, as there are many."""
    name, parts = request.collective.name, request.collective.parts
    if request.objective != "auto" or request.port_model != "loggp" or request.cores or request.launch_us:
        return False
    in_any_order = request.operator.commutative or name == "allgather"
    each_a_part = (
        request.layout.rows >= len(request.endpoints) if name == "allreduce" else groups.in_order and all(parts)
    )
    few = 2 < len(request.endpoints) <= MOST_TURNED_RANKS and len(set(request.endpoints)) == len(request.endpoints)
    return request.ports == 1 and few and in_any_order and each_a_part and is_long(request)


def _coordinates(ends: tuple[str, ...], groups: RankPatterns) -> list[int] | None:
    """The numbers of groups in each group, outermost first; None where there is one alone, or they are unlike."""
    sizes = [len(ends)]
    for cut in (*reversed(cuts_of(ends, groups.paths)), tuple(range(len(ends) + 1))):
        size = cut[1] - cut[0]
        if set(np.diff(cut).tolist()) != {size} or sizes[-1] % size:
            return None
        sizes.append(size)
    coordinates = [outer // inner for outer, inner in pairwise(sizes) if outer > inner]
    return coordinates if len(coordinates) > 1 else None


def _turns_of(
    coordinates: list[int], ends: tuple[str, ...], groups: RankPatterns, name: str
) -> list[tuple[PartTrees, Turns]]:
    """Trees and turns, for each way to give turns those of the least load: parts may pass by the socket with a NIC."""
    gates = [None, *range(coordinates[1])] if coordinates[2:] else [None]
    trees = [PartTrees(coordinates, ends, groups.paths, name, gate) for gate in gates]
    made = []
    for way in range(len(trees[0].sections())):
        best = min(trees, key=lambda each: each.load_us(each.sections()[way]))
        if best.is_worth():
            made.append((best, best.turns(best.sections()[way])))
    return made
