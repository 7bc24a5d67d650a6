"""A plan as a picture: the machine, the bounds, then one panel a round with its messages.

Hosts alike are drawn once. In a panel every host is a row of its ranks (one host alone: a ring of them); an arrow is a
message, in the colour of the slowest kind of link that it crosses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import cos, hypot, pi, sin
from textwrap import wrap

from topocomm.planning.collectives import ROOTED
from topocomm.planning.plan import Plan
from topocomm.planning.report.plan_text import placed, round_times
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import NO_PATH, Transfer
from topocomm.topology.draw.names import plural, ranges
from topocomm.topology.draw.svg.colours import kind_class
from topocomm.topology.draw.svg.host_svg import draw_host
from topocomm.topology.draw.svg.svg_page import Page, Point, fitted
from topocomm.topology.model import Topology

WIDTH = 1180.0
EDGE = 24.0
MOST_ROUNDS = 16
MOST_HOST_TYPES = 3
MOST_ROWS, FEW_ROWS = 8, 4
"""Most hosts of a panel that are all drawn, and hosts drawn where there are more."""
MOST_COLUMNS = 16
"""Ranks of a host in a panel."""
MOST_LETTERS = 84
"""Characters of a line of the certificate, beside the kinds of links."""
DOT = 11.0
"""Radius of a rank, in px."""
RING_ROOM = 16
"""Most ranks of one host that are drawn as a ring."""
_KINDS = {"nic": "NICs", "switch": "switches", "numa": "NUMA nodes", "host": "hosts"}
_SLOWEST_FIRST = ("network", "smp", "xgmi-cpu", "pcie", "xgmi", "nvlink", "shared-memory")


def dumps(plan: Plan, topology: Topology) -> str:
    """Return the picture as an SVG file, ending in a newline."""
    title = f"{plan.title} on {topology.name}"
    page = Page(title, plan.summary())
    paths = PathFinder(topology)
    y = _head(page, plan, topology, title)
    y = _machine(page, plan, topology, y)
    y = _legend(page, plan, paths, y)
    y = _rounds(page, plan, paths, y)
    return page.render(WIDTH, y + EDGE)


def _head(page: Page, plan: Plan, topology: Topology, title: str) -> float:
    f = plan.figures
    rate = "" if f.algbw_gb_per_s is None else f" ({f.algbw_gb_per_s:.2f} GB/s)"
    long_run = "" if f.throughput_gb_per_s is None else f", pipelined {f.throughput_gb_per_s:.2f} GB/s"
    page.text((EDGE, 38), fitted(title, 20, WIDTH - 2 * EDGE), "ink bold", size=20)
    lines = [
        f"{plan.algorithm}: {plan.payload_bytes:,} B on {plural(len(plan.ranks), 'rank')}, "
        f"{plural(f.rounds, 'round')}, {plural(f.transfers, 'message')}, {f.alpha_us:.2f} us without bytes, "
        f"{f.predicted_us:.2f} us with{rate}{long_run}",
        f"objective {plan.objective}, model {plan.port_model}, {plural(plan.ports, 'port')}; "
        f"ranks {placed(plan.ranks)}",
    ]
    for index, words in enumerate(lines):
        page.text((EDGE, 60 + 18 * index), fitted(words, 12.5, WIDTH - 2 * EDGE), "soft", size=12.5)
    return 96.0


def _machine(page: Page, plan: Plan, topology: Topology, y: float) -> float:
    """Draw each kind of host once, and the network between hosts."""
    hosts = topology.hosts
    ranks: dict[str, list[int]] = {}
    for rank, end in enumerate(plan.ranks):
        ranks.setdefault(end, []).append(rank)
    x, bottom = EDGE, y
    groups = [[host] for host in hosts] if len(hosts) <= MOST_HOST_TYPES else _alike(topology)
    ports: list[Point] = []
    for names in groups[:MOST_HOST_TYPES]:
        shown = f"{len(names)} hosts alike: {ranges(names)}; the ranks of {names[0]}" if len(names) > 1 else names[0]
        size, _ = draw_host(Page("", ""), topology, names[0], (0, 0), {})
        if x > EDGE and x + size[0] > WIDTH - EDGE:
            x, y, ports = EDGE, bottom + 14, []
        words = {end: "rank " + ",".join(map(str, own)) for end, own in ranks.items()}
        size, cables = draw_host(page, topology, names[0], (x, y), words)
        ports += cables
        page.text((x + 12, y + 19), fitted(shown, 12, size[0] - 20), "ink bold", size=12)
        x, bottom = x + size[0] + 12, max(bottom, y + size[1])
    if len(groups) > MOST_HOST_TYPES:
        rest = [name for names in groups[MOST_HOST_TYPES:] for name in names]
        page.text((EDGE, bottom + 18), f"and {plural(len(rest), 'more host')}: {ranges(rest)}", "soft")
        return _network(page, topology, bottom + 38)
    for port in ports:
        page.line(port, (port[0], bottom + 16), "network")
    return _network(page, topology, bottom + 16)


def _alike(topology: Topology) -> list[list[str]]:
    """Groups of hosts with the same devices and links, but for the host's name in the ids."""
    parts: dict[str, list[tuple[object, ...]]] = {host: [] for host in topology.hosts}
    for device in topology.devices:
        if device.host in parts:
            parts[device.host].append((device.id.removeprefix(f"{device.host}/"), device.kind, device.numa))
    for link in topology.links:
        host = topology.by_id[link.src].host
        if host in parts and topology.by_id[link.dst].host == host:
            parts[host].append((*(end.removeprefix(f"{host}/") for end in link[:2]), *link[2:6]))
    groups: dict[tuple[object, ...], list[str]] = {}
    for host, own in parts.items():
        groups.setdefault(tuple(own), []).append(host)
    return list(groups.values())


def _network(page: Page, topology: Topology, y: float) -> float:
    """Draw the network between hosts: its switches in words, with their links."""
    hosts = set(topology.hosts)
    switches = [d for d in topology.devices if d.host not in hosts and d.kind == "switch"]
    if not switches:
        return y
    groups: dict[tuple[int, str], list[str]] = {}
    for switch in switches:
        ends = [link.dst for link in topology.links if link.src == switch.id]
        peers = " and ".join(sorted({_KINDS.get(topology.by_id[end].kind, "endpoints") for end in ends}))
        groups.setdefault((len(ends), peers), []).append(switch.id)
    page.rect((EDGE, y), (WIDTH - 2 * EDGE, 14 + 18 * len(groups)), "panel")
    page.text((EDGE + 12, y + 18), "network", "ink bold")
    for index, ((count, peers), names) in enumerate(groups.items()):
        words = f"{ranges(names)}: {plural(count, 'link')}{' each' * (len(names) > 1)}, to {peers or 'nothing'}"
        page.rect((EDGE + 90, y + 9 + 18 * index), (12, 12), "network fill", radius=3)
        page.text((EDGE + 108, y + 19 + 18 * index), fitted(words, 12, WIDTH - 200))
    return y + 14 + 18 * len(groups) + 16


def _legend(page: Page, plan: Plan, paths: PathFinder, y: float) -> float:
    """Draw the kinds of links with their figures, and the certificate."""
    c = plan.certificate
    kinds: dict[str, set[tuple[float, float]]] = {}
    for link in paths.topology.links:
        own = paths.links[link.src, link.dst]
        kinds.setdefault(link.kind, set()).add((own.gb_per_s, own.latency_us))
    most = c.throughput_upper_bound_gb_per_s
    bounds = [f"rounds >= {c.rounds_lower_bound}", f"time >= {c.alpha_lower_bound_us:.2f} us"]
    bounds += [] if most is None else [f"throughput <= {most:.2f} GB/s"]
    proved = [name.replace("_", " ") for name in vars(plan.proof) if getattr(plan.proof, name)]
    notes = [f"{c.gap:.3f} x the {plan.objective} bound: {c.argument}", "no schedule beats: " + ", ".join(bounds)]
    notes += ["proved: " + ", ".join(proved), *(f"assumed: {note}" for note in plan.assumed)]
    lines = [line for note in notes for line in wrap(note, MOST_LETTERS)]
    bold = len(wrap(notes[0], MOST_LETTERS))
    height = 18.0 * max(len(kinds), len(lines)) + 18
    page.rect((EDGE, y), (WIDTH - 2 * EDGE, height), "panel")
    for index, (kind, figures) in enumerate(sorted(kinds.items())):
        at = y + 22 + 18 * index
        spans = []
        for values, unit in zip(map(sorted, zip(*figures, strict=True)), ("GB/s", "us"), strict=True):
            spans.append(f"{values[0]:g}" + (f" to {values[-1]:g}" if values[0] < values[-1] else "") + f" {unit}")
        page.line((EDGE + 12, at - 4), (EDGE + 44, at - 4), kind_class(kind), width=3)
        page.text((EDGE + 54, at), fitted(f"{kind}: {', '.join(spans)} a link", 12, 400))
    for index, words in enumerate(lines):
        page.text((EDGE + 480, y + 22 + 18 * index), words, "ink" if index >= bold else "ink bold")
    return y + height + 16


def _rounds(page: Page, plan: Plan, paths: PathFinder, y: float) -> float:
    """Draw one panel a round, as many in a row as fit."""
    host_of = [paths.topology.by_id[end].host for end in plan.ranks]
    rows: dict[str, list[int]] = {}
    for rank, host in enumerate(host_of):
        rows.setdefault(host, []).append(rank)
    ring = len(rows) == 1 and len(plan.ranks) <= RING_ROOM
    times = round_times(plan, paths)
    moves = [own for own, _ in plan.schedule.by_round()]
    busy = [round_ for round_, own in enumerate(moves) if own]
    _, size = _ring(len(plan.ranks)) if ring else _grid(rows, [])
    across = max(int((WIDTH - 2 * EDGE + 12) // (size[0] + 12)), 1)
    wide = (WIDTH - 2 * EDGE + 12) / across - 12
    for index, round_ in enumerate(busy[:MOST_ROUNDS]):
        corner = (EDGE + index % across * (wide + 12), y + index // across * (size[1] + 12))
        page.rect(corner, (wide, size[1]), "panel")
        page.text((corner[0] + 12, corner[1] + 20), f"round {round_ + 1}", "ink bold", size=13)
        for line, words in enumerate(times[round_].split(", ")):
            page.text((corner[0] + 12, corner[1] + 36 + 14 * line), fitted(words, 11, wide - 16), "soft", size=11)
        names = [] if ring else _shown(rows, moves[round_], host_of)
        places, _ = _ring(len(plan.ranks)) if ring else _grid(rows, names)
        shift = (corner[0] + (wide - size[0]) / 2, corner[1])
        moved = {rank: (x + shift[0], z + shift[1]) for rank, (x, z) in places.items()}
        for name in names:
            x, z = moved[rows[name][0]]
            page.text((x - DOT - 6, z + 3.5), fitted(name, 10, 44), "soft", size=10, anchor="end")
        _panel(page, plan, paths, moves[round_], moved, ring)
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


def _ring(count: int) -> tuple[dict[int, Point], Point]:
    """Place of each rank of one host in a panel, and the size of the panel."""
    radius = max(62.0, count * 3.4 * DOT / (2 * pi))
    middle = (radius + 2.5 * DOT, radius + 2.5 * DOT + 44)
    turns = [2 * pi * rank / count - pi / 2 for rank in range(count)]
    places = {r: (middle[0] + radius * cos(turn), middle[1] + radius * sin(turn)) for r, turn in enumerate(turns)}
    return places, (2 * middle[0], 2 * radius + 5 * DOT + 36)


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


def _panel(
    page: Page, plan: Plan, paths: PathFinder, moves: Sequence[Transfer], places: dict[int, Point], ring: bool
) -> None:
    xs, ys = [x for x, _ in places.values()], [y for _, y in places.values()]
    middle = ((min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2)
    pairs = dict.fromkeys((move.src, move.dst, move.path) for move in moves)
    hidden = sum(src not in places or dst not in places for src, dst, _ in pairs)
    shown = [pair for pair in pairs if pair[0] in places and pair[1] in places]
    arrows: dict[tuple[int, int], dict[str, dict[int, None]]] = {}
    kind_of = {(link.src, link.dst): link.kind for link in paths.topology.links}
    for src, dst, path in shown:
        ends = plan.ranks[src], plan.ranks[dst]
        route = paths.cheapest(*ends) if path == NO_PATH else paths.explicit(plan.schedule.paths[path], *ends)
        crossed = {kind_of[edge] for edge in route.edges}
        slowest = next((kind for kind in _SLOWEST_FIRST if kind in crossed), min(crossed, default="other"))
        arrows.setdefault((min(src, dst), max(src, dst)), {}).setdefault(kind_class(slowest), {})[src] = None
    for pair, kinds in arrows.items():
        for beside, (kind, sources) in enumerate(kinds.items()):
            src = next(iter(sources)) if len(sources) == 1 else pair[0]
            a, b = places[src], places[sum(pair) - src]
            bend = _bend(a, b, middle if ring else None)
            away = 14.0 * beside / (hypot(b[0] - a[0], b[1] - a[1]) or 1.0)  # beside arrows over links of other kinds
            bend = bend[0] - away * abs(b[1] - a[1]), bend[1] - away * abs(b[0] - a[0])
            page.arrow(a, bend, b, kind, apart=DOT, both=len(sources) == 2)
    busy = {rank for pair in pairs for rank in pair[:2]}
    root = plan.collective.root if plan.collective.name in ROOTED else -1
    for rank, centre in places.items():
        page.circle(centre, DOT, "device" if rank in busy else "group")
        if rank == root:
            page.circle(centre, DOT + 3, "other wire")
        page.text((centre[0], centre[1] + 3.5), str(rank), "ink" if rank in busy else "soft", size=10, anchor="middle")
    if hidden:
        page.text((max(xs) + DOT, min(ys) - 76), f"+{hidden} messages", "soft", size=11, anchor="end")


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
