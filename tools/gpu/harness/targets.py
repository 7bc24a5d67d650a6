"""Targets on a card and whether results reach them: the rows of docs/results/on-a-gpu.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

UNMEASURED = "not yet measured"
HEAD = ("what", "target", "reached", "")
PASS, MISS = "pass", "MISS"
READ_SHARE = {1: 0.80, 8: 0.85}
"""Target share of the measured read bandwidth for decoding, by batch."""
RIVAL_RATIO = 1.0
"""Target speed of decoding relative to the fastest other library."""
MERGE_US = 4.0
"""Limit of a merge of 8 partials in a CUDA graph, in microseconds."""
ALLREDUCES = 3.0
"""Target speed of a whole exchange relative to three all-reduces of NCCL."""
DECODE = "decode, bf16, 32/8 heads x 128, 65,536 tokens, batch"


class Goal(NamedTuple):
    """A target and its result.

    Attributes:
        what: The problem.
        target: The target; "-": none.
        reached: The result.
        met: "yes", "no", "-" or `UNMEASURED`.
        key: Of the row of `TARGETS` that it fills; empty: of none.
    """

    what: str
    target: str
    reached: str
    met: str
    key: str = ""

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Return the cells of its row."""
        return self[:4]


class Target(NamedTuple):
    """A row.

    Attributes:
        key: Of the goals that fill it.
        what: What it is about.
        target: What is to be reached.
        every: Whether every goal must be met; else the last one decides, of which only tables are better.
    """

    key: str
    what: str
    target: str
    every: bool = False


IN_GRAPHS = "in graphs beside SDPA, flash_attn, FlashInfer"
EXCHANGE = "whole exchange of partials, in graphs, ranks on the one card:"
TARGETS = (
    Target(
        "checks",
        "every kernel on random problems, beside the float64 formula and the CPU",
        "all in their limits",
        every=True,
    ),
    *(Target(f"read {batch}", f"{DECODE} {batch}", f">= {share:.0%} of read") for batch, share in READ_SHARE.items()),
    *(
        Target(f"rival {batch}", f"{DECODE} {batch}, {IN_GRAPHS}", f">= {RIVAL_RATIO:.1f} x the fastest")
        for batch in READ_SHARE
    ),
    Target("merge", "merge of 8 partials, 32 rows x 128, in a graph", f"< {MERGE_US:g} us"),
    *(
        Target(f"ranks {count}", f"{EXCHANGE} {count}", f">= {ALLREDUCES:g} x 3 all-reduces of NCCL")
        for count in (2, 4, 8)
    ),
    Target("tokens", "greedy tokens of a small model in float32, beside SDPA", "equal"),
)


def rows(parts: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return the table's rows: what, target, reached, and whether that passes.

    Args:
        parts: Results as `results.read` has them. Where kernels were timed by the rules and with tuned tables both
            figures stand in a row, and the later one decides; but right results both must give.
    """
    found: list[tuple[str, str, str, str]] = []
    for target in TARGETS:
        goals = [
            (part.get("tables"), goal) for part in parts.values() for goal in _goals(part) if goal.key == target.key
        ]
        measured = [(tables, goal) for tables, goal in goals if goal.met != UNMEASURED]
        if not measured:
            found.append((target.what, target.target, UNMEASURED, ""))
            continue
        said = [f"{tables}: {goal.reached}" if tables else goal.reached for tables, goal in measured]
        met = all(goal.met == "yes" for _, goal in (measured if target.every else measured[-1:]))
        found.append((target.what, target.target, "; ".join(said), PASS if met else MISS))
    return found


def _goals(part: Mapping[str, Any]) -> Sequence[Goal]:
    return [Goal(*cells) for cells in part["data"].get("goals", ())]
