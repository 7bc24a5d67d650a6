"""Messages in turn at their ports: the compiled pass and the plain one give the same bits, on any columns."""

import builtins
from itertools import pairwise

import numpy as np
import pytest

from topocomm.native import _native
from topocomm.planning.cost import port_turns
from topocomm.planning.cost.port_turns import TurnColumns, busiest_by_round, follow, follow_plainly, load_places


def starts_of(counts):
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def drawn(seed, *, together):
    """Rounds of messages, some of several transfers, that hold ports, even one twice, and combines that follow."""
    rng = np.random.default_rng(seed)
    rounds, ports, places, at_once = int(rng.integers(0, 6)), 5, 30, int(rng.integers(1, 4))
    per_round = rng.integers(0, 7, rounds)
    messages = int(per_round.sum())
    counts = rng.integers(1, 3, messages)
    held = rng.integers(1, 4, messages)
    folds = rng.integers(0, 4, rounds)
    operands = rng.integers(2, 4, int(folds.sum()))
    sent, port_starts = starts_of(per_round), starts_of(held)
    free_us = np.zeros((ports, at_once))
    free_us[0, 1:] = np.inf  # as a NIC
    return TurnColumns(
        starts_of(counts)[sent],
        starts_of(folds),
        sent,
        np.repeat(np.arange(messages), counts),
        rng.integers(0, places, counts.sum()),
        rng.permutation(places * 5)[: counts.sum()] % places,
        port_starts,
        rng.integers(0, ports, port_starts[-1]),
        rng.integers(0, places, folds.sum()),
        starts_of(operands),
        rng.integers(0, places, operands.sum()),
        rng.random(port_starts[-1]),
        rng.random(messages),
        rng.random(rounds) if together else np.zeros(0),
        free_us,
        np.zeros(places),
        *np.zeros((2, messages)),
    )


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_both_passes_give_the_same_bits(seed, together):
    compiled, plain = drawn(seed, together=together), drawn(seed, together=together)
    follow(compiled)
    follow_plainly(plain)
    for name, one, other in zip(TurnColumns._fields, compiled, plain, strict=True):
        assert one.tobytes() == other.tobytes(), name


def without_native(monkeypatch):
    imported = builtins.__import__

    def refuse(name, *args, **options):
        if name == "topocomm.native._native":
            raise ImportError(name)
        return imported(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)


def test_where_nothing_is_compiled_the_plain_pass_runs(monkeypatch):
    compiled, plain = drawn(3, together=False), drawn(3, together=False)
    follow(compiled)
    without_native(monkeypatch)
    follow(plain)
    assert plain.arrival_us.any() and plain.arrival_us.tobytes() == compiled.arrival_us.tobytes()


@pytest.mark.parametrize("seed", range(20))
def test_the_place_that_is_held_longest(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    sent = starts_of(rng.integers(0, 5, int(rng.integers(1, 6))))
    starts = starts_of(rng.integers(0, 4, sent[-1]))
    places, held, rate = rng.integers(0, 6, starts[-1]), rng.random(sent[-1]), 0.5 + rng.random(6)
    floor_us = rng.random(len(sent) - 1)
    wanted = floor_us.copy()
    for round_, (low, high) in enumerate(pairwise(sent)):
        sums = np.zeros(6)
        for message in range(low, high):
            for place in places[starts[message] : starts[message + 1]]:
                sums[place] += held[message]
        wanted[round_] = max([wanted[round_], *(sums / rate)])
    compiled, plain = floor_us.copy(), floor_us.copy()
    busiest_by_round(sent, starts, places, held, rate, compiled)
    without_native(monkeypatch)
    busiest_by_round(sent, starts, places, held, rate, plain)
    assert compiled.tobytes() == plain.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("seed", range(20))
def test_what_places_are_held_for_and_their_least_latency(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    starts = starts_of(rng.integers(0, 4, int(rng.integers(0, 30))))
    places, held, latency_us = rng.integers(0, 6, starts[-1]), rng.random(len(starts) - 1), rng.random(len(starts) - 1)
    sums, least_us = np.zeros(7), np.full(7, np.inf)
    for message, (low, high) in enumerate(pairwise(starts)):
        for place in places[low:high]:
            sums[place] += held[message]
            least_us[place] = min(least_us[place], latency_us[message])
    compiled = load_places(starts, places, held, latency_us, 7)
    without_native(monkeypatch)
    plain = load_places(starts, places, held, latency_us, 7)
    for own in (compiled, plain):
        assert own[0].tobytes() == sums.tobytes() and own[1].tobytes() == least_us.tobytes()


def test_wrong_arguments_are_refused():
    columns = drawn(1, together=False)
    with pytest.raises(TypeError, match="follow_turns takes 18 columns and the places of a port"):
        _native.follow_turns(*columns)
    with pytest.raises(ValueError, match="a port has one place or more"):
        _native.follow_turns(*columns, 0)
    with pytest.raises(TypeError, match="expected 7 columns, got 6"):
        _native.busiest_by_round(*columns[:6])
    with pytest.raises(TypeError, match="column 1: expected items of 8 bytes, got 4"):
        _native.follow_turns(columns.moves, columns.folds.astype(np.int32), *columns[2:], 1)
    columns.start_us.flags.writeable = False
    with pytest.raises((BufferError, ValueError), match=r"read-only|not writ"):
        _native.follow_turns(*columns, 1)
    assert port_turns.TurnColumns._fields[-4:] == ("free_us", "ready_us", "start_us", "arrival_us")
