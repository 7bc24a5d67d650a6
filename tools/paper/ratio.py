"""The ring's time over the tree's on 128 GPUs at 5.12M tokens, beside the paper's "up to 8x"; simulated.

Every constant is halved and doubled in turn; besides, the ring attends to a part before it sends it on.
"""

from __future__ import annotations

from typing import NamedTuple

from .drawing import METHOD_COLOURS, SOFT, panels, svg_text
from .published import GPUS, SOURCE, TIMES_FASTER, TOKENS
from .simulated_block import CONSTANTS, METHODS, BlockTimes, constants_text, hosts_of_h100, sequential_ring_us

TREES = ("three-allreduce", "tree")
"""The paper's tree and ours."""
FACTORS = (0.5, 2.0)
SEQUENTIAL = "ring does not overlap"
TITLE = f"Ring over tree, {GPUS} H100, {TOKENS / 1e6:g}M tokens: simulated, not measured"


class Ratios(NamedTuple):
    """Simulated times, and their sensitivity.

    Attributes:
        ring_us, partials_us, tree_us: With the constants as they are: of the ring, of a ring that sends partials, and
            of the tree by method.
        changed: Ring over tree by constant, then by factor, for each tree.
        sequential: Ring over tree with a ring that sends only after it has attended.
    """

    gpus: int
    context: int
    ring_us: float
    partials_us: float
    tree_us: dict[str, float]
    changed: dict[str, dict[float, dict[str, float]]]
    sequential: dict[str, float]

    @property
    def base(self) -> dict[str, float]:
        """Ring over tree with the constants as they are."""
        return {tree: self.ring_us / own_us for tree, own_us in self.tree_us.items()}

    def common_us(self, tree: str, ratio: float = TIMES_FASTER) -> float:
        """Return what must be added to both times for their ratio to be `ratio`."""
        return (self.ring_us - ratio * self.tree_us[tree]) / (ratio - 1)


def simulate_all(gpus: int = GPUS, context: int = TOKENS) -> Ratios:
    """Simulate the base case, and each constant halved and doubled."""
    machine = hosts_of_h100(gpus)
    base = BlockTimes(machine)
    tree_us = {tree: base.us(tree, context) for tree in TREES}
    changed: dict[str, dict[float, dict[str, float]]] = {}
    for constant in CONSTANTS:
        for factor in FACTORS:
            times = BlockTimes(hosts_of_h100(gpus, constant, factor))
            ring_us = times.us("ring", context)
            changed.setdefault(constant, {})[factor] = {tree: ring_us / times.us(tree, context) for tree in TREES}
    sequential_us = sequential_ring_us(machine, context)
    sequential = {tree: sequential_us / own_us for tree, own_us in tree_us.items()}
    ring_us, partials_us = base.us("ring", context), base.us("ring-partials", context)
    return Ratios(gpus, context, ring_us, partials_us, tree_us, changed, sequential)


def table_lines(ratios: Ratios) -> list[str]:
    """Return the ratio beside the paper's, and the table of sensitivities."""
    lines = ["| | simulated | the paper's | what both must take besides for the paper's ratio |"]
    lines.append("| --- | --- | --- | --- |")
    for tree, ratio in ratios.base.items():
        lines.append(
            f"| ring over {METHODS[tree]} | {ratios.ring_us:,.0f} us / {ratios.tree_us[tree]:,.1f} us = {ratio:,.0f} | "
            f"up to {TIMES_FASTER} | {ratios.common_us(tree) / 1e3:,.0f} ms |"
        )
    for tree, tree_us in ratios.tree_us.items():
        times = f"{ratios.partials_us:,.1f} us / {tree_us:,.1f} us = {ratios.partials_us / tree_us:.1f}"
        lines.append(f"| ring of partials over {METHODS[tree]} | {times} | | |")
    lines += [
        "",
        "| changed | paper's tree: half | double | our tree: half | double |",
        "| --- | --- | --- | --- | --- |",
    ]
    for constant, by_factor in ratios.changed.items():
        cells = (f"{by_factor[factor][tree]:,.0f}" for tree in TREES for factor in FACTORS)
        lines.append(f"| {constant} | " + " | ".join(cells) + " |")
    paper, ours = (f"{ratios.sequential[tree]:,.0f}" for tree in TREES)
    lines.append(f"| {SEQUENTIAL} | {paper} | | {ours} | |")
    return lines


def draw(ratios: Ratios) -> str:
    """Return the picture: for each tree a bar from the ratio at half to that at double of every constant."""
    figure, axes = panels(1, 2, 10.5, 4.2)
    names = [*ratios.changed, SEQUENTIAL]
    for ax, tree in zip(axes, TREES, strict=True):
        base = ratios.base[tree]
        colour = METHOD_COLOURS[tree]
        for place, name in enumerate(names):
            ends = [by[tree] for by in ratios.changed[name].values()] if name in ratios.changed else [base]
            if name == SEQUENTIAL:
                ends.append(ratios.sequential[tree])
            ax.plot(ends, [place] * len(ends), color=colour, linewidth=5, alpha=0.45, solid_capstyle="butt")
            for end, mark in zip(ends, ("v", "^") if name in ratios.changed else ("", "o"), strict=True):
                ax.plot([end], [place], color=colour, marker=mark, markersize=6)
        ax.axvline(base, color=SOFT, linestyle=":")
        ax.set_yticks(range(len(names)), names if tree == TREES[0] else [""] * len(names))
        ax.set(title=f"ring over {METHODS[tree]}: {base:,.0f}", xlabel="time of the ring / time of the tree")
        ax.set(ylim=(len(names) - 0.4, -0.6), xlim=(0, 1.08 * max(_all(ratios, tree))))
    footer = (
        f"Triangles: a constant halved (down) and doubled (up); dotted: as it is. The paper ({SOURCE}) says up to "
        f"{TIMES_FASTER}.\nSimulated by topocomm simulate: 16 heads of 128, bfloat16, batch 1. " + constants_text()
    )
    return svg_text(figure, TITLE, footer)


def _all(ratios: Ratios, tree: str) -> list[float]:
    return [own[tree] for by in ratios.changed.values() for own in by.values()] + [ratios.sequential[tree]]
