"""Trials of the contract on bits: the same inputs and plan give the same bits on every rank, run and transport.

In canonical order the bits must not depend on the number of ranks either, nor on who owns which virtual shards.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topocomm.bench.facts import way_of
from topocomm.bench.problem import Fields, Problem
from topocomm.execute.communicator import Communicator
from topocomm.execute.start import run_local
from topocomm.planning.plan import Plan

REPETITIONS = 10
SHARDS = 64
FEWEST_SHARDS = 8
SHARDS_LIMIT_BYTES = 256 << 20
EMULATED_RANKS = range(1, 9)
RECORD_BYTES = 1024

Trial = tuple[str, Fields | None]
"""(description of the call, its result)."""


@dataclass(frozen=True)
class Difference:
    """The first number whose bits are not those of the reference.

    Attributes:
        what: Description of the call.
        rank: Rank that holds the value.
        element: Index of the number in the flattened field.
        value, reference: The number and the one expected, with their bits.
    """

    what: str
    rank: int
    field: str
    element: int
    value: str
    reference: str

    def __str__(self) -> str:
        return (
            f"rank {self.rank}, {self.what}: element {self.element} of field {self.field!r} is {self.value}, "
            f"not {self.reference}"
        )


@dataclass(frozen=True)
class Outcome:
    """Result of the trials of one size in one order.

    Attributes:
        order: any or canonical.
        plan_digest: Of the plan that all trials executed; in canonical order there are several plans: None.
        digest: SHA-256 of the result's bytes, field after field.
        trials: Descriptions of the calls, each once.
        difference: The first difference, by rank; None where all bits are the same.
    """

    size_bytes: int
    order: str
    plan_digest: str | None
    digest: str
    results: int
    trials: tuple[str, ...]
    difference: Difference | None


def prove_order_any(comm: Communicator, problem: Problem) -> Outcome:
    """Run one plan on every rank, repeated, by every form of call and transport; collective."""
    x = problem.given(problem.value(comm.rank))
    with_messages = comm.split(0, comm.rank)
    assert with_messages is not None
    with_messages.session.transport.hosts = tuple(range(comm.size))  # as if every rank were a host of its own
    call = comm.prepare("allreduce", like=x, operator=problem.operator)
    reference = problem.fields_of(comm.broadcast(problem.given(problem.fields_of(call(x)))))
    outcome = _compare(comm, reference, "any", problem, _trials(comm, with_messages, problem, call.plan))
    outcome = replace(outcome, plan_digest=call.plan.digest)
    call.free()
    with_messages.close()
    return outcome


def prove_canonical(comm: Communicator, problem: Problem) -> Outcome:
    """Run canonical order with 1 to 8 threads in random shard layouts, and on the ranks at hand; collective."""
    shards = min(max(SHARDS_LIMIT_BYTES // problem.size_bytes, FEWEST_SHARDS), SHARDS)
    first = _emulated(problem, [0, shards]) if comm.rank == 0 else problem.empty_result()
    reference = problem.fields_of(comm.broadcast(problem.given(first)))
    return _compare(comm, reference, "canonical", problem, _canonical_trials(comm, problem, shards))


def _trials(comm: Communicator, with_messages: Communicator, problem: Problem, plan: Plan) -> Iterator[Trial]:
    operator, original = problem.operator, problem.value(comm.rank)
    x = problem.given(original)
    call = comm.prepare("allreduce", like=x, operator=operator, plan=plan)
    way = way_of(call)
    for number in range(REPETITIONS):
        yield f"{way}, repetition {number}", problem.fields_of(call(x, out=problem.given(problem.empty_result())))
    yield f"{way}, plain call", problem.fields_of(comm.allreduce(x, operator))
    place = problem.given({name: array.copy() for name, array in original.items()})
    yield f"{way}, in place", problem.fields_of(comm.allreduce(place, operator, out=place))
    yield f"{way}, handle", problem.fields_of(call.start(x).wait())
    call.free()
    if way.startswith("shared memory"):
        call = with_messages.prepare("allreduce", like=x, operator=operator, plan=plan)
        for _ in range(2):
            yield way_of(call), problem.fields_of(call(x))
        call.free()
    if comm.rank == 0 and not comm.session.transport.in_process:

        def on_thread(other: Communicator) -> Fields:
            value = problem.given(problem.value(other.rank))
            return problem.fields_of(other.prepare("allreduce", like=value, operator=operator, plan=plan)(value))

        for rank, fields in enumerate(run_local(on_thread, ranks=comm.size, topology=comm.topology)):
            yield f"threads, rank {rank}", fields


def _canonical_trials(comm: Communicator, problem: Problem, shards: int) -> Iterator[Trial]:
    rng = np.random.default_rng([2026, shards])
    edges = [[0, *np.sort(rng.integers(0, shards + 1, comm.size - 1)).tolist(), shards] for _ in range(2)]
    for edge in edges:
        yield f"{comm.size} ranks by {comm.session.transport.name}, shards {edge}", _in_shards(comm, problem, edge)
    if comm.rank > 0:
        return
    for ranks in EMULATED_RANKS:
        even = [shards * rank // ranks for rank in range(ranks + 1)]
        drawn = [0, *np.sort(rng.integers(0, shards + 1, ranks - 1)).tolist(), shards]
        for edge in (even, drawn):
            yield f"{ranks} ranks on threads, shards {edge}", _emulated(problem, edge)


def _emulated(problem: Problem, edge: Sequence[int]) -> Fields:
    """Return the result in canonical order of one thread per range of shards; if threads differ, one that differs."""
    results = run_local(lambda comm: _in_shards(comm, problem, edge), ranks=len(edge) - 1)
    odd = [result for result in results[1:] if _difference(result, results[0], "", 0) is not None]
    return (odd or results)[0]


def _in_shards(comm: Communicator, problem: Problem, edge: Sequence[int]) -> Fields:
    """Reduce in canonical order; rank r has the virtual shards from `edge[r]` to `edge[r + 1]`; collective."""
    start, stop = edge[comm.rank], edge[comm.rank + 1]
    stacked = {name: np.empty((stop - start, *a.shape), a.dtype) for name, a in problem.empty_result().items()}
    for index in range(start, stop):
        for name, array in problem.value(index).items():
            stacked[name][index - start] = array
    x = problem.given(stacked)
    return problem.fields_of(comm.allreduce(x, problem.operator, order="canonical", shards=(start, stop)))


def _compare(comm: Communicator, reference: Fields, order: str, problem: Problem, trials: Iterator[Trial]) -> Outcome:
    difference: Difference | None = None
    done: dict[str, None] = {}
    results = 0
    for what, fields in trials:
        if fields is None:
            continue
        results += 1
        done[what] = None
        difference = difference or _difference(fields, reference, what, comm.rank)
    message = json.dumps([results, None if difference is None else asdict(difference)]).encode()
    records = comm.allgather_bytes(np.frombuffer(message[:RECORD_BYTES].ljust(RECORD_BYTES), np.uint8))
    outcomes = [json.loads(record.tobytes()) for record in records]
    differences = [Difference(**other) for _, other in outcomes if other is not None]
    digest = hashlib.sha256(b"".join(reference[f.name].tobytes() for f in problem.layout.fields)).hexdigest()
    total = sum(count for count, _ in outcomes)
    return Outcome(problem.size_bytes, order, None, digest, total, tuple(done), differences[0] if differences else None)


def _difference(got: Mapping[str, NDArray[Any]], reference: Fields, what: str, rank: int) -> Difference | None:
    for name, wanted in reference.items():
        flat, other = (np.ascontiguousarray(array).reshape(-1) for array in (got[name], wanted))
        unlike = flat.view(np.uint8) != other.view(np.uint8)
        if unlike.any():
            at = int(unlike.argmax()) // flat.itemsize
            return Difference(what, rank, name, at, _shown(flat[at : at + 1]), _shown(other[at : at + 1]))
    return None


def _shown(one: NDArray[Any]) -> str:
    return f"{one[0]!s} (0x{one.tobytes()[::-1].hex()})"


PROOFS: tuple[Callable[[Communicator, Problem], Outcome], ...] = (prove_order_any, prove_canonical)
