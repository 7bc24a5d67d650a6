"""Reduces and broadcasts out of an allreduce are proved, and have no message that nobody needs."""

import pytest

from tests.machines import joined
from tests.planning.algorithms.hosts.machines import groups_of
from tests.planning.replay import replay, word
from tests.plans import request_on
from topocomm import SUM
from topocomm.planning.algorithms.hosts.rails_parts import rails_allreduce_in_parts
from topocomm.planning.algorithms.recursive_doubling import recursive_doubling_allreduce
from topocomm.planning.algorithms.ring import ring_allreduce
from topocomm.planning.candidates import candidate_builds
from topocomm.planning.collectives import Collective
from topocomm.planning.proof.verify import verify
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.rooted import broadcast_of, reduce_of
from topocomm.planning.schedule.transforms import sliced

SHAPES = [(2, 2), (3, 3, 3), (1,) * 5, (4, 2, 3), (8,) * 3]


def made(name, ranks):
    """An allreduce; rails-halving with hosts of two."""
    if name == "rails-halving":
        return rails_allreduce_in_parts(groups_of(*[2] * (ranks // 2), *[1] * (ranks % 2)), 100, 16)
    return {"ring": ring_allreduce, "recursive-doubling": recursive_doubling_allreduce}[name](ranks, 100)


@pytest.mark.parametrize("name", ["rails-halving", "ring", "recursive-doubling"])
@pytest.mark.parametrize("ranks", range(2, 18))
def test_any_root(name, ranks):
    whole = made(name, ranks)
    for root in {0, ranks // 2, ranks - 1}:
        reduce, broadcast = reduce_of(whole, root), broadcast_of(whole, root)
        verify(reduce, Collective("reduce", ranks, root))
        verify(broadcast, Collective("broadcast", ranks, root))
        for text in replay(reduce).values():
            assert sorted(text[1:-1].split("><")) == sorted(map(str, range(ranks)))
        assert set(replay(broadcast).values()) == {word(root)}
        assert len(broadcast.transfers) == (ranks - 1) * len(whole.chunks), "each rank gets each chunk once"
        assert len(reduce.transfers) < len(whole.transfers)


@pytest.mark.parametrize("sizes", SHAPES)
def test_over_groups_in_slices(sizes):
    for rings in (None, [tuple(range(size)) for size in sorted(set(sizes))]):
        groups = groups_of(*sizes)
        whole = rails_allreduce_in_parts(groups, 600, 16, rings)
        root = sum(sizes) - 1
        verify(sliced(reduce_of(whole, root), 3, 1), Collective("reduce", sum(sizes), root))
        verify(sliced(broadcast_of(whole, root), 3, 1), Collective("broadcast", sum(sizes), root))


@pytest.mark.parametrize("name", ["reduce", "broadcast"])
def test_they_are_offered_for_long_values(name):
    for rows, offered in ((1 << 16, True), (4, False)):
        machine = joined((2, 2, 2))
        request = request_on(machine, name, SUM, SUM.default_layout(rows), root=3)
        names = [made for made, _ in candidate_builds(request, PathFinder(machine))]
        assert any(made.startswith("rails-halving") for made in names) == offered
