"""A plan for people who hold one in Python: in words with its rivals, and in a notebook as picture and table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from topocomm.planning.left_out import left_out
from topocomm.planning.plan import Candidate, Plan
from topocomm.planning.report.in_network_advice import in_network_notes
from topocomm.planning.report.plan_comparison import candidates, ranked, sooner_by_auto
from topocomm.planning.report.plan_text import plan_text
from topocomm.planning.report.sum_comparison import sum_notes
from topocomm.topology.model import Topology

__all__ = ["candidates", "html", "plan_words"]

MOST_PICTURED = 1 << 16
"""Transfers of the largest schedule that a notebook draws."""
MOST_ROWS = 12
"""Candidates in a table."""


def plan_words(plan: Plan, topology: Topology, defect: str = "") -> str:
    """Return the plan in words beside what else could be done; `defect` is as of `plan_text`."""
    request = plan.request
    if request is None:
        return plan_text(plan, topology, "the plan is from a file", defect)
    notes = [("switch", note) for note in in_network_notes(plan, topology, request.operator)]
    notes += [("sum", note) for note in sum_notes(plan.as_sum)]
    if (sooner := sooner_by_auto(plan, topology, request)) is not None:
        notes.append(("sooner", sooner))
    notes += [("omitted", note) for note in left_out(topology, request)]
    return plan_text(plan, topology, ranked(plan, topology, request.operator, request.limits), defect, notes)


def html(plan: Plan) -> str:
    """Return the plan for a notebook: one line, the picture, and the algorithms that it was chosen from."""
    from topocomm.planning.report.plan_svg import dumps
    from topocomm.topology.draw.notebook import image

    parts = [f"<p>{escape(repr(plan)[1:-1])}</p>"]
    if plan.topology is not None and len(plan.schedule.transfers) <= MOST_PICTURED:
        parts.append(image(dumps(plan, plan.topology), f"{plan.title} on {plan.topology.name}"))
    if plan.topology is not None and plan.request is not None:
        parts.append(_candidate_table(plan.candidates))
    return "".join(parts)


def _candidate_table(found: Sequence[Candidate]) -> str:
    from topocomm.topology.draw.notebook import table

    heads = ("algorithm", "predicted us", "us without bytes", "rounds", "messages", "bytes on the wire", "why")
    rows = [
        (c.algorithm, f"{c.predicted_us:.2f}", f"{c.alpha_us:.2f}", c.rounds, c.transfers, f"{c.wire_bytes:,}", c.why)
        for c in found[:MOST_ROWS]
    ]
    rest = f"<p>and {len(found) - MOST_ROWS} more in <code>plan.candidates</code></p>" if len(found) > MOST_ROWS else ""
    return table(heads, rows) + rest
