"""Cases in which one rank, the odd one, makes another call than the rest, each on its own communicator.

A case is a function of (comm, odd) that ends with an error on every rank. `ready` prepares calls for some.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from attention import LOGSUMEXP
from topocomm import AFFINE, MAX, SUM, Communicator, Field, Operator, Plan, PreparedCall
from topocomm.planning.collectives import collective_of
from topocomm.planning.planner import every_plan
from topocomm.planning.request import on_every_endpoint

Way = Callable[[Communicator, bool], Any]
A, B = np.zeros(4), np.zeros((5, 3))
ONE: Any = np.float64(1)
"""A value without an axis, which type checkers would refuse where there must be one."""


class Two(NamedTuple):
    """Two prepared calls."""

    a: PreparedCall
    b: PreparedCall


def ready(comm: Communicator) -> Two:
    """Two calls that every rank has prepared, and made once."""
    two = Two(
        comm.prepare("allreduce", like=A, operator=SUM),
        comm.prepare("allreduce", like=B, operator=MAX),
    )
    two.a(A)
    two.b(B)
    return two


def partial(rows: int = 4, dim: int = 3) -> dict[str, Any]:
    """A value of LOGSUMEXP."""
    return {"out": np.zeros((rows, dim), np.float32), "lse": np.zeros(rows, np.float32)}


def plan_of(comm: Communicator, which: int) -> Plan:
    """One of several plans of the same call."""
    layout = SUM.layout({"value": (A.shape, A.dtype)})
    collective = collective_of("allreduce", len(comm.topology.endpoints), layout.rows)
    plans = every_plan(comm.topology, on_every_endpoint(comm.topology, collective, SUM, layout))
    return [plan for plan in plans if plan.ranks == comm.places][which]


def read_only() -> Any:
    """An array that cannot be written."""
    out = A.copy()
    out.flags.writeable = False
    return out


def sums(name: str, *, wide: bool = False, factor: int = 1, identity: int = 0) -> Operator:
    """An operator of the user's."""
    dims = ("*rows", "dim") if wide else ("*rows",)
    return Operator(
        name, (Field("value", dims),), lambda a, b: {"value": (a["value"] + b["value"]) * factor}, identity, True
    )


def checking(comm: Communicator, check: str) -> Communicator:
    """Another communicator of the same ranks, set up with this TOPOCOMM_CHECK."""
    before = os.environ.get("TOPOCOMM_CHECK")
    os.environ["TOPOCOMM_CHECK"] = check
    try:
        return Communicator.from_mpi(MPI.COMM_WORLD, comm.topology)
    finally:
        del os.environ["TOPOCOMM_CHECK"]
        os.environ |= {} if before is None else {"TOPOCOMM_CHECK": before}


def with_always(comm: Communicator, odd: bool) -> None:
    """Rank 1 alone proves every call."""
    checking(comm, "always" if odd else "first")


def all_always(comm: Communicator, odd: bool) -> None:
    """All prove every call, and differ in a known one."""
    with checking(comm, "always") as other:
        other.allreduce(A, SUM)
        other.allreduce(B, SUM)
        other.allreduce(B if odd else A, SUM)


def handles(comm: Communicator, odd: bool) -> None:
    """Handles begun in another order, each awaited before the next."""
    two = ready(comm)
    for call, x in ((two.b, B), (two.a, A))[:: 1 if odd else -1]:
        call.start(x).wait()


def one_handle_less(comm: Communicator, odd: bool) -> None:
    """One rank begins one call of two."""
    two = ready(comm)
    begun = [two.a.start(A)] + ([] if odd else [comm.prepare("scan", like=A, operator=SUM).start(A)])
    for handle in begun:
        handle.wait()


def tested_handles(comm: Communicator, odd: bool) -> None:
    """Other handles, polled."""
    two = ready(comm)
    handle = comm.prepare("allreduce", like=B, operator=MAX)
    begun = two.a.start(A) if odd else handle.start(B)
    while not begun.test():
        pass


def shift_against_shift(comm: Communicator, odd: bool) -> None:
    """Shifts of different numbers of messages."""
    comm.prepare_shift(1 + odd)


def shift_against_call(comm: Communicator, odd: bool) -> None:
    """A prepared shift against a prepared call."""
    two = ready(comm)
    shift = comm.prepare_shift()
    if odd:
        two.a(A)
    else:
        shift.start([np.zeros(8, np.uint8)], [np.zeros(8, np.uint8)])
        shift.wait()


def prepared_plans(comm: Communicator, odd: bool) -> None:
    """Different plans of the same call."""
    comm.prepare("allreduce", like=A, operator=SUM, plan=plan_of(comm, int(odd)))


def orders(comm: Communicator, odd: bool) -> None:
    """Known calls in another order."""
    for x in (A, B, *((B, A) if odd else (A, B))):
        comm.allreduce(x, SUM)


def either(odd_way: Callable[[Communicator], Any], way: Callable[[Communicator], Any], *, known: bool = False) -> Way:
    """A way whose ranks make one of two calls; `known` ones were made by all before, in both forms."""

    def body(comm: Communicator, odd: bool) -> None:
        if known:
            odd_way(comm)
            way(comm)
        (odd_way if odd else way)(comm)

    return body


def after_ready(odd_way: Callable[[Communicator, Two], Any], way: Callable[[Communicator, Two], Any]) -> Way:
    """A way whose ranks have two prepared calls."""

    def body(comm: Communicator, odd: bool) -> None:
        two = ready(comm)
        (odd_way if odd else way)(comm, two)

    return body


def several(*steps: Callable[[], Any]) -> None:
    """One after the other."""
    for step in steps:
        step()


def fails(comm: Communicator) -> None:
    """The program's own exception."""
    raise KeyError("planted")


WAYS: dict[str, Way] = {
    "shape": either(lambda c: c.allreduce(np.zeros(7), SUM), lambda c: c.allreduce(np.zeros(6), SUM)),
    "dimensions": either(lambda c: c.allreduce(np.zeros((3, 2)), SUM), lambda c: c.allreduce(np.zeros(6), SUM)),
    "no elements": either(lambda c: c.allreduce(np.zeros(0), SUM), lambda c: c.allreduce(np.zeros(6), SUM)),
    "dtype": either(lambda c: c.allreduce(A.astype(np.float32), SUM), lambda c: c.allreduce(A, SUM)),
    "signedness": either(
        lambda c: c.allreduce(np.zeros(4, np.uint32), SUM), lambda c: c.allreduce(A.astype("i4"), SUM)
    ),
    "dtype unknown": either(lambda c: c.allreduce(A.astype(object), SUM), lambda c: c.allreduce(A, SUM)),
    "operator": either(lambda c: c.allreduce(A, MAX), lambda c: c.allreduce(A, SUM)),
    "operator's name": either(lambda c: c.allreduce(A, sums("one")), lambda c: c.allreduce(A, sums("other"))),
    "operator's fields": either(
        lambda c: c.allreduce(B, sums("same", wide=True)), lambda c: c.allreduce(B, sums("same"))
    ),
    "operator's rule": either(lambda c: c.allreduce(A, sums("own", factor=2)), lambda c: c.allreduce(A, sums("own"))),
    "operator's identity": either(
        lambda c: c.allreduce(A, sums("own", identity=1)), lambda c: c.allreduce(A, sums("own"))
    ),
    "no operator": either(lambda c: c.prepare("allreduce", like=A), lambda c: c.allreduce(A, SUM)),
    "collective": either(lambda c: c.reduce(A, SUM), lambda c: c.allreduce(A, SUM)),
    "scan against exscan": either(lambda c: c.scan(A, SUM), lambda c: c.exscan(A, SUM)),
    "unknown collective": either(lambda c: c.prepare("alltoall", like=A), lambda c: c.prepare("broadcast", like=A)),
    "root of reduce": either(lambda c: c.reduce(A, SUM, root=1), lambda c: c.reduce(A, SUM, root=0)),
    "root of broadcast": either(lambda c: c.broadcast(A, root=1), lambda c: c.broadcast(A, root=0)),
    "root out of range": either(lambda c: c.broadcast(A, root=99), lambda c: c.broadcast(A, root=0)),
    "shape off the root": either(lambda c: c.broadcast(np.zeros(9)), lambda c: c.broadcast(A)),
    "rows of reduce_scatter": either(
        lambda c: c.reduce_scatter(B, SUM, rows=[5, *[0] * (c.size - 1)]), lambda c: c.reduce_scatter(B, SUM)
    ),
    "rows that do not add up": either(
        lambda c: c.reduce_scatter(B, SUM, rows=[1] * c.size), lambda c: c.reduce_scatter(B, SUM)
    ),
    "too few rows": either(lambda c: c.reduce_scatter(B, SUM, rows=[5]), lambda c: c.reduce_scatter(B, SUM)),
    "no axis to scatter": either(lambda c: c.reduce_scatter(ONE, SUM), lambda c: c.reduce_scatter(B, SUM)),
    "no axis to gather": either(lambda c: c.allgather(ONE), lambda c: c.allgather(A)),
    "row width of allgather": either(lambda c: c.allgather(B[:, :2]), lambda c: c.allgather(B)),
    "dtype of allgather": either(lambda c: c.allgather(B.astype("f4")), lambda c: c.allgather(B)),
    "order": either(lambda c: c.allreduce(A, SUM, order="canonical"), lambda c: c.allreduce(A, SUM)),
    "shards that overlap": either(
        lambda c: c.allreduce(np.zeros((2, 4)), SUM, order="canonical", shards=(0, 2)),
        lambda c: c.allreduce(np.zeros((1, 4)), SUM, order="canonical", shards=(c.rank, c.rank + 1)),
    ),
    "shards on one rank only": either(
        lambda c: c.allreduce(np.zeros((1, 4)), SUM, order="canonical", shards=(1, 2)),
        lambda c: c.allreduce(A, SUM, order="canonical"),
    ),
    "shards that the value does not have": either(
        lambda c: c.allreduce(np.zeros((3, 4)), SUM, order="canonical", shards=(1, 2)),
        lambda c: c.allreduce(np.zeros((1, 4)), SUM, order="canonical", shards=(c.rank, c.rank + 1)),
    ),
    "plan": prepared_plans,
    "plan of another payload": either(
        lambda c: c.prepare("allreduce", like=B, operator=SUM, plan=plan_of(c, 0)),
        lambda c: c.prepare("allreduce", like=A, operator=SUM, plan=plan_of(c, 0)),
    ),
    "dict against array": either(lambda c: c.broadcast({"x": A}), lambda c: c.broadcast(A)),
    "missing field": either(
        lambda c: c.allreduce({"out": partial()["out"]}, LOGSUMEXP), lambda c: c.allreduce(partial(), LOGSUMEXP)
    ),
    "extra field": either(
        lambda c: c.allreduce({**partial(), "x": A}, LOGSUMEXP), lambda c: c.allreduce(partial(), LOGSUMEXP)
    ),
    "fields of different lengths": either(
        lambda c: c.allreduce({**partial(), "lse": np.zeros(9, np.float32)}, LOGSUMEXP),
        lambda c: c.allreduce(partial(), LOGSUMEXP),
    ),
    "width of a field": either(
        lambda c: c.allreduce(partial(4, 5), LOGSUMEXP), lambda c: c.allreduce(partial(), LOGSUMEXP)
    ),
    "dtypes of a value": either(
        lambda c: c.allreduce({"a": B, "b": B.astype("f4")}, AFFINE), lambda c: c.allreduce({"a": B, "b": B}, AFFINE)
    ),
    "not an array": either(lambda c: c.allreduce("text", SUM), lambda c: c.allreduce(A, SUM)),
    "read-only out": either(
        lambda c: c.allreduce(A, SUM, out=read_only()),
        lambda c: several(lambda: c.allreduce(A, SUM, out=A.copy()), c.barrier),
    ),
    "shape of out": either(
        lambda c: c.allreduce(A, SUM, out=np.zeros(3)),
        lambda c: several(lambda: c.allreduce(A, SUM, out=A.copy()), c.barrier),
    ),
    "known calls in another order": orders,
    "not an array, later": either(
        lambda c: several(lambda: c.allreduce(A, SUM), lambda: c.allreduce("text", SUM)),
        lambda c: several(lambda: c.allreduce(A, SUM), lambda: c.allreduce(A, SUM)),
    ),
    "another known call": either(lambda c: c.allreduce(A, SUM), lambda c: c.allreduce(B, SUM), known=True),
    "another known collective": either(lambda c: c.scan(A, SUM), lambda c: c.allreduce(A, SUM), known=True),
    "another known root": either(
        lambda c: several(*[lambda: c.broadcast(A, root=1)] * 5, c.barrier),
        lambda c: several(*[lambda: c.broadcast(A, root=0)] * 5, c.barrier),
        known=True,
    ),
    "known against new": either(
        lambda c: c.allreduce(A, SUM), lambda c: several(lambda: c.allreduce(A, SUM), lambda: c.allreduce(B, SUM))
    ),
    "one call less": after_ready(
        lambda c, two: several(c.barrier), lambda c, two: several(lambda: two.a(A), c.barrier)
    ),
    "one call more": after_ready(
        lambda c, two: several(lambda: two.a(A), lambda: two.a(A), c.barrier),
        lambda c, two: several(lambda: two.a(A), c.barrier),
    ),
    "one call more of another kind": after_ready(
        lambda c, two: several(lambda: two.b(B), lambda: two.b(B), c.barrier),
        lambda c, two: several(lambda: two.b(B), c.barrier),
    ),
    "prepared calls in another order": after_ready(
        lambda c, two: several(lambda: two.a(A), lambda: two.b(B), c.barrier),
        lambda c, two: several(lambda: two.b(B), lambda: two.a(A), c.barrier),
    ),
    "prepared against plain": after_ready(lambda c, two: two.a(A), lambda c, two: c.allreduce(A, SUM)),
    "preparation against a call": after_ready(
        lambda c, two: c.prepare("scan", like=A, operator=SUM), lambda c, two: two.a(A)
    ),
    "barrier against a call": after_ready(lambda c, two: c.barrier(), lambda c, two: two.a(A)),
    "split against a call": after_ready(lambda c, two: c.split(0), lambda c, two: two.a(A)),
    "split against a barrier": after_ready(lambda c, two: c.split(0), lambda c, two: c.barrier()),
    "records of different lengths": either(
        lambda c: c.allgather_bytes(np.zeros(9, np.uint8)), lambda c: c.allgather_bytes(np.zeros(8, np.uint8))
    ),
    "records against a barrier": either(lambda c: c.allgather_bytes(np.zeros(9, np.uint8)), lambda c: c.barrier()),
    "shifts": shift_against_shift,
    "shift against a call": shift_against_call,
    "order of handles": handles,
    "one handle less": one_handle_less,
    "other handles, polled": tested_handles,
    "TOPOCOMM_CHECK=always on one rank": with_always,
    "another known call, TOPOCOMM_CHECK=always": all_always,
    "shrink against a call": after_ready(lambda c, two: c.shrink(), lambda c, two: two.a(A)),
    "an exception in the program": after_ready(lambda c, two: fails(c), lambda c, two: two.a(A)),
}
