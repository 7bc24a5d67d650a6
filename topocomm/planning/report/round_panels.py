"""The messages of a plan by round: one panel a round.

In a panel every host is a row of its ranks (one host alone: a ring of them); an arrow is a message, in the colour that
its round has on the page. The slowest kinds of link that messages cross are named; all but the most usual are dashed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from math import cos, hypot, pi, sin

from topocomm.planning.collectives import ROOTED
from topocomm.planning.plan import Plan
from topocomm.planning.report.plan_text import round_times
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import NO_PATH, Transfer
from topocomm.topology.draw.names import kind_words, plural
from topocomm.topology.draw.svg.colours import hue_class
from topocomm.topology.draw.svg.svg_page import Page, Point, fitted

WIDTH = 1180.0
EDGE = 24.0
MOST_ROUNDS = 16
MOST_ROWS, FEW_ROWS = 8, 4
"""Most hosts of a panel that are all drawn, and hosts drawn where there are more."""
MOST_COLUMNS = 16
"""Ranks of a host in a panel."""
DOT = 11.0
"""Radius of a rank, in px."""
RING_ROOM = 16
"""Most ranks of one host that are drawn as a ring."""
_SLOWEST_FIRST = ("network", "smp", "xgmi-cpu", "pcie", "xgmi", "nvlink", "shared-memory")


def draw_rounds(
    page: Page, plan: Plan, paths: PathFinder, y: float, width: float = WIDTH, *, are_hued: bool = True
) -> float:
    """Draw one panel a round, as many in a row as fit; return the bottom.

    `are_hued`: rounds have colours on the page, those of the timeline; else trees have them, and arrows none.
    """
    host_of = [paths.topology.by_id[end].host for end in plan.ranks]
    rows: dict[str, list[int]] = {}
    for rank, host in enumerate(host_of):
        rows.setdefault(host, []).append(rank)
    ring = len(rows) == 1 and len(plan.ranks) <= RING_ROOM
    times = round_times(plan, paths)
    moves = [own for own, _ in plan.schedule.by_round()]
    busy = [round_ for round_, own in enumerate(moves) if own]
    _, size = ring_places(len(plan.ranks)) if ring else _grid(rows, [])
    across = max(int((width - 2 * EDGE + 12) // (size[0] + 12)), 1)
    wide = (width - 2 * EDGE + 12) / across - 12
    for index, round_ in enumerate(busy[:MOST_ROUNDS]):
        corner = (EDGE + index % across * (wide + 12), y + index // across * (size[1] + 12))
        page.rect(corner, (wide, size[1]), "panel")
        page.text((corner[0] + 12, corner[1] + 20), f"round {round_ + 1}", "ink bold", size=13)
        kinds = _kinds(plan, paths, moves[round_])
        for line, words in enumerate([*times[round_].split(", "), _kind_words(list(dict.fromkeys(kinds.values())))]):
            page.text((corner[0] + 12, corner[1] + 36 + 14 * line), fitted(words, 11, wide - 16), "soft", size=11)
        names = [] if ring else _shown(rows, moves[round_], host_of)
        places, _ = ring_places(len(plan.ranks)) if ring else _grid(rows, names)
        shift = (corner[0] + (wide - size[0]) / 2, corner[1])
        moved = {rank: (x + shift[0], z + shift[1]) for rank, (x, z) in places.items()}
        for name in names:
            x, z = moved[rows[name][0]]
            page.text((x - DOT - 6, z + 3.5), fitted(name, 10, 44), "soft", size=10, anchor="end")
        _panel(page, plan, kinds, moved, ring, hue_class(index) if are_hued else "other")
    y += (len(busy[:MOST_ROUNDS]) + across - 1) // across * (size[1] + 12)
    for words in _left_out(plan, len(busy), len(rows)):
        page.text((EDGE, y + 12), words, "soft")
        y += 20
    return y


def _left_out(plan: Plan, rounds: int, hosts: int) -> list[str]:
    words = []
    if rounds > MOST_ROUNDS:
        words.append(f"and {rounds - MOST_ROUNDS} more rounds")
    if hosts > MOST_ROWS:
        words.append(f"{FEW_ROWS} of {hosts} hosts are drawn in each round; + counts the messages of the others")
    repeat = plan.schedule.repeat
    if repeat is not None:
        words.append(
            f"pipelined: the rounds run for each of {plural(repeat.count, 'slice')}, each "
            f"{plural(repeat.stagger_rounds, 'round')} after the one before; sizes are those of one slice"
        )
    return words


def ring_places(count: int) -> tuple[dict[int, Point], Point]:
    """Place of each rank of one host in a panel, and the size of the panel."""
    radius = max(62.0, count * 3.4 * DOT / (2 * pi))
    middle = (radius + 2.5 * DOT, radius + 2.5 * DOT + 54)  # below three lines of words
    turns = [2 * pi * rank / count - pi / 2 for rank in range(count)]
    places = {r: (middle[0] + radius * cos(turn), middle[1] + radius * sin(turn)) for r, turn in enumerate(turns)}
    return places, (2 * middle[0], 2 * radius + 5 * DOT + 46)


def _grid(rows: Mapping[str, Sequence[int]], shown: Sequence[str]) -> tuple[dict[int, Point], Point]:
    """Place of each rank of several hosts, in rows, and the size of the panel."""
    widest = max(len(own[:MOST_COLUMNS]) for own in rows.values())
    places = {
        rank: (62.0 + 38.0 * column, 96.0 + 66.0 * row)
        for row, host in enumerate(shown)
        for column, rank in enumerate(rows[host][:MOST_COLUMNS])
    }
    return places, (max(86.0 + 38.0 * (widest - 1), 200.0), 122.0 + 66.0 * (min(len(rows), _most_rows(rows)) - 1))


def _most_rows(rows: Mapping[str, Sequence[int]]) -> int:
    return MOST_ROWS if len(rows) <= MOST_ROWS else FEW_ROWS


def _shown(rows: Mapping[str, Sequence[int]], moves: Sequence[Transfer], host_of: Sequence[str]) -> list[str]:
    """The hosts of a panel: all, or of many hosts the first with its partners, then the next."""
    most = _most_rows(rows)
    if len(rows) <= most:
        return list(rows)
    partners: dict[str, dict[str, None]] = {}
    for move in moves:
        a, b = host_of[move.src], host_of[move.dst]
        partners.setdefault(a, {})[b] = None
        partners.setdefault(b, {})[a] = None
    shown: dict[str, None] = {}
    for host in rows:
        for each in (host, *partners.get(host, ())):
            if len(shown) < most:
                shown[each] = None
    return [host for host in rows if host in shown]


_Message = tuple[int, int, int]
"""Source, destination and path."""


def _kinds(plan: Plan, paths: PathFinder, moves: Sequence[Transfer]) -> dict[_Message, str]:
    """The slowest kind of link that each message of a round crosses, the messages of the most usual kind first."""
    kind_of = {(link.src, link.dst): link.kind for link in paths.topology.links}
    found: dict[_Message, str] = {}
    for src, dst, path in dict.fromkeys((move.src, move.dst, move.path) for move in moves):
        ends = plan.ranks[src], plan.ranks[dst]
        route = paths.cheapest(*ends) if path == NO_PATH else paths.explicit(plan.schedule.paths[path], *ends)
        found[src, dst, path] = slowest_kind({kind_of[edge] for edge in route.edges})
    counts = Counter(found.values())
    return dict(sorted(found.items(), key=lambda item: (-counts[item[1]], item[1])))


def _kind_words(kinds: Sequence[str]) -> str:
    """Return the kinds of links of a round, the first drawn whole and others dashed."""
    return "; dashed ".join(filter(None, ("over " + kind_words(kinds[0]), ", ".join(map(kind_words, kinds[1:])))))


def _panel(
    page: Page, plan: Plan, kinds: Mapping[_Message, str], places: dict[int, Point], ring: bool, css: str
) -> None:
    xs, ys = [x for x, _ in places.values()], [y for _, y in places.values()]
    middle = ((min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2)
    hidden = sum(src not in places or dst not in places for src, dst, _ in kinds)
    arrows: dict[tuple[int, int], dict[str, dict[int, None]]] = {}
    for (src, dst, _), kind in kinds.items():
        if src in places and dst in places:
            arrows.setdefault((min(src, dst), max(src, dst)), {}).setdefault(kind, {})[src] = None
    usual = next(iter(kinds.values()))
    for pair, own in arrows.items():
        for beside, (kind, sources) in enumerate(own.items()):
            src = next(iter(sources)) if len(sources) == 1 else pair[0]
            a, b = places[src], places[sum(pair) - src]
            bend = _bend(a, b, middle if ring else None)
            away = 14.0 * beside / (hypot(b[0] - a[0], b[1] - a[1]) or 1.0)  # beside arrows over links of other kinds
            bend = bend[0] - away * abs(b[1] - a[1]), bend[1] - away * abs(b[0] - a[0])
            page.arrow(a, bend, b, css if kind == usual else f"{css} guess", apart=DOT, both=len(sources) == 2)
    busy = {rank for pair in kinds for rank in pair[:2]}
    root = plan.collective.root if plan.collective.name in ROOTED else -1
    for rank, centre in places.items():
        page.circle(centre, DOT, "device" if rank in busy else "group")
        if rank == root:
            page.circle(centre, DOT + 3, "other wire")
        page.text((centre[0], centre[1] + 3.5), str(rank), "ink" if rank in busy else "soft", size=10, anchor="middle")
    if hidden:
        page.text((max(xs) + DOT, min(ys) - 76), f"+{hidden} messages", "soft", size=11, anchor="end")


def slowest_kind(kinds: Collection[str]) -> str:
    """Return the kind of link that limits a message which crosses these."""
    return next((kind for kind in _SLOWEST_FIRST if kind in kinds), min(kinds, default="other"))


def _bend(a: Point, b: Point, centre: Point | None) -> Point:
    """The bend of a chord of a ring, towards its centre, or of a curve, off the line: past ranks between its ends."""
    middle = ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2)
    dx, dy = b[0] - a[0], b[1] - a[1]
    if centre is not None:
        pull = 0.35 if hypot(dx, dy) > 5.4 * DOT else 0.0
        return middle[0] + pull * (centre[0] - middle[0]), middle[1] + pull * (centre[1] - middle[1])
    if abs(dy) < 1:  # in one row: above those between, by the distance
        return (middle[0], middle[1] - 6 - 0.34 * abs(dx)) if abs(dx) > 45 else middle
    if abs(dx) < 1:  # straight down: beside those between
        return (middle[0] + min(0.22 * abs(dy), 30.0), middle[1]) if abs(dy) > 70 else middle
    return middle[0] - 0.06 * dy, middle[1] + 0.06 * dx
