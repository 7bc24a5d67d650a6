"""A ring: who sends what, and when."""

import pytest

from tests.machines import switch
from topocomm.simulation.libraries.plain_ring import ring_work


@pytest.mark.parametrize(("collective", "rounds"), [("allreduce", 6), ("allgather", 3), ("reduce_scatter", 3)])
def test_every_rank_passes_on_what_came(collective, rounds):
    topology = switch(4)
    work = ring_work(topology, collective, 10, topology.endpoints)
    assert len(work) == 4 * rounds
    assert work.round.tolist() == [round_ for round_ in range(rounds) for _ in range(4)]
    chunks = [2, 3, 2, 3]
    for task, (src, dst, size) in enumerate(zip(work.src, work.dst, work.payload_bytes, strict=True)):
        round_ = task // 4
        assert (dst, size) == ((src + 1) % 4, chunks[(src - round_) % 4])
        waits = work.after[work.after_starts[task] : work.after_starts[task + 1]].tolist()
        assert waits == ([4 * (round_ - 1) + (src - 1) % 4] if round_ else [])
        if waits:
            assert (work.dst[waits[0]], work.payload_bytes[waits[0]]) == (src, size)
