"""The plan of a call, made for what moves its bytes.

Between devices every group of messages is the launch of a kernel, and takes messages to many peers at once. So those
plans count launches, and give a rank as many ports as it has peers on its host.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from topocomm.execute.lanes import Work
from topocomm.planning.plan import Plan
from topocomm.planning.planner import make_plan
from topocomm.planning.transforms import unrolled
from topocomm.topology.links import GROUP_LAUNCH_US

if TYPE_CHECKING:
    from topocomm.execute.communicator import Communicator
    from topocomm.execute.preparing import Bound, Request

GROUP_PEERS = 7
"""Peers that one group serves where hosts have fewer GPUs: as on a host of eight. More messages at once share NICs."""


def plan_for(comm: Communicator, request: Request, bound: Bound, launch_us: float | None) -> Plan:
    """The plan of a request; made once.

    Args:
        comm: The communicator.
        request: What is asked for.
        bound: The same with its sizes.
        launch_us: What starting a group of messages between devices costs; None: the values move in host memory.
    """
    layout, operator = bound.layout, bound.operator
    which = (request.collective, request.root, bound.parts, request.order, request.shards)
    values = (layout.rows, layout.row_bytes, layout.splittable, tuple(str(field.dtype) for field in layout.fields))
    key = (*which, operator, *values, launch_us, comm.way is None)
    if key not in comm.plans:
        make = partial(
            make_plan,
            comm.topology,
            request.collective,
            operator=operator,
            layout=layout,
            ranks=comm.places,
            root=request.root,
            parts=bound.parts,
            order=request.order,
            shards=request.shards,
        )
        if launch_us is None:
            comm.plans[key] = make(cores=_cores(comm), launch_us=0.0)
        else:  # with several ports fewer rounds, with one often fewer bytes
            every = sorted({1, _group_ports(comm)})
            made = [make(ports=ports, launch_us=launch_us, native=True) for ports in every]
            best = min(made, key=lambda plan: (plan.figures.predicted_us, plan.rounds))
            comm.plans[key] = settled(comm, best, bound)
    return comm.plans[key]


def settled(comm: Communicator, plan: Plan, bound: Bound) -> Plan:
    """The plan without a library's collective that this communicator's way does not have, or does not choose.

    Where one kernel runs the whole call, that is one launch for all rounds: the library's collective is not chosen.
    Before the first call with values on devices has found the way, the plan is as the planner has it.
    """
    way = comm.way
    if plan.native is None or way is None:
        return plan
    name, dtype = plan.collective.name, plan.native.dtype
    if way.wire is None or way.wire.native(name, dtype, plan.operator) is None:
        return replace(plan, native=None)
    if not plan.native.chosen or way.peer is None:
        return plan
    tensors = bound.structure.gives_tensors
    schedule = unrolled(plan.schedule)
    work = Work(plan, schedule, bound.operator, bound.layout, 0, comm.rank, bound.value, bound.result, tensors)
    if way.peer_plan(work) is None:
        return plan
    return replace(plan, native=replace(plan.native, chosen=False, why=f"one kernel runs the call; {plan.native.why}"))


def launch_us_of(comm: Communicator, bound: Bound, *, folded: bool = True) -> float | None:
    """What starting a group of messages costs a call; None where its values move in host memory.

    The same for everything that moves device memory, so that plans, and with them bits, do not depend on what does.
    Before the first call with values on devices has found that out, as if something did.

    Args:
        comm: The communicator.
        bound: The call.
        folded: Whether anything folds its values on the device.
    """
    staged = comm.way is not None and comm.way.flights is None
    if bound.structure.device is None or staged or not folded:
        return None
    known = comm.topology.launch_us
    return GROUP_LAUNCH_US if known is None else known


def _group_ports(comm: Communicator) -> int:
    by_id = comm.topology.by_id
    most = max(Counter(by_id[place].host for place in comm.places).values())
    return max(1, min(comm.size - 1, max(most - 1, GROUP_PEERS)))


def _cores(comm: Communicator) -> int:
    """Cores of the ranks together, if they share one memory."""
    transport = comm.transport
    return transport.cores if transport.size > 1 and len(set(transport.hosts)) == 1 else 0
