"""From a request to a prepared call: bind and plan, agree with all ranks, and only then set up.

A rank whose arguments are wrong takes part in the agreement all the same, so that every rank gets an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from topocomm.errors import MismatchError, OperatorError, PlanError, TopocommError
from topocomm.execute.agreement import disagreement
from topocomm.execute.carrier import carrier
from topocomm.execute.executor import PreparedCall
from topocomm.execute.lanes import PARTED, Span, Work
from topocomm.execute.structure import Structure, describe, take
from topocomm.execute.transports.transport import AGREEMENT_TAG
from topocomm.operators.operator import Layout, Operator
from topocomm.planning.collectives import COLLECTIVES, Collective
from topocomm.planning.plan import Plan
from topocomm.planning.planner import make_plan
from topocomm.planning.verify import verify

if TYPE_CHECKING:
    from topocomm.execute.communicator import Communicator

CARRYING = ("broadcast", "allgather")


@dataclass(frozen=True)
class Request:
    """What a rank asks for.

    Attributes:
        collective: Its name.
        like: A value like those to come.
        operator: None for collectives that combine nothing.
        root: Of reduce and broadcast.
        rows: Entries of axis 0 by rank: what each gives to an all-gather, or gets from a reduce-scatter.
        plan: The plan to execute; None takes the planner's.
    """

    collective: str
    like: Any
    operator: Operator | None
    root: int = 0
    rows: tuple[int, ...] | None = None
    plan: Plan | None = None


class Bound(NamedTuple):
    """A request whose sizes are known."""

    operator: Operator
    structure: Structure
    layout: Layout
    """Of the whole payload."""
    value: Span
    result: Span
    parts: tuple[int, ...] | None
    """Rows of every rank's part, where the collective has parts."""


def bind_here(comm: Communicator, request: Request) -> Bound:
    """The request with this rank's arrays.

    Raises:
        OperatorError: They do not fit the operator or the collective.
        PlanError: There is no such collective.
    """
    name = request.collective
    if name not in COLLECTIVES:
        raise PlanError(f"unknown collective {name!r}; expected one of {', '.join(COLLECTIVES)}")
    operator = request.operator
    if operator is None and name in CARRYING:
        operator = carrier(request.like, by_rows=name == "allgather")
    if not isinstance(operator, Operator):
        raise OperatorError(f"expected an Operator such as topocomm.SUM, got {type(operator).__name__}")
    structure = describe(operator, request.like)
    arrays = take(request.like, structure.names)
    layout = operator.layout({name: (a.shape, a.dtype) for name, a in arrays.items()})
    whole = Span(0, layout.leading)
    if name not in PARTED:
        return Bound(operator, structure, layout, whole, whole, None)
    return _bind_parts(comm, request, Bound(operator, structure, layout, whole, whole, None))


def _bind_parts(comm: Communicator, request: Request, bound: Bound) -> Bound:
    leading, counts = bound.layout.leading, request.rows
    if not leading:
        raise OperatorError(
            f"{request.collective} cuts values along axis 0, which operator {bound.operator.name!r} or "
            "the value does not have; give arrays with rows"
        )
    if request.collective == "allgather":
        counts = (leading[0],) * comm.size if counts is None else counts
        total = sum(counts)
    else:
        total = leading[0]
        counts = _even(total, comm.size) if counts is None else counts
    if len(counts) != comm.size or min(counts) < 0 or sum(counts) != total:
        raise OperatorError(
            f"rows {list(counts)}: expected {comm.size} counts, none below 0, that add up to {total}, "
            "the length of axis 0"
        )
    item = prod(leading[1:])
    layout = replace(bound.layout, leading=(total, *leading[1:]))
    first = list(accumulate(counts, initial=0))[comm.rank]
    own, whole = Span(first * item, (counts[comm.rank], *leading[1:])), Span(0, layout.leading)
    value, result = (own, whole) if request.collective == "allgather" else (whole, own)
    return bound._replace(layout=layout, value=value, result=result, parts=tuple(count * item for count in counts))


def _even(total: int, ranks: int) -> tuple[int, ...]:
    edges = [total * rank // ranks for rank in range(ranks + 1)]
    return tuple(high - low for low, high in pairwise(edges))


def plan_for(comm: Communicator, request: Request, bound: Bound) -> Plan:
    """The plan of a request; made once."""
    layout, operator = bound.layout, bound.operator
    key = (request.collective, operator, layout.rows, layout.row_bytes, layout.splittable, request.root, bound.parts)
    if key not in comm.plans:
        comm.plans[key] = make_plan(
            comm.topology,
            request.collective,
            operator=operator,
            layout=layout,
            ranks=comm.places,
            root=request.root,
            parts=bound.parts,
        )
    return comm.plans[key]


def prepare(comm: Communicator, request: Request) -> PreparedCall:
    """Bind and plan, agree with all ranks, and only then set up. A local error is agreed upon too."""
    comm.recorder.begin(AGREEMENT_TAG)
    problem: TopocommError | None = None
    claim = {"collective": request.collective, "operator": getattr(request.operator, "name", str(request.operator))}
    try:
        bound = bind_here(comm, request)
        claim["arrays"] = str(bound.layout)
        plan = request.plan or plan_for(comm, request, bound)
        _check_plan(comm, plan, request, bound)
        claim["root"] = str(request.root)
        claim["plan"] = plan.digest[:16]
        tensors = bound.structure.is_torch
        claim["kernel"] = bound.operator.fold_version(bound.layout, tensors=tensors)
    except TopocommError as error:
        problem = error
        claim["error"] = str(error)
    name = f"{claim['collective']} {claim['operator']}, {claim.get('arrays', 'no arrays')}"
    if comm.settings.check != "never":
        agree(comm, claim, f"call {comm.prepared} ({name}), first use")
    if problem is not None:
        if comm.settings.check == "never":
            comm.fail(problem)  # the others do not know yet
        raise problem
    tag = comm.next_tag(name)
    work = Work(plan, bound.operator, bound.layout, tag, comm.rank, bound.value, bound.result, tensors)
    try:
        return PreparedCall(comm, work, bound.structure)
    except BaseException as error:
        comm.fail_with(error)
        raise


def agree(comm: Communicator, claim: Mapping[str, str], what: str) -> None:
    """Close, and raise, where ranks claim different things. Every rank finds out, so nobody has to be told."""
    try:
        differ = disagreement(comm.waiting, claim, what=what)
    except BaseException as error:
        comm.fail_with(error)
        raise
    if differ is not None:
        mismatch = MismatchError(f"rank {comm.rank}: {differ}")
        comm.fail(mismatch, tell=False)
        raise mismatch


def _check_plan(comm: Communicator, plan: Plan, request: Request, bound: Bound) -> None:
    layout, operator = bound.layout, bound.operator
    wanted = Collective(request.collective, comm.size, request.root, bound.parts or ())
    if plan.collective != wanted:
        raise PlanError(f"the plan is for {plan.collective}, the call is {wanted}")
    if plan.topology_digest != comm.topology.digest:
        raise PlanError(
            f"the plan is for another topology (digest {plan.topology_digest[:12]}, this machine has "
            f"{comm.topology.digest[:12]}); plan for this one"
        )
    if plan.payload_bytes != layout.rows * layout.row_bytes or plan.schedule.rows != layout.rows:
        raise PlanError(
            f"the plan is for {plan.payload_bytes} bytes in {plan.schedule.rows} rows, the value has "
            f"{layout.rows * layout.row_bytes} bytes in {layout.rows} rows"
        )
    if plan.operator != operator.name:
        raise PlanError(f"the plan is for operator {plan.operator!r}, the call's is {operator.name!r}")
    if plan.ranks != comm.places:
        raise PlanError(
            f"the plan has its ranks on {', '.join(plan.ranks[:8])}, this communicator on "
            f"{', '.join(comm.places[:8])}; plan with ranks={list(comm.places[:8])}"
        )
    if request.plan is not None:
        verify(plan.schedule, wanted, endpoints=plan.ranks, keep_order=not operator.commutative)
