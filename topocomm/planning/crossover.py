"""Which plan is best for which payload: one machine, one collective, many sizes, and where the choice changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from topocomm.planning.compare import Rival, behind
from topocomm.planning.plan import Plan

UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


@dataclass(frozen=True)
class Size:
    """The best plan for one payload, and what it was chosen from, best first."""

    plan: Plan
    rivals: tuple[Rival, ...]


def changes(sizes: Sequence[Size]) -> list[tuple[str, int, int]]:
    """(algorithm, first, last payload bytes) of every stretch of sizes that one algorithm is best for."""
    stretches: list[tuple[str, int, int]] = []
    for size in sizes:
        name, payload_bytes = size.plan.algorithm, size.plan.payload_bytes
        if stretches and stretches[-1][0] == name:
            stretches[-1] = (name, stretches[-1][1], payload_bytes)
        else:
            stretches.append((name, payload_bytes, payload_bytes))
    return stretches


def crossover_text(sizes: Sequence[Size], machine: str) -> str:
    """One line per size, and the sizes at which the best algorithm changes."""
    first = sizes[0].plan
    lines = [
        f"{first.collective.name} {first.operator}, {len(first.ranks)} ranks on {machine}",
        f"objective {first.objective}, model {first.port_model}",
        "",
        f"{'bytes':>12}  {'algorithm':20} {'rounds':>6} {'us':>12} {'GB/s':>9} {'gap':>7}  next",
    ]
    for size in sizes:
        f = size.plan.figures
        others = [rival for rival in size.rivals if rival.algorithm != size.plan.algorithm]
        follows = f"{others[0].algorithm} {behind(size.plan, others[0])}" if others else ""
        rate = "" if f.algbw_gb_per_s is None else f"{f.algbw_gb_per_s:.3f}"
        lines.append(
            f"{size.plan.payload_bytes:12}  {size.plan.algorithm:20} {f.rounds:6} {f.predicted_us:12.2f} {rate:>9} "
            f"{size.plan.certificate.gap:7.2f}  {follows}"
        )
    told = [f"{name} from {human(low)} to {human(high)}" for name, low, high in changes(sizes)]
    return "\n".join([*lines, "", "best: " + ", ".join(told)])


def crossover_document(sizes: Sequence[Size], machine: str) -> dict[str, object]:
    """The table as plain data."""
    first = sizes[0].plan
    return {
        "schema": "topocomm.crossover/1",
        "topology": machine,
        "topology_digest": first.topology_digest,
        "collective": first.collective.name,
        "operator": first.operator,
        "objective": first.objective,
        "port_model": first.port_model,
        "sizes": [
            {
                "payload_bytes": size.plan.payload_bytes,
                "algorithm": size.plan.algorithm,
                "rounds": size.plan.figures.rounds,
                "predicted_us": size.plan.figures.predicted_us,
                "algbw_gb_per_s": size.plan.figures.algbw_gb_per_s,
                "gap": size.plan.certificate.gap,
                "candidates": [{"algorithm": r.algorithm, "predicted_us": r.predicted_us} for r in size.rivals],
            }
            for size in sizes
        ],
        "changes": [
            {"after_bytes": before[2], "from_bytes": after[1], "before": before[0], "after": after[0]}
            for before, after in pairwise(changes(sizes))
        ],
    }


def human(payload_bytes: int) -> str:
    """Bytes in the largest unit that divides them."""
    for unit, name in UNITS:
        if payload_bytes and payload_bytes % unit == 0:
            return f"{payload_bytes // unit} {name}"
    return f"{payload_bytes} B"
