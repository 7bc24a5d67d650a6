"""Random systems, hosts and sizes: no plan takes much longer than its neighbours of a host or a size more or less.

    python tools/soak/cliffs.py --seconds 600 [--seed 1]

A plan of objective auto must not take over 1.5 times what each neighbour takes, times the ratio of their bounds where
that is above 1, and not over 2 times its own bound, of 16 MiB and more up to 128 ranks 1.3 times. What is not there yet
stands in `LIMITS` with the reason. Ends at the first failure with the seed that repeats it.
"""

from __future__ import annotations

import argparse
import time
from typing import NamedTuple

import numpy as np

import topocomm
from topocomm import Plan
from topocomm.topology.catalog.systems import SYSTEMS

COLLECTIVES = ("allreduce", "reduce", "broadcast", "allgather", "reduce_scatter", "scan", "exscan")
PREFIXES = ("scan", "exscan")
MOST_HOSTS, MOST_RANKS, MOST_BYTES = 130, 1100, 1 << 32
CLIFF = 1.5
"""Greatest ratio to a neighbour."""
MOST_GAP, MOST_GAP_OF_LONG, LONG_BYTES, LONG_RANKS = 2.0, 1.3, 16 << 20, 128
"""Greatest gap; of so many bytes on so many ranks at most."""


class Limit(NamedTuple):
    """Greatest gaps that hold today where those above do not: of fewer bytes than LONG_BYTES, and of more.

    Attributes:
        systems: How the names of the systems begin; collectives: which ones, empty for all.
    """

    systems: tuple[str, ...]
    collectives: tuple[str, ...]
    short: float
    long: float
    reason: str


LIMITS = (
    Limit(
        ("dgx-1", "p3dn"),
        PREFIXES,
        4.0,
        2.2,
        "in rank order values pass pairs without a link, and NICs that two GPUs share",
    ),
    Limit(("cpu",), PREFIXES, 5.0, 3.5, "phases of all cores wait for each other, chains of long values for buses"),
    Limit(("mi250x", "mi100"), PREFIXES, 4.5, 2.3, "in rank order values pass pairs without a link"),
    Limit(("dgx-2", "v100-4"), PREFIXES, 3.0, 2.2, "ranks share a NIC, which the chain over hosts waits for"),
    Limit(("",), PREFIXES, 3.0, 1.9, "what goes to owners of pieces inside hosts does not overlap what goes between"),
    Limit(
        ("rtx", "a100-pcie", "cpu"),
        (),
        3.0,
        1.9,
        "over 32 ranks, or behind a bus and a NIC, ports wait for what is shared",
    ),
    Limit(
        ("dgx-1", "p3dn"),
        (),
        2.8,
        1.8,
        "not all pairs have a link: short values pass others, long ones over several NICs too",
    ),
    Limit(("mi250x", "mi100"), (), 3.0, 2.7, "pairs without a link pass others, whose links they share"),
    Limit(("gb200",), (), 2.3, 2.2, "72 x 72 transfers a slice leave few slices to fill trees of several racks with"),
    Limit(("dgx-2",), (), 2.5, 1.4, "two GPUs share a NIC, and hold their ports while it serves both"),
    Limit(
        ("v100-4",),
        ("reduce", "broadcast"),
        3.0,
        1.3,
        "a GPU reaches half its NIC's rate by PCIe: two must send at once",
    ),
    Limit(("",), (), 3.0, 1.5, "one port sends by NVLink and then by its NIC: short values have no slices to overlap"),
)


def most_gap(system: str, collective: str, payload_bytes: int, ranks: int) -> float:
    """Return the greatest gap that is allowed."""
    is_long = payload_bytes >= LONG_BYTES
    wanted = MOST_GAP_OF_LONG if is_long and ranks <= LONG_RANKS else MOST_GAP
    applied = [
        each for each in LIMITS if system.startswith(each.systems) and collective in (each.collectives or COLLECTIVES)
    ]
    return max(wanted, *(each.long if is_long else each.short for each in applied))


def planned(system: str, hosts: int, collective: str, payload_bytes: int) -> Plan:
    """Return the plan of objective auto."""
    return topocomm.plan(topocomm.catalog(system, hosts=hosts), collective, payload_bytes=payload_bytes)


def cliff(here: Plan, neighbour: Plan) -> float:
    """Return how many times longer a plan takes than its neighbour and the bounds explain."""
    own, other = (plan.certificate.predicted_lower_bound_us or 0.0 for plan in (here, neighbour))
    explained_us = neighbour.figures.predicted_us * (max(1.0, own / other) if other else 1.0)
    return here.figures.predicted_us / explained_us if explained_us else 1.0


def check(seed: int) -> str:
    """Check one plan and its neighbours; return what it was."""
    rng = np.random.default_rng(seed)
    system, collective = str(rng.choice(list(SYSTEMS))), str(rng.choice(COLLECTIVES))
    a_host = len(topocomm.catalog(system).endpoints)
    hosts = min(int(np.exp(rng.uniform(0, np.log(MOST_HOSTS)))), max(1, MOST_RANKS // a_host - 1))
    payload_bytes = 4 * int(np.exp(rng.uniform(0, np.log(MOST_BYTES / 4))))
    here = planned(system, hosts, collective, payload_bytes)
    what = f"{system} x {hosts}, {collective} of {payload_bytes} B: {here.algorithm} {here.figures.predicted_us:.2f} us"
    gap = here.certificate.gap
    most = most_gap(system, collective, payload_bytes, a_host * hosts)
    assert gap <= most, f"{what}, {gap:.2f} times the bound, at most {most:g}"
    for more_hosts, factor in ((1, 1), (-1, 1), (0, 2)):
        if hosts + more_hosts < 1:
            continue
        other = planned(system, hosts + more_hosts, collective, payload_bytes * factor)
        for first, second, words in ((here, other, "than"), (other, here, "less than")):
            ratio = cliff(first, second)
            assert ratio <= CLIFF, (
                f"{what}: {ratio:.2f} times longer {words} {hosts + more_hosts} hosts and {payload_bytes * factor} B: "
                f"{other.algorithm} {other.figures.predicted_us:.2f} us"
            )
    return f"{what}, {gap:.2f} times the bound"


def main() -> None:
    """Check until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    end, seed = time.monotonic() + args.seconds, args.seed
    while time.monotonic() < end:
        try:
            what = check(seed)
        except AssertionError as error:
            raise SystemExit(f"cliff with --seed {seed}: {error}") from None
        seed += 1
    print(f"{seed - args.seed} plans and their neighbours without a cliff; the last: {what}")


if __name__ == "__main__":
    main()
