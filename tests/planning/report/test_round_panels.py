"""The panels of rounds show every message that has room, in the colour of the slowest link that it crosses."""

import re

import pytest

from tests.machines import hosts, line, switch
from tests.topology.draw.geometry import SVG, parsed, words
from topocomm import catalog, plan
from topocomm.planning.collectives import COLLECTIVES
from topocomm.planning.report.round_panels import FEW_ROWS, MOST_ROUNDS, draw_rounds, ring_places, slowest_kind
from topocomm.planning.routing.paths import PathFinder
from topocomm.topology.draw.svg.svg_page import Page


def drawn(topology, collective="allreduce", **wanted):
    made = plan(topology, collective, **{"payload_bytes": 4096, **wanted})
    page = Page("", "")
    bottom = draw_rounds(page, made, PathFinder(topology), 0.0)
    return made, parsed(page.render(1180, bottom))


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(
    "topology", [switch(1), switch(5), switch(18), catalog("dgx-a100", hosts=2), line(2)], ids=lambda t: t.name
)
def test_every_collective_can_be_drawn(collective, topology):
    made, root = drawn(topology, collective)
    titles = [text for text in words(root) if re.fullmatch(r"round \d+", text)]
    assert len(titles) == min(made.figures.rounds, MOST_ROUNDS)


@pytest.mark.parametrize("ranks", [2, 3, 8, 16])
def test_every_message_is_an_arrow_head(ranks):
    for collective, objective in (("reduce", "latency"), ("allreduce", "rounds")):
        made, root = drawn(switch(ranks), collective, objective=objective)
        heads = [shape for shape in root.iter(f"{SVG}polygon") if "head" in shape.get("class")]
        assert len(heads) == made.figures.transfers


def test_arrows_have_the_colour_of_their_round_and_the_slowest_link_is_named():
    made, root = drawn(catalog("dgx-h100", hosts=2), objective="latency")
    hues = [shape.get("class").split()[0] for shape in root.iter(f"{SVG}polygon")]
    assert list(dict.fromkeys(hues)) == [f"hue{round_}" for round_ in range(made.figures.rounds)]
    over = [text for text in words(root) if text.startswith("over ")]
    assert sorted(set(over)) == ["over NVLink", "over network"] and len(over) == made.figures.rounds
    assert [slowest_kind(kinds) for kinds in ({"nvlink", "pcie"}, {"telepathy"}, ())] == ["pcie", "telepathy", "other"]


def test_hosts_alike_are_drawn_once_and_few_in_a_panel():
    made, root = drawn(hosts(9, 2), objective="latency", payload_bytes=0)
    said = words(root)
    assert f"{FEW_ROWS} of 9 hosts are drawn in each round; + counts the messages of the others" in said
    heads = sum(1 for _ in root.iter(f"{SVG}polygon"))
    hidden = sum(int(text[1:].split()[0]) for text in said if re.fullmatch(r"\+\d+ messages", text))
    assert heads + hidden == made.figures.transfers


def test_messages_between_the_same_ranks_over_different_links_are_drawn_beside_each_other():
    made, root = drawn(catalog("dgx-1-v100"), objective="throughput", payload_bytes=1 << 20)
    curves = [shape.get("d") for shape in root.iter(f"{SVG}path")]
    assert len(set(curves)) == len(curves)
    moves = {(m.round, m.src, m.dst, m.path) for m in made.schedule.transfer_list()}
    assert len(moves) > len({move[:3] for move in moves})  # some go two ways
    heads = [shape.get("class").split() for shape in root.iter(f"{SVG}polygon")]
    assert {"guess" in own for own in heads} == {True, False}
    assert "over NVLink; dashed PCIe" in words(root)
    assert len({move[:3] for move in moves}) < len(heads) <= len(moves)


def test_a_pipeline_says_its_slices():
    made, root = drawn(catalog("dgx-1-v100"), objective="throughput", payload_bytes=1 << 20)
    repeat = made.schedule.repeat
    rounds = f"{repeat.stagger_rounds} round{'s' * (repeat.stagger_rounds != 1)}"
    said = f"pipelined: the rounds run for each of {repeat.count} slices, each {rounds} after the one before; sizes are"
    assert any(text.startswith(said) for text in words(root))


def test_ranks_of_a_ring_are_apart():
    places, size = ring_places(16)
    assert len({(round(x), round(y)) for x, y in places.values()}) == 16
    assert all(0 < x < size[0] and 0 < y < size[1] for x, y in places.values())
