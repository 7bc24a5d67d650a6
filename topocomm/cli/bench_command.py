"""`topocomm bench`: collectives measured beside the alternatives on the same ranks, or their bits compared."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import product
from typing import TYPE_CHECKING, Any

from topocomm.cli.command_ranks import launched_as, run_on_ranks, speaks
from topocomm.cli.options.arguments import add_operator, add_sizes, nccl_sizes, parse_sizes, range_bytes
from topocomm.cli.options.choices import COLLECTIVE_NAMES, COLLECTIVES
from topocomm.cli.terminal.output import terminal_columns
from topocomm.errors import PlanError, TopocommError
from topocomm.operators.find import check_operator_name, find_operator

if TYPE_CHECKING:
    from topocomm.bench.bits import Outcome
    from topocomm.bench.facts import Facts
    from topocomm.bench.measurement import Wanted
    from topocomm.bench.problem import Problem
    from topocomm.bench.row import Row
    from topocomm.execute.communicator import Communicator

BITS_SCHEMA = "topocomm.bits/1"
SIZES = "8:16MiB:8"
THREADS = 2
TRACED_CALLS = 8
OK, FAILED = 0, 1


def add_parser(subparsers: Any) -> None:
    """Add the command to the parser of `topocomm`."""
    parser = subparsers.add_parser(
        "bench",
        description="Measure a collective beside the alternatives on the same ranks: under mpirun, torchrun, or alone.",
    )
    parser.add_argument("--collective", choices=COLLECTIVES, default="allreduce", metavar="NAME", help=COLLECTIVE_NAMES)
    add_operator(parser, "default sum; attention.logsumexp", default="sum")
    add_sizes(parser, f"or one size, 16512; default {SIZES}")
    parser.add_argument("-n", "--iterations", type=_positive, metavar="N", help="timed blocks (default: 20 to 100)")
    parser.add_argument("-w", "--warmup", type=_positive, default=5, metavar="N", help="calls before (default 5)")
    parser.add_argument("--ranks", type=_positive, metavar="N", help=f"threads, without a launcher (default {THREADS})")
    parser.add_argument("--bits", action="store_true", help="compare bits over ranks, runs and transports; no times")
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help=f"then also {TRACED_CALLS} calls of each size with the rounds of every rank, for ui.perfetto.dev",
    )
    parser.add_argument("--format", choices=("text", "json", "csv"), default="text", help="default text")


def check(args: argparse.Namespace) -> None:
    """Raise what is wrong with the options alone, before anything large is imported."""
    launch = launched_as()
    args.sizes = nccl_sizes(args, given=args.sizes) or SIZES
    if args.ranks is not None and launch is not None:
        raise PlanError(f"--ranks {args.ranks}: {launch[0]} has started {launch[2]} ranks; leave --ranks out")
    if args.bits and args.trace is not None:
        raise PlanError("--trace does not go with --bits: a trace is of calls that are timed")
    if args.bits and args.collective != "allreduce":
        raise PlanError(f"--bits with --collective {args.collective}: bits are compared for allreduce")
    range_bytes(args.sizes)
    check_operator_name(args.operator)


def run(args: argparse.Namespace) -> int:
    """Measure, print on rank 0, and return the exit status: 1 if a result is wrong.

    Raises:
        PlanError: A size is not of the operator's rows.
        OperatorError: The operator cannot be loaded.
    """
    from topocomm.bench.measurement import Wanted
    from topocomm.bench.timing import Pace
    from topocomm.execute.device.device_library import prepare_for_threads

    try:
        operator = find_operator(args.operator)
        rows = parse_sizes(args.sizes, operator.default_layout(1).row_bytes) if operator.splittable else (1,)
    except TopocommError:
        if speaks():
            raise
        return OK  # rank 0 says it; a launcher ends the other ranks at the first status that is not 0
    wanted = Wanted(args.collective, operator, rows, Pace(args.iterations, args.warmup))
    if launched_as() is None:
        prepare_for_threads()  # which no CUDA has been started for yet
    work = _bits if args.bits else _measure
    return run_on_ranks(lambda comm: work(comm, wanted, args), THREADS if args.ranks is None else args.ranks)


def _measure(comm: Communicator, wanted: Wanted, args: argparse.Namespace) -> int:
    from topocomm.bench.document import dump_csv, dump_json
    from topocomm.bench.facts import gather_facts, kernel_words
    from topocomm.bench.measurement import explain, measure_all
    from topocomm.bench.table import Table

    tells = comm.rank == 0
    began = datetime.now(UTC).isoformat(timespec="seconds")
    facts = gather_facts(comm)
    table = Table(terminal_columns())
    problems = wanted.problems(comm.size)
    if tells and args.format == "text":
        plans = [explain(comm, problem) for problem in problems]
        _write(table.head(facts, problems, plans, kernel_words(wanted.operator, problems[0].layout)))
    rows: list[Row] = []
    for some in measure_all(comm, wanted):
        rows += some
        if tells and args.format == "text":
            _write("".join(table.row(row) for row in some))
    if tells and args.format == "text":
        _write(table.foot(rows))
    elif tells and args.format == "csv":
        _write(dump_csv(rows))
    elif tells:
        keys = ("collective", "operator", "sizes", "iterations", "warmup")
        _write(dump_json(facts, rows, {"start_time": began, **{key: getattr(args, key) for key in keys}}))
    if args.trace is not None:
        _trace(comm, problems, args.trace)
    return FAILED if any(row.wrong for row in rows) else OK


def _trace(comm: Communicator, problems: list[Problem], path: str) -> None:
    """Write a few calls of each problem as a trace."""
    with comm.trace(path):
        for problem in problems:
            value = problem.given(problem.value(comm.rank))
            call = comm.prepare(problem.collective, like=value, operator=problem.reduction)
            for _ in range(TRACED_CALLS):
                call(value)


def _bits(comm: Communicator, wanted: Wanted, args: argparse.Namespace) -> int:
    from topocomm.bench.bits import PROOFS
    from topocomm.bench.facts import gather_facts

    tells = comm.rank == 0
    facts = gather_facts(comm)
    if tells and args.format == "text":
        _write(
            f"# topocomm {facts.versions.get('topocomm', '')}: bits of allreduce {wanted.operator.name}, "
            f"{facts.ranks} ranks by {', '.join(facts.pairs) or 'none'}, and threads\n"
            "# any: one plan, on every rank, repeated, plain, in place, by a handle, over\n"
            "#   every transport at hand\n"
            "# canonical: 1 to 8 ranks on threads and the ranks at hand, virtual shards laid\n"
            "#   out evenly and at random\n"
            f"#\n# {'size (B)':>10}  {'order':9}  {'results':>7}  sha256 of the result\n"
        )
    outcomes = []
    for problem, prove in product(wanted.problems(comm.size), PROOFS):
        outcome = prove(comm, problem)
        outcomes.append(outcome)
        if tells and args.format == "text":
            _write(f"{outcome.size_bytes:12d}  {outcome.order:9}  {outcome.results:7d}  {outcome.digest}\n")
            if outcome.difference is not None:
                _write(f"# DIFFERENT BITS: {outcome.difference}\n")
    if tells:
        _write(_bits_end(args, facts, outcomes))
    return FAILED if any(outcome.difference for outcome in outcomes) else OK


def _bits_end(args: argparse.Namespace, facts: Facts, outcomes: list[Outcome]) -> str:
    different = sum(outcome.difference is not None for outcome in outcomes)
    if args.format == "text":
        return (
            f"# Bits of {sum(o.results for o in outcomes)} results : {'DIFFERENT' if different else 'the same, OK'}\n"
        )
    entries = [asdict(outcome) for outcome in outcomes]
    if args.format == "csv":
        lines = [f"{o.size_bytes},{o.order},{o.results},{o.digest},{o.difference is None}" for o in outcomes]
        return "\n".join(["size,order,results,sha256,same", *lines]) + "\n"
    document = {"schema": BITS_SCHEMA, "facts": asdict(facts), "results": entries, "okay": not different}
    return json.dumps(document, indent=1) + "\n"


def _positive(text: str) -> int:
    value = int(text) if text.isascii() and text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return value


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
