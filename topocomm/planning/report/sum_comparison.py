"""Comparison of a plan with the same reduction as one SUM, for operators that have this form.

What is added is longer, by the counts that say whether the sums are precise and by the digest of the reference. A
library's call may add it, also in switches; so may a schedule. Only NCCL has a model of what its call takes.
"""

from __future__ import annotations

from math import prod

from topocomm.operators.builtin import SUM
from topocomm.operators.operator import Operator
from topocomm.operators.sum_lowering import DIGEST_ITEMS, sum_layout
from topocomm.planning.cost.nccl_model import times_us
from topocomm.planning.native import communicator_of
from topocomm.planning.plan import Plan
from topocomm.planning.planner import plan as make_plan
from topocomm.topology.links import GROUP_LAUNCH_US
from topocomm.topology.model import Topology

IN_SWITCHES = "NVLS"
"""How NCCL names its algorithms that switches reduce in begin."""


def sum_notes(plan: Plan, topology: Topology, operator: Operator) -> list[str]:
    """Return notes on the reduction as one SUM: each way with its time, and which is the least; or why none is taken.

    For plans of an allreduce with bytes, of operators with this form. The operator is taken at its default types.
    """
    layout = operator.default_layout(1)
    lowering = operator.sum_lowering(layout)
    if lowering is None or plan.collective.name != "allreduce" or not plan.payload_bytes:
        return []
    if plan.order != "any":
        return ["canonical order is never taken as one SUM: a library adds up in an order of its own"]
    (dtype,) = {field.dtype for field in sum_layout(operator.name, lowering, layout).fields}
    rows = plan.payload_bytes // layout.row_bytes
    row_items = sum(prod(field.row_shape) for field in sum_layout(operator.name, lowering, layout).fields)
    items = rows * row_items + DIGEST_ITEMS
    size = items * dtype.itemsize
    added = make_plan(
        topology,
        "allreduce",
        payload_bytes=size,
        operator=SUM,
        objective=plan.objective,
        ports=plan.ports,
        port_model=plan.port_model,
        ranks=plan.ranks,
    )
    where = communicator_of(added, topology, str(dtype))
    launch_us = GROUP_LAUNCH_US if where is not None and not plan.launch_us else 0.0  # which NCCL's figures count too
    own_us = plan.figures.predicted_us + launch_us
    planned = f"the merge by this plan at {own_us:.2f} us{' with one launch' if launch_us else ''}"
    ways = {planned: own_us, "a schedule": added.figures.predicted_us + launch_us}
    if where is None:
        known = "what the SUM of MPI or gloo takes is not known: measure it (tools/bench/merge.py)"
    else:
        ways |= _library(times_us("allreduce", where, size))
        half = min(times_us("reduce_scatter", where, size).values())
        known = (
            f"ncclReduceScatter {half:.2f} us leaves the counts of other ranks' rows unknown: to decide alike, ranks "
            "need a second call"
        )
    least = min(ways, key=lambda name: ways[name])
    others = ", ".join(f"{name} {us:.2f} us" for name, us in ways.items() if name != planned)
    chosen = f"{planned} is least" if least == planned else f"{planned} is not least: comm.prepare_sum takes {least}"
    reference = "relative to a reference that all ranks know, " if lowering.takes_reference else ""
    return [f"{reference}one SUM of {size} B: {others}; {chosen}", known]


def _library(times: dict[str, float]) -> dict[str, float]:
    """The least time of NCCL's call without switches that reduce and with them."""
    ways = {}
    for name, inside in (("ncclAllReduce", False), ("in the switches", True)):
        own = {key: us for key, us in times.items() if key.startswith(IN_SWITCHES) == inside}
        if own:
            algorithm = min(own, key=lambda key: (own[key], key))
            ways[f"{name} ({algorithm})"] = own[algorithm]
    return ways
