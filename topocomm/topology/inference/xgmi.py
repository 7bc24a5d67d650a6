"""xGMI links from the tables of AMD's tools.

The tools print XGMI and one hop for every pair of a hive, also for pairs joined through other GPUs. Links show in the
min-max bandwidth, which is 0-0 without a link and else has the number of links as its quotient; and in the weight, 15
for each xGMI step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from topocomm.topology.inference.host_tree import PairKey, group_words, merge_groups
from topocomm.topology.inference.nvlink import GpuFabric
from topocomm.topology.links import KINDS, both_ways
from topocomm.topology.model import Link, Pair

STEP_WEIGHT = 15
"""Weight of one xGMI step, by AMD's driver."""
SOCKET_WEIGHT = 13
"""Weight between dies of one package."""

_LATENCY_US = KINDS["xgmi-mi300"].latency_us
_MI250_MB_PER_S = 50_000
"""MB/s that the driver gives for a link of any model; right for MI250, known by four links between two dies."""
_MI250_DIE_LINKS = 4


class Joined(NamedTuple):
    """xGMI between two GPUs: number of links (0 without one, None where unknown) and their total GB/s."""

    lanes: int | None
    gb_per_s: float | None = None


def xgmi_links(joined: Mapping[PairKey, Joined], assumed: Iterable[PairKey] = ()) -> GpuFabric:
    """Return links for all XGMI pairs of one host; the source calls the `assumed` neither direct nor indirect."""
    warnings: list[str] = []
    direct = {pair: figures for pair, figures in joined.items() if figures.lanes != 0}
    islands = merge_groups([(name,) for name in dict.fromkeys(n for pair in joined for n in pair)], direct)
    home = {name: group for group in islands for name in group}
    separate = [pair for pair in joined if home[pair[0]] != home[pair[1]]]
    if separate:
        words = group_words([f"{a}-{b}" for a, b in separate])
        warnings.append(f"{words}: XGMI, but no chain of direct links between them is named")
    # Two GPUs without a third between them must have a direct link.
    uncertain = [pair for pair in assumed if pair in direct and len(home[pair[0]]) > 2]
    if uncertain:
        warnings.append("the source does not say which XGMI pairs have a direct link; one between each is assumed")
    links: list[Link] = []
    pairs: dict[PairKey, Pair] = {}
    for (a, b), (lanes, gb_per_s) in joined.items():
        pairs[a, b] = Pair(a, b, "XGMI")
        if lanes == 0:
            continue
        links += both_ways(a, b, "xgmi", lanes=lanes, gb_per_s=gb_per_s)
        pairs[a, b] = Pair(a, b, "XGMI", gb_per_s, _LATENCY_US, "read" if gb_per_s is not None else None, "assumed")
    if any(figures.gb_per_s is None for figures in direct.values()):
        warnings.append("GB/s of xGMI unknown: the source names neither the GPU model nor the links' rate")
    return GpuFabric((), tuple(links), pairs, tuple(warnings))


def joined_by_tables(
    pairs: Iterable[PairKey],
    weights: Mapping[PairKey, int | None],
    bandwidths: Mapping[PairKey, tuple[int, int] | None],
) -> tuple[dict[PairKey, Joined], list[PairKey]]:
    """Return the links of XGMI pairs by weight and min-max bandwidth in MB/s, and the pairs these do not settle."""
    joined: dict[PairKey, Joined] = {}
    unsettled: list[PairKey] = []
    pairs = list(pairs)
    stated = {pair: bandwidth for pair in pairs if (bandwidth := bandwidths.get(pair)) is not None}
    counts = {  # the least bandwidth is that of one link, the greatest that of all
        pair: most // least if least and most % least == 0 and most // least <= 8 else None
        for pair, (least, most) in stated.items()
        if most
    }
    mi250 = _MI250_DIE_LINKS in counts.values() and all(stated[pair][0] == _MI250_MB_PER_S for pair in counts)
    for pair in pairs:
        weight = weights.get(pair)
        if pair in counts:
            lanes = counts[pair]
            joined[pair] = Joined(lanes, lanes * _MI250_MB_PER_S / 1000 if mi250 and lanes else None)
        elif (pair in stated and counts) or (weight and weight > STEP_WEIGHT and weight % STEP_WEIGHT == 0):
            joined[pair] = Joined(0)  # 0-0 among others that are not, or several steps
        else:
            joined[pair] = Joined(None)
            if weight not in (STEP_WEIGHT, SOCKET_WEIGHT):
                unsettled.append(pair)
    return joined, unsettled
