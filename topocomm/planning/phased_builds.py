"""Builders of schedules in slices that take each phase one after the other, and how many slices are worth it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from topocomm.planning.cost.cost_models import Cost
from topocomm.planning.request import Build
from topocomm.planning.schedule.schedule import Schedule
from topocomm.planning.schedule.transforms import in_phases

WORTH_SLICES = 0.99
"""Part of the time that more slices must have a chance to fall below."""


@dataclass(frozen=True)
class PhasedBuild:
    """A builder of a schedule in so many slices (`in_phases`)."""

    schedule: Schedule
    slices: int

    def __call__(self) -> Schedule:
        """Return the schedule."""
        return in_phases(self.schedule, self.slices)


def is_phased(builds: Sequence[tuple[int, str, Build]]) -> bool:
    """Return whether they are of phases: the last to be tried, as it is soon known that more slices lose to others."""
    return bool(builds) and isinstance(builds[0][2], PhasedBuild)


class Costed(Protocol):
    """A schedule and its cost."""

    @property
    def schedule(self) -> Schedule:
        """The schedule."""

    @property
    def cost(self) -> Cost:
        """Its cost."""


C = TypeVar("C", bound=Costed)


def worth_slices(
    first: C, others: Sequence[tuple[int, str, Build]], most_us: float, costed: Callable[[str, Schedule], C]
) -> list[tuple[int, C]]:
    """Return those in ever more slices than `first`, while more have a chance to take less than that, and `most_us`.

    The time is taken to be convex in the bytes of a slice: without any it is above the line through two numbers.
    """
    made: list[tuple[int, C]] = []
    if first.cost.exceeds(most_us):
        return made
    last, last_us = slices_of(first.schedule), first.cost.predicted_us
    for place, name, build in others:
        schedule = build()
        if (slices := slices_of(schedule)) <= last:
            break
        candidate = costed(name, schedule)
        goal_us = min(most_us, WORTH_SLICES * last_us)
        limit_us = goal_us + (last_us - goal_us) * last / slices
        us = candidate.cost.predicted_within(limit_us)
        if us > limit_us:
            break
        made.append((place, candidate))
        last, last_us, most_us = slices, us, min(most_us, us)
    return made


def slices_of(schedule: Schedule) -> int:
    """Return how many slices a schedule has; 1 without `repeat`."""
    return 1 if schedule.repeat is None else schedule.repeat.count
