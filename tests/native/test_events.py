"""Discrete events, compiled and plain: the same bits of all times, on random works of machines that share links."""

import signal
from math import inf
from unittest import mock

import numpy as np
import pytest

from topocomm import Topology, catalog
from topocomm.native import _native
from topocomm.planning.cost import events
from topocomm.planning.cost.simulated_work import NO_TASK, WorkBuilder
from topocomm.planning.routing.paths import PathFinder

SYSTEMS = ("mi100-8", "rtx4090-pcie-8", "dgx-1-v100", "cpu-2-socket", "dgx-h100")
MOST_TASKS, HOSTS = 600, 6
ROUTES_AND_RATES, NUMBERS = (2, 18), (*range(13), 19, 20)
"""Columns of `run_events`: one a route or a link, and those that number tasks, ports, links, or places of another."""
_paths = {}


def machine(system):
    """The routes of some hosts, whose NICs have gaps."""
    if system not in _paths:
        topology = catalog(system, hosts=HOSTS)
        links = tuple(link._replace(gap_us=0.7) if link.kind == "network" else link for link in topology.links)
        _paths[system] = PathFinder(Topology("gaps", "test", topology.devices, links))
    return _paths[system]


def random_work(rng, endpoints):
    """Messages of a few sizes, most at once and some after others, phases and joins."""
    own, count, n = WorkBuilder(endpoints), 0, len(endpoints)
    near = min(n, 4) if rng.random() < 0.5 else n
    most, sizes = int(rng.integers(1, MOST_TASKS)), rng.integers(0, 300_000, int(rng.integers(1, 6)))
    while count < most:
        some, far = int(rng.integers(1, 80)), int(rng.integers(1, 200))
        after = count - rng.integers(1, far + 1, (some, int(rng.integers(1, 4))))
        after = np.where((after < 0) | (rng.random(after.shape) < 0.4), NO_TASK, after)
        after[:, 1:][after[:, 1:] == after[:, :1]] = NO_TASK
        if after.shape[1] == 3:
            after[after[:, 1] == after[:, 2], 2] = NO_TASK
        src, before_us = rng.integers(0, n, some), np.where(rng.random(some) < 0.2, rng.random(some), 0.0)
        kind = rng.random()
        if kind < 0.8:
            limits = np.where(rng.random(some) < 0.2, 3.0, inf) if rng.random() < 0.5 else inf
            dst = (src + rng.integers(1, near, some)) % n
            own.send(src, dst, rng.choice(sizes, some), before_us=before_us, most_gb_per_s=limits, after=after)
        elif kind < 0.9:
            own.compute(src, before_us, after=after)
        else:
            own.join(src, before_us=before_us, after=after)
        count += some
    return own.build()


def try_random_work(rng):
    """Simulate a random work both ways: the times are the same bits."""
    paths = machine(SYSTEMS[rng.integers(len(SYSTEMS))])
    work = random_work(rng, paths.topology.endpoints)
    how = {"ports": (None, 1, 2, 5)[rng.integers(4)], "port_model": ("alpha", "loggp")[rng.integers(2)]}
    how |= {"most_us": (inf, inf, 40.0)[rng.integers(3)], "exact_instants": (inf, inf, 20)[rng.integers(3)]}
    compiled = events.simulate(work, paths, **how)
    with mock.patch.dict("sys.modules", {"topocomm.native._native": None}):
        plain = events.simulate(work, paths, **how)
    for name in ("start_us", "first_byte_us", "last_byte_us", "arrival_us", "awaited"):
        assert getattr(compiled, name).tobytes() == getattr(plain, name).tobytes(), (name, how)
    assert compiled.events == plain.events


@pytest.mark.parametrize("seed", range(40))
def test_both_ways_give_the_same_bits(seed):
    try_random_work(np.random.default_rng(seed))


def columns_of(work, paths):
    tasks = events.route_tasks(work, paths)
    queues = events.queues_of(work, tasks, paths, ports=1, loggp=True)
    return events._Events(work, tasks, queues, paths)._columns()


def test_wrong_arguments_are_refused():
    paths = machine("mi100-8")
    own = WorkBuilder(paths.topology.endpoints)
    sent = own.send([0, 1, 2], [9, 9, 3], 1000)
    own.send([9, 9, 3], 4, 1000, after=sent)
    work = own.build()
    columns = columns_of(work, paths)
    with pytest.raises(TypeError, match="run_events takes 28 columns and two limits"):
        _native.run_events(*columns)
    with pytest.raises(TypeError, match="column 4: expected items of 4 bytes, got 8"):
        _native.run_events(*columns[:4], columns[4].astype(np.int64), *columns[5:], inf, inf)
    with pytest.raises(TypeError, match="real number"):
        _native.run_events(*columns, "soon", inf)
    for place, column in enumerate(columns):
        if place in ROUTES_AND_RATES:  # also of those that no task needs
            continue
        short = [*columns]
        short[place] = column[:-1] if len(column) else np.ones(len(work) - 1)
        with pytest.raises(ValueError, match="its arrays do not fit each other"):
            _native.run_events(*short, inf, inf)
    for place in NUMBERS:
        for wrong in (-1, 1 << 30):
            far = [column.copy() for column in columns]
            far[place][0] = wrong
            with pytest.raises(ValueError, match="its arrays do not fit each other"):
                _native.run_events(*far, inf, inf)
    assert _native.run_events(*columns, inf, inf) > 0


def test_a_signal_ends_a_long_run():
    """A million phases on one endpoint, an instant each; the signal comes when a part of them is over."""
    paths = machine("dgx-h100")
    own = WorkBuilder(paths.topology.endpoints)
    own.compute(np.zeros(1_000_000, dtype=int), 1.0)
    columns = columns_of(own.build(), paths)
    arrival_us = columns[-2]

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGVTALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.02)  # of the processor, so that load does not move it
        with pytest.raises(KeyboardInterrupt):
            _native.run_events(*columns, inf, inf)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    assert np.isinf(arrival_us[-1])
