"""The command line of the lab.

    python -m tools.netlab topology --hosts 4 --ranks 2 --mbit 100 [--racks 2 --uplink-mbit 100] > lab.json
    python -m tools.netlab run lab.json -- python program.py     a lab for one job: made, used, removed
    python -m tools.netlab up lab.json                           one that stays until `down`
    python -m tools.netlab run -- python program.py              a job in it; `mpirun`'s options by --option
    python -m tools.netlab cut host1 | mend host1                its cable; `cut leaf0 spine` that between switches
    python -m tools.netlab rate host1 10                         another rate in Mbit/s, while jobs run
    python -m tools.netlab list | down | clean                   labs; remove it; remove what dead owners left
    python -m tools.netlab measure | compare                     sums beside Open MPI's; predictions beside measurements

Status 0: done; 1: the work failed; 2: bad usage or input, or no labs here, and the text says why.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from topocomm.command_parser import CommandParser
from topocomm.errors import TopocommError
from topocomm.topology.model import Topology
from topocomm.topology.readers.plain import topology_json

from .lab import JOB_TIMEOUT_S, Lab
from .measurement import add_measure
from .namespaces import LabError
from .network import racks
from .prediction import add_compare
from .records import clean, find, records

ROOT = Path(__file__).parents[2]
UP_TIMEOUT_S = 30.0
DOWN_TIMEOUT_S = 20.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    own, _, program = _parted(words)
    args = _parser().parse_args(own)
    args.program = program
    try:
        return int(args.run(args))
    except TopocommError as error:
        print(f"netlab: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"netlab: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2


def _parted(words: list[str]) -> tuple[list[str], bool, list[str]]:
    """Part the command from the program that follows `--`."""
    if "--" not in words:
        return words, False, []
    place = words.index("--")
    return words[:place], True, words[place + 1 :]


def _parser() -> CommandParser:
    text = (__doc__ or "").splitlines()
    parser = CommandParser("python -m tools.netlab", description=text[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    topology = commands.add_parser("topology", help="print the topology of hosts in racks as JSON")
    topology.add_argument("--hosts", type=int, default=4)
    topology.add_argument("--ranks", type=int, default=2, help="ranks of each host")
    topology.add_argument("--mbit", type=float, default=100.0, help="rate of a host's link, Mbit/s")
    topology.add_argument("--racks", type=int, default=1)
    topology.add_argument("--uplink-mbit", type=float, help="rate between a rack and the spine; default: its hosts'")
    topology.set_defaults(run=_topology)
    for name, function, words in (
        ("up", _up, "make a lab that stays"),
        ("keep", _keep, argparse.SUPPRESS),
        ("run", _run, "run `mpirun PROGRAM` over the hosts: run [TOPOLOGY] -- PROGRAM ..."),
    ):
        command = commands.add_parser(name, help=words) if words != argparse.SUPPRESS else commands.add_parser(name)
        command.add_argument("topology", type=Path, nargs="?" if name == "run" else None, help="a topology JSON")
        command.set_defaults(run=function)
        if name == "run":
            command.add_argument("--lab", type=int, metavar="PID", help="of several labs the one of this owner")
            command.add_argument("--ranks", type=int, help="how many; default: as many as the hosts take")
            command.add_argument("--timeout-s", type=float, default=JOB_TIMEOUT_S)
            command.add_argument(
                "--option", action="append", default=[], metavar="WORD", help="for mpirun: --option=-x"
            )
    for name, words in (("cut", "cut a cable"), ("mend", "put a cable back"), ("rate", "give a cable another rate")):
        command = commands.add_parser(name, help=words)
        command.add_argument("lower", help="host, or the lower switch")
        if name == "rate":
            command.add_argument("mbit", type=float, help="Mbit/s")
        command.add_argument("upper", nargs="?", help="the upper switch; default: what the lower end hangs on")
        command.add_argument("--lab", type=int, metavar="PID")
        command.set_defaults(run=_change, what=name)
    down = commands.add_parser("down", help="remove a lab")
    down.add_argument("--lab", type=int, metavar="PID")
    down.set_defaults(run=_down)
    commands.add_parser("list", help="print the labs of this machine").set_defaults(run=_list)
    commands.add_parser("clean", help="remove what dead owners left").set_defaults(run=_clean)
    add_measure(commands)
    add_compare(commands)
    return parser


def _topology(args: argparse.Namespace) -> int:
    print(topology_json.dumps(racks(args.hosts, args.ranks, args.mbit, args.racks, args.uplink_mbit)))
    return 0


def read_topology(path: Path) -> Topology:
    """Return the topology of a file; raises TopologyError or OSError."""
    return topology_json.read(path.read_text(), str(path))


def _run(args: argparse.Namespace) -> int:
    if not args.program:
        raise LabError("run: no program; expected `run [TOPOLOGY] -- PROGRAM ARGUMENTS...`")
    if args.topology is None:
        return _job(Lab.attached(find(args.lab)), args)
    with Lab(read_topology(args.topology)) as lab:
        for warning in lab.warnings:
            print(f"netlab: {warning}", file=sys.stderr)
        return _job(lab, args)


def _job(lab: Lab, args: argparse.Namespace) -> int:
    done = lab.mpirun(args.program, ranks=args.ranks, options=args.option, timeout_s=args.timeout_s)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return 1 if done.returncode else 0


def _up(args: argparse.Namespace) -> int:
    """Start a process that keeps a lab, and print its number when the lab is there."""
    command = [sys.executable, "-m", "tools.netlab", "keep", str(args.topology.resolve())]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=UP_TIMEOUT_S,
            cwd=ROOT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LabError(f"up: no lab after {UP_TIMEOUT_S:g} s") from None
    sys.stderr.write(done.stderr)
    if not done.stdout:
        return 2
    print(f"lab {done.stdout.strip()}: `python -m tools.netlab run -- PROGRAM` runs in it, `down` removes it")
    return 0


def _keep(args: argparse.Namespace) -> int:
    """Leave a process behind that keeps a lab until it is asked to end; it prints its number when the lab is there."""
    if os.fork():
        os._exit(0)
    os.setsid()
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    with Lab(read_topology(args.topology)):
        print(os.getpid(), flush=True)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # who waits for the output is told that there will be no more
            os.dup2(nowhere, stream)
        signal.sigwait(signals)
    return 0


def _change(args: argparse.Namespace) -> int:
    """Change a cable of a lab that stays."""
    lab = Lab.attached(find(args.lab))
    if args.what == "rate":
        lab.set_rate(args.lower, args.mbit, args.upper)
    elif args.what == "cut":
        lab.cut(args.lower, args.upper)
    else:
        lab.mend(args.lower, args.upper)
    return 0


def _down(args: argparse.Namespace) -> int:
    record = find(args.lab)
    os.kill(record.owner[0], signal.SIGTERM)
    until_s = time.monotonic() + DOWN_TIMEOUT_S
    while record.owner_is_alive:
        if time.monotonic() > until_s:
            raise LabError(f"down: process {record.owner[0]} has not ended after {DOWN_TIMEOUT_S:g} s")
        time.sleep(0.02)
    clean()
    return 0


def _list(args: argparse.Namespace) -> int:
    del args
    for record in records():
        state = "runs" if record.owner_is_alive else "dead: `python -m tools.netlab clean` removes what it left"
        print(f"lab {record.owner[0]}: {len(record.holders) - 2} hosts, {record.directory}, {state}")
    return 0


def _clean(args: argparse.Namespace) -> int:
    del args
    for name in clean():
        print(f"removed {name}")
    return 0
