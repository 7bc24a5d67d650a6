"""What the ranks of `python -m tools.netlab measure` do: schedules beside Open MPI's own, timed in turns.

    mpirun python -m tools.netlab.measure_job TOPOLOGY OUT [--sizes 65536,1048576] [--blocks 5] [--schedules] [--affine]

Rank 0 writes JSON: the topology with measured figures, and for every way its times in microseconds, of the slowest
rank, one a block.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from topocomm import SUM, Communicator, Operator
from topocomm.bench.libraries import MpiLibrary
from topocomm.bench.methods import Ours, UserDefinedOp
from topocomm.bench.problem import make_problem
from topocomm.bench.timing import Pace, Timed, measure
from topocomm.execute.measure.ping_pong import measure as ping_pong
from topocomm.operators.builtin import AFFINE
from topocomm.planning.collectives import Collective
from topocomm.planning.plan import Plan
from topocomm.planning.planner import every_plan, make_plan
from topocomm.planning.request import Request, layout_of, on_every_endpoint
from topocomm.topology.model import Topology
from topocomm.topology.readers.plain import topology_json

from .control_variables import ALGORITHMS, ControlVariables
from .figures import as_measured

SCHEDULES = (
    "rails-ring-1",
    "rails-by-4-1",
    "rabenseifner",
    "ring",
    "leaders-4",
    "leaders-2",
    "direct",
    "recursive-doubling",
    "binomial",
)
"""Schedules that are timed beside the chosen one, where they fit: their predictions are held against these times."""
SHORT_BLOCKS = 41
MOST_SCHEDULES = 6
"""With the chosen one."""
Ways = dict[str, Callable[[], object]]


def main() -> int:
    """Measure, and write the figures on rank 0."""
    parser = argparse.ArgumentParser(description="times schedules beside Open MPI's algorithms")
    parser.add_argument("topology", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sizes", default="65536,262144,1048576")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--schedules", action="store_true", help="time other schedules of ours too")
    parser.add_argument("--affine", action="store_true", help="an operator that does not commute in place of the sum")
    args = parser.parse_args()
    world = MPI.COMM_WORLD
    nominal = topology_json.read(args.topology.read_text(), str(args.topology))
    with Communicator.from_mpi(world, nominal) as comm:
        topology = as_measured(nominal, ping_pong(comm))
        topology = replace(topology, launch_us=launch_us(comm, topology))
    library = MpiLibrary(world)
    forced = {} if args.affine else forced_communicators(world)
    rows: list[dict[str, Any]] = []
    with Communicator.from_mpi(world, topology) as comm:
        for size in map(int, args.sizes.split(",")):
            rows += list(times_of(comm, library, forced, size, args))
            if comm.rank == 0:
                print(f"{size} bytes done", flush=True)
    if world.rank == 0:
        document = json.loads(topology_json.dumps(topology))
        args.out.write_text(json.dumps({"topology": document, "rows": rows}, indent=1))
    return 0


def launch_us(comm: Communicator, topology: Topology) -> float:
    """Return what a round takes beside its messages while all ranks work, of a short value's recursive doubling.

    In a pair's ping-pong the other ranks only wait. With more ranks than cores most of a round is the wait for a core,
    inside hosts as between them. Collective.
    """
    value = np.zeros(2, np.float32)
    layout = layout_of(SUM, value.nbytes)
    request = on_every_endpoint(topology, Collective("allreduce", comm.size), SUM, layout)
    plan = next(plan for plan in every_plan(topology, request) if plan.algorithm == "recursive-doubling")
    own = next(plan for plan in every_plan(comm.topology, request) if plan.algorithm == "recursive-doubling")
    call = comm.prepare("allreduce", like=value, operator=SUM, plan=own)
    (times,) = measure(comm, [Timed(partial(call, value, out=value.copy()))], Pace(SHORT_BLOCKS, calls=1))
    return max(0.0, times.percentile_us(25) - plan.figures.alpha_us) / plan.figures.rounds


def forced_communicators(world: MPI.Comm) -> dict[str, Any]:
    """Return a communicator for each of Open MPI's algorithms; collective.

    A communicator keeps the algorithm that was forced when it was made. The default comes first: HAN makes
    communicators of its own in the first call.
    """
    variables, value = ControlVariables(), np.ones(1, np.float32)
    made = {}

    def make(name: str) -> None:
        made[name] = world.Dup()
        made[name].Allreduce(MPI.IN_PLACE, value.copy())

    make("Open MPI default")
    variables.set("coll_tuned_priority", 20)
    variables.set("coll_han_priority", 90)
    make("Open MPI HAN")
    variables.set("coll_tuned_priority", 90)
    variables.set("coll_han_priority", 0)
    variables.set("coll_tuned_use_dynamic_rules", 1)
    for number, name in {0: "as its table says", **ALGORITHMS}.items():
        variables.set("coll_tuned_allreduce_algorithm", number)
        make(f"Open MPI tuned, {name}")
    return made


def times_of(
    comm: Communicator, library: MpiLibrary, forced: dict[str, Any], size_bytes: int, args: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield a row for every way at one size; collective."""
    operator = AFFINE if args.affine else SUM
    layout = layout_of(operator, size_bytes)
    request = on_every_endpoint(comm.topology, Collective("allreduce", comm.size), operator, layout)
    plans = [make_plan(comm.topology, request)]
    if args.schedules:
        plans += other_plans(comm.topology, request, plans[0])
    if args.affine:
        ways, check = affine_ways(comm, library, operator, layout.rows)
    else:
        ways, check = sum_ways(comm, forced, plans, size_bytes)
    times = measure(comm, [Timed(run) for run in ways.values()], Pace(args.blocks, warmup=1, calls=1))
    check()
    predicted = {f"topocomm {plan.algorithm}": plan.figures.predicted_us for plan in plans}
    chosen = plans[0]
    for (name, _), row in zip(ways.items(), times, strict=True):
        yield {
            "way": name,
            "is_plan": name == f"topocomm {chosen.algorithm}",
            "collective": "allreduce",
            "operator": operator.name,
            "bytes": size_bytes,
            "us": [round(float(us), 1) for us in row.us],
            "median_us": round(row.median_us, 1),
            "planner_us": predicted.get(name),
            "bound_gb_per_s": chosen.certificate.throughput_upper_bound_gb_per_s,
        }


def other_plans(topology: Topology, request: Request, chosen: Plan) -> list[Plan]:
    """Return plans of other algorithms, up to `MOST_SCHEDULES` with the chosen one."""
    known = {plan.algorithm: plan for plan in every_plan(topology, request)}
    names = [name for name in SCHEDULES if name in known and name != chosen.algorithm]
    return [known[name] for name in names[: MOST_SCHEDULES - 1]]


def sum_ways(
    comm: Communicator, forced: dict[str, Any], plans: list[Plan], size_bytes: int
) -> tuple[Ways, Callable[[], None]]:
    """Return the ways to sum, and what checks their last results."""
    value = np.arange(size_bytes // 4, dtype=np.float32) % 1024 + comm.rank
    results: dict[str, Any] = {}
    ways: Ways = {}
    for plan in plans:
        name = f"topocomm {plan.algorithm}"
        out = results[name] = np.zeros_like(value)
        call = comm.prepare("allreduce", like=value, operator=SUM, plan=plan)
        ways[name] = partial(call, value, out=out)
    for name, other in forced.items():
        out = results[name] = np.zeros_like(value)
        ways[name] = partial(other.Allreduce, value, out, MPI.SUM)
    expected = comm.size * (np.arange(size_bytes // 4) % 1024) + comm.size * (comm.size - 1) / 2

    def check() -> None:
        for name, out in results.items():
            if not np.array_equal(out, expected):
                raise SystemExit(f"{name}: wrong sums of {size_bytes} bytes on rank {comm.rank}")

    return ways, check


def affine_ways(
    comm: Communicator, library: MpiLibrary, operator: Operator, rows: int
) -> tuple[Ways, Callable[[], None]]:
    """Return our way and Open MPI's with the same combine as an operator of its own, and what compares them."""
    problem = make_problem("allreduce", operator, rows, comm.size)
    x = problem.value(comm.rank)
    ours, theirs = Ours(comm, problem, prepared=True), UserDefinedOp(library, problem)
    ours.prepare(x, problem.empty_result())
    theirs.prepare(x, problem.empty_result())

    def check() -> None:
        own, other = ours.result() or {}, theirs.result() or {}
        for name in own:
            np.testing.assert_allclose(own[name], other[name], rtol=1e-3, atol=1e-3)

    assert ours.call is not None
    return {f"topocomm {ours.call.plan.algorithm}": ours.run, "Open MPI default": theirs.run}, check


if __name__ == "__main__":
    sys.exit(main())
