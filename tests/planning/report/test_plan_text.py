"""The text of a plan: its width, its cuts, and who talks to whom."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.machines import hosts, switch
from tests.plans import every_plan
from tests.thinning import alternating
from topocomm import SUM, Device, catalog, plan
from topocomm.planning.collectives import COLLECTIVES
from topocomm.planning.report.plan_comparison import Rival
from topocomm.planning.report.plan_text import MOST_MOVES, MOST_ROUNDS, WIDTH, placed, plan_text, round_times
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import Repeat, make_schedule


def text(topology, **wanted):
    return plan_text(plan(topology, **{"payload_bytes": 4096, **wanted}), topology)


def ring(topology):
    """The plan of a ring allreduce: two neighbours a rank, many rounds."""
    return next(p for p in every_plan(topology, "allreduce", SUM, SUM.default_layout(1024)) if p.algorithm == "ring")


def rounds(said):
    """Number -> the words of a round, whatever lines they are on."""
    found = {}
    for shown in said.splitlines():
        head = re.match(r"  round (\d+)", shown[:10])
        if head:
            found[int(head[1])] = []
        if head or (found and shown.startswith(" " * 10) and "all there at" not in shown):
            found[max(found)] += re.findall(r"and \d+ more|\([^)]*\);?|\S+", shown[10:])
    return found


@pytest.mark.parametrize(
    ("objective", "ranks"), alternating(["auto", "rounds", "latency", "throughput"], [1, 2, 3, 8, 17])
)
def test_lines_fit(objective, ranks):
    for collective in COLLECTIVES:
        said = text(switch(ranks), collective=collective, objective=objective).splitlines()
        assert max(map(len, said)) <= WIDTH == 80, said
        assert all(line_ == line_.rstrip() for line_ in said)


@pytest.mark.parametrize(("count", "gpus"), [(2, 8), (16, 4), (64, 1)])
def test_lines_fit_with_several_hosts(count, gpus):
    said = text(hosts(count, gpus))
    assert max(map(len, said.splitlines())) <= WIDTH, said


def test_only_a_long_name_makes_a_line_longer():
    topology = replace(switch(4), name="n" * 100)
    long = [line_ for line_ in text(topology).splitlines() if len(line_) > WIDTH]
    assert long == [f"allreduce sum, 4096 B, 4 ranks on {'n' * 100}"]


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_an_exchange_is_told_from_a_one_way_message(ranks):
    said = rounds(text(switch(ranks), objective="rounds"))
    for round_, words in said.items():  # recursive doubling: partners differ in one bit
        apart = 1 << (round_ - 1)
        assert words == [*(f"{a}<>{a + apart}" for a in range(ranks) if not a & apart), "(nvlink)"]


@pytest.mark.parametrize("root", [0, 2, 4])
def test_a_broadcast_spreads_from_its_root_and_a_reduce_gathers_at_it(root):
    for collective in ("broadcast", "reduce"):
        said = rounds(text(switch(5), collective=collective, objective="latency", root=root))
        moves = [tuple(map(int, word.split(">"))) for words in said.values() for word in words if ">" in word]
        assert len(moves) == 4
        if collective == "broadcast":
            reached = {root}
            for src, dst in moves:
                assert src in reached
                reached.add(dst)
        else:
            left = set(range(5))
            for src, dst in moves:
                assert {src, dst} <= left
                left.remove(src)
            assert left == {root}


@pytest.mark.parametrize("ranks", [MOST_MOVES, MOST_MOVES + 1, 40])
def test_moves_of_a_round_are_cut(ranks):
    topology = switch(ranks)
    first = rounds(plan_text(ring(topology), topology))[1]
    rest = ranks - MOST_MOVES
    assert sum(bool(re.fullmatch(r"\d+>\d+", word)) for word in first) == MOST_MOVES
    assert first[MOST_MOVES:] == ([f"and {rest} more"] if rest else []) + ["(nvlink)"]


@pytest.mark.parametrize("ranks", [8, 9, 10, 20])
def test_rounds_are_cut(ranks):
    count = 2 * (ranks - 1)  # a ring scatters and gathers
    topology = switch(ranks)
    said = plan_text(ring(topology), topology)
    assert f"ring: {count} rounds, {count * ranks} messages" in said
    assert len(rounds(said)) == min(count, MOST_ROUNDS)
    cut = f"  ... and {count - MOST_ROUNDS} more rounds (--format json has them all)"
    assert (said.splitlines()[-1] == cut) == (count > MOST_ROUNDS)
    assert ("more rounds" in said) == (count > MOST_ROUNDS)


def test_round_numbers_stand_apart():
    topology = switch(8)
    said = plan_text(ring(topology), topology)
    assert re.findall(r"^  round (\d+) +\d+>", said, re.M) == [str(number) for number in range(1, 15)]


def test_one_rank_has_no_rounds():
    said = text(switch(1))
    assert "0 rounds, 0 messages, 0 B on the wire" in said
    assert "1 rank" in said
    assert not rounds(said)


def test_links_that_a_round_crosses_are_named():
    said = rounds(text(catalog("dgx-h100", hosts=2), port_model="alpha"))
    assert [words[-1] for words in said.values()] == ["(nvlink)"] * 3 + ["(network, pcie)"]
    assert said[4][:-1] == [f"{rank}<>{rank + 8}" for rank in range(8)]


def test_a_named_path_counts_its_own_links():
    known = switch(2)
    slow = [link._replace(kind="pcie", src="bridge", latency_us=9.0) for link in known.links if link.src == "switch"]
    slow += [link._replace(src=link.dst, dst="bridge") for link in slow]
    topology = replace(known, devices=(*known.devices, Device("bridge", "switch")), links=(*known.links, *slow))
    made = plan(topology, payload_bytes=64)
    schedule = make_schedule(
        2,
        made.schedule.chunks,
        inputs=made.schedule.inputs.tolist(),
        outputs=made.schedule.outputs.tolist(),
        transfers=[move._replace(path=move.src) for move in made.schedule.transfer_list()],
        combines=made.schedule.combine_list(),
        paths=(("GPU0", "bridge", "GPU1"), ("GPU1", "bridge", "GPU0")),
    )
    assert rounds(plan_text(made, topology)) == {1: ["0<>1", "(nvlink)"]}
    assert rounds(plan_text(replace(made, schedule=schedule), topology)) == {1: ["0<>1", "(pcie)"]}


def test_what_is_not_proved_is_not_said():
    topology = switch(8)
    made = ring(topology)
    said = plan_text(made, topology)
    assert "each contribution once" in said
    assert "rank order kept" not in said
    without = replace(made, proof=replace(made.proof, deadlock_free=False, uniform=False))
    assert "deadlock-free" not in plan_text(without, topology)
    assert "equal bits" not in plan_text(without, topology)


def test_assumed_figures_are_told():
    topology = switch(2)
    made = replace(plan(topology, payload_bytes=64), assumed=("a link 1 GB/s", "another 2 GB/s"))
    assert "\n  assumed a link 1 GB/s\n  assumed another 2 GB/s\n" in plan_text(made, topology)


@pytest.mark.parametrize(("collective", "verb"), [("allgather", "given"), ("reduce_scatter", "got")])
def test_parts_are_told_where_they_are_uneven(collective, verb):
    uneven = text(switch(4), collective=collective, payload_bytes=40, parts=[7, 0, 1, 2])
    assert f"\n  parts   rows {verb} by ranks 0..3: 7, 0, 1, 2\n" in uneven
    assert "  parts " not in text(switch(4), collective=collective, payload_bytes=40)
    assert "  parts " not in text(switch(4), collective=collective, payload_bytes=0)


def test_shards_are_told():
    said = text(switch(5), order="canonical", shards=[0, 1, 1, 4, 8, 64])
    assert "\n  shards  of ranks 0..4, canonical order: 0, none, 1-3, 4-7, 8-63\n" in said
    assert "canonical" not in text(switch(5))


def test_ranks_are_told_in_runs():
    assert placed([f"GPU{i}" for i in range(8)]) == "0-7 on GPU0-7"
    assert placed(["h0/GPU0", "h0/GPU1", "h1/GPU0"]) == "0-1 on h0/GPU0-1, 2 on h1/GPU0"
    assert placed(["b", "GPU1", "GPU0"]) == "0 on b, 1 on GPU1, 2 on GPU0"
    assert placed([f"h{i}/GPU0" for i in range(9)]).endswith("5 on h5/GPU0, and 3 more runs")


def test_a_round_ends_when_its_last_message_is_there():
    topology = switch(4)
    made = plan(topology, payload_bytes=450_000, objective="latency")
    times = round_times(made, PathFinder(topology))
    assert times == ["450000 B each, all there at 1.60 us", "450000 B each, all there at 3.20 us"]
    assert made.figures.predicted_us == pytest.approx(3.2)
    silent = plan(topology, payload_bytes=0, objective="latency")
    assert round_times(silent, PathFinder(topology)) == ["all there at 0.60 us", "all there at 1.20 us"]


def test_messages_of_several_sizes():
    topology = switch(3)
    made = plan(topology, "allgather", payload_bytes=40, parts=(1, 2, 7), objective="rounds")
    assert round_times(made, PathFinder(topology))[0].startswith("4 to 28 B each, ")


def test_a_plan_of_one_algorithm_says_so():
    topology = switch(2)
    made = plan(topology, payload_bytes=4)
    own = Rival(made.algorithm, 1.0, 1.0)
    assert "  why     no other algorithm fits this request" in plan_text(made, topology, [own]).splitlines()
    assert "  why" not in plan_text(made, topology)
    worse = plan_text(made, topology, [own, Rival("slow", 2 * made.figures.predicted_us, 9.0)])
    assert f"others  slow {2 * made.figures.predicted_us:.2f} us (2.00x)" in worse


def test_messages_of_a_pipeline_are_those_of_one_slice():
    topology = switch(3)
    made = next(p for p in every_plan(topology, "allreduce", SUM, SUM.default_layout(10)) if p.algorithm == "binomial")
    piped = replace(made, schedule=replace(made.schedule, repeat=Repeat(3, 1)))
    assert set(round_times(piped, PathFinder(topology))) == {"12 to 16 B each"}
    at_once = replace(made, schedule=replace(made.schedule, repeat=Repeat(3, 0)))
    assert set(round_times(at_once, PathFinder(topology))) == {"40 B each"}
    assert "  slices  3 of every chunk, each 1 round after the one before; below are the\n" in plan_text(
        piped, topology
    )
    assert "  slices  3 of every chunk, all in the same messages\n" in plan_text(at_once, topology)
    assert "  slices" not in plan_text(made, topology)


def test_what_is_not_known_of_others_and_what_switches_could_do_is_told():
    topology = switch(2)
    made = plan(topology, payload_bytes=4)
    text = plan_text(made, topology, "its operator is gone", notes=[("switch", "one could"), ("omitted", "another")])
    assert "\n  others  not known: its operator is gone\n" in text
    assert "\n  switch  one could\n  omitted another\n" in text
    better = plan_text(made, topology, [Rival("quick", made.figures.predicted_us / 2, 1.0)])
    assert "why     kept as it is, not the least time with these bytes of 2 algorithms" in better


def test_messages_over_different_links_are_told_apart():
    topology = catalog("dgx-1-v100")
    made = plan(topology, payload_bytes=1 << 20, objective="throughput")
    assert made.schedule.paths
    nvlink = {(link.src, link.dst) for link in topology.links if link.kind == "nvlink"}
    mixed = 0
    for number, words in rounds(plan_text(made, topology)).items():
        ended = [word for word in words if word.startswith("(")]
        mixed += len(ended) > 1
        assert [word.endswith(";") for word in ended] == [True] * (len(ended) - 1) + [False]
        over = {"(nvlink)": set(), "(pcie)": set()}
        for move in (m for m in made.schedule.transfer_list() if m.round == number - 1):
            path = made.schedule.paths[move.path] if move.path >= 0 else (f"GPU{move.src}", f"GPU{move.dst}")
            kind = "(nvlink)" if set(pairwise(path)) <= nvlink else "(pcie)"
            over[kind].add((move.src, move.dst))
        told = []
        for word in words:
            if word.startswith("("):
                kind = over[word.strip(";")]
                assert {tuple(map(int, re.split("<?>", pair))) for pair in told} <= kind
                assert all(pair[::-1] in kind for pair in (tuple(map(int, t.split("<>"))) for t in told if "<" in t))
                told = []
            elif not word.startswith("and "):
                told.append(word)
    assert mixed


def test_a_plan_of_fewer_rounds_than_the_bound_says_what_the_bound_counts():
    said = text(catalog("dgx-h100", hosts=2), payload_bytes=16512)
    took, bound = re.search(r": (\d+) rounds", said), re.search(r"rounds >= (\d+) of one message a port", said)
    assert int(took[1]) < int(bound[1])
    assert "of one message a port" not in text(catalog("dgx-h100"), payload_bytes=16512)
