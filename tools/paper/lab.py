"""Tree against ring on hosts joined by real links: `tools/netlab`, measured, and the same simulated."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from topocomm import TopocommError, Topology
from topocomm.simulation.decode import DeviceFigures, model_shape, simulate_step
from topocomm.topology.readers.plain import topology_json

from .drawing import MARKERS, METHOD_COLOURS, panels, svg_text, us_text
from .simulated_block import METHODS, MODEL

MEASURED = Path(__file__).with_name("measured_lab.json")
HOSTS, RANKS, MBIT_PER_S = 4, 2, 100.0
CONTEXTS, STEPS, LIMIT_S = (512, 1024, 2048, 4096), 5, 600.0
JOB_METHODS = {"tree": "tree", "ring": "ring", "allreduce": "three-allreduce"}
"""The methods of `python -m attention decode`, and their names here."""
PAYLOAD_SHARE = 1448 / 1514
"""Payload of a full Ethernet frame over its bytes, of TCP with timestamps: the lab limits frames."""
CORE = DeviceFigures("a core", 6.0, 0.05, 4.0, "an assumption; computing is below 1 % of the ring")
TITLE = f"One decode step on {HOSTS} hosts of {RANKS} CPU ranks, 100 Mbit/s: measured"


class LabTimes(NamedTuple):
    """Times in microseconds by method, then by context: medians of steps, and the same simulated.

    Attributes:
        when: Day of the measurement.
        load: Load of the machine before and after, of which the ranks are 8 after.
    """

    when: str
    load: tuple[float, float]
    measured_us: dict[str, dict[int, float]]
    simulated_us: dict[str, dict[int, float]]


def measure() -> str:
    """Run `python -m attention decode` over the lab's hosts at every context; return the JSON that `load` reads.

    Raises:
        TopocommError: No lab can be made here, or the job failed; says why.
    """
    before = os.getloadavg()[0]
    topology = _lab("topology", "--hosts", str(HOSTS), "--ranks", str(RANKS), "--mbit", f"{MBIT_PER_S:g}")
    times: dict[str, dict[str, float]] = {}
    heads = ["--heads", str(model_shape(MODEL).heads), "--kv-heads", str(model_shape(MODEL).kv_heads)]
    job = ["python", "-m", "attention", "decode", "--steps", str(STEPS), *heads]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "lab.json"
        path.write_text(topology)
        for context in CONTEXTS:
            printed = _lab("run", str(path), "--timeout-s", f"{LIMIT_S:g}", "--", *job, "--context", str(context))
            times[str(context)] = parse(printed)
    document = {
        "when": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": " ".join(job),
        "load": [round(load, 1) for load in (before, os.getloadavg()[0])],
        "median_us": times,
        "topology": json.loads(topology),
    }
    return json.dumps(document) + "\n"


def _lab(*words: str) -> str:
    """What `python -m tools.netlab` prints."""
    command = [sys.executable, "-m", "tools.netlab", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TopocommError(f"lab: {' '.join(command)}: {error}; run it from the root of the repository") from error
    if done.returncode:
        raise TopocommError(f"lab: {' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


def parse(text: str) -> dict[str, float]:
    """Return the median time of every method in the table of `python -m attention decode`.

    Raises:
        TopocommError: A method is missing.
    """
    found = dict(re.findall(r"^(\w+) +([\d.]+) +[\d.]+ +[\d,]+ .* the same$", text, flags=re.MULTILINE))
    if missing := JOB_METHODS.keys() - found:
        raise TopocommError(f"lab: no row {', '.join(sorted(missing))} with the same bits on all ranks in:\n{text}")
    return {name: float(found[job]) for job, name in JOB_METHODS.items()}


def load(path: Path = MEASURED) -> LabTimes:
    """Return what was measured last, and the same simulated."""
    document = json.loads(path.read_text())
    measured = {
        method: {int(context): times[method] for context, times in document["median_us"].items()}
        for method in JOB_METHODS.values()
    }
    topology = with_payload_rates(topology_json.from_document(document["topology"], str(path)))
    simulated = {method: {n: simulated_us(topology, method, n) for n in own} for method, own in measured.items()}
    before, after = document["load"]
    return LabTimes(document["when"], (before, after), measured, simulated)


def with_payload_rates(topology: Topology) -> Topology:
    """Return the topology with the rates of its links that programs get."""
    links = [
        link if link.gb_per_s is None else link._replace(gb_per_s=link.gb_per_s * PAYLOAD_SHARE)
        for link in topology.links
    ]
    return replace(topology, links=tuple(links))


def simulated_us(topology: Topology, method: str, context: int) -> float:
    """Return the simulated time of a step, without time for what starting a round costs."""
    shape = replace(model_shape(MODEL), element_bytes=4)  # the job's keys are float32
    return simulate_step(topology, shape, context=context, method=method, device=CORE, launch_us=0.0).total_us


def table_lines(times: LabTimes) -> list[str]:
    """Return the tables: times, and the ring's over the tree's."""
    contexts = list(times.measured_us["ring"])
    lines = ["| ms | " + " | ".join(f"{n:,} tokens" for n in contexts) + " |", "| --- |" + " --- |" * len(contexts)]
    for method, own in times.measured_us.items():
        lines.append(f"| {METHODS[method]}, measured | " + " | ".join(f"{us / 1e3:,.1f}" for us in own.values()) + " |")
        by_context = times.simulated_us[method].values()
        lines.append("| simulated | " + " | ".join(f"{us / 1e3:,.1f}" for us in by_context) + " |")
    ring = times.measured_us["ring"]
    for method in ("three-allreduce", "tree"):
        ratios = (f"{ring[n] / us:,.0f}" for n, us in times.measured_us[method].items())
        lines.append(f"| ring over {METHODS[method]}, measured | " + " | ".join(ratios) + " |")
    return [
        *lines,
        "",
        f"Measured on {times.when}; load {times.load[0]:g} before, {times.load[1]:g} after, 2 processors.",
    ]


def draw(times: LabTimes) -> str:
    """Return the picture: measured marks, simulated lines."""
    figure, (ax,) = panels(1, 1, 7.5, 4.6)
    for method, own in times.measured_us.items():
        colour = METHOD_COLOURS[method]
        words = METHODS[method]
        ax.plot(list(own), list(own.values()), color=colour, marker=MARKERS[method], linestyle="", label=words)
        simulated = times.simulated_us[method]
        ax.plot(list(simulated), list(simulated.values()), color=colour, linestyle="--")
    ax.set(xscale="log", yscale="log", xlabel="tokens in all", ylabel="one step of the block")
    ax.set_xticks(list(times.measured_us["ring"]), [f"{n:,}" for n in times.measured_us["ring"]])
    ax.set_xticks([], minor=True)
    ax.yaxis.set_major_formatter(us_text)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, fontsize=8)
    before, after = times.load
    rate = MBIT_PER_S * PAYLOAD_SHARE
    footer = (
        f"Marks: measured, medians of {STEPS} steps, slowest rank, load {before:g} to {after:g}, 2 processors. Dashed: "
        f"simulated at the payload rate, {rate:.1f} Mbit/s, and nothing for starting a round: what ranks wait for a "
        "processor is the distance of the trees. 16 heads of 128, float32."
    )
    return svg_text(figure, TITLE, footer)
