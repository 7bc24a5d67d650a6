"""A Plan: a proved schedule on a topology with its figures and its certificate; saved and loaded as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from topocomm.planning.collectives import CARRYING
from topocomm.planning.formats import plan_json
from topocomm.planning.plan_fields import (
    OBJECTIVES,
    PORT_MODELS,
    Certificate,
    Native,
    Objective,
    PlanFields,
    PlanFigures,
)
from topocomm.topology.draw.names import plural

__all__ = ["OBJECTIVES", "PORT_MODELS", "Certificate", "Native", "Objective", "Plan", "PlanFields", "PlanFigures"]


@dataclass(frozen=True, eq=False)
class Plan(PlanFields):
    """One collective planned for one machine. Pure data; equal inputs give equal digests.

    The attributes are those of `PlanFields`.
    """

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON: keys sorted, no spaces, without the digest itself."""
        return plan_json.plan_digest(plan_json.plan_document(self))

    @property
    def title(self) -> str:
        """The collective and its operator, in words; those that combine nothing have none."""
        name = self.collective.name
        return name if name in CARRYING else f"{name} {self.operator}"

    def summary(self) -> str:
        """Return the plan in one line."""
        f = self.figures
        native = f"by {self.native_call}, predicted {self.predicted_us:.2f} us; else " if self.native_call else ""
        return (
            f"{self.title} {self.payload_bytes} B on {plural(len(self.ranks), 'rank')}: "
            f"{native}{self.algorithm}, {plural(f.rounds, 'round')}, {plural(f.transfers, 'message')}, predicted "
            f"{f.predicted_us:.2f} us ({self.objective} {self.certificate.gap:.2f}x the bound), proved, digest "
            f"{self.digest[:12]}"
        )

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
