"""Comparison of a plan with the same reduction as one SUM, for operators that have this form.

What is added is longer, by the counts that say whether the sums are precise and by the digest of the reference. A
library's call may add it, also in switches; so may a schedule. Only NCCL has a model of what its call takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import NamedTuple

from topocomm.operators.builtin import SUM
from topocomm.operators.operator import Operator
from topocomm.operators.sum_lowering import sum_layout, tail_items
from topocomm.planning.cost.cost_models import TIME_DIGITS
from topocomm.planning.libraries.job_shape import JobShape
from topocomm.planning.native import CALLS, as_executed, call_of, shape_of
from topocomm.planning.plan import Plan
from topocomm.planning.plan_fields import AsSum
from topocomm.planning.planner import plan as make_plan
from topocomm.topology.model import Topology
from topocomm.topology.network.in_network import IN_NETWORK, knows

IN_SWITCHES = ("nvls", "nvls-tree")
"""NCCL's algorithms that switches reduce in."""
COLLECTIVES = ("allreduce", "reduce_scatter")
_CANONICAL = "canonical order is never taken as one SUM: a library adds up in an order of its own"


class Way(NamedTuple):
    """One way through a reduction.

    Attributes:
        way: "merge": the plan itself; "schedule": one for SUM; "library": its call; "in_network": its call in switches;
            "reduce_scatter": the library's, of an allreduce whose result nobody needs whole.
        by: Algorithm or call.
        predicted_us: None where no model is known.
    """

    way: str
    by: str
    predicted_us: float | None


def compare_sum(plan: Plan, topology: Topology, operator: Operator) -> AsSum | None:
    """Return the ways to make a plan's reduction as one SUM, each with its time, and which is the least.

    Of an allreduce or reduce_scatter with bytes, of operators with this form; else None. The operator is taken at its
    default types.
    """
    layout = operator.default_layout(1)
    lowering = operator.sum_lowering(layout)
    if lowering is None or plan.collective.name not in COLLECTIVES or not plan.payload_bytes:
        return None
    if plan.order != "any":
        merge = Way("merge", plan.algorithm, plan.figures.predicted_us)
        return AsSum(0, lowering.takes_reference, (merge._asdict(),), "merge", _CANONICAL)
    own = sum_layout(operator.name, lowering, layout)
    row_items = sum(prod(field.row_shape) for field in own.fields)
    dtype, scattered = own.fields[0].dtype, plan.collective.name == "reduce_scatter"
    rows = plan.payload_bytes // layout.row_bytes
    blocks = plan.collective.parts if scattered else (rows,)
    parts = [block * row_items + tail_items(scattered=scattered) for block in blocks]
    added = make_plan(
        topology,
        plan.collective.name,
        payload_bytes=sum(parts) * dtype.itemsize,
        operator=SUM,
        objective=plan.objective,
        ports=plan.ports,
        port_model=plan.port_model,
        ranks=plan.ranks,
        parts=parts if scattered else None,
    )
    ways = [*_ways(plan, added, topology, str(dtype))]
    known = [way for way in ways if way.predicted_us is not None and way.way != "reduce_scatter"]
    least = min(known, key=lambda way: way.predicted_us or 0.0)
    return AsSum(
        added.payload_bytes,
        lowering.takes_reference,
        tuple(way._asdict() for way in ways),
        least.way,
        _why(least, known),
    )


def sum_notes(compared: AsSum | None) -> list[str]:
    """Return a comparison in words: each way with its time, which is the least, and what is not known."""
    if compared is None:
        return []
    if not compared.payload_bytes:
        return [compared.why]
    ways = [Way(**way) for way in compared.ways]
    reference = "relative to a reference that all ranks know, " if compared.takes_reference else ""
    times = [f"{words(way)} {way.predicted_us:.2f} us" for way in ways[1:] if way.predicted_us is not None]
    unknown = ", ".join(words(way) for way in ways if way.predicted_us is None)
    notes = [f"{reference}one SUM of {compared.payload_bytes} B: {', '.join(times)}; {compared.why}"]
    return notes + [f"what {unknown} takes is not known: measure it (tools/bench/merge.py)"] * bool(unknown)


def words(way: Way) -> str:
    """Return what a way is called in a note."""
    if way.way == "schedule":
        return "a schedule"
    if way.way == "reduce_scatter":
        return f"each rank's rows alone by {way.by}"
    return f"in the switches ({way.by})" if way.way == "in_network" else way.by


def _ways(plan: Plan, added: Plan, topology: Topology, dtype: str) -> Iterator[Way]:
    """The plan itself first, then what adds up."""
    shape = shape_of(added, topology, dtype)
    for way, own in (("merge", plan), ("schedule", added)):
        us = own.figures.predicted_us if shape is None else as_executed(own, shape, topology)[0]
        yield Way(way, own.algorithm, _rounded(us))
    name, size = plan.collective.name, added.payload_bytes
    if shape is not None:
        yield from _of_nccl(CALLS[name], shape, topology, name, size)
        if name == "allreduce":
            half_us = call_of(shape, topology, "reduce_scatter", size)[1]
            yield Way("reduce_scatter", CALLS["reduce_scatter"], _rounded(half_us))
    else:
        yield Way("library", "the SUM of MPI or gloo", None)
    hosts = {topology.by_id[end].host for end in plan.ranks}
    sharp = [device for device in topology.devices if device.in_network == "sharp"]
    if name == "allreduce" and len(hosts) > 1 and sharp and knows("sharp", SUM.name, [dtype]):
        yield Way("in_network", IN_NETWORK["sharp"].name, None)


def _of_nccl(call: str, shape: JobShape, topology: Topology, name: str, size: int) -> Iterator[Way]:
    """What NCCL's call takes without switches that reduce and with them."""
    choice, us = call_of(replace(shape, reduces=False), topology, name, size)
    yield Way("library", f"{call} ({choice.words})", _rounded(us))
    choice, us = call_of(shape, topology, name, size, IN_SWITCHES)
    if choice.algorithm in IN_SWITCHES:
        yield Way("in_network", choice.words, _rounded(us))


def _why(least: Way, known: list[Way]) -> str:
    merge = known[0]
    planned = f"the merge by this plan at {merge.predicted_us:.2f} us"
    alike = ", each counted as executed" if any(way.way == "library" for way in known) else ""
    if least is merge:
        return f"{planned} is least{alike}"
    return f"{planned} is not least: comm.prepare_sum takes {words(least)}{alike}"


def _rounded(us: float) -> float:
    return round(us, TIME_DIGITS)
