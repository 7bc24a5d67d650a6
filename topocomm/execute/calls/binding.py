"""From a request to a prepared call: bind and plan, agree with all ranks, and only then set up.

A rank whose arguments are wrong takes part in the agreement all the same, so that every rank gets an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from topocomm.command_parser import did_you_mean
from topocomm.errors import MismatchError, OperatorError, PlanError, TopocommError
from topocomm.execute.calls.agreement import FIELD, SAME_ROWS, VALUE, disagreement
from topocomm.execute.calls.call_plans import Bound, Request, Shapes, launch_us_of, plan_for, work_of
from topocomm.execute.calls.prepared_call import PreparedCall
from topocomm.execute.calls.structure import Structure, describe, parts_of, shapes_of
from topocomm.execute.device.device_folds import NONE, fold_version
from topocomm.execute.device.device_library import Device
from topocomm.execute.device.device_values import field_in_words
from topocomm.execute.device.path_choice import choose_device_path
from topocomm.execute.host.call_engine import Span, Work
from topocomm.execute.host.canonical_nodes import LocalNodes
from topocomm.execute.host.engine_words import way_of
from topocomm.execute.liveness.exception_hook import show_on
from topocomm.execute.liveness.log import say
from topocomm.execute.liveness.waiting import BARRIER_WORDS
from topocomm.execute.transports.shared_memory import SharedArena
from topocomm.execute.transports.transport import AGREEMENT_TAG
from topocomm.operators.fingerprint import place_of
from topocomm.operators.layout import ROWS, Field
from topocomm.operators.operator import Operator, as_operator
from topocomm.planning.collectives import CARRYING, COLLECTIVES, IN_PAIRS, IN_PARTS, PARTS_GIVEN, PARTS_GOT, Collective
from topocomm.planning.plan import Plan
from topocomm.planning.proof.verify import verify
from topocomm.planning.schedule.schedule import split_rows

if TYPE_CHECKING:
    from topocomm.execute.session import Session

ROWS_CHARACTERS = 512
BARRIER = "allreduce max, value uint8 [1]"
"""The call that a barrier is, in words."""


def bind_here(session: Session, request: Request) -> Bound:
    """Bind a request to this rank's arrays.

    Raises:
        OperatorError: They do not fit the operator or the collective.
        PlanError: There is no such collective.
    """
    name = request.collective
    if name not in COLLECTIVES:
        near = did_you_mean(str(name), COLLECTIVES)
        raise PlanError(f"unknown collective {name!r}; expected one of {', '.join(COLLECTIVES)}{near}")
    operator = request.operator
    if operator is None and name in CARRYING:
        operator = carrier(request.like, by_rows=name if name in IN_PARTS else "")
    operator = as_operator(operator)
    if not isinstance(request.root, (int, np.integer)):
        raise PlanError(f"root {request.root!r}: expected the number of a rank, 0 to {session.size - 1}")
    structure = describe(operator, request.like)
    shapes = shapes_of(request.like, structure.names)
    if request.shards is not None:
        return _bind_shards(session, request.shards, operator, structure, shapes)
    layout = operator.layout(shapes)
    for field, (_, dtype) in shapes.items():
        if dtype.hasobject:
            raise OperatorError(
                f"{field_in_words(None if structure.bare else field)} holds Python objects ({dtype}); give numbers"
            )
    if name == "exscan":
        operator.identities(layout)  # on all ranks, though rank 0 alone needs it: one that does not fit is told
    whole = Span(0, layout.leading)
    bound = Bound(operator, structure, layout, whole, whole)
    return _bind_parts(session, request, bound) if name in IN_PARTS else bound


def _bind_shards(
    session: Session, shards: tuple[int, ...], operator: Operator, structure: Structure, shapes: Shapes
) -> Bound:
    own = shards[session.rank + 1] - shards[session.rank]
    for name, (shape, _) in shapes.items():
        if shape[:1] != (own,):
            raise OperatorError(
                f"canonical order: field {name!r} has shape {list(shape)}; expected its first axis to be the "
                f"{own} virtual shards {shards[session.rank]} to {shards[session.rank + 1]} of this rank"
            )
    layout = operator.layout({name: (shape[1:], dtype) for name, (shape, dtype) in shapes.items()})
    local = LocalNodes(operator, layout, shards, session.rank, tensors=structure.gives_tensors)
    return Bound(operator, structure, layout, Span(0, local.leading), Span(0, layout.leading), local=local)


def _bind_parts(session: Session, request: Request, bound: Bound) -> Bound:
    leading, counts = bound.layout.leading, request.rows
    if not leading:
        raise OperatorError(
            f"{request.collective} cuts values along axis 0, which operator {bound.operator.name!r} or "
            "the value does not have; give arrays with rows"
        )
    if request.collective in IN_PAIRS:
        return _bind_pairs(session, request, bound)
    gives = request.collective in PARTS_GIVEN
    if gives:
        counts = (leading[0],) * session.size if counts is None else counts
        total = sum(counts)
    else:
        total = leading[0]
        counts = tuple(rows for _, rows in split_rows(total, session.size)) if counts is None else counts
    whole_numbers = all(isinstance(count, (int, np.integer)) for count in counts)
    if not whole_numbers or len(counts) != session.size or min(counts) < 0 or sum(counts) != total:
        raise OperatorError(
            f"rows {list(counts)}: expected {session.size} counts, whole and none below 0, that add up to {total}, "
            "the length of axis 0"
        )
    item = prod(leading[1:])
    layout = replace(bound.layout, leading=(total, *leading[1:]))
    first = list(accumulate(counts, initial=0))[session.rank]
    own, whole = Span(first * item, (counts[session.rank], *leading[1:])), Span(0, layout.leading)
    value, result = (own, whole) if gives else (whole, own)
    if request.collective == "gather" and session.rank != request.root:
        result = Span(0, (0, *leading[1:]))
    return bound._replace(layout=layout, value=value, result=result, parts=tuple(count * item for count in counts))


def _bind_pairs(session: Session, request: Request, bound: Bound) -> Bound:
    """As `_bind_parts`; `rows` has the entries from each rank to each, those of one rank after the other."""
    leading, rank, size = bound.layout.leading, session.rank, session.size
    pairs = request.rows
    if pairs is None:
        pairs = tuple(rows for _, rows in split_rows(leading[0], size)) * size
    for peer in range(size):
        own = pairs[peer * size : (peer + 1) * size]
        if len(own) != size or min(own) < 0 or (peer == rank and sum(own) != leading[0]):
            raise OperatorError(
                f"rows of rank {peer}: expected {size} counts, whole and none below 0, that add up to the length of "
                f"axis 0 of its value; of sendrecv, a dest of 0 to {size - 1}"
            )
    item, starts = prod(leading[1:]), list(accumulate(pairs, initial=0))
    places = list(accumulate(pairs[rank::size], initial=0))
    stretches = zip(starts[rank:-1:size], places[:-1], strict=True)
    return bound._replace(
        layout=replace(bound.layout, leading=(starts[-1], *leading[1:])),
        value=Span(starts[rank * size] * item, leading),
        result=Span(0, (places[-1], *leading[1:]), tuple((first * item, at * item) for first, at in stretches)),
        parts=tuple(count * item for count in pairs),
    )


def prepare(session: Session, request: Request, arena: SharedArena) -> PreparedCall:
    """Bind and plan, agree with all ranks, and only then set up. A local error is agreed upon too.

    The call's shared memory is taken from `arena`, the same one of `Session.arenas` on all ranks.
    """
    operator: Any = request.operator
    known = operator is None or isinstance(operator, Operator)
    claim = {
        "collective": str(request.collective),
        "operator": getattr(operator, "name", "None") if known else type(operator).__name__,
    }
    arrays = ""
    session.recorder.begin(AGREEMENT_TAG)
    try:
        bound = bind_here(session, request)
        arrays = str(bound.layout)
        claim |= _claim_of(session, request, bound)
    except TopocommError as error:
        _give_up(session, claim, arrays, error)
    if bound.structure.device is not None and session.device_path is None:  # which a plan depends on
        _agree_on(session, claim, arrays)
        settle(session, bound.structure.device)
        session.recorder.begin(AGREEMENT_TAG)
    try:
        folds, no_folds = _device_folds(session, request, bound)
        plan = request.plan or plan_for(session, request, bound, launch_us_of(session, bound, folded=folds != NONE))
        _check_plan(session, plan, request, bound)
        if request.plan is not None and plan.native is not None:  # what is given is executed by its schedule
            plan = replace(plan, native=None)
        claim["plan"] = plan.digest[:16]
        tensors = bound.structure.gives_tensors
        claim["kernel"] = bound.operator.fold_version(bound.layout, tensors=tensors)
        if folds is not None:
            claim["device kernel"] = folds
    except TopocommError as error:
        _give_up(session, claim, arrays, error)
    name = _agree_on(session, claim, arrays, bound.operator)
    tag = session.next_tag(name, claim)
    say(session.rank, f"{name}: {plan.summary()}")
    work = replace(work_of(plan, bound, tag, session.rank), arena=arena)
    session.waiting.in_step |= {tag} if work.synchronises else set()
    with session.closing_on_error():
        if bound.structure.device is None:
            return _prepare_in_memory(session, work, bound, name)
        return _prepare_on_device(session, work, request, bound, no_folds)


def explained(session: Session, request: Request) -> Plan:
    """Return the plan of a request, without agreement."""
    bound = bind_here(session, request)
    folds, _ = _device_folds(session, request, bound)
    return plan_for(session, request, bound, launch_us_of(session, bound, folded=folds != NONE))


def _agree_on(session: Session, claim: Mapping[str, str], arrays: str, reduction: Operator | None = None) -> str:
    """Agree with all ranks on a call, if that is wanted; returns the call in words."""
    operator = "" if claim["operator"] == "None" else f" {claim['operator']}"
    name = f"{claim['collective']}{operator}{', ' * bool(arrays)}{arrays}"
    name += f" {BARRIER_WORDS}" * (name == BARRIER)
    if SAME_ROWS in claim:
        name += f", rows {claim[SAME_ROWS]}"
    if session.settings.check != "never":
        what = f"{name}, refused here" if "error" in claim else f"the first use of {name}"
        agree(session, {**claim, **session.on_behalf_of}, what, reduction)
    return name


def _rows_in_words(bound: Bound) -> str:
    """Entries of axis 0 that each rank gets, as `rows` gives them, cut off: where more differ, so do the plans."""
    item = max(1, prod(bound.layout.leading[1:]))
    return str([part // item for part in bound.parts or ()])[:ROWS_CHARACTERS]


def _claim_of(session: Session, request: Request, bound: Bound) -> dict[str, str]:
    """What a rank claims of a call that fits its arrays, beside the plan."""
    claim = {"memory": "host" if bound.structure.device is None else "device"}
    forms = bound.layout.forms
    claim |= forms if {*forms} == {VALUE} else {f"{FIELD}{name!r}": form for name, form in forms.items()}
    claim["root"], claim["order"] = str(request.root), request.order
    if request.collective in PARTS_GOT:
        claim[SAME_ROWS] = _rows_in_words(bound)
    return claim if request.collective in CARRYING else claim | _operator_in_words(session, bound)


def _operator_in_words(session: Session, bound: Bound) -> dict[str, str]:
    """What tells an operator from another one of its name and fields."""
    operator, layout = bound.operator, bound.layout
    try:
        values = operator.identities(layout)
        whole = [(f.name, np.asarray(values[f.name]).astype(f.dtype)) for f in layout.fields]
        identity = ", ".join(f"{name} {_digest(array) if array.size > 4 else array.tolist()}" for name, array in whole)
    except Exception as error:  # noqa: BLE001 - whatever the user's function raises: most calls need no identity
        identity = type(error).__name__
    fields = ", ".join(f"{f.name} [{', '.join(f.dims)}]" for f in operator.fields)
    words = {"fields": fields, "identity": identity, "commutative": str(operator.commutative)}
    return {**words, "rule": operator.rule} if session.same_python else words


def _digest(array: NDArray[Any]) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()[:16]


def _give_up(session: Session, claim: dict[str, str], arrays: str, problem: TopocommError) -> NoReturn:
    try:
        _agree_on(session, {**claim, "error": str(problem)}, arrays)
    except MismatchError as mismatch:
        if AGREEMENT_TAG in session.waiting.claims:  # the others make another call: they hear that this one refused
            show_on(problem, session.transport, session.rank)
            raise problem from None
        raise mismatch from None  # which has the words of the problem
    if session.settings.check == "never":
        session.fail(problem)  # the others do not know yet
    else:
        show_on(problem, session.transport, 0)
    raise problem


def settle(session: Session, device: Device) -> None:
    """Choose the device path if it is not chosen yet; collective."""
    with session.closing_on_error():
        session.device_path = choose_device_path(session, device)


def _device_folds(session: Session, request: Request, bound: Bound) -> tuple[str | None, str]:
    """Which folds there are on this rank's device, and why there are none; None for values in host memory."""
    device = bound.structure.device
    if device is None or session.device_path is None:
        return None, ""
    session.device_path.check(device)
    if request.collective in CARRYING:
        return "carries", ""
    return fold_version(bound.operator, bound.layout, device)


def _prepare_in_memory(session: Session, work: Work, bound: Bound, name: str) -> PreparedCall:
    """A call on values that all ranks have in host memory."""
    call = PreparedCall(session, work, bound.structure, bound.local)
    say(session.rank, f"{name}: {way_of(call.engines[0], call.transport)}")
    return call


def _prepare_on_device(session: Session, work: Work, request: Request, bound: Bound, no_folds: str) -> PreparedCall:
    """A call on values that all ranks have on devices; `no_folds` is why nothing folds them there, if so."""
    from topocomm.execute.device.device_call import DeviceCall
    from topocomm.execute.device.device_staging import StagedCall

    assert session.device_path is not None, "found out before the plan was made"
    peer = None if work.plan.native_call else session.device_path.peer_plan(work)
    if peer is None and (session.device_path.transport is None or no_folds):
        if no_folds:
            say(session.rank, f"{work.operator.name} is reduced in host memory: {no_folds}")
        return StagedCall(session, work, bound.structure, bound.local)
    shards = None if bound.local is None else request.shards
    return DeviceCall(session, work, bound.structure, session.device_path, peer, shards)


def agree(session: Session, claim: Mapping[str, str], what: str, reduction: Operator | None = None) -> None:
    """Close, and raise, where ranks claim different things. Every rank finds out, so nobody has to be told."""
    with session.closing_on_error():
        rule_at = place_of(reduction.combine) if reduction is not None and "rule" in claim else ""
        differ = disagreement(session.waiting, claim, what=what, rule_at=rule_at)
    if differ is not None:
        mismatch = MismatchError(f"rank {session.rank}: {differ}")
        session.fail(mismatch, tell=False)
        raise mismatch


def _check_plan(session: Session, plan: Plan, request: Request, bound: Bound) -> None:
    if not isinstance(plan, Plan):
        raise PlanError(
            f"plan: expected a topocomm.Plan, got {type(plan).__name__}; topocomm.Plan.load(path) reads a saved one"
        )
    layout, operator = bound.layout, bound.operator
    shards = request.shards or ((tuple(range(session.size + 1))) if request.order == "canonical" else ())
    wanted = Collective(request.collective, session.size, request.root, bound.parts or (), shards)
    if plan.collective != wanted:
        raise PlanError(
            f"the plan is for {plan.collective}, the call is {wanted}; plan for this one, with ranks=comm.places, or "
            "take comm.explain(...)"
        )
    if plan.topology_digest != session.topology.digest:
        raise PlanError(
            f"the plan is for another topology (digest {plan.topology_digest[:12]}, this machine has "
            f"{session.topology.digest[:12]}); plan for this one"
        )
    payload_bytes = wanted.counted(layout.rows) * layout.row_bytes
    if plan.payload_bytes != payload_bytes or plan.schedule.rows != layout.rows:
        raise PlanError(
            f"the plan is for {plan.payload_bytes} bytes in {plan.schedule.rows} rows, the value has "
            f"{payload_bytes} bytes in {layout.rows} rows; comm.explain(...) plans for a value at hand"
        )
    if plan.operator != operator.name:
        raise PlanError(f"the plan is for operator {plan.operator!r}, the call's is {operator.name!r}")
    if plan.ranks != session.places:
        raise PlanError(
            f"the plan has its ranks on {', '.join(plan.ranks[:8])}, this communicator on "
            f"{', '.join(session.places[:8])}; plan with ranks={list(session.places[:8])}"
        )
    if request.plan is not None:
        verify(plan.schedule, wanted, endpoints=plan.ranks, keep_order=not operator.commutative)


def carrier(x: Any, *, by_rows: str = "") -> Operator:
    """The operator that moves values like x unchanged.

    `by_rows` names a collective that joins or cuts them along axis 0, which all must have then.
    """
    parts = parts_of(x)
    if not parts:
        raise OperatorError(f"expected arrays to carry, got an empty {type(x).__name__}")
    shapes_of(x, tuple(parts))  # each is an array that can travel
    axes = [(name, len(getattr(part, "shape", ()))) for name, part in parts.items()]
    heads = {tuple(part.shape[:1]) for part in parts.values()}
    same_head = all(count > 0 for _, count in axes) and len(heads) == 1
    if by_rows and not same_head:
        raise OperatorError(
            f"{by_rows} {'cuts' if by_rows in PARTS_GOT else 'joins'} values along axis 0, which every array must "
            "have, of one length on a rank; give a scalar as x.reshape(1)"
        )
    if len(axes) == 1:
        return _copy_operator((Field(axes[0][0]),))
    named = [(name, tuple(f"{name}.{axis}" for axis in range(count))) for name, count in axes]
    return _copy_operator(tuple(Field(name, (ROWS, *own[1:]) if same_head else own) for name, own in named))


@lru_cache(256)
def _copy_operator(fields: tuple[Field, ...]) -> Operator:
    return Operator("copy", fields, lambda left, right: left, dict.fromkeys([f.name for f in fields], 0))
