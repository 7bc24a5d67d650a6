"""Peak memory of tree and ring: measured on two CPU ranks, counted by the paper's formulas for many."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from topocomm import TopocommError
from topocomm.simulation.decode import model_shape

from .drawing import METHOD_COLOURS, bytes_text, panels, svg_text
from .published import MEMORY_GAP_MB, SOURCE, ring_memory, tree_memory
from .simulated_block import MODEL

MEASURED = Path(__file__).with_name("measured_memory.json")
RANKS, CONTEXT, HEAD_DIM, ELEMENT_BYTES = 2, 128_000, 128, 2
"""As tools/bench/decode.py --memory has them; bfloat16."""
COUNTED_GPUS, COUNTED_CONTEXT = (8, 16, 32, 64, 128), 5_120_000
LIMIT_S = 900
TITLE = "Peak memory of one block's step: left measured on 2 CPU ranks, right counted by formula"


class Peak(NamedTuple):
    """Peak of the largest process, in MB of 10^6 bytes: it holds q, keys, values and what a first step needs."""

    hidden: int
    method: str
    measured_mb: float


class Memory(NamedTuple):
    """What was measured, and when; bytes by formula by GPUs, ring and tree."""

    when: str
    peaks: tuple[Peak, ...]
    counted: dict[int, dict[str, float]]


def measure() -> str:
    """Measure by tools/bench/decode.py under mpirun; return the JSON that `load` reads."""
    command = ["mpirun", "-n", str(RANKS), sys.executable, "-m", "mpi4py", "tools/bench/decode.py", "--memory"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TopocommError(f"memory: {' '.join(command)}: {error}; run it from the root of the repository") from error
    if run.returncode:
        raise TopocommError(f"memory: {' '.join(command)} ended with {run.returncode}: {run.stderr.strip()[-300:]}")
    peaks = parse(run.stdout)
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    return json.dumps({"when": when, "command": " ".join(["python", *command[4:]]), "peaks": peaks}, indent=1) + "\n"


def parse(text: str) -> tuple[Peak, ...]:
    """Return the peaks that tools/bench/decode.py --memory printed.

    Raises:
        TopocommError: There is none.
    """
    rows = re.findall(r"^ *(\d+) (tree|ring) +([\d.]+) +[\d.]+ +[\d.]+$", text, flags=re.MULTILINE)
    if not rows:
        raise TopocommError("memory: expected rows 'hidden method measured formula ratio' of decode.py; found none")
    return tuple(Peak(int(hidden), method, float(mb)) for hidden, method, mb in rows)


def formula_mb(method: str, hidden: int, tokens: float) -> float:
    """Return the paper's formula in MB, for so many tokens on a rank."""
    numbers = ring_memory(tokens, hidden) if method == "ring" else tree_memory(tokens, hidden, hidden // HEAD_DIM)
    return ELEMENT_BYTES * numbers / 1e6


def load(path: Path = MEASURED) -> Memory:
    """Return what was measured last, and the counts."""
    document = json.loads(path.read_text())
    shape = model_shape(MODEL)
    hidden = shape.heads * shape.head_dim
    counted = {
        n: {method: formula_mb(method, hidden, COUNTED_CONTEXT / n) * 1e6 for method in ("ring", "tree")}
        for n in COUNTED_GPUS
    }
    return Memory(document["when"], tuple(Peak(*row) for row in document["peaks"]), counted)


def table_lines(memory: Memory) -> list[str]:
    """Return tables: measured beside the formulas and the paper's gap, and counts for many GPUs."""
    by = {(peak.hidden, peak.method): peak.measured_mb for peak in memory.peaks}
    lines = [f"Measured on {memory.when}, {RANKS} ranks, {CONTEXT:,} tokens; MB of 10^6 bytes:", ""]
    lines += ["| hidden | tree | equation 9 | ring | equation 8 | gap | the paper's gap |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
    for hidden in sorted({peak.hidden for peak in memory.peaks}):
        tree, ring = by[hidden, "tree"], by[hidden, "ring"]
        formulas = [formula_mb(method, hidden, CONTEXT / RANKS) for method in ("tree", "ring")]
        lines.append(
            f"| {hidden} | {tree:,.1f} | {formulas[0]:,.1f} | {ring:,.1f} | {formulas[1]:,.1f} | {ring - tree:,.1f} | "
            f"{MEMORY_GAP_MB.get(hidden, '')} |"
        )
    lines += ["", f"Counted by the formulas, {COUNTED_CONTEXT:,} tokens, hidden 2048, MB on a rank:", ""]
    lines += ["| | " + " | ".join(f"{n} GPUs" for n in memory.counted) + " |"]
    lines += ["| --- |" + " --- |" * len(memory.counted)]
    for method in ("ring", "tree"):
        cells = (f"{own[method] / 1e6:,.1f}" for own in memory.counted.values())
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return lines


def draw(memory: Memory) -> str:
    """Return the picture: bars of what was measured with the formulas as lines, and the counts."""
    figure, (left, right) = panels(1, 2, 9.6, 4.2)
    widths = sorted({peak.hidden for peak in memory.peaks})
    for number, method in enumerate(("tree", "ring")):
        own = {peak.hidden: peak.measured_mb for peak in memory.peaks if peak.method == method}
        places = [place + 0.34 * (number - 0.5) for place in range(len(widths))]
        left.bar(
            places, [own[hidden] for hidden in widths], 0.3, color=METHOD_COLOURS[method], label=f"{method}, measured"
        )
        for place, hidden in zip(places, widths, strict=True):
            height = formula_mb(method, hidden, CONTEXT / RANKS)
            left.plot([place - 0.17, place + 0.17], [height, height], color="#1b2330", linestyle="--")
            left.text(place, height + 40, f"{own[hidden]:,.1f}", ha="center", fontsize=8.5)
        right.plot(
            list(memory.counted),
            [count[method] for count in memory.counted.values()],
            color=METHOD_COLOURS[method],
            marker="o",
            label=f"{method}, equation {'8' if method == 'ring' else '9'}",
        )
    left.plot([], [], color="#1b2330", linestyle="--", label="the paper's formula")
    left.set_xticks(range(len(widths)), [f"hidden {hidden}" for hidden in widths])
    left.set(title=f"measured, {RANKS} CPU ranks, {CONTEXT:,} tokens", ylabel="MB of 10^6 bytes", ylim=(0, 2500))
    left.legend(loc="upper left", fontsize=8.5)
    right.set(xscale="log", yscale="log", title=f"counted, {COUNTED_CONTEXT / 1e6:g}M tokens", xlabel="GPUs")
    right.set_xticks(list(memory.counted), [str(n) for n in memory.counted])
    right.minorticks_off()
    right.set_yticks([3e8, 1e9, 3e9, 1e10])
    right.yaxis.set_major_formatter(bytes_text)
    right.legend(fontsize=8.5)
    footer = (
        f"Measured {memory.when}: mpirun -n {RANKS} python -m mpi4py tools/bench/decode.py --memory, bfloat16, "
        f"resident memory of the largest process; no GPU.\nFormulas: equations 8 and 9 of {SOURCE}."
    )
    return svg_text(figure, TITLE, footer)
