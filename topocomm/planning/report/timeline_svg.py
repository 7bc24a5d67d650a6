"""The rounds of a plan over time: a bar for each round, or for each slice of a pipeline."""

from __future__ import annotations

from collections.abc import Collection
from math import floor, log10

import numpy as np

from topocomm.planning.plan import Plan
from topocomm.planning.report.plan_text import message_sizes, transfer_times_us
from topocomm.planning.report.round_panels import slowest_kind
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import NO_PATH, Transfer
from topocomm.topology.draw.names import kind_words, plural
from topocomm.topology.draw.svg.colours import hue_class
from topocomm.topology.draw.svg.svg_page import LETTER, Page, Point

GUTTER = 104.0
BAR, PITCH = 14.0, 22.0
MOST_BARS = 16
SIZE = 11.0


def draw_timeline(
    page: Page, plan: Plan, paths: PathFinder, corner: Point, width: float, moves: Collection[Transfer]
) -> float:
    """Draw the rounds, or the slices of a pipeline, below a point in this width; return the bottom.

    A bar is from the first message of its round, of `moves` where there are some, to the last arrival; it has the
    colour that they have on the machine then.
    """
    schedule = plan.schedule
    if not len(schedule.transfers):
        return corner[1]
    repeat = schedule.repeat
    if repeat is not None and repeat.stagger_rounds:
        title = f"{plural(repeat.count, 'slice')}, each {plural(repeat.stagger_rounds, 'round')} after the one before"
        starts = [index * repeat.stagger_rounds for index in range(repeat.count)]
        bars = [(f"slice {i + 1}", float(s), float(s + schedule.rounds), "") for i, s in enumerate(starts)]
        unit = "rounds"
    else:
        bars, unit = _rounds(plan, paths, moves)
        title = "Predicted times" if unit == "us" else "Order"
    page.text((corner[0], corner[1] + 14), title, "ink bold", size=13)
    shown = bars if len(bars) <= MOST_BARS else bars[:MOST_BARS]
    last = bars[-1][2] if unit == "rounds" else max(end for _, _, end, _ in bars)
    left, right = corner[0] + GUTTER, corner[0] + width - 16
    y = corner[1] + 26

    def at(time: float) -> float:
        return left + (right - left) * time / (last or 1.0)

    foot = y + PITCH * len(shown)
    for tick in _ticks(last):
        page.line((at(tick), y - 2), (at(tick), foot), "other pale", width=1)
        words = f"{tick:g}" + (f" {unit}" if tick == 0 else "")
        page.text((at(tick), foot + 13), words, "soft", size=SIZE, anchor="middle" if tick else "start")
    for index, (name, start, end, words) in enumerate(shown):
        top = y + PITCH * index
        css = hue_class(index) if moves else "other"
        page.text((corner[0] + 12, top + 11), name, size=SIZE)
        page.rect((at(start), top), (max(at(end) - at(start), 3.0), BAR), f"{css} fill", radius=3)
        room = len(words) * LETTER * SIZE + 12
        if not words:
            continue
        if at(end) + room <= right:
            page.text((at(end) + 7, top + 11), words, "soft", size=SIZE)
        elif at(start) - room >= left:
            page.text((at(start) - 7, top + 11), words, "soft", size=SIZE, anchor="end")
        else:
            page.text((at(start) + 7, top + 11), words, "paper words-on", size=SIZE)
    if len(bars) > len(shown):
        page.text((corner[0] + 12, foot + 13), f"and {len(bars) - len(shown)} more", "soft", size=SIZE)
    return foot + 22


def _rounds(
    plan: Plan, paths: PathFinder, moves: Collection[Transfer]
) -> tuple[list[tuple[str, float, float, str]], str]:
    """Name, start, end and words of every round that has messages; in us, or by number where times are not known."""
    schedule = plan.schedule
    times = transfer_times_us(plan, paths)
    rounds = schedule.transfers[:, 0]
    sizes = message_sizes(plan)
    kind_of = {(link.src, link.dst): link.kind for link in paths.topology.links}
    wanted = set(moves)
    is_of = np.array([not wanted or tuple(row) in wanted for row in schedule.transfers.tolist()])
    bars = []
    for round_ in np.unique(rounds).tolist():
        own = np.flatnonzero(rounds == round_)
        first = schedule.transfers[own[0]].tolist()
        ends = plan.ranks[first[1]], plan.ranks[first[3]]
        path = first[6]
        route = paths.cheapest(*ends) if path == NO_PATH else paths.explicit(schedule.paths[path], *ends)
        over = kind_words(slowest_kind({kind_of[edge] for edge in route.edges}))
        pairs = len(np.unique(schedule.transfers[own][:, [1, 3]], axis=0))
        size = sizes[round_].removesuffix(" each")
        words = ", ".join(filter(None, (f"{plural(pairs, 'message')}{' of ' * bool(size)}{size}", over)))
        timed = own[is_of[own]] if is_of[own].any() else own
        start, end = (round_, round_ + 1) if times is None else (times[0][timed].min(), times[1][own].max())
        bars.append((f"round {round_ + 1}", float(start), float(end), words))
    return bars, "rounds" if times is None else "us"


def _ticks(last: float) -> list[float]:
    """Round numbers from 0 up to the last, about five."""
    if last <= 0:
        return [0.0]
    power = 10.0 ** floor(log10(last / 4))
    step = next(power * factor for factor in (1, 2, 5, 10) if last / (power * factor) <= 6)
    return [round(step * index, 6) for index in range(int(last / step + 1e-9) + 1)]
