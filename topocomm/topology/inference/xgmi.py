"""From what AMD's tools say of pairs of GPUs to xGMI links.

The tools call every pair of one hive XGMI, be it joined by a link or through other GPUs, and print one hop for all of
them. What tells links apart: min-max bandwidth, which is 0-0 for a pair without a link, and whose quotient is the
number of links; and the weight, 15 for each xGMI step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from topocomm.topology.inference.host_tree import PairKey, group_words, merge_groups
from topocomm.topology.links import KINDS, both_ways
from topocomm.topology.model import Link, Pair

STEP_WEIGHT = 15
"""The driver's weight of one xGMI step; 30 is two."""
SOCKET_WEIGHT = 13
"""The weight between parts of one package."""

_LATENCY_US = KINDS["xgmi-mi300"].latency_us
_MI250_MB_PER_S = 50_000
"""The driver's figure for one link of every model. It is right for MI250, which four links between two dies tell."""
_MI250_DIE_LINKS = 4


class Joined(NamedTuple):
    """What is known of xGMI between two GPUs: links (0 is none, None is not known) and GB/s of them together."""

    lanes: int | None
    gb_per_s: float | None = None


class XgmiLinks(NamedTuple):
    """Directed links, the figures of each XGMI pair, and what had to be assumed."""

    links: tuple[Link, ...]
    pairs: dict[PairKey, Pair]
    warnings: tuple[str, ...]


def xgmi_links(joined: Mapping[PairKey, Joined], assumed: Iterable[PairKey] = ()) -> XgmiLinks:
    """Links for the XGMI pairs of one host.

    Args:
        joined: All XGMI pairs.
        assumed: Those for which the source does not say whether the link is direct.
    """
    found: list[str] = []
    direct = {pair: figures for pair, figures in joined.items() if figures.lanes != 0}
    islands = merge_groups([(name,) for name in dict.fromkeys(n for pair in joined for n in pair)], direct)
    home = {name: group for group in islands for name in group}
    lost = [pair for pair in joined if home[pair[0]] != home[pair[1]]]
    if lost:
        words = group_words([f"{a}-{b}" for a, b in lost])
        found.append(f"{words}: XGMI, but no chain of direct links between them is named")
    # Two GPUs that no third one joins can only have a direct link.
    unsure = [pair for pair in assumed if pair in direct and len(home[pair[0]]) > 2]
    if unsure:
        found.append("the source does not say which XGMI pairs have a direct link; one between each is assumed")
    links: list[Link] = []
    pairs: dict[PairKey, Pair] = {}
    for (a, b), (lanes, gb_per_s) in joined.items():
        pairs[a, b] = Pair(a, b, "XGMI")
        if lanes == 0:
            continue
        links += both_ways(a, b, "xgmi", lanes=lanes, gb_per_s=gb_per_s)
        pairs[a, b] = Pair(a, b, "XGMI", gb_per_s, _LATENCY_US, "read" if gb_per_s is not None else None, "assumed")
    if any(figures.gb_per_s is None for figures in direct.values()):
        found.append("GB/s of xGMI unknown: the source names neither the GPU model nor the links' rate")
    return XgmiLinks(tuple(links), pairs, tuple(found))


def joined_by_tables(
    pairs: Iterable[PairKey],
    weights: Mapping[PairKey, int | None],
    bandwidths: Mapping[PairKey, tuple[int, int] | None],
) -> tuple[dict[PairKey, Joined], list[PairKey]]:
    """What weight and min-max bandwidth say of XGMI pairs, and the pairs of which they say nothing.

    Args:
        pairs: The XGMI pairs.
        weights: The driver's weights.
        bandwidths: Least and greatest bandwidth in MB/s, as printed.
    """
    joined: dict[PairKey, Joined] = {}
    silent: list[PairKey] = []
    pairs = list(pairs)
    spoken = {pair: bandwidth for pair in pairs if (bandwidth := bandwidths.get(pair)) is not None}
    counts = {pair: _links(*bandwidth) for pair, bandwidth in spoken.items() if bandwidth[1]}
    mi250 = _MI250_DIE_LINKS in counts.values() and all(spoken[pair][0] == _MI250_MB_PER_S for pair in counts)
    for pair in pairs:
        weight = weights.get(pair)
        if pair in counts:
            lanes = counts[pair]
            joined[pair] = Joined(lanes, lanes * _MI250_MB_PER_S / 1000 if mi250 and lanes else None)
        elif (pair in spoken and counts) or (weight and weight > STEP_WEIGHT and weight % STEP_WEIGHT == 0):
            joined[pair] = Joined(0)  # 0-0 among others that are not, or several steps
        else:
            joined[pair] = Joined(None)
            if weight not in (STEP_WEIGHT, SOCKET_WEIGHT):
                silent.append(pair)
    return joined, silent


def _links(least: int, most: int) -> int | None:
    """Number of links: the driver's least bandwidth is one link, the greatest all of them."""
    return most // least if least and most % least == 0 and most // least <= 8 else None
