"""The tree of one result on the machine: a row of ranks for each host, an arrow in the colour of its round a message.

Of two hosts the second is drawn upside down, so that the network is between them. The other messages of the plan are
pale.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from topocomm.planning.plan import Plan
from topocomm.planning.report.plan_trees import Focus
from topocomm.planning.report.round_panels import slowest_kind
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Edge
from topocomm.planning.schedule.schedule import NO_PATH, Transfer
from topocomm.topology.draw.describe import device_words
from topocomm.topology.draw.device_tree import FABRICS
from topocomm.topology.draw.names import kind_words, label, plural, ranges, rate_words
from topocomm.topology.draw.svg.colours import hue_class
from topocomm.topology.draw.svg.svg_page import Page, Point, fitted
from topocomm.topology.model import Link

GUTTER = 104.0
"""Width for words beside the ranks of a host."""
BOX, TALL = 62.0, 36.0
"""Largest width of a rank's box, and its height."""
ARCS = 92.0
"""Height of the longest arc over one or two hosts; over more it is LOW, and LOWEST where hosts are FLAT rows."""
LOW, LOWEST = 44.0, 24.0
NIC, CABLE = 20.0, 34.0
"""Height of a NIC, and of the network between two hosts."""
FEW_HOSTS, FLAT = 4, 20.0
"""Most hosts whose ranks have boxes of two lines, and the height of those of one."""
MOST_HOSTS, MOST_COLUMNS = 12, 16
"""Hosts and ranks of a host that are drawn."""
MOST_PALE, MOST_DRAWN = 400, 1000
"""Messages that are drawn pale, and in colour."""
THICK, PALE = 2.6, 1.0


@dataclass
class _Scene:
    """Where ranks are: the middle of their boxes, by rank; hosts upside down; widths."""

    plan: Plan
    paths: PathFinder
    rows: dict[str, list[int]]
    place: dict[int, Point] = field(default_factory=dict)
    below: set[str] = field(default_factory=set)
    width: float = BOX
    tall: float = TALL
    rise: float = ARCS

    def host(self, rank: int) -> str:
        return self.paths.topology.by_id[self.plan.ranks[rank]].host

    def route(self, move: Transfer) -> Sequence[Edge]:
        ends = self.plan.ranks[move.src], self.plan.ranks[move.dst]
        if move.path == NO_PATH:
            return self.paths.cheapest(*ends).edges
        return self.paths.explicit(self.plan.schedule.paths[move.path], *ends).edges


def draw_tree(page: Page, plan: Plan, paths: PathFinder, tree: Focus, corner: Point, width: float) -> float:
    """Draw the tree below a point in this width; return the bottom."""
    scene = _Scene(plan, paths, {})
    for rank in range(len(plan.ranks)):
        scene.rows.setdefault(scene.host(rank), []).append(rank)
    hosts = _shown(scene, tree)
    y = corner[1] + 14
    page.text((corner[0], y), tree.words, "ink bold", size=13)
    y = _place(page, scene, hosts, (corner[0], y + 10), width)
    moves = list(dict.fromkeys((move.src, move.dst, move.round) for move in tree.moves))
    drawn = [move for move in moves if move[0] in scene.place and move[1] in scene.place][:MOST_DRAWN]
    pairs = {move[:2] for move in drawn}
    pale = dict.fromkeys((m.src, m.dst) for m in plan.schedule.transfer_list()[: 4 * MOST_PALE])
    others = [pair for pair in pale if pair not in pairs and all(end in scene.place for end in pair)]
    for src, dst in others[:MOST_PALE]:
        _line(page, scene, (src, dst), {}, "other", PALE)
    slots = _slots(scene, pairs)
    rounds = {round_: index for index, round_ in enumerate(sorted({m.round for m in plan.schedule.transfer_list()}))}
    for src, dst, round_ in drawn:
        ends = plan.ranks[src], plan.ranks[dst]
        with page.group(f"round {round_ + 1}: rank {src} to rank {dst}\n{ends[0]} to {ends[1]}", ends=[ends]):
            _line(page, scene, (src, dst), slots, hue_class(rounds[round_]), THICK)
    _boxes(page, scene, tree)
    hidden = len(moves) - len(drawn)
    left = len(scene.rows) - len(hosts)
    if left or hidden:
        words = f"and {plural(left, 'more host')}, with {plural(hidden, 'message')} of this result" if left else ""
        page.text((corner[0], y + 12), words or f"and {plural(hidden, 'more message')} of this result", "soft")
        y += 20
    return y


def _shown(scene: _Scene, tree: Focus) -> list[str]:
    """The hosts that are drawn: all, or of many the result's own and those that it hears from soonest."""
    if len(scene.rows) <= MOST_HOSTS:
        return list(scene.rows)
    chosen = dict.fromkeys([scene.host(tree.rank or 0)])
    for move in reversed(tree.moves):
        chosen |= dict.fromkeys((scene.host(move.dst), scene.host(move.src)))
    return [host for host in scene.rows if host in list(chosen | dict.fromkeys(scene.rows))[:MOST_HOSTS]]


def _place(page: Page, scene: _Scene, hosts: Sequence[str], corner: Point, width: float) -> float:
    """Draw the panels of the hosts and the network, and place the ranks; return the bottom."""
    columns = max(len(scene.rows[host][:MOST_COLUMNS]) for host in hosts)
    pitch = (width - GUTTER - 16) / columns
    scene.width = min(BOX, pitch - 8)
    pitch = min(pitch, 1.5 * BOX)
    two = len(hosts) == 2
    scene.rise = ARCS if len(hosts) <= 2 else LOW if len(hosts) <= FEW_HOSTS else LOWEST
    scene.tall = TALL if len(hosts) <= FEW_HOSTS else FLAT
    if columns < 3:
        scene.rise = min(scene.rise, LOW / 2)
    y = corner[1]
    cable = CABLE if two else 0.0
    for index, host in enumerate(hosts):
        mirrored = two and index == 1
        nics = _nics(scene, host) if two else {}
        room = NIC + 10 if nics else 6.0
        height = scene.rise + scene.tall / 2 + scene.tall + room
        page.rect((corner[0], y), (width, height), "panel")
        middle = y + (height - room - scene.tall / 2 if not mirrored else room + scene.tall / 2)
        for column, rank in enumerate(scene.rows[host][:MOST_COLUMNS]):
            scene.place[rank] = corner[0] + GUTTER + pitch * (column + 0.5), middle
        if mirrored:
            scene.below.add(host)
        _words(page, scene, host, (corner[0] + 12, middle))
        for rank, nic in nics.items():
            if rank in scene.place:
                at = scene.place[rank][0], middle + (scene.tall / 2 + 4 if not mirrored else -scene.tall / 2 - 4 - NIC)
                page.line((at[0], middle), (at[0], at[1] + NIC / 2), "pcie", width=1.4)
                page.rect((at[0] - scene.width / 2, at[1]), (scene.width, NIC), "device", radius=4)
                page.text((at[0], at[1] + 14), fitted(nic, 11, scene.width), size=11, anchor="middle")
        y += height + (cable if index + 1 < len(hosts) else 0.0)
        if two and index == 0:
            words = _network_words(scene)
            for line, text in enumerate(words):
                page.text(
                    (corner[0] + 12, y - cable / 2 + 4 + 13 * (line - (len(words) - 1) / 2)), text, "soft", size=11
                )
        elif not two and index + 1 < len(hosts):
            y += 6
    return y


def _nics(scene: _Scene, host: str) -> dict[int, str]:
    """By rank of a host, the NIC of its messages to other hosts."""
    found: dict[int, str] = {}
    for move in scene.plan.schedule.transfer_list()[: 8 * MOST_PALE]:
        for rank in (move.src, move.dst):
            if rank not in found and scene.host(rank) == host != scene.host(move.src + move.dst - rank):
                on = [scene.paths.topology.by_id[end] for edge in scene.route(move) for end in edge]
                nic = next((device for device in on if device.kind == "nic" and device.host == host), None)
                if nic is not None:
                    found[rank] = label(nic).replace("/", " ")
    return found


def _fastest(links: Iterable[Link]) -> str:
    rates = [link.gb_per_s for link in links if link.gb_per_s]
    return rate_words(max(rates)) if rates else ""


def _words(page: Page, scene: _Scene, host: str, at: Point) -> None:
    """The name of a host, and what joins its ranks."""
    topology = scene.paths.topology
    own = [link for link in topology.links if topology.by_id[link.src].host == host]
    fabric = [link for link in own if link.kind in FABRICS]
    inside = fabric or [link for link in own if link.src in scene.plan.ranks]
    lines = [(fitted(host, 12, GUTTER - 20), "ink bold")]
    if inside and len(scene.rows[host]) > 1 and scene.tall == TALL:
        kind = slowest_kind({link.kind for link in inside})
        rate = _fastest(link for link in inside if link.kind == kind)
        lines += [(kind_words(kind) if len(kind_words(kind)) < 14 else kind, "soft"), (rate, "soft")]
    for index, (words, css) in enumerate(lines):
        page.text((at[0], at[1] + 4 + 14 * (index - (len(lines) - 1) / 2)), words, css, size=12 if not index else 11)


def _network_words(scene: _Scene) -> list[str]:
    topology = scene.paths.topology
    own = [link for link in topology.links if link.kind == "network" and topology.by_id[link.src].kind == "nic"]
    switches = ranges(dict.fromkeys(link.dst for link in own))
    return [fitted(switches or "network", 11, GUTTER - 16), *([_fastest(own)] if own else [])]


def _slots(scene: _Scene, pairs: Iterable[tuple[int, int]]) -> dict[tuple[int, int], tuple[float, float]]:
    """By pair of ranks of one host, where its arc begins and ends: beside the others along a box, so that none cross.

    To the left go those of ranks at the left, the nearest first; the farthest are in the middle.
    """
    partners: dict[int, set[int]] = {}
    arcs = [pair for pair in pairs if scene.place[pair[0]][1] == scene.place[pair[1]][1]]
    for a, b in arcs:
        partners.setdefault(a, set()).add(b)
        partners.setdefault(b, set()).add(a)
    at: dict[tuple[int, int], float] = {}
    for rank, others in partners.items():
        x = scene.place[rank][0]
        left = sorted((o for o in others if scene.place[o][0] < x), key=lambda o: -scene.place[o][0])
        right = sorted((o for o in others if scene.place[o][0] > x), key=lambda o: -scene.place[o][0])
        order = [*left, *right]
        pitch = min(11.0, (scene.width - 12) / max(len(order) - 1, 1))
        for index, other in enumerate(order):
            at[rank, other] = x + pitch * (index - (len(order) - 1) / 2)
    return {(a, b): (at[a, b], at[b, a]) for a, b in arcs}


def _line(
    page: Page,
    scene: _Scene,
    pair: tuple[int, int],
    slots: dict[tuple[int, int], tuple[float, float]],
    css: str,
    width: float,
) -> None:
    """One message: an arc within a host, a line between hosts; pale ones without a head."""
    (ax, ay), (bx, by) = (scene.place[rank] for rank in pair)
    pale = width == PALE
    css = f"{css} pale" if pale else css
    host = scene.host(pair[0])
    if ay == by:
        ax, bx = slots.get(pair, (ax, bx))
        side = -1 if host in scene.below else 1
        edge = ay - side * scene.tall / 2
        longest = max(abs(x - ax) for x, y in scene.place.values() if y == ay) or 1.0
        widest = max(longest, max((abs(x - bx) for x, y in scene.place.values() if y == ay), default=1.0))
        rise = 14 + (scene.rise - 14) * min(abs(bx - ax) / widest, 1.0)
        page.arc((ax, edge), (bx, edge), side * rise, css, width=width, head=not pale)
        return
    down = 1 if by > ay else -1
    a, b = (ax, ay + down * scene.tall / 2), (bx, by - down * scene.tall / 2)
    bend = ((ax + bx) / 2, (ay + by) / 2)
    if scene.below:  # past the NICs
        a, b = (ax, a[1] + down * (NIC + 4)), (bx, b[1] - down * (NIC + 4))
    elif abs(bx - ax) < 1 and abs(by - ay) > scene.rise + 2.5 * scene.tall:  # beside the boxes between
        a, b = (ax + scene.width / 2, ay), (bx + scene.width / 2, by)
        bend = (a[0] + min(24.0 + 0.12 * abs(by - ay), scene.width), bend[1])
    if pale:
        page.line(a, b, css, width=width)
    else:
        page.arrow(a, bend, b, css, apart=1, both=False, width=width)


def _boxes(page: Page, scene: _Scene, tree: Focus) -> None:
    for rank, (x, y) in scene.place.items():
        device = scene.paths.topology.by_id[scene.plan.ranks[rank]]
        with page.group(f"rank {rank} on {device_words(device)}{page.models_of([device.id])}", [device.id]):
            corner = (x - scene.width / 2, y - scene.tall / 2)
            css = "device result" if rank == tree.rank else "device"
            page.rect(corner, (scene.width, scene.tall), css, radius=5)
            if scene.width < 44 or scene.tall < TALL:
                page.text((x, y + 4), str(rank), "ink bold", size=11, anchor="middle")
                continue
            name = label(device).replace("/", " ")
            page.text((x, y - 2), fitted(name, 12, scene.width), "ink bold", size=12, anchor="middle")
            page.text((x, y + 12), f"rank {rank}", "soft", size=11, anchor="middle")
