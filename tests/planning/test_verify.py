"""The proof accepts what is right and rejects each planted fault with its place."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.machines import line, switch
from topocomm import PlanError
from topocomm.planning.algorithms.binomial import binomial_reduce
from topocomm.planning.algorithms.flat import flat_allreduce
from topocomm.planning.algorithms.recursive_doubling import recursive_doubling_allreduce
from topocomm.planning.algorithms.ring import ring_allreduce
from topocomm.planning.collectives import Collective
from topocomm.planning.paths import PathFinder
from topocomm.planning.schedule import Combine, Schedule, Transfer, make_schedule
from topocomm.planning.verify import verify

ALLREDUCE = {
    "recursive doubling": recursive_doubling_allreduce,
    "ring": ring_allreduce,
    "flat": flat_allreduce,
}


def rebuilt(schedule: Schedule, transfers=None, combines=None, **changes) -> Schedule:
    fields = {
        "inputs": schedule.inputs.tolist(),
        "outputs": schedule.outputs.tolist(),
        "transfers": schedule.transfer_list() if transfers is None else transfers,
        "combines": schedule.combine_list() if combines is None else combines,
    }
    return make_schedule(schedule.ranks, schedule.chunks, **(fields | changes))


def spell(schedule: Schedule) -> dict[tuple[int, int], str]:
    """Replay with strings: an interpreter that shares no code with `verify`. KeyError on a missing value."""
    held = {(r, s, c): f"<{w}>" for r, s, w in schedule.inputs.tolist() for c in range(len(schedule.chunks))}
    for round_ in range(schedule.rounds):
        moves = [t for t in schedule.transfer_list() if t.round == round_]
        for t, text in [(t, held[t.src, t.src_slot, t.chunk]) for t in moves]:
            held[t.dst, t.dst_slot, t.chunk] = text
        for f in (c for c in schedule.combine_list() if c.round == round_):
            held[f.rank, f.out_slot, f.chunk] = "".join(held[f.rank, slot, f.chunk] for slot in f.operands)
    return {(r, c): held[r, s, c] for r, s, c in schedule.outputs.tolist()}


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


def test_a_slot_is_written_once():
    schedule = recursive_doubling_allreduce(2, 1)
    doubled = [*schedule.transfer_list(), schedule.transfer_list()[0]]
    with pytest.raises(PlanError, match="rank 1 slot 1 chunk 0 is written twice"):
        verify(rebuilt(schedule, transfers=doubled), Collective("allreduce", 2))


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


def mutate(schedule: Schedule, rng: random.Random) -> Schedule:
    """One random deletion, duplication, swap or re-target."""
    transfers, combines = schedule.transfer_list(), schedule.combine_list()
    target: list = transfers if rng.random() < 0.5 else combines
    index = rng.randrange(len(target))
    kind = rng.choice(["delete", "duplicate", "swap", "retarget"])
    entry = target[index]
    if kind == "delete":
        target.pop(index)
    elif kind == "duplicate":
        target.append(entry)
    elif kind == "swap":
        other = rng.randrange(len(target))
        a, b = entry.round, target[other].round
        target[index], target[other] = entry._replace(round=b), target[other]._replace(round=a)
    elif isinstance(entry, Transfer):
        field = rng.choice(["src", "src_slot", "dst", "dst_slot", "chunk"])
        target[index] = entry._replace(**{field: rng.randrange(4)})
    else:
        slots = list(entry.operands)
        slots[rng.randrange(len(slots))] = rng.randrange(4)
        target[index] = entry._replace(operands=tuple(slots))
    return rebuilt(schedule, transfers=transfers, combines=combines)


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(2, 7), st.sampled_from(sorted(ALLREDUCE)))
def test_an_accepted_mutant_computes_the_same(rng, ranks, name):
    schedule = ALLREDUCE[name](ranks, 8)
    collective = Collective("allreduce", ranks)
    mutant = mutate(schedule, rng)
    try:
        proof = verify(mutant, collective)
    except PlanError:
        return
    outputs = spell(mutant)
    for text in outputs.values():
        assert sorted(text.strip("<>").split("><"), key=int) == [str(rank) for rank in range(ranks)]
    if proof.order_kept:
        assert set(outputs.values()) == {"".join(f"<{rank}>" for rank in range(ranks))}


def test_reduce_keeps_order_for_any_root():
    for ranks in range(1, 12):
        for root in range(ranks):
            schedule = binomial_reduce(ranks, 3, root)
            assert verify(schedule, Collective("reduce", ranks, root)).order_kept
            assert spell(schedule) == {(root, 0): "".join(f"<{rank}>" for rank in range(ranks))}
