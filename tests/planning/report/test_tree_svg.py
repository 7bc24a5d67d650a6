"""The tree of a result on the machine: a head for each of its messages, in the colour of its round."""

import re
from collections import Counter

import pytest

from tests.machines import hosts, switch
from tests.topology.draw.geometry import SVG, parsed, words
from topocomm import catalog, plan
from topocomm.planning.report.plan_trees import focus
from topocomm.planning.report.tree_svg import MOST_HOSTS, draw_tree
from topocomm.planning.routing.paths import PathFinder
from topocomm.topology.draw.svg.svg_page import Page


def drawn(topology, collective="allreduce", **wanted):
    made = plan(topology, collective, **{"payload_bytes": 16384, **wanted})
    page = Page("", "")
    tree = focus(made)
    bottom = draw_tree(page, made, PathFinder(topology), tree, (20, 0), 760)
    return made, tree, parsed(page.render(800, bottom + 20))


@pytest.mark.parametrize("topology", [switch(2), switch(8), catalog("dgx-h100", hosts=2), catalog("dgx-h100", hosts=4)])
def test_every_message_of_the_result_has_a_head_in_the_colour_of_its_round(topology):
    _, tree, root = drawn(topology)
    heads = Counter(shape.get("class").split()[0] for shape in root.iter(f"{SVG}polygon"))
    rounds = Counter(f"hue{move[2]}" for move in {(move.src, move.dst, move.round) for move in tree.moves})
    assert heads == rounds
    assert sum("result" in box.get("class") for box in root.iter(f"{SVG}rect")) == 1


def test_all_other_messages_are_pale():
    made, tree, root = drawn(catalog("dgx-h100", hosts=2))
    pairs = {(move.src, move.dst) for move in made.schedule.transfer_list()}
    shown = {(move.src, move.dst) for move in tree.moves}
    assert sum("pale" in shape.get("class", "") for shape in root.iter()) == len(pairs - shown)


def test_of_two_hosts_every_rank_is_named_with_its_device_and_nic():
    _, _, root = drawn(catalog("dgx-h100", hosts=2))
    said = Counter(words(root))
    assert all(said[f"rank {rank}"] == 1 for rank in range(16))
    assert all(said[f"GPU {i}"] == said[f"NIC {i}"] == 2 for i in range(8))
    assert said["450 GB/s"] == 2 and said["50 GB/s"] == said["rail0-7"] == 1


def test_arcs_of_the_second_host_run_below_it():
    _, _, root = drawn(catalog("dgx-h100", hosts=2))
    ys = {float(box.get("y")) for box in root.iter(f"{SVG}rect") if box.get("height") == "36"}
    assert len(ys) == 2
    for shape in root.iter(f"{SVG}path"):
        if "C" in shape.get("d"):
            y = [float(number) for number in re.findall(r"-?[\d.]+", shape.get("d"))][1::2]
            assert y[1] < y[0] if y[0] < sum(ys) / 2 else y[1] > y[0]


def test_hosts_beyond_the_twelfth_and_their_messages_are_counted():
    _, tree, root = drawn(hosts(20, 2), objective="latency", payload_bytes=0)
    heads = sum(1 for _ in root.iter(f"{SVG}polygon"))
    moves = {(move.src, move.dst, move.round) for move in tree.moves}
    assert f"and {20 - MOST_HOSTS} more hosts, with {len(moves) - heads} messages of this result" in words(root)
