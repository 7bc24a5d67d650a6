"""Random collectives, with uneven parts and ranks without virtual shards."""

from hypothesis import strategies as st

from tests.planning.replay import part_count
from topocomm.planning.collectives import COLLECTIVES, IN_PARTS, ROOTED, Collective


@st.composite
def collectives(draw, ranks, names=COLLECTIVES):
    name = draw(st.sampled_from(names))
    root = draw(st.integers(0, ranks - 1)) if name in ROOTED else 0
    if name in IN_PARTS:
        count = part_count(name, ranks)
        parts = draw(st.lists(st.sampled_from([0, 1, 3]), min_size=count, max_size=count))
        return Collective(name, ranks, root, tuple(parts))
    if name == "allreduce" and draw(st.booleans()):
        starts = sorted(draw(st.lists(st.integers(0, 4), min_size=ranks - 1, max_size=ranks - 1)))
        return Collective(name, ranks, shards=(0, *starts, 4 + draw(st.integers(0, 1))))
    return Collective(name, ranks, root=root)
