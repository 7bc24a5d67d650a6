"""Engines in one memory, their ranks on threads of one process: the compiled call holds no interpreter lock."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from attention import LOGSUMEXP
from tests.execute.peer_work import spans
from tests.plans import every_plan
from topocomm.execute.calls.fast_path import bind_arrays
from topocomm.execute.host.call_engine import Work
from topocomm.execute.host.compiled_engine import CompiledEngine, covers
from topocomm.execute.host.result_memory import ResultMemory
from topocomm.execute.host.staged_engine import aligned_buffer
from topocomm.execute.liveness.recorder import Recorder
from topocomm.execute.transports.shared_memory import COUNTER_BYTES, SharedMemory
from topocomm.operators.layout import ALIGNMENT_BYTES
from topocomm.planning.collectives import TO_ROOT
from topocomm.planning.program.shared_memory_layout import shared_program

CALLS = 40
"""Some more than the two memories see before it is chosen how to write to them."""
OPERATORS = {"compiled": LOGSUMEXP, "in NumPy": replace(LOGSUMEXP, kernel=None)}
LIMIT_S = 30.0
GUARD = 0xA5


class Caller:
    """What the fast path asks of a communicator."""

    refusal: str | None = None

    def __init__(self):
        self.recorder, self.waiting, self.results = Recorder(), self, ResultMemory()

    def for_call(self, call):
        through(call.engine)

    def fail_with(self, error):
        self.refusal = str(error)


def through(engine):
    """Go on with a call until it is through."""
    until_s = time.monotonic() + LIMIT_S
    while not engine.advance(0.05):
        assert time.monotonic() < until_s, f"still waiting for {engine.awaited()}"


def run(engine, fields, target, *, apart):
    engine.begin(fields, target, apart) or through(engine)


class Job:
    """The engines of all ranks of one plan. Memory not yet written holds NaN; before and behind it stand guards."""

    def __init__(self, plan, layout, operator=LOGSUMEXP, *, bare=None):
        self.plan, self.layout = plan, layout
        ranks = range(plan.schedule.ranks)
        works = [
            Work(plan, plan.schedule, operator, layout, 16, rank, *spans(plan.collective, layout, rank))
            for rank in ranks
        ]
        assert all(map(covers, works))
        programs = [shared_program(plan.schedule, w.rank, w.chunk_bytes, ALIGNMENT_BYTES) for w in works]
        counters_bytes, size_bytes = len(ranks) * COUNTER_BYTES, 2 * programs[0].total_bytes
        self.whole = aligned_buffer(counters_bytes + size_bytes + 2 * ALIGNMENT_BYTES)
        self.whole[...] = GUARD
        region = self.whole[ALIGNMENT_BYTES:-ALIGNMENT_BYTES]
        region[:counters_bytes], region[counters_bytes:] = 0, 0xFF
        self.shared = [SharedMemory(region, rank, ranks, cores=2) for rank in ranks]
        self.engines = [
            [CompiledEngine(works[rank], programs[rank], self.shared[rank], number) for number in range(2)]
            for rank in ranks
        ]

        self.callers = [Caller() for _ in ranks]
        bare = len(layout.fields) == 1 if bare is None else bare
        self.fast_path = []
        for caller, engines, work in zip(self.callers, self.engines, works, strict=True):
            value, result = (
                [(f.name, (*span.leading, *f.row_shape), f.dtype) for f in layout.fields]
                for span in (work.value, work.result)
            )
            gives = plan.collective.name not in TO_ROOT or work.rank == plan.collective.root
            self.fast_path.append(bind_arrays(caller, engines, value, result if gives else None, 16, bare=bare))

    def engine(self, rank):
        """The engine of a rank's next call."""
        return self.engines[rank][(self.shared[rank].epoch + 1) & 1]

    def on_threads(self, body):
        """`body(rank)` on a thread of every rank."""
        with ThreadPoolExecutor(len(self.engines)) as pool:
            return [done.result() for done in [pool.submit(body, rank) for rank in range(len(self.engines))]]

    def close(self):
        assert np.all(self.whole[:ALIGNMENT_BYTES] == GUARD)
        assert np.all(self.whole[-ALIGNMENT_BYTES:] == GUARD)


def jobs(topology, rows, dim, operator=LOGSUMEXP):
    layout = operator.layout({"out": ((*rows, dim), np.float32), "lse": (rows, np.float32)})
    for plan in every_plan(topology, "allreduce", operator, layout):
        job = Job(plan, layout, operator)
        yield plan.algorithm, job
        job.close()


def askew(value):
    """Copies that start in the middle of a cache line."""
    found = {}
    for name, array in value.items():
        room = aligned_buffer(array.nbytes + ALIGNMENT_BYTES)
        found[name] = room[12 : 12 + array.nbytes].view(array.dtype).reshape(array.shape)
        found[name][...] = array
    return found


def strided(value):
    """Copies with a gap after every item."""
    return {name: np.repeat(array, 2, axis=-1)[..., ::2] for name, array in value.items()}


def plain(job, rank, value):
    target = askew({name: np.zeros_like(array) for name, array in value.items()})
    run(job.engine(rank), value, target, apart=True)
    return target


def in_place(job, rank, value):
    both = askew(value)
    run(job.engine(rank), both, both, apart=False)
    return both


def from_the_send_buffer(job, rank, value):
    views = job.engine(rank).views
    if views is None:  # the plan splits the value
        return plain(job, rank, strided(value))
    for name, array in value.items():
        views[name][...] = array
    target = {name: np.zeros_like(array) for name, array in value.items()}
    run(job.engine(rank), None, target, apart=True)
    return target


def fast_path(job, rank, value):
    return job.fast_path[rank](askew(value), None)


def fast_path_into(job, rank, value):
    given = {name: np.full_like(array, np.nan) for name, array in value.items()}
    assert job.fast_path[rank](askew(value), given) is given
    return given


def fast_path_in_place(job, rank, value):
    both = {name: array.copy() for name, array in value.items()}
    assert job.fast_path[rank](both, both) is both
    return both


WAYS = [plain, in_place, from_the_send_buffer, fast_path, fast_path_into, fast_path_in_place]
