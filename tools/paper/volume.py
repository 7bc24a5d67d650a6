"""Bytes that a rank sends in one decode step of the block, counted from the simulated schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from topocomm.planning.cost.simulated_work import SEND, Work
from topocomm.simulation.decode import model_shape

from .drawing import GRID, MARKERS, METHOD_COLOURS, SOFT, bytes_text, panels, svg_text
from .published import SOURCE, ring_numbers, tree_numbers
from .simulated_block import METHODS, MODEL, block_step, hosts_of_h100

GPUS = (8, 16, 32, 64, 128)
CONTEXT = 5_120_000
KV_BYTES, PARTIAL_BYTES = 2, 4
"""Bytes of a number of keys and values (bfloat16), and of partials (float32)."""
TITLE = "Bytes a rank sends in one step: counted from simulated schedules"


class Volume(NamedTuple):
    """Bytes by GPUs and method: of the rank that sends most, and of all; of the paper's formulas by GPUs."""

    context: int
    most: dict[int, dict[str, int]]
    total: dict[int, dict[str, int]]
    ring_formula: dict[int, float]
    tree_formula: dict[int, float]


def sent_by_rank(work: Work) -> np.ndarray:
    """Return the bytes that each device sends."""
    sends = work.kind == SEND
    return np.bincount(work.src[sends], work.payload_bytes[sends], minlength=len(work.devices)).astype(np.int64)


def count_all(gpus: Sequence[int] = GPUS, context: int = CONTEXT) -> Volume:
    """Count what every method sends."""
    shape = model_shape(MODEL)
    hidden = shape.heads * shape.head_dim
    sent: dict[int, dict[str, np.ndarray]] = {}
    for count in gpus:
        machine = hosts_of_h100(count)
        sent[count] = {name: sent_by_rank(block_step(machine, name, context).timeline.work) for name in METHODS}
    return Volume(
        context,
        {n: {method: int(each.max()) for method, each in own.items()} for n, own in sent.items()},
        {n: {method: int(each.sum()) for method, each in own.items()} for n, own in sent.items()},
        {n: KV_BYTES * ring_numbers(context, hidden, n) for n in gpus},
        {n: PARTIAL_BYTES * tree_numbers(hidden, shape.heads, n) for n in gpus},
    )


def table_lines(volume: Volume) -> list[str]:
    """Return tables of the busiest rank's bytes and of all ranks'."""
    head = "| bytes | " + " | ".join(f"{n} GPUs" for n in volume.most) + " |"
    rule = "| --- |" + " --- |" * len(volume.most)
    lines = [f"The rank that sends most, {volume.context:,} tokens:", "", head, rule]
    for method, name in METHODS.items():
        lines.append(f"| {name} | " + " | ".join(f"{own[method]:,}" for own in volume.most.values()) + " |")
    for words, formula in (
        ("ring by equation 10, bfloat16", volume.ring_formula),
        ("tree by equation 14, float32", volume.tree_formula),
        ("tree by equation 14, bfloat16", {n: value / 2 for n, value in volume.tree_formula.items()}),
    ):
        lines.append(f"| {words} | " + " | ".join(f"{value:,.0f}" for value in formula.values()) + " |")
    lines += ["", "All ranks together:", "", head, rule]
    for method, name in METHODS.items():
        lines.append(f"| {name} | " + " | ".join(f"{own[method]:,}" for own in volume.total.values()) + " |")
    return lines


def draw(volume: Volume) -> str:
    """Return the picture: bytes over GPUs, on a scale that has room for the ring."""
    figure, (ax,) = panels(1, 1, 8.2, 5.2)
    counts = list(volume.most)
    for method, name in METHODS.items():
        known = [(n, own[method]) for n, own in volume.most.items() if own[method]]
        ax.plot(*zip(*known, strict=True), color=METHOD_COLOURS[method], marker=MARKERS[method], label=name)
    ax.plot(
        counts, list(volume.ring_formula.values()), color=SOFT, linestyle="--", label="ring, the paper's equation 10"
    )
    ax.plot(
        counts, list(volume.tree_formula.values()), color=SOFT, linestyle=":", label="tree, the paper's equation 14"
    )
    ax.set(xscale="log", yscale="log", xlabel="GPUs", ylabel="bytes sent by the busiest rank")
    ax.set_xticks(counts, [str(count) for count in counts])
    ax.minorticks_off()
    ax.yaxis.set_major_formatter(bytes_text)
    ax.grid(color=GRID)
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8.5)
    footer = (
        f"{volume.context:,} tokens, 16 heads of 128, batch 1; keys and values bfloat16, partials float32, numerators "
        "of the three all-reduces and sums of DCP (ag_rs) bfloat16. Helix sends nothing on 8 and 16 GPUs, which have "
        f"key heads of their own.\nFormulas of {SOURCE}: equation 10 with 2 bytes a number, equation 14 with 4."
    )
    return svg_text(figure, TITLE, footer)
