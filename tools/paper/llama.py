"""Llama decode on the paper's three machines: simulated steps beside its published times of a prompt and ten tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import topocomm
from topocomm.simulation.decode import DEVICES, ModelShape, model_shape, simulate_step
from topocomm.simulation.decode.layer_costs import LayerCosts
from topocomm.topology.links import GROUP_LAUNCH_US

from .drawing import METHOD_COLOURS, SOFT, panels, svg_text, tokens_text
from .published import NEW_TOKENS, SOURCE, STEPS, TABLES, Published
from .simulated_block import METHODS

CONTEXTS = (32_000, 64_000, 128_000, 256_000)
REPLICATED = ("three-allreduce", "ring", "tree", "allgather", "max-sum")
"""Methods that are simulated with all weights on every rank, as the paper's program has them."""
SHARDED = ("tree", "allgather", "max-sum", "dcp", "dcp-a2a", "helix")
AS_ITS_PROGRAM = "ring, key heads repeated"
"""The paper's program repeats key heads for every query head before it attends to them and sends them."""
TITLE = "Llama on the paper's machines: the paper's times, and simulated (not measured) ones"


class Place(NamedTuple):
    """A machine of the paper: a system of the catalogue, so many of its devices, the model."""

    system: str
    ranks: int
    device: str
    model: str


PLACES = {
    "8x H100": Place("dgx-h100", 8, "h100", "llama-3.1-8b"),
    "4x MI300X": Place("mi300x-8", 4, "mi300x", "llama-3.1-8b"),
    "2x RTX 4090": Place("rtx4090-pcie-4", 2, "rtx4090", "llama-3.2-1b"),
}


class Steps(NamedTuple):
    """Simulated ms of one step by context and method, and least seconds of the prompt.

    Attributes:
        replicated_ms, sharded_ms: By context, then method.
        prompt_s: The prompt's operations over the peak rate of all devices, work shared equally, by context.
        unequal_prompt_s: The same where ranks hold one stretch each, so that the last one attends to all before it.
    """

    replicated_ms: dict[int, dict[str, float]]
    sharded_ms: dict[int, dict[str, float]]
    prompt_s: dict[int, float]
    unequal_prompt_s: dict[int, float]


def contexts_of(name: str) -> tuple[int, ...]:
    """Return the contexts of a machine: those of the paper, and `CONTEXTS`."""
    return tuple(sorted({*CONTEXTS, *(row.context for row in TABLES[name])}))


def simulate_place(name: str, contexts: tuple[int, ...] | None = None) -> Steps:
    """Simulate the steps of one machine of `PLACES`."""
    place = PLACES[name]
    topology = topocomm.catalog(place.system)
    ends, shape, device = topology.endpoints[: place.ranks], model_shape(place.model), DEVICES[place.device]

    def ms(method: str, context: int, weights: str, model: ModelShape = shape) -> float:
        step = simulate_step(
            topology, model, context=context, method=method, ranks=ends, device=device, weights=weights
        )
        return step.total_us / 1e3

    steps = Steps({}, {}, {}, {})
    repeated = replace(shape, kv_heads=shape.heads)
    for context in contexts or contexts_of(name):
        steps.replicated_ms[context] = {method: ms(method, context, "replicated") for method in REPLICATED}
        costs = LayerCosts(shape, device, context)
        more_us = costs.weights_us(repeated.qkv_weights) - costs.weights_us(shape.qkv_weights)
        # Heads are repeated after they are projected: the projections are those of the model as it is.
        repeated_ms = ms("ring", context, "replicated", repeated) - shape.layers * more_us / 1e3
        steps.replicated_ms[context][AS_ITS_PROGRAM] = repeated_ms
        steps.sharded_ms[context] = {method: ms(method, context, "sharded") for method in SHARDED}
        for equal, found in ((True, steps.prompt_s), (False, steps.unequal_prompt_s)):
            found[context] = prompt_flop(shape, context, place.ranks, equal) / (device.tflop_per_s * 1e12)
    return steps


def prompt_flop(shape: ModelShape, tokens: int, ranks: int, equal: bool) -> float:
    """Return the operations of the busiest rank for a prompt: products with weights, and causal attention.

    With `equal` ranks attend to equally many pairs, else each to those of one stretch of the prompt.
    """
    weights = shape.layers * (shape.qkv_weights + shape.output_weights + shape.mlp_weights)
    part = tokens / ranks
    pairs = tokens * tokens / 2 / ranks if equal else part * tokens - part * part / 2
    return 2 * weights * part + 4 * pairs * shape.heads * shape.head_dim * shape.layers


def simulate_all(contexts: tuple[int, ...] | None = None) -> dict[str, Steps]:
    """Simulate all machines."""
    return {name: simulate_place(name, contexts) for name in PLACES}


def table_lines(machines: Mapping[str, Steps]) -> list[str]:
    """Return, for each machine, the paper's times beside the simulated ones, and the fair methods."""
    lines: list[str] = []
    for name, steps in machines.items():
        place = PLACES[name]
        published = {row.context: row for row in TABLES[name]}
        lines += [f"### {name}, {place.model}", "", "All weights on every rank, as the paper has them:", ""]
        lines += [
            f"| tokens | paper: tree s | paper: ring s | ratio | least prompt s | if unequal | {STEPS} steps: "
            "three all-reduces s | ring s | ring, repeated s | ratio | ring less tree: paper s | simulated s |",
            "| --- |" + " --- |" * 11,
        ]
        for context, own in steps.replicated_ms.items():
            lines.append(_row(context, own, published.get(context), steps))
        lines += ["", "ms of one step; weights shared by all ranks but in the last column:", ""]
        lines += ["| tokens | " + " | ".join(METHODS[method] for method in SHARDED) + " | ours, all weights on each |"]
        lines += ["| --- |" + " --- |" * (len(SHARDED) + 1)]
        for context, shared in steps.sharded_ms.items():
            cells = [f"{shared[method]:.2f}" for method in SHARDED] + [f"{steps.replicated_ms[context]['tree']:.2f}"]
            lines.append(f"| {tokens_text(context)} | " + " | ".join(cells) + " |")
        lines.append("")
    return lines[:-1]


def _row(context: int, own: Mapping[str, float], row: Published | None, steps: Steps) -> str:
    paper = ["", "", ""]
    gap = ""
    if row is not None:
        paper = [
            f"{row.tree_s:.2f} ± {row.tree_off_s:.2f}", f"{row.ring_s:.2f} ± {row.ring_off_s:.2f}",
            f"{row.ring_s / row.tree_s:.1f}",
        ]  # fmt: skip
        gap = f"{row.ring_s - row.tree_s:.2f}"
    tree_s, ring_s, repeated_s = (own[method] * STEPS / 1e3 for method in ("three-allreduce", "ring", AS_ITS_PROGRAM))
    cells = [
        tokens_text(context), *paper, f"{steps.prompt_s[context]:.2f}", f"{steps.unequal_prompt_s[context]:.2f}",
        f"{tree_s:.3f}", f"{ring_s:.3f}", f"{repeated_s:.3f}", f"{ring_s / tree_s:.1f}", gap,
        f"{repeated_s - tree_s:.3f}",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def draw(machines: Mapping[str, Steps]) -> str:
    """Return the picture: for each machine seconds over tokens, the paper's as dots, the simulated ones as lines."""
    figure, axes = panels(1, 3, 10.5, 5.0)
    for ax, (name, steps) in zip(axes, machines.items(), strict=True):
        contexts = list(steps.replicated_ms)
        for what, colour in (("ring", METHOD_COLOURS["ring"]), ("tree", METHOD_COLOURS["three-allreduce"])):
            rows = TABLES[name]
            times = [(row.ring_s, row.ring_off_s) if what == "ring" else (row.tree_s, row.tree_off_s) for row in rows]
            ax.errorbar(
                [row.context for row in rows], [time for time, _ in times], [off for _, off in times],
                color=colour, marker="o", linestyle="", capsize=2, label=f"paper: prompt + {NEW_TOKENS} tokens, {what}",
            )  # fmt: skip
        for method, colour, dashes, label in (
            (
                AS_ITS_PROGRAM,
                METHOD_COLOURS["ring"],
                "--",
                f"simulated: {STEPS} steps, ring with key heads repeated, as in its program",
            ),
            ("ring", METHOD_COLOURS["ring"], "-", f"simulated: {STEPS} steps, ring"),
            (
                "three-allreduce",
                METHOD_COLOURS["three-allreduce"],
                "-",
                f"simulated: {STEPS} steps, tree, three all-reduces",
            ),
            ("tree", METHOD_COLOURS["tree"], "-", f"simulated: {STEPS} steps, tree, one planned reduction"),
        ):
            seconds = [steps.replicated_ms[context][method] * STEPS / 1e3 for context in contexts]
            ax.plot(contexts, seconds, color=colour, linestyle=dashes, label=label)
        ax.plot(
            contexts,
            list(steps.prompt_s.values()),
            color=SOFT,
            linestyle=":",
            label="least time of the prompt, by operations",
        )
        ax.set(xscale="log", yscale="log", title=f"{name}, {PLACES[name].model}", xlabel="tokens of context")
        shown = [context for context in contexts if context != 20_000]
        ax.set_xticks(shown, [tokens_text(context) for context in shown])
        ax.minorticks_off()
        ax.yaxis.set_major_formatter(lambda seconds, _: f"{seconds:g} s")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="lower center", ncols=2, bbox_to_anchor=(0.5, 0.1), fontsize=8.5)
    used = [DEVICES[PLACES[name].device] for name in machines]
    memory = ", ".join(f"{device.memory_gb_per_s:,.0f}" for device in used)
    peaks = ", ".join(f"{device.tflop_per_s:,.0f}" for device in used)
    footer = (
        f"Paper: tables 1 and 2 of {SOURCE}. Lines: {STEPS} decode steps by topocomm simulate, all weights on "
        f"each rank, bfloat16, batch 1; launch {GROUP_LAUNCH_US:g} us a round; HBM or GDDR {memory} GB/s; links of the "
        "catalogue: NVLink 450, xGMI 64 a pair, PCIe 32 GB/s. Dotted: the prompt's operations over the peak rate, "
        f"{peaks} Tflop/s a device."
    )
    return svg_text(figure, TITLE, "\n" * 6 + footer)
