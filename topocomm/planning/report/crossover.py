"""Which plan is best for which payload: one machine, one collective, many sizes, and where the choice changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from textwrap import wrap

from topocomm.planning.plan import Plan
from topocomm.planning.report.plan_comparison import Rival, behind

WIDTH = 80
_KEPT = "\N{NO-BREAK SPACE}"
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
    """One line per size, and the sizes at which the best algorithm changes: 80 columns, but for names that are long."""
    first = sizes[0].plan
    table = [("bytes", "algorithm", "rounds", "us", "GB/s", "gap", "next")]
    for size in sizes:
        plan, f = size.plan, size.plan.figures
        others = [rival for rival in size.rivals if rival.algorithm != plan.algorithm]
        follows = f"{others[0].algorithm} {behind(plan, others[0])}" if others else ""
        rate = "" if f.algbw_gb_per_s is None else f"{f.algbw_gb_per_s:.3f}"
        gap, us = f"{plan.certificate.gap:.2f}", f"{f.predicted_us:.2f}"
        table.append((str(plan.payload_bytes), plan.algorithm, str(f.rounds), us, rate, gap, follows))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        f"{first.collective.name} {first.operator}, {len(first.ranks)} ranks on {machine}",
        f"objective {first.objective}, model {first.port_model}"
        + (f", launches {first.launch_us:g} us a round" if first.launch_us else ""),
        "",
        *(_line(row, widths) for row in table),
        "",
    ]
    told = [
        f"{name} at {human(low)}" if low == high else f"{name} from {human(low)} to {human(high)}"
        for name, low, high in changes(sizes)
    ]
    best = wrap("best: " + ", ".join(text.replace(" ", _KEPT) for text in told), WIDTH, subsequent_indent=" " * 6)
    return "\n".join([*lines, *(line.replace(_KEPT, " ") for line in best), *_native(sizes)])


def _native(sizes: Sequence[Size]) -> list[str]:
    """The sizes for which a library's own collective is predicted to take less."""
    told = [
        f"{plan.native_call} at {human(plan.payload_bytes)} ({plan.predicted_us:.2f} us)".replace(" ", _KEPT)
        for plan in (size.plan for size in sizes)
        if plan.native_call
    ]
    lines = wrap("native: " + ", ".join(told), WIDTH, subsequent_indent=" " * 8) if told else []
    return [line.replace(_KEPT, " ") for line in lines]


def _line(row: tuple[str, ...], widths: Sequence[int]) -> str:
    """Names to the left, numbers to the right."""
    cells = [
        cell.ljust(width) if column in (1, 6) else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return " ".join(cells).rstrip()


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
        "launch_us": first.launch_us,
        "sizes": [
            {
                "payload_bytes": size.plan.payload_bytes,
                "algorithm": size.plan.algorithm,
                "rounds": size.plan.figures.rounds,
                "predicted_us": size.plan.figures.predicted_us,
                "algbw_gb_per_s": size.plan.figures.algbw_gb_per_s,
                "gap": size.plan.certificate.gap,
                **({"native": asdict(size.plan.native)} if size.plan.native is not None else {}),
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
