"""Latency of one decode step's attention over the length of the context, 8 to 128 GPUs; simulated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .drawing import MARKERS, METHOD_COLOURS, panels, svg_text, tokens_text, us_text
from .simulated_block import METHODS, BlockTimes, attention_us, constants_text, hosts_of_h100

GPUS = (8, 16, 32, 64, 128)
CONTEXTS = tuple(80_000 << doubling for doubling in range(7))
"""80k to 5.12M tokens, as figure 3 of the paper."""
RINGS = "ring", "ring-partials"
TITLE = "Attention of one decode step over 8 to 128 H100: simulated, not measured"


class Latency(NamedTuple):
    """Simulated times in us.

    Attributes:
        us: By GPUs, method and context.
        own_us: Attention over a rank's own keys, by GPUs and context: the least that any method takes.
        beyond_us: By GPUs and method but the ring: what it takes beyond that, at every context.
    """

    us: dict[int, dict[str, dict[int, float]]]
    own_us: dict[int, dict[int, float]]
    beyond_us: dict[int, dict[str, float]]


def simulate_all(gpus: Sequence[int] = GPUS, contexts: Sequence[int] = CONTEXTS) -> Latency:
    """Simulate every method on every number of GPUs at every context."""
    times = {count: BlockTimes(hosts_of_h100(count)) for count in gpus}
    return Latency(
        {n: {method: {c: own.us(method, c) for c in contexts} for method in METHODS} for n, own in times.items()},
        {n: {c: attention_us(own.machine, c) for c in contexts} for n, own in times.items()},
        {n: {method: own.beyond_us(method) for method in METHODS if method != "ring"} for n, own in times.items()},
    )


def table_lines(latency: Latency) -> list[str]:
    """Return tables: times at the longest context, ratios to the ring, and what sharing costs."""
    longest = max(next(iter(latency.own_us.values())))
    head = "| us | " + " | ".join(f"{n} GPUs" for n in latency.us) + " |"
    rule = "| --- |" + " --- |" * len(latency.us)
    own = " | ".join(f"{times[longest]:,.1f}" for times in latency.own_us.values())
    lines = [f"{longest:,} tokens, one step of the block:", "", head, rule]
    lines += [
        f"| {name} | " + " | ".join(f"{times[method][longest]:,.1f}" for times in latency.us.values()) + " |"
        for method, name in METHODS.items()
    ]
    lines += [f"| attention over a rank's own keys | {own} |", ""]
    lines += ["Beyond that attention, at every context (the ring has no such constant):", "", head, rule]
    lines += [
        f"| {name} | " + " | ".join(f"{beyond[method]:,.1f}" for beyond in latency.beyond_us.values()) + " |"
        for method, name in METHODS.items()
        if method != "ring"
    ]
    lines += ["", "Time of the ring over that of the paper's tree, and over that of ours:", ""]
    lines += ["| tokens | " + " | ".join(f"{n} GPUs" for n in latency.us) + " |", rule]
    for context in next(iter(latency.own_us.values())):
        cells = []
        for times in latency.us.values():
            ratios = [times["ring"][context] / times[tree][context] for tree in ("three-allreduce", "tree")]
            cells.append(" and ".join(f"{ratio:,.0f}" for ratio in ratios))
        lines.append(f"| {tokens_text(context)} | " + " | ".join(cells) + " |")
    return lines


def draw(latency: Latency) -> str:
    """Return the picture: a panel for each number of GPUs, and one of what sharing costs."""
    figure, axes = panels(2, 3, 10.5, 6.9)
    for ax, (count, times) in zip(axes, latency.us.items(), strict=False):
        for method, name in METHODS.items():
            points = times[method]
            ax.plot(
                list(points), list(points.values()), color=METHOD_COLOURS[method], marker=MARKERS[method], label=name
            )
        own = latency.own_us[count]
        ax.plot(list(own), list(own.values()), color="#5b6472", linestyle=":", label="attention over a rank's own keys")
        ax.set(xscale="log", yscale="log", title=f"{count} GPUs", xlabel="tokens of context", ylim=(1, 3e6))
        ax.set_xticks(list(points)[::2], [tokens_text(context) for context in list(points)[::2]], minor=False)
        ax.yaxis.set_major_formatter(us_text)
        ax.minorticks_off()
    handles, names = axes[0].get_legend_handles_labels()
    last = axes[len(latency.us)]
    counts = list(latency.beyond_us)
    for method in METHODS:
        if method not in RINGS:
            beyond = [latency.beyond_us[count][method] for count in counts]
            last.plot(counts, beyond, color=METHOD_COLOURS[method], marker=MARKERS[method])
    last.set(xscale="log", title="beyond that attention, without rings", xlabel="GPUs", ylim=(0, None))
    last.set_xticks(counts, [str(count) for count in counts])
    last.minorticks_off()
    last.yaxis.set_major_formatter(us_text)
    figure.legend(handles, names, loc="lower center", ncols=4, bbox_to_anchor=(0.5, 0.075), fontsize=8.5)
    footer = (
        "Simulated by topocomm simulate: DGX H100 hosts (topology dgx-h100), 16 heads of 128, bfloat16, batch 1, "
        "partials float32.\n" + constants_text()
    )
    return svg_text(figure, TITLE, "\n" * 5 + footer)
