"""What the Tree Attention paper says (arXiv 2408.04093 v4), by table, figure or equation."""

from __future__ import annotations

from typing import NamedTuple

SOURCE = "arXiv 2408.04093 v4"
TIMES_FASTER = 8
"""Abstract and figure 3: "up to 8x faster", on 128 H100 with 5.12M tokens."""
GPUS, TOKENS = 128, 5_120_000
"""Of that claim."""
NEW_TOKENS = 10
"""Tables 1 and 2 time the prompt and so many tokens."""
STEPS = NEW_TOKENS - 1
"""Decode steps of that: the prompt gives the first token (`generate` of its program)."""
MEMORY_GAP_MB = {2048: 524, 4096: 1040}
"""Figure 4: peak of ring less peak of tree by hidden width, one block on 2 RTX 4090; MB of 10^6 bytes."""


class Published(NamedTuple):
    """A row of table 1 or 2: seconds for the prompt and ten tokens, mean and deviation of ten runs."""

    context: int
    tree_s: float
    tree_off_s: float
    ring_s: float
    ring_off_s: float


TABLES = {
    "8x H100": (
        Published(32_000, 0.60, 0.15, 2.57, 0.35),
        Published(64_000, 1.08, 0.10, 4.42, 0.38),
        Published(128_000, 2.68, 0.28, 6.38, 0.58),
        Published(256_000, 2.89, 0.62, 8.19, 1.07),
    ),
    "4x MI300X": (
        Published(32_000, 1.05, 0.01, 3.57, 0.25),
        Published(64_000, 2.36, 0.01, 7.33, 0.25),
        Published(128_000, 6.43, 0.25, 16.40, 0.40),
        Published(256_000, 15.30, 4.93, 35.12, 5.02),
    ),
    "2x RTX 4090": (
        Published(8_000, 0.34, 0.05, 1.38, 0.07),
        Published(16_000, 0.58, 0.07, 2.77, 0.04),
        Published(20_000, 0.74, 0.01, 3.47, 0.04),
        Published(32_000, 1.01, 0.02, 5.45, 0.03),
    ),
}
"""Table 1 (Llama-3.1-8B on H100 and MI300X) and table 2 (Llama-3.2-1B on RTX 4090). Its "32k" is read as 32,000."""


def ring_numbers(tokens: int, hidden: int, ranks: int, batch: int = 1) -> float:
    """Return equation 10: numbers that a rank sends by ring attention, of `tokens` in all."""
    return 2 * batch * (tokens / ranks) * hidden * ranks


def tree_numbers(hidden: int, heads: int, ranks: int, batch: int = 1) -> float:
    """Return equation 14: numbers that a rank sends by tree attention, for one query."""
    return 2 * (ranks - 1) / ranks * batch * (hidden + 2 * heads)


def ring_memory(tokens: float, hidden: int, batch: int = 1) -> float:
    """Return equation 8: numbers that ring attention holds at its peak, `tokens` on a rank."""
    return 4 * batch * tokens * hidden + 2 * batch * hidden


def tree_memory(tokens: float, hidden: int, heads: int, batch: int = 1) -> float:
    """Return equation 9: the same of tree attention."""
    return 2 * batch * tokens * hidden + 2 * batch * hidden + 2 * batch * heads
