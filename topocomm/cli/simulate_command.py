"""`topocomm simulate`: what a plan, a library's algorithm or a decode step takes on a machine that is not there."""

from __future__ import annotations

import argparse
from typing import Any

from topocomm.cli.command_ranks import speaks
from topocomm.cli.options.arguments import (
    add_nccl_sizes,
    add_operator,
    nccl_sizes,
    of,
    parse_bytes,
    parse_count,
    parse_ranks,
    take_one_size,
)
from topocomm.cli.options.choices import (
    ALGORITHMS,
    COLLECTIVE_NAMES,
    COLLECTIVES,
    DEVICES,
    METHODS,
    MODELS,
    OBJECTIVES,
    PLANNED,
    PORT_MODELS,
    PROTOCOLS,
)
from topocomm.cli.options.sources import add_changes, add_sources, changed, read_job
from topocomm.cli.options.sweep_values import parse_sweep
from topocomm.errors import PlanError
from topocomm.operators.find import check_operator_name

OF_A_PLAN = ("bytes", "collective", "operator", "objective", "ranks", "root", "algorithm", "compare", "sweep")
"""Options that a saved plan answers, or that do not go with one."""
OF_PLANNED = ("operator", "objective", "root", "ports", "port_model", "launch_us", "fold_gb_per_s", "protocols")
"""Options that only planned schedules heed."""
OF_A_COLLECTIVE = ("plan", "collective", "bytes", "operator", "objective", "root", "compare", "ports", "port_model")
"""Options that say what a collective is; a step of a model says it itself."""
LEAST = {"launch_us": 0.0, "fold_gb_per_s": 1e-9, "ports": 1}
"""The least values of figures."""


def add_parser(subparsers: Any) -> None:
    """Add the command to the parser of `topocomm`."""
    parser = subparsers.add_parser(
        "simulate",
        description="Simulate a collective message by message: what it takes, what limits it, what its links carry.",
    )
    add_sources(parser)
    parser.add_argument("--plan", metavar="FILE", help="simulate this saved plan instead of making one")
    parser.add_argument("--collective", choices=COLLECTIVES, metavar="NAME", help=COLLECTIVE_NAMES)
    words = "bytes of one rank's value, as of `topocomm plan` (default 64KiB)"
    parser.add_argument("--bytes", metavar="N", help=words)
    add_operator(parser, "of planned schedules, default sum")
    parser.add_argument("--objective", choices=OBJECTIVES, help="of planned schedules, default auto")
    parser.add_argument("--ranks", metavar="N|GPU0,GPU2,...", help="the first N endpoints, or these, in rank order")
    parser.add_argument("--root", type=int, metavar="R", help="root of reduce, broadcast, gather or scatter (0)")
    words = f"default {PLANNED}; or {', '.join(ALGORITHMS[1:])}"
    parser.add_argument("--algorithm", type=of(ALGORITHMS), metavar="NAME", help=words)
    parser.add_argument("--compare", type=of(ALGORITHMS), metavar="A,B,...", help="several algorithms in a table")
    parser.add_argument(
        "--sweep",
        metavar="WHAT=VALUES",
        help="a table of times: bytes=1KiB:1GiB:4, hosts=1,2,4,8 (with --system), context=32K:1M:2 (with --model)",
    )
    add_nccl_sizes(parser, "--sweep bytes=B:E:F")
    rules = parser.add_argument_group("what messages cost")
    rules.add_argument("--ports", type=int, metavar="K", help="most messages of an endpoint at once (default: any)")
    rules.add_argument("--port-model", choices=PORT_MODELS, help="of planned schedules, default loggp")
    rules.add_argument("--launch-us", type=float, metavar="US", help="what a planned round costs to start")
    rules.add_argument("--fold-gb-per-s", type=float, metavar="GBPS", help="bytes an endpoint reads and writes to fold")
    words = f"of planned messages, default none; or {', '.join(PROTOCOLS[1:])}"
    rules.add_argument("--protocols", choices=PROTOCOLS, metavar="NAME", help=words)
    _add_step(parser)
    add_changes(parser)
    parser.add_argument("--trace", metavar="FILE", help="write a trace for ui.perfetto.dev or chrome://tracing")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default text")


def _add_step(parser: argparse.ArgumentParser) -> None:
    """Add the options of a decode step."""
    step = parser.add_argument_group("a decode step of a model, in place of a collective")
    step.add_argument("--model", type=of(MODELS), metavar="NAME", help=f"one of {', '.join(MODELS)}")
    step.add_argument("--context", metavar="N", help="tokens of each sequence before the new one, as 128K or 1M")
    step.add_argument(
        "--methods", type=of(METHODS), metavar="A,B,...", help=f"ways to share it (all): {', '.join(METHODS)}"
    )
    step.add_argument("--batch", type=int, default=1, metavar="N", help="sequences (1)")
    step.add_argument(
        "--device", type=of(DEVICES), metavar="NAME", help=f"what holds a rank, one of {', '.join(DEVICES)}"
    )
    step.add_argument("--weights", choices=("sharded", "replicated"), default="sharded", help="default sharded")
    step.add_argument("--efficiency", type=float, default=1.0, metavar="X", help="share of data sheets reached (1)")


def check(args: argparse.Namespace) -> None:
    """Raise what is wrong with the options alone, before anything large is imported.

    `args.sweep` becomes a Sweep, and `args.names` the algorithms or methods asked for.
    """
    take_one_size(args)
    given = args.sweep and args.sweep.partition("=")[2]
    if (sizes := nccl_sizes(args, "--sweep", given)) is not None and args.sweep is None:
        args.sweep = f"bytes={sizes}"
    if args.algorithm and args.compare:
        raise PlanError("--algorithm does not go with --compare: name it among those that are compared")
    if args.trace is not None and args.compare:
        raise PlanError("--trace does not go with --compare: a trace shows one algorithm, name it with --algorithm")
    if args.plan is not None and args.model is None:
        for option in OF_A_PLAN:
            if getattr(args, option) is not None:
                raise PlanError(f"--{option} does not go with --plan FILE: the file says what its plan is for")
    args.sweep = None if args.sweep is None else parse_sweep(args.sweep)
    if args.sweep is not None and args.sweep.over == "hosts" and (args.system is None or args.hosts is not None):
        raise PlanError("--sweep hosts=... goes with --system NAME, without --hosts")
    args.names = _methods(args) if args.model is not None else _algorithms(args)
    (_check_step if args.model is not None else _check_collective)(args)
    for name, least in LEAST.items():
        value = getattr(args, name)
        if value is not None and not least <= value < float("inf"):
            raise PlanError(f"{_option(name)} {value}: expected a number of at least {least:g}")


def _check_collective(args: argparse.Namespace) -> None:
    if args.sweep is not None:
        if args.sweep.over == "context":
            raise PlanError("--sweep context=... goes with --model NAME")
        if args.trace:
            raise PlanError("--sweep does not go with --trace: a sweep makes a plan for every value")
        if args.sweep.over == "bytes" and args.bytes is not None:
            raise PlanError("--bytes does not go with --sweep bytes=...")
    for option in OF_PLANNED:
        if PLANNED not in args.names and getattr(args, option) is not None:
            raise PlanError(
                f"{_option(option)} goes with planned schedules, not with {', '.join(args.names)}: "
                f"add {PLANNED} to --compare, or leave it out"
            )
    if args.bytes is not None:
        parse_bytes(args.bytes)
    if args.operator is not None:
        check_operator_name(args.operator)


def _check_step(args: argparse.Namespace) -> None:
    for option in OF_A_COLLECTIVE:
        if getattr(args, option) is not None:
            raise PlanError(f"{_option(option)} does not go with --model: it is for one collective")
    if args.sweep is not None and (args.sweep.over == "bytes" or args.trace is not None):
        raise PlanError("--model goes with --sweep context=... or hosts=..., without --trace")
    is_swept = args.sweep is not None and args.sweep.over == "context"
    if is_swept and args.context is not None:
        raise PlanError("--context does not go with --sweep context=...")
    if not is_swept and args.context is None:
        raise PlanError("--context is missing: give the tokens of each sequence before the new one, as 128K or 1M")
    if args.trace is not None and len(args.names) != 1:
        raise PlanError("--trace goes with one method: name it with --methods")
    args.context = None if args.context is None else parse_count(args.context, "--context")
    for option, known in (("model", MODELS), ("device", DEVICES)):
        if (name := getattr(args, option)) is not None and name not in known:
            raise PlanError(f"{option} {name!r}: expected one of {', '.join(known)}")


def _algorithms(args: argparse.Namespace) -> list[str]:
    names = [args.algorithm or PLANNED] if args.compare is None else _listed(args.compare)
    unknown = [name for name in names if name not in ALGORITHMS]
    if unknown or not names:
        shown = f"algorithm {unknown[0]!r}: expected one of" if unknown else "--compare: expected names of"
        raise PlanError(f"{shown} {', '.join(ALGORITHMS)}")
    return names


def _methods(args: argparse.Namespace) -> list[str]:
    names = list(METHODS) if args.methods is None else _listed(args.methods)
    unknown = [name for name in names if name not in METHODS]
    if unknown or not names:
        raise PlanError(f"--methods {args.methods!r}: {''.join(unknown[:1])!r}: expected names of {', '.join(METHODS)}")
    return names


def _listed(text: str) -> list[str]:
    return list(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def run(args: argparse.Namespace) -> int:
    """Simulate, print, and return the exit status."""
    machine = None if args.sweep is not None and args.sweep.over == "hosts" else read_job(args)
    if not speaks():
        return 0
    topology = None if machine is None else changed(args, machine)
    if topology is not None:
        parse_ranks(args.ranks, topology)
    from topocomm.cli.work.simulate_work import write_simulation

    write_simulation(args, machine, topology)
    return 0
