"""Large machines: 1,024 GPUs as a matter of course, 16,384 within a minute and 4 GiB."""

import subprocess
import sys
import time

import numpy as np
import pytest

from tests.machines import switch
from topocomm import catalog, plan
from topocomm.planning.cost.events import simulate
from topocomm.planning.cost.simulated_work import WorkBuilder
from topocomm.simulation.libraries import work_of
from topocomm.simulation.runs import Rules, simulate_plan

MOST_S, MOST_BYTES = 60.0, 4 << 30


def test_a_planned_allreduce_of_1024_gpus():
    machine = catalog("dgx-h100", hosts=128)
    made = plan(machine, payload_bytes=1 << 20)
    run = simulate_plan(made, machine, Rules(ports=1))
    assert made.certificate.alpha_lower_bound_us < run.total_us
    assert run.total_us == pytest.approx(made.figures.predicted_us, rel=0.05)
    assert run.timeline.work.sent_bytes == made.figures.wire_bytes
    print(f"1,024 GPUs: {run.timeline.events_per_s:,.0f} events a second")


@pytest.mark.long
def test_a_ring_of_1024_gpus_takes_what_its_formula_says():
    """2,095,104 messages."""
    machine, chunk = switch(1024), 4500
    timeline = simulate(work_of("ring", machine, "allreduce", chunk * 1024), machine)
    assert timeline.total_us == pytest.approx(2 * 1023 * (chunk / 450e3 + 0.6))
    assert (timeline.link_bytes == 2 * 1023 * chunk).all()


@pytest.mark.soak
def test_128_gpus_in_less_than_a_third_of_a_second():
    """Of processor time, as others may use the machine; with the work of the plan and its routes."""
    machine = catalog("dgx-h100", hosts=16)
    made = plan(machine, payload_bytes=64 << 20)
    ring = work_of("ring", machine, "allreduce", 1 << 20)
    runs = {"planned": lambda: simulate_plan(made, machine), "ring": lambda: simulate(ring, machine)}
    for name, simulated in runs.items():
        times_s = []
        for _ in range(5):
            began = time.process_time()
            simulated()
            times_s.append(time.process_time() - began)
        print(f"128 GPUs, {name}: {min(times_s):.3f} s")
        assert min(times_s) < 0.3


def halving(machine, payload_bytes, channels):
    """Recursive halving and doubling over all ranks: 28 rounds of 16,384 ranks, on each of several channels."""
    ranks = np.arange(len(machine.endpoints))
    builder, steps = WorkBuilder(machine.endpoints), len(ranks).bit_length() - 1
    for _ in range(channels):
        sent, previous = None, 0
        for round_ in range(2 * steps):
            level = round_ if round_ < steps else 2 * steps - 1 - round_
            distance = len(ranks) >> (level + 1)
            size = payload_bytes // channels >> (level + 1)
            after = None if sent is None else np.stack([sent, sent[ranks ^ previous]], axis=1)
            sent, previous = builder.send(ranks, ranks ^ distance, size, after=after, round_=round_), distance
    return builder.build()


@pytest.mark.soak
def test_16384_gpus_in_a_minute_and_4_gib():
    """In a process of its own, whose largest memory is then that of the simulation."""
    program = """
import resource, time
from tests.simulation.test_scale import halving
from topocomm import catalog, plan
from topocomm.planning.cost.events import simulate
from topocomm.simulation.runs import simulate_plan
machine = catalog("dgx-h100", hosts=2048)
made = plan(machine, payload_bytes=64 << 20)
for name, simulated in (
    ("planned", lambda: simulate_plan(made, machine).timeline),
    ("halving", lambda: simulate(halving(machine, 64 << 20, 8), machine)),
):
    began = time.perf_counter()
    timeline = simulated()
    wall_s = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(name, len(timeline.work), wall_s, peak, timeline.total_us, timeline.events_per_s)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=280)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["planned", "halving"]
    for name, tasks, wall_s, peak, total_us, events_per_s in rows:
        figures = (
            f"{int(tasks):,} tasks, {float(wall_s):.1f} s, {int(peak) / 2**30:.2f} GiB, {float(events_per_s):,.0f}"
        )
        print(f"16,384 GPUs, {name}: {figures} events a second")
        assert float(wall_s) < MOST_S
        assert int(peak) < MOST_BYTES
        assert float(total_us) > 0
