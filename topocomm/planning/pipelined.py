"""Trees for long payloads, in slices that follow each other: which numbers of slices are worth a plan."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from topocomm.planning.algorithms import two_tree
from topocomm.planning.forests.forest import forest_of
from topocomm.planning.forests.tree_schedule import STAGGER_ROUNDS
from topocomm.planning.request import Builds, Request
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import Schedule
from topocomm.planning.schedule.slices import most_slices, sliced

MOST_AUTO_FOREST_RANKS = 32
LONG_BYTES = 8 << 10
"""From here on objective auto tries trees that share out the links."""
SLICE_BYTES, SLICES, MANY_SLICES = 64 << 10, (1, 2, 4, 8, 16, 32, 64), 16
"""Of a pipelined chunk: the least bytes of a slice, how many slices are tried, and how many where bytes alone count."""


def pipelined_builds(request: Request, paths: PathFinder) -> Builds:
    """Name and builder of trees packed into the links, and of two trees; in fewer slices where chunks have few rows."""
    collective, rows, count = request.collective, request.layout.rows, len(request.endpoints)
    slices = _slices(request, paths)
    if not slices:
        return

    def each(name: str, most: int) -> Iterator[tuple[str, int]]:
        for number in dict.fromkeys(min(number, most) for number in slices):
            yield f"{name}-{number}" if request.objective == "auto" else name, number

    forest = _forest(request, paths)
    if forest is not None:
        for name, number in each("forest", most_slices(forest)):
            yield name, partial(sliced, forest, number, STAGGER_ROUNDS)
    for name, number in each("two-tree", max(1, rows // 2)):
        if collective.name == "allreduce":
            yield name, partial(two_tree.two_tree_allreduce, count, rows, number)
        elif collective.name == "reduce":
            build = partial(two_tree.two_tree_reduce, count, rows, collective.root, slices=number)
            yield name, partial(build, keep_order=not request.operator.commutative)
        elif collective.name == "broadcast":
            yield name, partial(two_tree.two_tree_broadcast, count, rows, collective.root, number)


def _forest(request: Request, paths: PathFinder) -> Schedule | None:
    """The schedule of packed trees, all rows at once; None where trees do not fit."""
    found = forest_of(
        request.collective,
        paths,
        request.endpoints,
        request.layout.rows,
        commutative=request.operator.commutative,
        max_trees=request.limits.max_trees,
    )
    return None if found is None else found.schedule


def _slices(request: Request, paths: PathFinder) -> tuple[int, ...]:
    """Numbers of slices worth a plan: of objective throughput one, of auto several, of the others none.

    Of auto on GPUs only: what a rank's processor does for every message of a slice is in no model yet.
    """
    one_root = request.collective.name in ("reduce", "broadcast")
    most = max(1, request.payload_bytes // (1 if one_root else len(request.endpoints)) // SLICE_BYTES)
    if request.objective == "throughput":
        return (min(most, MANY_SLICES),)
    kinds = {paths.topology.by_id[end].kind for end in request.endpoints}
    if request.objective != "auto" or kinds != {"gpu"} or request.payload_bytes < LONG_BYTES or request.cores:
        return ()
    return tuple(n for n in SLICES if n <= most) if len(request.endpoints) <= MOST_AUTO_FOREST_RANKS else ()
