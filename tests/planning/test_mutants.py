"""Every mutant of small schedules is judged as the slow replay judges it, and what is accepted computes the same."""

import random
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.machines import joined, line, switch
from tests.planning.mutant_cases import RANKS, collectives, every_case
from tests.planning.mutants import mutants, mutate
from tests.planning.replay import builds, collective_of, expected, part_count, replay, same, shards_word
from tests.planning.schedules import any_schedules
from tests.planning.slow_verify import RefusedError, slow_verify
from topocomm import PlanError
from topocomm.planning.collectives import COLLECTIVES, IN_PARTS, Collective
from topocomm.planning.proof.verify import verify
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import Repeat
from topocomm.planning.schedule.transforms import split_rounds

KINDS = (*COLLECTIVES, "canonical")
EVERY, FEW = 151, 8
"""Of what is left to `make soak`: one of so many mutants is judged anyway, of one case of so many."""


def cases(kind, *, once):
    """Those of one collective, or of canonical order: `once` those without slices, port limits or many ranks."""
    for case in every_case():
        plain = case.schedule.repeat is None and case.ports is None and case.collective.ranks == RANKS
        if plain == once and kind == ("canonical" if case.collective.shards else case.collective.name):
            yield case


def judged(mutant, collective, fast=(), slow=()):
    """Whether order is kept, by `verify`; None where it refuses. The slow replay must say the same."""
    try:
        by_replay = slow_verify(mutant, collective, **dict(slow))
    except RefusedError as error:
        by_replay = error
    proved, problem = None, None
    try:
        proved = verify(mutant, collective, **dict(fast)).order_kept
    except PlanError as error:
        problem = error
    if problem is not None:
        assert isinstance(by_replay, RefusedError), f"refused: {problem}"
    else:
        assert proved == by_replay, f"accepted, but: {by_replay!r}"
    return proved


def check_all(schedule, collective, fast=(), slow=(), **which):
    """Judge every mutant, or those of `which`; (accepted, refused)."""
    accepted = refused = 0
    for what, mutant in mutants(schedule, **which):
        try:
            order_kept = judged(mutant, collective, fast, slow)
            if order_kept is None:
                refused += 1
                continue
            accepted += 1
            if collective.shards:
                whole = {shards_word(0, collective.shards[-1])}
                assert set(replay(mutant, brackets=True).values()) == whole
            else:
                assert same(replay(mutant), expected(collective, mutant.chunks), order_kept)
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}") from None
    return accepted, refused


def test_the_cases_are_all_there():
    """Every collective with every algorithm that is offered for 3 ranks, in slices, with ports, in canonical order."""
    names = " ".join(case.name for case in every_case())
    for algorithm in (
        *("recursive-doubling", "binomial", "circulant", "flat", "direct", "rabenseifner", "ring", "two-tree"),
        *("scatter-ring", "scatter-dissemination", "dissemination", "doubling", "halving", "chain", "rails-tree"),
        *("canonical-flat", "canonical-doubling", "canonical-binomial", "canonical-direct"),
        *("rails", "cyclic", "leaders", "multiport-2", "searched", "forest"),
    ):
        assert f" {algorithm}" in names, algorithm
    for collective in collectives():
        alike = [case for case in every_case() if case.collective == collective]
        assert {case.ports for case in alike} == {None, 1, 2}
        assert {case.schedule.repeat and case.schedule.repeat.stagger_rounds for case in alike} == {None, 0, 1, 3}


@pytest.mark.every_case
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", KINDS)
def test_every_mutant(kind, every):
    for number, case in enumerate(cases(kind, once=True)):
        which = {"every": every, "first": number % every}
        accepted, refused = check_all(case.schedule, case.collective, case.fast, case.slow, **which)
        assert 0 < accepted < refused, case.name


@pytest.mark.every_case
@pytest.mark.parametrize("kind", KINDS)
def test_some_mutants_in_slices_and_with_limits_of_ports(kind):
    for number, case in enumerate(islice(cases(kind, once=False), 0, None, FEW)):
        check_all(case.schedule, case.collective, case.fast, case.slow, every=EVERY, first=7 * number % EVERY)


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("name", "stagger"), [("binomial", 0), ("binomial", 1), ("binomial", 6), ("direct", 1), ("ring", 2)]
)
def test_every_mutant_of_what_repeats_with_its_ports(name, stagger):
    collective = collective_of("allreduce", 3)
    once = split_rounds(builds(switch(3), collective, 6)[name](), ["a", "b", "c"], 1)
    schedule = replace(once, repeat=Repeat(2, stagger))
    limits = {"serialised": False, "ports": 1}, {"ports": 1}
    judged(schedule, collective, *limits)
    assert check_all(schedule, collective, *limits)[1]


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", KINDS)
def test_every_mutant_in_slices_and_with_limits_of_ports(kind):
    for case in cases(kind, once=False):
        assert check_all(case.schedule, case.collective, case.fast, case.slow)[1], case.name


def test_every_mutant_on_a_machine_with_few_routes():
    """Neighbours on a line have links, the ends have none between them."""
    topology, collective = line(3), collective_of("scan", 3)
    routes = {(a, b): {None} for a in range(3) for b in range(3) if abs(a - b) == 1}
    machine = {"paths": PathFinder(topology), "endpoints": topology.endpoints}
    schedule = builds(switch(3), collective, 2)["chain"]()
    accepted, refused = check_all(schedule, collective, machine, {"routes": routes})
    assert accepted
    assert refused > accepted


def test_every_mutant_of_named_paths():
    """A path may be shorter or another, but it leads from source to destination over links that are there."""
    topology, collective = joined([2, 1]), collective_of("reduce", 3)
    ends = topology.endpoints
    once = builds(switch(3), collective, 2)["flat"]()
    within, across = (ends[1], "h0/memory", ends[0]), (ends[2], "h1/memory", "network", "h0/memory", ends[0])
    transfers = once.transfers.copy()
    transfers[:, 6] = [(within, across).index(within if source == 1 else across) for source in transfers[:, 1]]
    schedule = replace(once, transfers=transfers, paths=(within, across))
    places = {end: rank for rank, end in enumerate(ends)}
    routes = {(a, b): {None} for a in range(3) for b in range(3) if a != b}
    for path in (within, across):
        routes[places[path[0]], places[path[-1]]].add(path)
    machine = {"paths": PathFinder(topology), "endpoints": ends}
    assert judged(schedule, collective, machine, {"routes": routes})
    accepted, refused = check_all(schedule, collective, machine, {"routes": routes})
    assert accepted
    assert refused > accepted


@examples(150)
@given(any_schedules(), st.sampled_from(COLLECTIVES), st.sampled_from([None, (1, 0), (2, 1), (3, 2)]))
def test_random_schedules_are_judged_alike(made, name, repeat):
    schedule, _ = made
    if name in IN_PARTS:
        parts = [rows for _, rows in schedule.chunks] + [0] * part_count(name, schedule.ranks)
        collective = Collective(name, schedule.ranks, parts=tuple(parts[: part_count(name, schedule.ranks)]))
    else:
        collective = Collective(name, schedule.ranks)
    judged(replace(schedule, repeat=repeat and Repeat(*repeat)), collective)


def test_columns_out_of_order_are_refused():
    """A sort by round would hide it, so the columns are changed themselves."""
    collective = collective_of("allreduce", 4)
    schedule = builds(switch(4), collective, 4)["recursive-doubling"]()
    for name in ("transfers", "combines"):
        table = getattr(schedule, name)
        with pytest.raises(PlanError, match=f"its {name} are not sorted by round"):
            verify(replace(schedule, **{name: table[::-1]}), collective)
    for starts in (schedule.operand_starts[:-1], schedule.operand_starts[::-1], schedule.operand_starts + 1):
        with pytest.raises(PlanError, match="do not cut them in one part per combine"):
            verify(replace(schedule, operand_starts=starts), collective)
    with pytest.raises(PlanError, match=r"transfer round is outside 0\.\.0"):
        verify(replace(schedule, rounds=1), collective)


@examples(500)
@given(st.randoms(use_true_random=False), st.integers(2, 7), st.sampled_from(COLLECTIVES), st.data())
def test_an_accepted_mutant_computes_the_same(rng, ranks, name, data):
    parts = [rng.randrange(3) for _ in range(part_count(name, ranks))] if name in IN_PARTS else ()
    rows = sum(parts) if name in IN_PARTS else 8
    collective = collective_of(name, ranks, root=rng.randrange(ranks), parts=parts)
    offered = builds(switch(ranks), collective, rows)
    schedule = offered[data.draw(st.sampled_from(sorted(offered)))]()
    mutant = mutate(schedule, rng)
    try:
        proof = verify(mutant, collective)
    except PlanError:
        return
    assert same(replay(mutant), expected(collective, mutant.chunks), proof.order_kept)


def test_most_mutants_are_refused():
    """The property above is no empty one: of random faults few leave the results as they were."""
    rng = random.Random(1)
    for name in COLLECTIVES:
        collective = collective_of(name, 5, rows=10)
        for build in builds(switch(5), collective, 10).values():
            schedule, refused = build(), 0
            for _ in range(50):
                try:
                    verify(mutate(schedule, rng), collective)
                except PlanError:
                    refused += 1
            assert refused > 25, name
