"""`python -m tools.netlab measure`: sums on the lab beside Open MPI's algorithms."""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

from .lab import Lab
from .namespaces import LabError
from .network import racks

ROOT = Path(__file__).parents[2]
SIZES = "65536,262144,1048576,4194304,8388608"
BLOCKS = 7
LONG_TIMEOUT_S = 1500.0
PARTS = ("sums", "two-tier", "affine")


def add_measure(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("measure", help="time schedules beside Open MPI's algorithms on 4 hosts x 2 ranks")
    parser.add_argument("--out", type=Path, default=Path("netlab.json"), help="the figures as JSON (netlab.json)")
    parser.add_argument("--sizes", default=SIZES, help="bytes, with commas")
    parser.add_argument("--blocks", type=int, default=BLOCKS, help="timed blocks of each way, taken in turns")
    parser.add_argument("--mbit", type=float, default=100.0, help="rate of a host's link, Mbit/s")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.set_defaults(run=run_measure)


def run_measure(args: argparse.Namespace) -> int:
    """Run the parts one after the other, print a table and write the figures."""
    parts = args.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        raise LabError(f"--parts {', '.join(unknown)}: expected some of {', '.join(PARTS)}")
    sizes = ["--sizes", args.sizes, "--blocks", str(args.blocks)]
    flat, tiers = racks(4, 2, args.mbit), racks(4, 2, args.mbit, 2, args.mbit)
    jobs = {
        "sums": (flat, [*sizes, "--schedules"]),
        "two-tier": (tiers, [*sizes, "--schedules"]),
        "affine": (tiers, ["--affine", "--sizes", "1048576", "--blocks", str(args.blocks)]),
    }
    document: dict[str, Any] = {"schema": "topocomm.netlab/1", "made": time.strftime("%Y-%m-%d"), **_machine()}
    for part in parts:
        topology, words = jobs[part]
        document[part] = _measured(topology, words)
        print(f"\n{part}: {topology.name}, {args.mbit:g} Mbit/s\n{table(document[part]['rows'])}", flush=True)
        args.out.write_text(json.dumps(document, indent=1))
    return 0


def _measured(topology: Any, words: list[str]) -> dict[str, Any]:
    with Lab(topology) as lab:
        out = lab.directory / "figures.json"
        program = ["python", "-m", "tools.netlab.measure_job", str(lab.directory / "topology.json"), str(out), *words]
        done = lab.mpirun(program, timeout_s=LONG_TIMEOUT_S, env={"PYTHONPATH": str(ROOT)})
        if done.returncode:
            raise LabError(f"measure: the job ended with status {done.returncode}: {done.stderr[-2000:]}")
        figures: dict[str, Any] = json.loads(out.read_text())
    return figures


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a table: milliseconds, quartiles, ratio to the plan's, and the plan's share of the bound."""
    lines = []
    for size in sorted({row["bytes"] for row in rows}):
        some = sorted((row for row in rows if row["bytes"] == size), key=lambda row: row["median_us"])
        plan = next(row for row in some if row["is_plan"])
        share = size / plan["median_us"] / 1e3 / plan["bound_gb_per_s"]
        lines.append(f"{size:,} bytes; the plan reaches {share:.1%} of the proven bound")
        for row in some:
            ordered = sorted(row["us"])
            spread = f"{ordered[len(ordered) // 4] / 1e3:9.2f} to {ordered[-1 - len(ordered) // 4] / 1e3:9.2f}"
            ratio = row["median_us"] / plan["median_us"]
            mark = "  <- the plan" if row["is_plan"] else ""
            lines.append(f"  {row['way']:38} {row['median_us'] / 1e3:9.2f} ms ({spread})  {ratio:5.2f}x{mark}")
    return "\n".join(lines)


def _machine() -> dict[str, str]:
    return {"python": platform.python_version(), "kernel": platform.release()}
