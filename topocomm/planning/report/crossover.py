"""The best plan by payload size: one machine, one collective; as text, JSON and a picture."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from math import ceil, floor, log10
from textwrap import wrap

from topocomm.planning.plan import Plan
from topocomm.planning.report.plan_comparison import Rival, behind
from topocomm.topology.draw.svg.colours import hue_class
from topocomm.topology.draw.svg.svg_page import BOLD_LETTER, LETTER, Page, fitted

COLUMNS = 80
"""Width of the text."""
_KEPT = "\N{NO-BREAK SPACE}"
UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
WIDTH, HEIGHT = 800.0, 520.0
EDGE, LEFT, RIGHT, TOP, BOTTOM = 20.0, 100.0, 36.0, 110.0, 84.0
"""The picture and its margins, in px."""
LEGEND_ROW = 20.0


@dataclass(frozen=True)
class Size:
    """The best plan for one payload, and the algorithms it was chosen from, best first."""

    plan: Plan
    rivals: tuple[Rival, ...]


def changes(sizes: Sequence[Size]) -> list[tuple[str, int, int]]:
    """Return (algorithm, first, last payload bytes) of every stretch of sizes that one algorithm is best for."""
    groups = [list(own) for _, own in groupby((size.plan for size in sizes), key=lambda plan: plan.algorithm)]
    return [(plans[0].algorithm, plans[0].payload_bytes, plans[-1].payload_bytes) for plans in groups]


def crossover_text(sizes: Sequence[Size], machine: str) -> str:
    """Return a line per size, and the sizes at which the best algorithm changes, in 80 columns but for long names."""
    first, row_bytes = sizes[0].plan, sizes[0].plan.row_bytes
    table = [("bytes", "algorithm", "rounds", "us", "GB/s", "gap", "next")]
    for size in sizes:
        plan, f = size.plan, size.plan.figures
        others = [rival for rival in size.rivals if rival.algorithm != plan.algorithm]
        follows = f"{others[0].algorithm} {behind(plan, others[0])}" if others else ""
        rate = "" if f.algbw_gb_per_s is None else f"{f.algbw_gb_per_s:.3f}"
        gap, us = f"{plan.certificate.gap:.2f}", f"{f.predicted_us:.2f}"
        table.append((str(plan.payload_bytes), plan.algorithm, str(f.rounds), us, rate, gap, follows))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    forms = [f"{{:{side}{width}}}" for side, width in zip("><>>>><", widths, strict=True)]
    stretches = [
        f"{name} at {human(low)}" if low == high else f"{name} from {human(low)} to {human(high)}"
        for name, low, high in changes(sizes)
    ]
    calls = [
        f"{plan.native_call} at {human(plan.payload_bytes)} ({plan.call_us:.2f} us)"
        for plan in (size.plan for size in sizes)
        if plan.native_call
    ]
    lines = [
        f"{first.title}, {len(first.ranks)} ranks on {machine}",
        f"objective {first.objective}, model {first.port_model}"
        + (f", launches {first.launch_us:g} us a round" if first.launch_us else "")
        + (f"; sizes cut to whole rows of {row_bytes} B" if row_bytes & (row_bytes - 1) else ""),
        "",
        *(" ".join(form.format(cell) for form, cell in zip(forms, row, strict=True)).rstrip() for row in table),
        "",
        *_wrapped("best: ", stretches),
        *(_wrapped("native: ", calls) if calls else []),
    ]
    return "\n".join(lines)


def _wrapped(head: str, parts: Sequence[str]) -> list[str]:
    """The parts after their head, in lines that end between parts."""
    text = head + ", ".join(part.replace(" ", _KEPT) for part in parts)
    return [
        line.replace(_KEPT, " ")
        for line in wrap(text, COLUMNS, subsequent_indent=" " * len(head), break_on_hyphens=False)
    ]


def crossover_document(sizes: Sequence[Size], machine: str) -> dict[str, object]:
    """Return the table as plain data."""
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
    """Return the bytes in the largest unit that divides them."""
    for unit, name in UNITS:
        if payload_bytes and payload_bytes % unit == 0:
            return f"{payload_bytes // unit} {name}"
    return f"{payload_bytes} B"


def crossover_svg(sizes: Sequence[Size], machine: str) -> str:
    """Return an SVG of predicted time over payload: a line for every algorithm that is best for some size, the bound.

    The best ones are bold, with a dot for each size; a strip above says which is best where.
    """
    first = sizes[0].plan
    page = Page(
        f"{first.title}, {len(first.ranks)} ranks on {machine}",
        "predicted time over payload bytes, a line per algorithm that is best for some size, and the bound",
    )
    page.text((EDGE, 34), fitted(page.title, 18, WIDTH - 2 * EDGE), "ink bold", size=18)
    stretches = changes(sizes)
    names = list(dict.fromkeys(name for name, _, _ in stretches))
    points = [
        (rival, float(size.plan.payload_bytes)) for size in sizes for rival in size.rivals if rival.predicted_us > 0
    ]
    lines = {name: [(x, rival.predicted_us) for rival, x in points if rival.algorithm == name] for name in names}
    best = [(float(size.plan.payload_bytes), size.plan.figures.predicted_us) for size in sizes]
    bound = [(x, y) for (x, _), y in zip(best, map(_bound_us, sizes), strict=True) if y]
    frame = _Frame([point for line in (*lines.values(), best, bound) for point in line])
    if len(bound) > 1:
        floor_ = [(bound[0][0], frame.lowest_us), *bound, (bound[-1][0], frame.lowest_us)]
        page.area([frame.at(point) for point in floor_], "other fill pale")
        page.bend([frame.at(point) for point in bound], "other guess", width=1.6, radius=0)
        x, y = frame.at(bound[len(bound) // 2])
        page.text((x, min(y + 20, HEIGHT - BOTTOM - 8)), "no plan is faster", "soft", anchor="middle")
    frame.draw(page, [size.plan.payload_bytes for size in sizes])
    page.text((EDGE, 54), f"objective {first.objective}, model {first.port_model}", "soft")
    for index, name in enumerate(names):
        for a, b in pairwise(lines[name]):
            page.line(frame.at(a), frame.at(b), f"{hue_class(index)} pale", width=2)
    for (a, b), size in zip(pairwise(best), sizes, strict=False):
        page.line(frame.at(a), frame.at(b), hue_class(names.index(size.plan.algorithm)), width=3)
    for point, size in zip(best, sizes, strict=True):
        page.circle(frame.at(point), 4, f"{hue_class(names.index(size.plan.algorithm))} head")
    named = _strip(page, frame, stretches, names, [size.plan.payload_bytes for size in sizes])
    return page.render(WIDTH, _legend(page, names, named))


def _bound_us(size: Size) -> float:
    """Time that no plan beats for this size, with bytes where the certificate has it."""
    c = size.plan.certificate
    return c.predicted_lower_bound_us or c.alpha_lower_bound_us


def _strip(
    page: Page, frame: _Frame, stretches: Sequence[tuple[str, int, int]], names: Sequence[str], sizes: Sequence[int]
) -> set[str]:
    """Which algorithm is best where: a bar for each stretch with its name; return the names that had room."""
    at = [frame.at((float(size), frame.lowest_us))[0] for size in sizes]
    middles = [at[0], *((a + b) / 2 for a, b in pairwise(at)), at[-1]]
    named = set[str]()
    for name, low, high in stretches:
        left, right = middles[sizes.index(low)], middles[sizes.index(high) + 1]
        css = hue_class(names.index(name))
        page.rect((left + 1, TOP - 18), (max(right - left - 2, 3.0), 6), f"{css} fill", radius=3)
        if len(name) * BOLD_LETTER * 12 <= right - left:
            page.text(((left + right) / 2, TOP - 24), name, "ink bold", anchor="middle")
            named.add(name)
    return named


def _legend(page: Page, names: Sequence[str], named: Collection[str]) -> float:
    """The names that had no room elsewhere, in rows below the axes; return the height of the page."""
    x, y = LEFT, HEIGHT - 10
    for name in (name for name in names if name not in named):
        right = x + 28 + len(name) * LETTER * 12
        if right > WIDTH - EDGE and x > LEFT:
            x, y, right = LEFT, y + LEGEND_ROW, right - x + LEFT
        page.line((x, y - 4), (x + 22, y - 4), hue_class(names.index(name)), width=4)
        page.text((x + 28, y), name)
        x = right + 22
    return y + 10


class _Frame:
    """The axes, both of powers of ten."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        xs, ys = [log10(x) for x, _ in points] or [0.0], [log10(y) for _, y in points] or [0.0]
        self.low = (min(xs), floor(min(ys)))
        self.high = (max(max(xs), self.low[0] + 1e-3), max(ceil(max(ys)), self.low[1] + 1))

    @property
    def lowest_us(self) -> float:
        """Time at the bottom."""
        return float(10.0 ** self.low[1])

    def at(self, point: tuple[float, float]) -> tuple[float, float]:
        """Return the place of a point on the page."""
        x = (log10(point[0]) - self.low[0]) / (self.high[0] - self.low[0])
        y = (log10(point[1]) - self.low[1]) / (self.high[1] - self.low[1])
        return LEFT + x * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y * (HEIGHT - TOP - BOTTOM)

    def draw(self, page: Page, sizes: Sequence[int]) -> None:
        """Draw the axes: a line for every power of ten us, some of the sizes, and what they are."""
        for power in range(int(self.low[1]), int(self.high[1]) + 1):
            x, y = self.at((10.0 ** self.low[0], 10.0**power))
            page.line((x, y), (WIDTH - RIGHT, y), "other pale", width=1)
            page.text((x - 8, y + 4), _time(power), "soft", anchor="end")
        step = max(1, ceil(len(sizes) / 8))
        for size in sizes[::step]:
            x, y = self.at((float(size), self.lowest_us))
            page.line((x, y), (x, y + 5), "other", width=1)
            page.text((x, y + 22), human(size), "soft", anchor="middle")
        page.text(
            ((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 46),
            "payload, bytes of a rank's value",
            "ink",
            anchor="middle",
        )
        page.upright((EDGE + 4, (TOP + HEIGHT - BOTTOM) / 2 + 45), "predicted time", "ink")


def _time(power: int) -> str:
    """10^power us in the largest unit in which it is a whole number, or in us."""
    for above, unit in ((6, "s"), (3, "ms")):
        if power >= above:
            return f"{10 ** (power - above)} {unit}"
    return f"{10.0**power:g} us"
