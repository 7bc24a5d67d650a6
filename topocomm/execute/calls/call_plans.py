"""A call as a rank asks for it, the same with its sizes, and its plan.

Between devices every group of messages is the launch of a kernel, and serves many peers at once. So those plans count
launches, and give a rank as many ports as it has peers on its host.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from topocomm.execute.calls.structure import Structure
from topocomm.execute.host.call_engine import Span, Work
from topocomm.execute.host.canonical_nodes import LocalNodes
from topocomm.operators.layout import Layout
from topocomm.operators.operator import Operator
from topocomm.planning import request as planning_request
from topocomm.planning.collectives import Collective, shards_of, whole_number, whole_numbers
from topocomm.planning.plan import Plan
from topocomm.planning.planner import make_plan
from topocomm.planning.request import port_model_of
from topocomm.planning.schedule.transforms import unrolled
from topocomm.topology.links import GROUP_LAUNCH_US

if TYPE_CHECKING:
    from topocomm.execute.session import Session

Shapes = dict[str, tuple[tuple[int, ...], Any]]


@dataclass(frozen=True)
class Request:
    """A call as a rank requests it.

    Attributes:
        collective: Its name.
        like: A value like those to come.
        operator: None for collectives that combine nothing.
        root: Of reduce, broadcast, gather and scatter.
        rows: Entries of axis 0 by rank: what each gives (allgather, gather) or gets (reduce_scatter, scatter).
            Of alltoall by pair: from rank 0 to each, from rank 1 to each, and so on.
        order: "any" or "canonical".
        shards: Of canonical order, the first virtual shard of every rank and the end of the last; None: one a rank.
        plan: The plan to execute; None takes the planner's.
    """

    collective: str
    like: Any
    operator: Operator | None
    root: int = 0
    rows: tuple[int, ...] | None = None
    order: str = "any"
    shards: tuple[int, ...] | None = None
    plan: Plan | None = None


class Bound(NamedTuple):
    """A request with known sizes."""

    operator: Operator
    structure: Structure
    layout: Layout
    """Layout of the whole payload."""
    value: Span
    result: Span
    parts: tuple[int, ...] | None = None
    """Rows of every part, if the collective has parts."""
    local: LocalNodes | None = None
    """Folds this rank's virtual shards, if it has several."""


MOST_PLANS = 1024
"""Plans that a communicator keeps, tens of KB each: twice the calls, so that one made again is not planned again."""


def plan_for(session: Session, request: Request, bound: Bound, launch_us: float | None) -> Plan:
    """Return the plan of a request; made once, unless it was out of use for long.

    `launch_us` is the cost of starting a group of messages between devices; None: the values move in host memory.
    """
    layout, operator = bound.layout, bound.operator
    which = (request.collective, request.root, bound.parts, request.order, request.shards)
    values = (layout.rows, layout.row_bytes, layout.splittable, tuple(str(field.dtype) for field in layout.fields))
    key = (*which, operator, *values, launch_us, session.device_path is None)
    plan = session.plans.pop(key, None) or _make(session, request, bound, launch_us)
    session.plans[key] = plan
    if len(session.plans) > MOST_PLANS:
        del session.plans[next(iter(session.plans))]
    return plan


def _make(session: Session, request: Request, bound: Bound, launch_us: float | None) -> Plan:
    layout, topology, places, transport = bound.layout, session.topology, session.places, session.transport
    shards = shards_of(request.order, len(places), request.shards)
    root, parts = whole_number("root", request.root), whole_numbers("parts", bound.parts or ())
    collective = Collective(request.collective, len(places), root, parts, shards)
    planned = planning_request.Request(
        collective, bound.operator, layout, tuple(places), "auto", 1, port_model_of("auto")
    )
    if launch_us is None:
        one_memory = transport.size > 1 and len(set(transport.hosts)) == 1
        return make_plan(topology, replace(planned, cores=transport.cores if one_memory else 0))
    launched = replace(planned, launch_us=launch_us, native=True)
    every = sorted({1, planning_request.group_ports(topology, places)})  # several: fewer rounds; one: often fewer bytes
    plans = [make_plan(topology, replace(launched, ports=ports)) for ports in every]
    return settled(session, min(plans, key=lambda plan: (plan.figures.predicted_us, plan.rounds)), bound)


def settled(session: Session, plan: Plan, bound: Bound) -> Plan:
    """Return the plan without a library's collective that the device path does not have, or does not choose.

    Where one kernel runs the whole call, that is one launch for all rounds: the library's collective is not chosen.
    Before the first call with values on devices has chosen the path, the plan is as the planner has it.
    """
    path = session.device_path
    if plan.native is None or path is None:
        return plan
    name, dtype = plan.collective.name, plan.native.dtype
    if path.transport is None or path.transport.native(name, dtype, plan.operator) is None:
        return replace(plan, native=None)
    if not plan.native.chosen or path.peer is None:
        return plan
    if path.peer_plan(work_of(plan, bound, 0, session.rank)) is None:
        return plan
    return replace(plan, native=replace(plan.native, chosen=False, why=f"one kernel runs the call; {plan.native.why}"))


def work_of(plan: Plan, bound: Bound, tag: int, rank: int) -> Work:
    """Return the work of a call on one rank."""
    schedule, tensors = unrolled(plan.schedule), bound.structure.gives_tensors
    return Work(plan, schedule, bound.operator, bound.layout, tag, rank, bound.value, bound.result, tensors)


def launch_us_of(session: Session, bound: Bound, *, folded: bool = True) -> float | None:
    """Return the cost of starting a group of messages; None if values move in host memory.

    The same for everything that moves device memory, so that plans, and with them bits, do not depend on what does.
    Before the first call with values on devices has found that out, as if something did. `folded` says whether anything
    folds the call's values on the device.
    """
    staged = session.device_path is not None and session.device_path.in_flight is None
    if bound.structure.device is None or staged or not folded:
        return None
    known = session.topology.launch_us
    return GROUP_LAUNCH_US if known is None else known
