"""Messages on ports and links: no port has two at once, time that is taken stays free, hops follow each other."""

import random
from itertools import pairwise, permutations

import pytest

from tests.machines import line, switch
from topocomm import Device, Link, Topology
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.ways.list_scheduling import Piece, lines_of, list_schedule

KIB = 1 << 10


def all_pairs(machine, ports=1):
    paths, ends = PathFinder(machine), machine.endpoints
    pairs = list(permutations(range(len(ends)), 2))
    routes = [paths.cheapest(ends[a], ends[b]) for a, b in pairs]
    return lines_of(paths, len(ends), pairs, routes, ports), pairs


def spans(lines, pieces, sends):
    """[start, end] of every message, by port."""
    at = {}
    for send in sends:
        us = float(lines.us_per_byte[send.line]) * pieces[send.piece].size + float(lines.gap_us[send.line])
        for port in lines.held[send.line, :2].tolist():
            at.setdefault(port, []).append((send.start_us, send.start_us + us))
    return at


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8])
def test_ports_that_are_all_alike_never_wait(ranks):
    """Each of P ranks sends to P-1 others, one after the other: P-1 messages of 1 us take P-1 us, or few more."""
    lines, pairs = all_pairs(switch(ranks, gb_per_s=1.0))
    pieces = [Piece(KIB, (number,)) for number in range(len(pairs)) for _ in range(4)]
    end_us, sends = list_schedule(lines, pieces)
    assert len(sends) == len(pieces)
    assert 4 * (ranks - 1) * 1.024 - 1e-6 <= end_us <= 4 * (ranks - 1) * 1.024 * 1.1
    for own in spans(lines, pieces, sends).values():
        assert all(low[1] <= high[0] + 1e-6 for low, high in pairwise(sorted(own)))


def test_two_ports_halve_it():
    one, two = (all_pairs(switch(5, gb_per_s=1.0), ports)[0] for ports in (1, 2))
    pieces = [Piece(KIB, (number,)) for number in range(20)]
    assert list_schedule(two, pieces)[0] == pytest.approx(list_schedule(one, pieces)[0] / 2)


@pytest.mark.parametrize("seed", range(8))
def test_taken_time_stays_free(seed):
    """Ports are busy now and then; messages keep out of that, and come as soon as one fits."""
    chance = random.Random(seed)
    lines, pairs = all_pairs(switch(4, gb_per_s=1.0))
    pieces = [Piece(chance.randint(1, 4) * KIB, (number,)) for number in range(len(pairs))]
    taken = {}
    for port in chance.sample(range(8), 4):
        edges = sorted(chance.sample(range(30), 6))
        taken[port] = [(float(low), float(high)) for low, high in zip(edges[::2], edges[1::2], strict=True)]
    end_us, sends = list_schedule(lines, pieces, taken)
    assert len(sends) == len(pieces) and end_us > list_schedule(lines, pieces)[0] - 1e-6
    for port, own in spans(lines, pieces, sends).items():
        every = sorted([*own, *taken.get(port, [])])
        assert all(low[1] <= high[0] + 1e-5 for low, high in pairwise(every))


def test_spans_that_follow_each_other_are_one():
    lines, _ = all_pairs(switch(2, gb_per_s=1.0))
    end_us, (send,) = list_schedule(lines, [Piece(KIB, (0,))], {0: [(0.0, 1.0), (1.0, 3.0)], 3: [(0.5, 2.0)]})
    assert send.start_us == pytest.approx(3.0, abs=1e-5) and end_us == pytest.approx(3.0 + 1.024, abs=1e-5)


def test_a_port_is_free_again_after_spans_too_short_to_tell():
    lines, _ = all_pairs(switch(2, gb_per_s=1.0))
    taken = {0: [(0.0, 0.0), (0.5, 0.5 + 1e-8), (2.0, 3.0)]}
    _, (first, second) = list_schedule(lines, [Piece(KIB, (0,)), Piece(KIB, (0,))], taken)
    assert first.start_us == pytest.approx(0.5, abs=1e-5) and second.start_us == pytest.approx(3.0, abs=1e-5)


def test_hops_follow_each_other_after_the_latency():
    machine = line(3)
    paths, ends = PathFinder(machine), machine.endpoints
    lines = lines_of(paths, 3, [(0, 1), (1, 2)], [paths.cheapest(*pair) for pair in pairwise(ends)], 1)
    _, sends = list_schedule(lines, [Piece(10 * KIB, (0, 1)), Piece(10 * KIB, (0, 1))])
    start_us = {(send.piece, send.line): send.start_us for send in sends}
    for piece in (0, 1):
        assert start_us[piece, 1] == pytest.approx(start_us[piece, 0] + 1.024 + 1.0)


@pytest.mark.parametrize(("rate", "most"), [(10.0, 1), (20.0, 2), (35.0, 3)])
def test_a_bus_takes_as_many_as_its_rate_has_room_for(rate, most):
    """Four pairs across a bus, 10 GB/s each."""
    devices = [Device(f"GPU{i}", "gpu") for i in range(8)] + [Device(f"S{i}", "switch") for i in range(2)]
    links = [Link(f"GPU{i}", "S0", "nvlink", 1, 10.0, 0.0) for i in range(4)]
    links += [Link("S1", f"GPU{i}", "nvlink", 1, 10.0, 0.0) for i in range(4, 8)]
    machine = Topology("bus", "test", tuple(devices), (*links, Link("S0", "S1", "nvlink", 1, rate, 0.0)))
    paths, ends = PathFinder(machine), [(i, i + 4) for i in range(4)]
    lines = lines_of(paths, 8, ends, [paths.cheapest(f"GPU{a}", f"GPU{b}") for a, b in ends], 1)
    _, sends = list_schedule(lines, [Piece(KIB, (number,)) for number in range(4)])
    starts = [send.start_us for send in sends]
    assert max(sum(abs(a - b) < 1e-6 for b in starts) for a in starts) == most


def test_a_piece_waits_for_the_one_that_it_comes_after():
    """Down a tree: 0 to 1, from there to 2 and to 3, each 1.024 us and 0.6 us of latency; the last is there at 3 us."""
    lines, pairs = all_pairs(switch(4, gb_per_s=1.0))
    line_of = {pair: number for number, pair in enumerate(pairs)}
    edges = [(0, 1), (1, 2), (1, 3), (3, 0)]
    pieces = [Piece(KIB, (line_of[edge],), after, 0.0) for edge, after in zip(edges, (-1, 0, 0, 2), strict=True)]
    pieces.append(Piece(KIB, (line_of[2, 0],), -1, 3.0))
    end_us, sends = list_schedule(lines, pieces)
    start_us = {send.piece: send.start_us for send in sends}
    assert start_us[0] == 0 and start_us[4] == 3.0
    assert sorted([start_us[1], start_us[2]]) == pytest.approx([1.624, 2.648])
    assert start_us[3] >= start_us[2] + 1.624 - 1e-9
    assert end_us == pytest.approx(max(start_us.values()) + 1.024)


def test_in_line_order_those_as_busy_go_by_their_lines_and_the_busiest_first():
    """Lines of eight ranks in steps that share no port: step after step. A port with more to do comes before them."""
    machine = switch(8, gb_per_s=1.0)
    paths, ends = PathFinder(machine), machine.endpoints
    pairs = sorted(permutations(range(8), 2), key=lambda pair: (pair[0] ^ pair[1], pair[0]))
    lines = lines_of(paths, 8, pairs, [paths.cheapest(ends[a], ends[b]) for a, b in pairs], 1)
    pieces = [Piece(KIB, (number,)) for number in range(len(pairs))]
    end_us, sends = list_schedule(lines, pieces, in_line_order=True)
    assert [send.line for send in sends] == list(range(len(pairs))) and end_us == pytest.approx(7 * 1.024)
    more = [*pieces, Piece(KIB, (pairs.index((5, 2)),))]
    assert list_schedule(lines, more, in_line_order=True)[1][0].line in (
        number for number, (a, b) in enumerate(pairs) if a == 5 or b == 2
    )
