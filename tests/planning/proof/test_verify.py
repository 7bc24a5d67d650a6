"""The proof accepts what is right and rejects each planted fault with its place."""

from dataclasses import replace

import pytest

from tests.machines import line, switch
from tests.planning.mutants import rebuilt
from tests.planning.replay import builds, collective_of, expected, replay
from topocomm import PlanError
from topocomm.planning.algorithms.binomial import binomial_reduce
from topocomm.planning.algorithms.canonical_allreduce import flat_canonical
from topocomm.planning.algorithms.flat import (
    collect,
    flat_allgather,
    flat_allreduce,
    flat_scan,
    reduce_scatter_by,
)
from topocomm.planning.algorithms.prefix import doubling_scan
from topocomm.planning.algorithms.recursive_doubling import recursive_doubling_allreduce
from topocomm.planning.algorithms.ring import ring_allreduce
from topocomm.planning.collectives import COLLECTIVES, Collective
from topocomm.planning.proof.verify import verify
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import Combine, Repeat, Transfer, make_schedule

ALLREDUCE = {
    "recursive doubling": recursive_doubling_allreduce,
    "ring": ring_allreduce,
    "flat": flat_allreduce,
}


@pytest.mark.parametrize("name", ALLREDUCE)
@pytest.mark.parametrize("ranks", [1, 2, 3, 6, 8])
def test_proof_of_a_good_schedule(name, ranks):
    proof = verify(ALLREDUCE[name](ranks, 24), Collective("allreduce", ranks))
    assert proof.complete and proof.each_contribution_once and proof.uniform and proof.deadlock_free
    assert proof.order_kept == (name != "ring" or ranks == 1)


def test_dissemination_is_refused():
    """Plain dissemination gives every rank another bracketing: correct for sums, other bits on each rank."""
    transfers, combines = [], []
    for round_, distance in enumerate((1, 2)):
        for rank in range(4):
            transfers.append(Transfer(round_, rank, 2 * round_, (rank + distance) % 4, 2 * round_ + 1, 0))
            combines.append(Combine(round_, rank, 2 * round_ + 2, 0, (2 * round_ + 1, 2 * round_)))
    schedule = make_schedule(
        4,
        [(0, 1)],
        inputs=[(r, 0, r) for r in range(4)],
        outputs=[(r, 4, 0) for r in range(4)],
        transfers=transfers,
        combines=combines,
    )
    with pytest.raises(PlanError, match="ranks evaluate different expression trees"):
        verify(schedule, Collective("allreduce", 4))


def test_a_dropped_transfer_is_named():
    schedule = recursive_doubling_allreduce(4, 1)
    broken = rebuilt(schedule, transfers=schedule.transfer_list()[1:])
    with pytest.raises(PlanError, match=r"round 0: rank 1 reads slot 1 chunk 0, which nothing wrote before"):
        verify(broken, Collective("allreduce", 4))


def test_a_doubled_contribution_is_named():
    schedule = recursive_doubling_allreduce(4, 1)
    folds = schedule.combine_list()
    folds[0] = folds[0]._replace(operands=(0, 0))
    with pytest.raises(PlanError, match=r"round 0: rank 0 chunk 0 counts the contribution of rank 0 twice"):
        verify(rebuilt(schedule, combines=folds), Collective("allreduce", 4))


def test_a_swapped_operand_is_refused():
    schedule = recursive_doubling_allreduce(4, 1)
    folds = schedule.combine_list()
    folds[-1] = folds[-1]._replace(operands=folds[-1].operands[::-1])
    with pytest.raises(PlanError, match="ranks evaluate different expression trees"):
        verify(rebuilt(schedule, combines=folds), Collective("allreduce", 4))


def test_operands_swapped_on_all_ranks_lose_the_order():
    schedule = recursive_doubling_allreduce(4, 1)
    last = max(fold.round for fold in schedule.combine_list())
    folds = [
        fold._replace(operands=fold.operands[::-1]) if fold.round == last else fold for fold in schedule.combine_list()
    ]
    swapped = rebuilt(schedule, combines=folds)
    assert not verify(swapped, Collective("allreduce", 4)).order_kept
    with pytest.raises(PlanError, match="do not stand in rank order"):
        verify(swapped, Collective("allreduce", 4), keep_order=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outputs": [(0, 2, 0)]}, "rank 1 has no output for chunk 0"),
        ({"outputs": [(0, 0, 0), (1, 2, 0)]}, "output of rank 0 chunk 0 misses the contribution of rank 1"),
        ({"outputs": [(0, 2, 0), (0, 2, 0), (1, 2, 0)]}, "rank 0 chunk 0 is output twice"),
        ({"outputs": [(0, 9, 0), (1, 2, 0)]}, "slot 9, which nothing wrote"),
        ({"inputs": [(0, 0, 0), (1, 0, 0)]}, "input of rank 1 claims the contribution of rank 0"),
        ({"inputs": [(0, 0, 0), (0, 7, 0), (1, 0, 1)]}, "each of ranks 0..1 once"),
    ],
)
def test_wrong_ends_are_named(change, message):
    broken = rebuilt(recursive_doubling_allreduce(2, 1), **change)
    with pytest.raises(PlanError, match=message):
        verify(broken, Collective("allreduce", 2))


def test_chunks_must_abut():
    schedule = ring_allreduce(2, 4)
    broken = make_schedule(
        2,
        [(0, 2), (3, 1)],
        inputs=schedule.inputs.tolist(),
        outputs=schedule.outputs.tolist(),
        transfers=schedule.transfer_list(),
        combines=schedule.combine_list(),
    )
    with pytest.raises(PlanError, match="chunk 1 starts at row 3, expected 2"):
        verify(broken, Collective("allreduce", 2))


def test_a_missing_route_is_named():
    paths = PathFinder(line(4))
    with pytest.raises(PlanError, match="GPU0 -> GPU2: no path"):
        verify(
            recursive_doubling_allreduce(4, 1),
            Collective("allreduce", 4),
            paths=paths,
            endpoints=paths.topology.endpoints,
        )


def test_ports_are_counted_where_messages_are_not_serialised():
    schedule = flat_allreduce(4, 1)
    together = rebuilt(
        schedule,
        transfers=[t._replace(round=0) for t in schedule.transfer_list()],
        combines=[c._replace(round=0) for c in schedule.combine_list()],
    )
    ends = switch(4).endpoints
    assert verify(together, Collective("allreduce", 4), endpoints=ends, ports=3, serialised=False).ports_respected
    with pytest.raises(PlanError, match="3 messages in one round, 2 are allowed"):
        verify(together, Collective("allreduce", 4), endpoints=ends, ports=2, serialised=False)


def test_reduce_keeps_order_for_any_root():
    for ranks in range(1, 12):
        for root in range(ranks):
            schedule = binomial_reduce(ranks, 3, root)
            collective = Collective("reduce", ranks, root)
            assert verify(schedule, collective).order_kept
            assert replay(schedule) == expected(collective, schedule.chunks)


def test_a_rank_reads_no_part_of_another_in_an_allgather():
    collective = Collective("allgather", 3, parts=(2, 1, 1))
    schedule = flat_allgather((2, 1, 1))
    moves = schedule.transfer_list()
    moves[0] = moves[0]._replace(chunk=moves[1].chunk)
    place = rf"rank {moves[0].src} reads slot 0 chunk {moves[0].chunk}, which nothing wrote"
    with pytest.raises(PlanError, match=place):
        verify(rebuilt(schedule, transfers=moves), collective)
    with pytest.raises(PlanError, match=r"its inputs are those of owners \(\), the collective's are \(0, 1, 2\)"):
        verify(replace(schedule, owners=()), collective)


@pytest.mark.parametrize(
    ("schedule", "collective", "message"),
    [
        (
            flat_allgather((2, 2)),
            Collective("allgather", 2, parts=(3, 1)),
            r"allgather: chunk 1, rows 2 to 4, is within",
        ),
        (flat_allgather((2, 2)), Collective("allgather", 2, parts=(2, 3)), r"the chunks have 4 rows, the parts 5"),
        (flat_allgather((0, 0)), Collective("allgather", 3, parts=(0, 0, 0)), r"2 ranks, the collective has 3"),
        (flat_scan(3, 1, own=True), Collective("exscan", 3), r"rank 0 chunk 0 is output twice or belongs to no result"),
        (
            flat_scan(3, 1, own=False),
            Collective("scan", 3),
            r"output of rank 1 chunk 0 misses the contribution of rank 1",
        ),
        (flat_allreduce(3, 1), Collective("scan", 3), r"output of rank 0 chunk 0 must not contain rank 1"),
        (
            reduce_scatter_by(collect, (1, 1)),
            Collective("reduce_scatter", 2, parts=(2, 0)),
            r"rank 1 chunk 1 is output twice or belongs to no result",
        ),
        (flat_canonical((0, 1, 2), 1), Collective("allreduce", 2), r"nodes of virtual shards, .* has no shards"),
        (flat_allreduce(2, 1), Collective("allreduce", 2, shards=(0, 1, 2)), r"input of rank 0 is node 0; expected"),
    ],
    ids=str,
)
def test_a_schedule_of_something_else_is_refused(schedule, collective, message):
    with pytest.raises(PlanError, match=message):
        verify(schedule, collective)


def first_of(name, ranks, algorithm, rows=8):
    collective = collective_of(name, ranks, rows=rows)
    return builds(switch(ranks), collective, rows)[algorithm](), collective


@pytest.mark.parametrize(
    ("repeat", "message"),
    [
        (Repeat(0, 1), "repeat: count 0, stagger_rounds 1; expected a count of at least 1"),
        (Repeat(2, -1), "repeat: count 2, stagger_rounds -1; expected"),
        (Repeat(3, 1), "repeat: 3 slices of chunk 0, which has 2 rows: every slice has one or more"),
    ],
    ids=str,
)
def test_what_cannot_repeat_is_refused(repeat, message):
    schedule, collective = first_of("allreduce", 4, "direct")
    with pytest.raises(PlanError, match=message):
        verify(replace(schedule, repeat=repeat), collective)


def test_slices_beyond_what_columns_can_number_are_refused():
    schedule, collective = first_of("allreduce", 4, "direct", rows=0)
    assert verify(replace(schedule, repeat=Repeat(1000, 1)), collective)
    for repeat in (Repeat(2**30, 0), Repeat(2**20, 2**20)):
        with pytest.raises(PlanError, match="are more than columns can number"):
            verify(replace(schedule, repeat=repeat), collective)


def test_slices_meet_at_ports():
    """One message a round and port; a slice right behind another has twice as many, one that waits has not."""
    schedule, collective = first_of("scan", 5, "chain")
    limits = {"serialised": False, "ports": 1}
    assert verify(replace(schedule, repeat=Repeat(8, 1)), collective, **limits).ports_respected
    schedule, collective = first_of("allreduce", 4, "recursive-doubling")
    assert verify(replace(schedule, repeat=Repeat(8, 0)), collective, **limits).ports_respected
    assert verify(replace(schedule, repeat=Repeat(8, 2)), collective, **limits).ports_respected
    with pytest.raises(PlanError, match="2 messages in one round, 1 are allowed"):
        verify(replace(schedule, repeat=Repeat(8, 1)), collective, **limits)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("dst", 0, r"round 0: rank 0 sends to itself"),
        ("path", 0, r"a transfer names path 0, but there are 0 paths"),
        ("path", -2, r"a transfer names path -2, but there are 0 paths"),
        ("src", 4, r"transfer source is outside 0\.\.3"),
        ("dst", -1, r"transfer destination is outside 0\.\.3"),
        ("chunk", 1, r"transfer chunk is outside 0\.\.0"),
    ],
)
def test_a_transfer_that_leads_nowhere_is_refused(field, value, message):
    schedule = recursive_doubling_allreduce(4, 1)
    moves = schedule.transfer_list()
    moves[0] = moves[0]._replace(**{field: value})
    with pytest.raises(PlanError, match=message):
        verify(rebuilt(schedule, transfers=moves), Collective("allreduce", 4))


def test_slots_may_have_any_number():
    schedule = recursive_doubling_allreduce(4, 1)
    names = {0: 0, 1: 2**31 - 1, 2: -(2**31), 3: 5, 4: -1}
    moves = [m._replace(src_slot=names[m.src_slot], dst_slot=names[m.dst_slot]) for m in schedule.transfer_list()]
    folds = [
        f._replace(out_slot=names[f.out_slot], operands=tuple(names[slot] for slot in f.operands))
        for f in schedule.combine_list()
    ]
    outputs = [(rank, names[slot], chunk) for rank, slot, chunk in schedule.outputs.tolist()]
    assert verify(rebuilt(schedule, moves, folds, outputs=outputs), Collective("allreduce", 4)).order_kept


@pytest.mark.parametrize("ranks", [31, 100])
def test_many_ranks(ranks):
    """Every algorithm that many ranks have, and one that is broken at its last fold."""
    for name in COLLECTIVES:
        collective = collective_of(name, ranks, rows=ranks)
        for build in builds(switch(ranks), collective, ranks).values():
            schedule = build()
            assert verify(schedule, collective).complete
            if len(schedule.operands):
                schedule.operands[-1] = schedule.operands[-2]
                with pytest.raises(PlanError, match=r"twice|misses"):
                    verify(schedule, collective)


def test_a_node_is_put_in_once():
    """In a slot that nothing reads it would do no harm, but the rank's value has no room for it."""
    schedule = flat_canonical((0, 1, 2), 1)
    collective = Collective("allreduce", 2, shards=(0, 1, 2))
    assert verify(schedule, collective).canonical_tree
    again = [*schedule.inputs.tolist(), [0, 9, 0]]
    with pytest.raises(PlanError, match=r"input of rank 0 is node \(0, 1\); expected each of the canonical nodes"):
        verify(rebuilt(schedule, inputs=again), collective)


@pytest.mark.parametrize("ranks", [1024, 1500])
def test_a_thousand_ranks(ranks):
    """A fault that shows in one rank alone is found among all."""
    for name, build in ("allreduce", recursive_doubling_allreduce), ("scan", doubling_scan):
        collective = Collective(name, ranks)
        schedule = build(ranks, 1)
        assert verify(schedule, collective, serialised=False, ports=1).order_kept
        for row in (0, len(schedule.combines) // 2, len(schedule.combines) - 1):
            start = schedule.operand_starts[row]
            schedule.operands[start : start + 2] = schedule.operands[start : start + 2][::-1].copy()
            with pytest.raises(PlanError, match=r"different expression trees|stand in rank order"):
                verify(schedule, collective, keep_order=True)
            schedule.operands[start : start + 2] = schedule.operands[start : start + 2][::-1].copy()
