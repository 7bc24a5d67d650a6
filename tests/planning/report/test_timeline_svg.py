"""Rounds over time: a bar for each, at the predicted times."""

import re

from tests.topology.draw.geometry import SVG, parsed, words
from topocomm import catalog, plan
from topocomm.planning.report.plan_text import transfer_times_us
from topocomm.planning.report.plan_trees import focus
from topocomm.planning.report.timeline_svg import draw_timeline
from topocomm.planning.routing.paths import PathFinder
from topocomm.topology.draw.svg.svg_page import Page


def drawn(system, hosts=1, **wanted):
    topology = catalog(system, hosts=hosts)
    made, page, paths = plan(topology, "allreduce", **wanted), Page("", ""), PathFinder(topology)
    bottom = draw_timeline(page, made, paths, (20, 0), 760, focus(made).moves)
    return made, paths, parsed(page.render(800, bottom))


def bars(root):
    """Left and right edge of every bar, in the unit of the axis."""
    ticks = [(float(t.get("x")), float(t.text.split()[0])) for t in root.iter(f"{SVG}text") if re.match(r"\d", t.text)]
    ticks = [tick for tick in ticks if tick[0] >= 124]
    (zero, _), (one, value) = ticks[0], ticks[1]
    scale = value / (one - zero)
    edges = [(float(b.get("x")), float(b.get("width"))) for b in root.iter(f"{SVG}rect") if "fill" in b.get("class")]
    return [((x - zero) * scale, (x + wide - zero) * scale) for x, wide in edges]


def test_a_bar_ends_when_the_last_message_of_its_round_is_there():
    made, paths, root = drawn("dgx-h100", 2, payload_bytes=16384)
    _, arrivals_us = transfer_times_us(made, paths)
    found = bars(root)
    assert len(found) == made.figures.rounds
    for round_, (start, end) in enumerate(found):
        assert abs(end - arrivals_us[made.schedule.transfers[:, 0] == round_].max()) < 0.05
        assert start < end
    assert abs(found[-1][1] - made.figures.predicted_us) < 0.05
    assert "16 messages of 2048 B, network" in words(root)


def test_a_pipeline_is_slices_each_after_the_one_before():
    made, _, root = drawn("dgx-1-v100", payload_bytes=1 << 20, objective="throughput")
    repeat = made.schedule.repeat
    found = bars(root)
    assert len(found) == min(repeat.count, 16)
    for index, (start, end) in enumerate(found):
        assert abs(start - index * repeat.stagger_rounds) < 0.1
        assert abs(end - start - made.schedule.rounds) < 0.1


def test_without_messages_there_is_nothing():
    topology = catalog("dgx-h100")
    alone, page = plan(topology, "allreduce", payload_bytes=64, ranks=topology.endpoints[:1]), Page("", "")
    assert draw_timeline(page, alone, PathFinder(topology), (20, 7), 760, ()) == 7
    assert page.items == []
