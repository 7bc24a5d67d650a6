"""From a request to a prepared call: bind and plan, agree with all ranks, and only then set up.

A rank whose arguments are wrong takes part in the agreement all the same, so that every rank gets an error.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from topocomm.errors import MismatchError, OperatorError, PlanError, TopocommError
from topocomm.execute.agreement import disagreement
from topocomm.execute.carrier import carrier
from topocomm.execute.device import Device
from topocomm.execute.device_folds import NONE, fold_version
from topocomm.execute.device_way import find_way
from topocomm.execute.executor import PreparedCall
from topocomm.execute.lanes import Span, Work
from topocomm.execute.local_nodes import LocalNodes
from topocomm.execute.log import say
from topocomm.execute.plans import launch_us_of, plan_for
from topocomm.execute.structure import Structure, describe, shapes_of
from topocomm.execute.transports.transport import AGREEMENT_TAG
from topocomm.operators.operator import Layout, Operator, as_operator
from topocomm.planning.collectives import CARRYING, COLLECTIVES, IN_PARTS, Collective
from topocomm.planning.plan import Plan
from topocomm.planning.schedule import split_rows
from topocomm.planning.transforms import unrolled
from topocomm.planning.verify import verify

if TYPE_CHECKING:
    from topocomm.execute.communicator import Communicator

Shapes = dict[str, tuple[tuple[int, ...], Any]]


@dataclass(frozen=True)
class Request:
    """What a rank asks for.

    Attributes:
        collective: Its name.
        like: A value like those to come.
        operator: None for collectives that combine nothing.
        root: Of reduce and broadcast.
        rows: Entries of axis 0 by rank: what each gives to an all-gather, or gets from a reduce-scatter.
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

    @property
    def which(self) -> tuple[Hashable, ...]:
        """What tells calls with equal values apart."""
        return (self.collective, self.operator, self.root, self.rows, self.order, self.shards)


class Bound(NamedTuple):
    """A request whose sizes are known."""

    operator: Operator
    structure: Structure
    layout: Layout
    """Of the whole payload."""
    value: Span
    result: Span
    parts: tuple[int, ...] | None = None
    """Rows of every rank's part, where the collective has parts."""
    local: LocalNodes | None = None
    """What folds this rank's virtual shards, where it has several."""


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
    operator = as_operator(operator)
    if not isinstance(request.root, (int, np.integer)):
        raise PlanError(f"root {request.root!r}: expected the number of a rank, 0 to {comm.size - 1}")
    structure = describe(operator, request.like)
    shapes = shapes_of(request.like, structure.names)
    if request.shards is not None:
        return _bind_shards(comm, request.shards, operator, structure, shapes)
    layout = operator.layout(shapes)
    for field, (_, dtype) in shapes.items():
        if dtype.hasobject:
            raise OperatorError(f"field {field!r} holds Python objects ({dtype}); give numbers")
    whole = Span(0, layout.leading)
    bound = Bound(operator, structure, layout, whole, whole)
    return _bind_parts(comm, request, bound) if name in IN_PARTS else bound


def _bind_shards(
    comm: Communicator, shards: tuple[int, ...], operator: Operator, structure: Structure, shapes: Shapes
) -> Bound:
    """Values that have their virtual shards along a first axis of their own."""
    own = shards[comm.rank + 1] - shards[comm.rank]
    for name, (shape, _) in shapes.items():
        if shape[:1] != (own,):
            raise OperatorError(
                f"canonical order: field {name!r} has shape {list(shape)}; expected its first axis to be the "
                f"{own} virtual shards {shards[comm.rank]} to {shards[comm.rank + 1]} of this rank"
            )
    layout = operator.layout({name: (shape[1:], dtype) for name, (shape, dtype) in shapes.items()})
    local = LocalNodes(operator, layout, shards, comm.rank, tensors=structure.gives_tensors)
    return Bound(operator, structure, layout, Span(0, local.leading), Span(0, layout.leading), local=local)


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
        counts = tuple(rows for _, rows in split_rows(total, comm.size)) if counts is None else counts
    whole_numbers = all(isinstance(count, (int, np.integer)) for count in counts)
    if not whole_numbers or len(counts) != comm.size or min(counts) < 0 or sum(counts) != total:
        raise OperatorError(
            f"rows {list(counts)}: expected {comm.size} counts, whole and none below 0, that add up to {total}, "
            "the length of axis 0"
        )
    item = prod(leading[1:])
    layout = replace(bound.layout, leading=(total, *leading[1:]))
    first = list(accumulate(counts, initial=0))[comm.rank]
    own, whole = Span(first * item, (counts[comm.rank], *leading[1:])), Span(0, layout.leading)
    value, result = (own, whole) if request.collective == "allgather" else (whole, own)
    return bound._replace(layout=layout, value=value, result=result, parts=tuple(count * item for count in counts))


def _named(operator: Any) -> str:
    """The name of an operator, the same on all ranks for what is none."""
    if operator is None or isinstance(operator, Operator):
        return getattr(operator, "name", "None")
    return type(operator).__name__


def prepare(comm: Communicator, request: Request) -> PreparedCall:
    """Bind and plan, agree with all ranks, and only then set up. A local error is agreed upon too."""
    claim = {"collective": str(request.collective), "operator": _named(request.operator)}
    comm.recorder.begin(AGREEMENT_TAG)
    try:
        bound = bind_here(comm, request)
        claim["memory"] = "host" if bound.structure.device is None else "device"
        claim["arrays"] = str(bound.layout)
        claim["root"], claim["order"] = str(request.root), request.order
    except TopocommError as error:
        _give_up(comm, claim, error)
    if bound.structure.device is not None and comm.way is None:  # what moves the bytes is what a plan is made for
        _agree_on(comm, claim)
        settle(comm, bound.structure.device)
        comm.recorder.begin(AGREEMENT_TAG)
    try:
        folds, no_folds = _device_folds(comm, request, bound)
        plan = request.plan or plan_for(comm, request, bound, launch_us_of(comm, bound, folded=folds != NONE))
        _check_plan(comm, plan, request, bound)
        if request.plan is not None and plan.native is not None:  # what is given is executed by its schedule
            plan = replace(plan, native=None)
        claim["plan"] = plan.digest[:16]
        tensors = bound.structure.gives_tensors
        claim["kernel"] = bound.operator.fold_version(bound.layout, tensors=tensors)
        if folds is not None:
            claim["device kernel"] = folds
    except TopocommError as error:
        _give_up(comm, claim, error)
    name = _agree_on(comm, claim)
    tag = comm.next_tag(name)
    say(comm.rank, f"{name}: {plan.summary()}")
    schedule = unrolled(plan.schedule)
    work = Work(plan, schedule, bound.operator, bound.layout, tag, comm.rank, bound.value, bound.result, tensors)
    try:
        if bound.structure.device is None:
            return PreparedCall(comm, work, bound.structure, bound.local)
        return _prepare_on_device(comm, work, request, bound, no_folds)
    except BaseException as error:
        comm.fail_with(error)
        raise


def explained(comm: Communicator, request: Request) -> Plan:
    """The plan of a request, without agreement."""
    bound = bind_here(comm, request)
    folds, _ = _device_folds(comm, request, bound)
    return plan_for(comm, request, bound, launch_us_of(comm, bound, folded=folds != NONE))


def _agree_on(comm: Communicator, claim: Mapping[str, str]) -> str:
    """Agree with all ranks on a call, if that is wanted; returns the call in words."""
    name = f"{claim['collective']} {claim['operator']}, {claim.get('arrays', 'no arrays')}"
    if comm.settings.check != "never":
        agree(comm, claim, f"the first use of {name}")
    return name


def _give_up(comm: Communicator, claim: dict[str, str], problem: TopocommError) -> NoReturn:
    """Raise what is wrong here, or what all ranks find wrong."""
    _agree_on(comm, {**claim, "error": str(problem)})
    if comm.settings.check == "never":
        comm.fail(problem)  # the others do not know yet
    raise problem


def settle(comm: Communicator, device: Device) -> None:
    """Find out how values on devices travel, where that is not known; collective."""
    try:
        comm.way = find_way(comm, device)
    except BaseException as error:
        comm.fail_with(error)
        raise


def _device_folds(comm: Communicator, request: Request, bound: Bound) -> tuple[str | None, str]:
    """Which folds there are on this rank's device, and why there are none; None for values in host memory."""
    device = bound.structure.device
    if device is None or comm.way is None:
        return None, ""
    comm.way.check(device)
    if request.collective in CARRYING:
        return "carries", ""
    return fold_version(bound.operator, bound.layout, device)


def _prepare_on_device(comm: Communicator, work: Work, request: Request, bound: Bound, no_folds: str) -> PreparedCall:
    """A call on values that all ranks have on devices; `no_folds` is why nothing folds them there, if so."""
    from topocomm.execute.device_call import DeviceCall
    from topocomm.execute.device_staging import StagedCall

    assert comm.way is not None, "found out before the plan was made"
    peer = None if work.plan.native_call else comm.way.peer_plan(work)
    if peer is None and (comm.way.wire is None or no_folds):
        if no_folds:
            say(comm.rank, f"{work.operator.name} is reduced in host memory: {no_folds}")
        return StagedCall(comm, work, bound.structure, bound.local)
    shards = None if bound.local is None else request.shards
    return DeviceCall(comm, work, bound.structure, comm.way, peer, shards)


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
    if not isinstance(plan, Plan):
        raise PlanError(
            f"plan: expected a topocomm.Plan, got {type(plan).__name__}; topocomm.Plan.load(path) reads a saved one"
        )
    layout, operator = bound.layout, bound.operator
    shards = request.shards or ((tuple(range(comm.size + 1))) if request.order == "canonical" else ())
    wanted = Collective(request.collective, comm.size, request.root, bound.parts or (), shards)
    if plan.collective != wanted:
        raise PlanError(
            f"the plan is for {plan.collective}, the call is {wanted}; plan for this one, with ranks=comm.places, or "
            "take comm.explain(...)"
        )
    if plan.topology_digest != comm.topology.digest:
        raise PlanError(
            f"the plan is for another topology (digest {plan.topology_digest[:12]}, this machine has "
            f"{comm.topology.digest[:12]}); plan for this one"
        )
    if plan.payload_bytes != layout.rows * layout.row_bytes or plan.schedule.rows != layout.rows:
        raise PlanError(
            f"the plan is for {plan.payload_bytes} bytes in {plan.schedule.rows} rows, the value has "
            f"{layout.rows * layout.row_bytes} bytes in {layout.rows} rows; comm.explain(...) plans for a value at hand"
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
