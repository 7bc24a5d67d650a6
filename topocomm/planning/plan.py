"""A Plan: a proved schedule on a topology with its figures and its certificate; saved and loaded as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from topocomm.errors import PlanError
from topocomm.planning.collectives import CARRYING
from topocomm.planning.formats import plan_json
from topocomm.planning.plan_fields import (
    OBJECTIVES,
    PORT_MODELS,
    Candidate,
    Certificate,
    Native,
    Objective,
    PlanFields,
    PlanFigures,
)
from topocomm.topology.draw.names import plural
from topocomm.topology.model import Topology

__all__ = [
    "OBJECTIVES",
    "PORT_MODELS",
    "Candidate",
    "Certificate",
    "Native",
    "Objective",
    "Plan",
    "PlanFields",
    "PlanFigures",
]

MOST_DIGESTED = 1 << 14
"""Transfers of the largest schedule whose digest a repr makes: it writes the whole schedule."""


@dataclass(frozen=True, eq=False)
class Plan(PlanFields):
    """One collective planned for one machine. Pure data; equal inputs give equal digests.

    The attributes are those of `PlanFields`.
    """

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON: keys sorted, no spaces, without the digest itself."""
        return plan_json.digest_of(self)

    @property
    def title(self) -> str:
        """The collective and its operator, in words; those that combine nothing have none."""
        name = self.collective.name
        return name if name in CARRYING else f"{name} {self.operator}"

    def summary(self) -> str:
        """Return the plan in one line."""
        return f"{self._brief()}, digest {self.digest[:12]}"

    def _brief(self) -> str:
        f, native, schedule_us = self.figures, "", self.figures.predicted_us
        if self.native is not None and self.native_call:
            native = f"by {self.native_call}, predicted {self.call_us:.2f} us; else "
            schedule_us = self.native.planned_us
        return (
            f"{self.title} {self.payload_bytes} B on {plural(len(self.ranks), 'rank')}: "
            f"{native}{self.algorithm}, {plural(f.rounds, 'round')}, {plural(f.transfers, 'message')}, predicted "
            f"{schedule_us:.2f} us ({self.objective} {self.certificate.gap:.2f}x the bound), proved"
        )

    def __repr__(self) -> str:
        quick = "digest" in vars(self) or len(self.schedule.transfers) <= MOST_DIGESTED
        return f"<Plan {self.summary() if quick else self._brief()}>"

    def _repr_html_(self) -> str:
        """The plan in a notebook: its picture, and the algorithms that it was chosen from."""
        page: str = _views().html(self)
        return page

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The algorithms that it was chosen from, best first; known for plans that were made in this process.

        Raises:
            PlanError: The plan is from a file.
        """
        if self.topology is None or self.request is None:
            raise PlanError(
                "candidates: this plan is from a file, which has one algorithm; plan again with the topology"
            )
        found: tuple[Candidate, ...] = _views().candidates(self, self.topology, self.request)
        return found

    def text(self, topology: Topology | None = None) -> str:
        """Return the plan in words, as `topocomm plan` prints it.

        Args:
            topology: The machine, of a plan from a file; None: the one it was made for.

        Raises:
            PlanError: It is not known, or the plan is for another one.
        """
        words: str = _views().plan_words(self, self._machine(topology))
        return words

    def svg(self, topology: Topology | None = None) -> str:
        """Return the plan as a picture, an SVG file; arguments and errors are those of `text`."""
        picture: str = _views("plan_svg").dumps(self, self._machine(topology))
        return picture

    def _machine(self, topology: Topology | None) -> Topology:
        machine = self.topology if topology is None else topology
        if machine is None:
            raise PlanError(
                "this plan is from a file: give the topology that it was made for, as in plan.text(topology)"
            )
        if machine.digest != self.topology_digest:
            raise PlanError(
                f"the plan is for another topology (digest {self.topology_digest[:12]}; {machine.name!r} has "
                f"{machine.digest[:12]})"
            )
        return machine

    def save(self, path: str | Path) -> None:
        """Write the plan JSON (`topocomm.plan/1`)."""
        plan_json.save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan JSON, check its digest and prove its schedule again.

        Raises:
            PlanError: The file is no plan, was altered, or its schedule is invalid; the message names the place.
        """
        return cls(**vars(plan_json.load(Path(path))))

    @classmethod
    def loads(cls, text: str, name: str = "plan") -> Plan:
        """Return the plan of a JSON text; raises as `load`, with `name` for the file in messages."""
        return cls(**vars(plan_json.loads(text, name)))


def _views(name: str = "plan_views") -> Any:
    """The module that shows plans, which imports this one; loaded when a plan is shown."""
    return import_module(f"topocomm.planning.report.{name}")
