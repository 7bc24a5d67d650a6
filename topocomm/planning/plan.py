"""A Plan: a proved schedule on a topology with its figures and the certificate that sets it beside the bounds."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

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

    def summary(self) -> str:
        """The plan in one line."""
        f = self.figures
        gap = f"{self.certificate.gap:.2f}x the bound"
        ranks = f"{len(self.ranks)} rank" + "s" * (len(self.ranks) != 1)
        rounds = f"{f.rounds} round" + "s" * (f.rounds != 1)
        messages = f"{f.transfers} message" + "s" * (f.transfers != 1)
        native = f"by {self.native_call}, predicted {self.predicted_us:.2f} us; else " if self.native_call else ""
        return (
            f"{self.collective.name} {self.operator} {self.payload_bytes} B on {ranks}: {native}"
            f"{self.algorithm}, {rounds}, {messages}, predicted {f.predicted_us:.2f} us "
            f"({self.objective} {gap}), proved, digest {self.digest[:12]}"
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
        return cls._of(plan_json.load(Path(path)))

    @classmethod
    def loads(cls, text: str, name: str = "plan") -> Plan:
        """A plan from JSON text; raises as `load`, with `name` standing for the file in messages."""
        return cls._of(plan_json.loads(text, name))

    @classmethod
    def _of(cls, read: PlanFields) -> Plan:
        return cls(**{field.name: getattr(read, field.name) for field in fields(read)})
