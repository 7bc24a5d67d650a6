"""For every collective and objective: a bound a millionth off, a wrong count, a plan better than all are found."""

import copy
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.machines import hosts, line, switch
from tests.planning.replay import part_count
from topocomm import PlanError, check_certificate, plan
from topocomm.planning.collectives import COLLECTIVES, IN_PARTS
from topocomm.planning.cost.cost_models import Cost
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import Combine, Transfer, make_schedule

pytestmark = pytest.mark.every_case

OBJECTIVES = ("rounds", "latency", "throughput", "auto")
MACHINES = (switch(5, gap_us=0.2), hosts(2, 3), line(3))
COUNTED = (
    "needs",
    "messages",
    "endpoints",
    "hops",
    "in_a_row",
    "cheapest_us",
    "inside_us",
    "across_us",
    "gap_us",
    "share",
)
"""Entries of witnesses that the machine and the collective determine: no other number may pass for them."""
BOUNDS = ("rounds_lower_bound", "alpha_lower_bound_us", "throughput_upper_bound_gb_per_s")
BYTES = 4000


def made(machine, collective, objective, **options):
    return plan(machine, collective, payload_bytes=BYTES, objective=objective, **options)


def refused(machine, one, message=""):
    with pytest.raises(PlanError, match=f"certificate: .*{message}"):
        check_certificate(machine, one)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_bound_a_millionth_off_is_found(collective, objective):
    for machine in MACHINES:
        one = made(machine, collective, objective)
        check_certificate(machine, one)
        for part in BOUNDS + ("predicted_lower_bound_us",) * (objective == "auto"):
            value = getattr(one.certificate, part)
            others = (
                (value - 1, value + 1) if part == "rounds_lower_bound" else (value * (1 - 1e-6), value * (1 + 1e-6))
            )
            for other in others:
                refused(machine, replace(one, certificate=replace(one.certificate, **{part: other})), "bound is")


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_count_of_a_witness_a_millionth_off_is_found(collective, objective):
    found = set()
    for machine in MACHINES:
        for port_model in ("alpha", "loggp"):
            one = made(machine, collective, objective, port_model=port_model)
            own = [one.certificate.witness, *one.certificate.other_witnesses]
            for number, witness in enumerate(own):
                for key, other in other_counts(witness):
                    cut = copy.deepcopy(own)
                    cut[number][key] = other
                    wrong = replace(one.certificate, witness=cut[0], other_witnesses=tuple(cut[1:]))
                    refused(machine, replace(one, certificate=wrong))
                    found.add((witness["kind"], key))
    assert {kind for kind, _ in found} >= {"doubling", "levels", "postal"}
    assert "share" in {key for _, key in found} or collective == "allreduce"


def other_counts(witness):
    """(entry, a wrong value) of what a witness counts, numbers in lists one by one."""
    for key in COUNTED:
        value = witness.get(key)
        if isinstance(value, list):
            yield from ((key, [*value[:i], value[i] + 1, *value[i + 1 :]]) for i in range(len(value)))
        elif isinstance(value, int):
            yield from ((key, value + step) for step in (-1, 1))
        elif value is not None:
            yield key, value * (1 + 1e-6)


def with_schedule(machine, one, transfers):
    """The plan with another schedule, and the figures and the gap that it has: what a wrong proof would let pass."""
    chunks = one.schedule.chunks if one.collective.parts else [(0, 1), (1, one.schedule.rows - 1)]
    schedule = make_schedule(
        one.collective.ranks,
        chunks,
        inputs=one.schedule.inputs.tolist(),
        outputs=[[move.dst, move.dst_slot, move.chunk] for move in transfers[-1:]],
        transfers=transfers,
        combines=list[Combine](),
        owners=one.schedule.owners,
    )
    kind = {"row_bytes": one.row_bytes, "port_model": one.port_model, "collective": one.collective}
    cost = Cost(schedule, one.ranks, PathFinder(machine), **kind)
    told = {part: getattr(cost, part) for part in ("rounds", "wire_bytes", "alpha_us", "predicted_us")}
    figures = replace(one.figures, **told, throughput_gb_per_s=cost.throughput_gb_per_s)
    return replace(one, schedule=schedule, figures=figures)


def chain(ranks, length, start=0):
    """A piece of the payload that goes around, from slot 0 of `start` on."""
    ends = [(start + i) % ranks for i in range(length + 1)]
    return [Transfer(i, a, i, b, i + 1, 0) for i, (a, b) in enumerate(pairwise(ends))]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_plan_better_than_its_bound_is_found(collective, objective):
    machine = switch(5, gap_us=0.2)
    parts = {"parts": [1, 249, 250, 250, 250] * (part_count(collective, 5) // 5)} if collective in IN_PARTS else {}
    one = made(machine, collective, objective, **parts)
    for moves, better in ((chain(5, 1), "rounds|alpha_us"), (chain(5, 12), "throughput|rounds")):
        what = "rounds" if objective == "rounds" and len(moves) == 1 else better
        refused(machine, with_schedule(machine, one, moves), f"({what}).*is better than its bound")
