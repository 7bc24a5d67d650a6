"""Schedules whose mutants are judged: every collective, algorithm, number of ports, machine, order and slicing."""

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache

from tests.concatenation import CONCAT
from tests.machines import joined, line, switch
from tests.planning.replay import builds, collective_of, part_count
from topocomm import SUM, PlanError
from topocomm.planning.collectives import COLLECTIVES, Collective
from topocomm.planning.proof.verify import verify
from topocomm.planning.request import Request
from topocomm.planning.routing.paths import NoRouteError, PathFinder
from topocomm.planning.schedule.schedule import Repeat, Schedule
from topocomm.planning.schedule.transforms import split_rounds
from topocomm.planning.searched import searched

RANKS, ROWS = 3, 6
REPEATS = (None, (2, 0), (2, 1), (2, 3))
"""(slices, rounds between them) of the cases: each has as many rows in the shortest chunk, or is left out."""


@dataclass(frozen=True)
class Case:
    """A schedule that is accepted.

    Attributes:
        name: What is run.
        collective: What it computes.
        schedule: Its columns.
        ports: Messages of a rank in one round that `verify` is to allow; None: it does not count them.
        keep_order: Whether operands have to stand in rank order.
    """

    name: str
    collective: Collective
    schedule: Schedule
    ports: int | None
    keep_order: bool

    @property
    def fast(self):
        """What `verify` is told."""
        counted = {} if self.ports is None else {"ports": self.ports, "serialised": False}
        return {"keep_order": self.keep_order} | counted

    @property
    def slow(self):
        """What `slow_verify` is told."""
        return {"keep_order": self.keep_order, "ports": self.ports}


def collectives(ranks=RANKS):
    """One of each, with a root that is not rank 0; the last in canonical order."""
    roots = {"reduce": 1, "broadcast": 1}
    yield from (
        collective_of(name, ranks, root=roots.get(name, 0), rows=2 * part_count(name, ranks)) for name in COLLECTIVES
    )
    yield Collective("allreduce", ranks, shards=(0, 3, 3, 5)) if ranks == RANKS else collective_of("allreduce", ranks)


@cache
def every_case():
    """All of them, each schedule once."""
    seen, cases = set(), []
    for name, collective, schedule, ports in _schedules():
        for repeat in REPEATS:
            for limit in (None, ports):
                whole = replace(schedule, repeat=repeat and Repeat(*repeat))
                if limit is not None:
                    whole = split_rounds(whole, tuple(map(str, range(collective.ranks))), limit)
                case = _accepted(f"{name}, repeat {repeat}, limit {limit}", collective, whole, limit)
                key = case and (collective, limit, case.schedule.repeat, _columns(case.schedule))
                if case is not None and key not in seen:
                    seen.add(key)
                    cases.append(case)
    return cases


def _columns(schedule):
    tables = (schedule.inputs, schedule.outputs, schedule.transfers, schedule.combines, schedule.operands)
    return tuple(table.tobytes() for table in tables)


def _accepted(name, collective, schedule, ports):
    case = Case(name, collective, schedule, ports, keep_order=False)
    try:
        kept = verify(schedule, collective, **case.fast).order_kept
    except PlanError:  # fewer rows than slices, or slices that meet at a port
        return None
    return replace(case, keep_order=kept)


def _schedules():
    """(name, collective, schedule, ports) of what the planner offers, and of what it searches."""
    for collective in collectives():
        what = collective.name + " canonical" * bool(collective.shards)
        for ports in (1, 2):
            for machine in (switch(RANKS), joined([2, 1])):
                for objective in ("auto", "throughput"):
                    yield from _offered(what, machine, collective, objective, ports)
            row = line(RANKS)
            request = Request(collective, SUM, SUM.default_layout(ROWS), row.endpoints, "latency", ports, "alpha")
            found = searched(request, PathFinder(row), 99.0, 0.0)
            if found is not None and found.schedule is not None:
                yield f"{what} searched, {row.name}, ports {ports}", collective, found.schedule, ports
    for collective in collectives(6):
        grouped = _offered(collective.name, joined([2, 2, 2]), collective, "auto", 1)
        yield from (each for each in grouped if "cyclic" in each[0] or "leaders" in each[0])


def _offered(what, machine, collective, objective, ports):
    for operator in (SUM, CONCAT):
        offered = builds(machine, collective, 2 * collective.ranks, operator, objective=objective, ports=ports)
        for name, build in offered.items():
            with suppress(NoRouteError):  # of trees that keep order there may be none
                yield f"{what} {name}, {machine.name}, ports {ports}", collective, build(), ports
