"""Ranks that wait for counters in shared memory sleep, and are woken up once: when the last one awaited is there."""

import os
import subprocess
import sys
import threading
import time

import pytest

from topocomm.execute.host.compiled_engine import shared_stage
from topocomm.execute.host.staged_engine import aligned_buffer
from topocomm.execute.transports.shared_memory import COUNTER_BYTES, SharedMemory
from topocomm.native._native import THROUGH, WAITING

MASK, SLEEPERS, CORE, WAKES, CROWDED = 1, 3, 4, 5, 6
PATIENCE_NS = 50_000
LONG_US = 60_000_000
LIMIT_S = 20.0


def memory_of(ranks, cores=1):
    region = aligned_buffer(ranks * COUNTER_BYTES + 256)
    region[...] = 0
    return [SharedMemory(region, rank, range(ranks), cores=cores) for rank in range(ranks)]


def stage(shared, *waits):
    """An engine that publishes 1 and waits for others to do so."""
    run = shared_stage(shared, 1, [(rank, 1) for rank in waits])
    run.start()
    return run._native


def wait_until(condition):
    until_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.001)


def times_ns(engine, waits):
    """How long each of some waits in vain takes that must not sleep."""
    times = []
    for _ in range(waits):
        begin_ns = time.monotonic_ns()
        assert engine.go_on() == WAITING
        times.append(time.monotonic_ns() - begin_ns)
    return times


@pytest.mark.parametrize("ranks", [2, 3, 40])
def test_the_last_rank_awaited_wakes_up_the_sleeper(ranks):
    memories = memory_of(ranks)
    words = memories[0].counters
    states = []
    engine = stage(memories[0], *range(1, ranks))
    sleeper = threading.Thread(target=lambda: states.append(engine.go_on(LONG_US)))
    sleeper.start()
    for rank in range(1, ranks):
        wait_until(lambda bit=rank & 31: words[SLEEPERS] == 1 and words[MASK] & 1 << bit)
        assert not states
        assert stage(memories[rank]).go_on() == THROUGH
        if rank < min(ranks, 32) - 1:
            assert not words[MASK] & 1 << rank
    sleeper.join(LIMIT_S)
    assert states == [THROUGH]
    assert words[SLEEPERS] == 0 and words[MASK] == 0


@pytest.mark.parametrize("ranks", [3, 32])  # of more, two may have the same bit
def test_all_that_await_the_same_rank_are_woken_up_at_once(ranks):
    memories = memory_of(ranks)
    words = memories[0].counters
    states = []
    engines = [stage(memories[rank], ranks - 1) for rank in range(ranks - 1)]
    sleepers = [threading.Thread(target=lambda e=engine: states.append(e.go_on(LONG_US))) for engine in engines]
    for sleeper in sleepers:
        sleeper.start()
    wait_until(lambda: words[SLEEPERS] == ranks - 1)
    assert stage(memories[ranks - 1]).go_on() == THROUGH
    for sleeper in sleepers:
        sleeper.join(LIMIT_S)
    assert states == [THROUGH] * (ranks - 1)
    assert words[WAKES] == 1 and words[SLEEPERS] == 0


def on_core(core, action):
    """What an action gives on a thread that runs on one core."""
    results = []

    def run():
        os.sched_setaffinity(0, {core})
        results.append(action())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(LIMIT_S)
    return results[0]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_rank_does_not_look_long_for_one_that_needs_its_core():
    memories = memory_of(2, cores=2)
    core, other = sorted(os.sched_getaffinity(0))[:2]
    assert on_core(core, stage(memories[1]).go_on) == THROUGH
    assert memories[0].counters[8 + CORE] == 1 + core
    run = shared_stage(memories[0], 1, [(1, 2)])
    run.start()

    def least_ns():
        return min(times_ns(run._native, 50))

    assert on_core(core, least_ns) < PATIENCE_NS <= on_core(other, least_ns)


def test_a_rank_that_shares_its_core_sleeps_early_as_long_as_the_machine_is_crowded():
    memories = memory_of(2)
    engine = stage(memories[0], 1)
    memories[0].counters[CROWDED] = 51
    assert min(times_ns(engine, 50)) < PATIENCE_NS
    assert memories[0].counters[CROWDED] == 1
    for _ in range(10):
        memories[0].counters[CROWDED] = 0
        assert times_ns(engine, 1)[0] >= PATIENCE_NS


def test_a_rank_whose_core_another_program_uses_learns_that_the_machine_is_crowded():
    memories = memory_of(2)
    engine = stage(memories[0], 1)
    core = min(os.sched_getaffinity(0))
    program = f"import os\nos.sched_setaffinity(0, {{{core}}})\nprint(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as other:
        other.stdout.readline()

        def wait():
            assert engine.go_on() == WAITING
            return memories[0].counters[CROWDED]

        wait_until(lambda: on_core(core, wait))
        other.kill()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.parametrize("is_same", [True, False])
def test_a_rank_gives_its_core_to_one_that_needs_it_before_it_looks(is_same):
    memories = memory_of(2, cores=2)
    core, other = sorted(os.sched_getaffinity(0))[:2]
    assert on_core(core, stage(memories[1]).go_on) == THROUGH
    memories[0].looks = 1 << 62
    run = shared_stage(memories[0], 1, [(1, 2)])
    run.start()

    def publish():
        memories[1].counters[8] = 2  # the first call's number is 0

    later = threading.Timer(1.0, publish)
    later.start()
    assert on_core(core if is_same else other, run._native.go_on) == (WAITING if is_same else THROUGH)
    later.join(LIMIT_S)


def test_a_sleep_has_a_limit_and_is_asked_for():
    memories = memory_of(2)
    engine = stage(memories[0], 1)
    assert engine.go_on() == WAITING
    begin_s = time.monotonic()
    assert engine.go_on(30_000) == WAITING
    assert 0.03 <= time.monotonic() - begin_s < LIMIT_S
    assert memories[0].counters[SLEEPERS] == 0
    assert stage(memories[1], 0).go_on() == engine.go_on() == THROUGH
