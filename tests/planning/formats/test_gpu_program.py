"""What the planner chooses on real machines, as programs for GPU runtimes: run by interpreters that know no exporter.

Trees packed into uneven links, pipelines, several ports, parts of ranks, values in scratch memory, many chunks.
"""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.planning.formats import msccl_machine, mscclpp_machine
from tests.planning.formats.msccl_machine import expected
from tests.plans import every_plan
from topocomm import PROD, SUM, PlanError, catalog, plan
from topocomm.planning.cost.cost_models import Cost
from topocomm.planning.formats import gpu_program, msccl_xml, mscclpp_json
from topocomm.planning.formats.gpu_program import MOST_UNITS, ROUNDED_UNITS, equal_units
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import Repeat

LONG = 1 << 22
CASES = [
    ("dgx-1-v100", 1, "allreduce", LONG, {"objective": "throughput"}),
    ("dgx-1-v100", 1, "broadcast", LONG, {"objective": "throughput", "root": 3}),
    ("dgx-1-v100", 1, "reduce", LONG, {"objective": "throughput", "root": 5}),
    ("mi250x", 1, "allgather", LONG, {"objective": "throughput"}),
    ("mi250x", 1, "reduce_scatter", LONG, {"objective": "throughput"}),
    ("mi250x", 1, "allreduce", 1 << 20, {"ports": 3}),
    ("dgx-h100", 1, "broadcast", LONG, {"objective": "throughput"}),
    ("dgx-h100", 2, "allreduce", 4096, {"objective": "latency", "ports": 2}),
    ("dgx-a100", 2, "allgather", 4096, {"objective": "latency"}),
    ("mi300x-8", 1, "allreduce", LONG, {"objective": "throughput", "max_trees": 1}),
    ("rtx4090-pcie-8", 1, "allreduce", LONG, {"objective": "auto"}),
]
IDS = ["-".join(map(str, (*case[:3], *case[4].values()))) for case in CASES]


@cache
def planned(index):
    name, hosts, collective, payload_bytes, wanted = CASES[index]
    topology = catalog(name, hosts=hosts)
    return plan(topology, collective, payload_bytes=payload_bytes, **wanted), topology


def test_the_cases_have_what_is_hard():
    schedules = [planned(index)[0].schedule for index in range(len(CASES))]
    assert {schedule.repeat is None for schedule in schedules} == {True, False}
    assert sum(bool(schedule.paths) for schedule in schedules) >= 3
    assert sum(len({rows for _, rows in schedule.chunks}) > 2 for schedule in schedules) >= 3


@pytest.fixture
def coarse(monkeypatch):
    """Few units, so that runs are short, and some chunks vanish."""
    monkeypatch.setattr(gpu_program, "ROUNDED_UNITS", 24)


@pytest.mark.parametrize("index", range(len(CASES)), ids=IDS)
def test_msccl_xml(index, coarse):
    made, topology = planned(index)
    text = msccl_xml.dumps(made, topology)
    collective = made.collective
    msccl_machine.ROOT[0] = collective.root
    wanted = expected(
        collective.name, collective.ranks, int(ET.fromstring(text).get("nchunksperloop")), collective.root
    )
    assert all(msccl_machine.run(text, in_place, seed=index, holds=index % 3) == wanted for in_place in (False, True))


def test_chunks_that_vanish_are_left_out(coarse):
    made, topology = planned(0)
    schedule, units = equal_units(made.collective, made.schedule, "test")
    assert 1 < len(schedule.chunks) == len(units.count) < len(made.schedule.chunks)
    assert min(units.count) >= 1
    steps = ET.fromstring(msccl_xml.dumps(made, topology)).iter("step")
    assert not any(step.get("cnt") == "0" for step in steps if step.get("type") != "nop")


def test_a_pipeline_that_is_too_long_is_written_without_its_slices(monkeypatch):
    topology = catalog("dgx-h100")
    made = next(p for p in every_plan(topology, "allreduce", SUM, SUM.default_layout(4096)) if p.algorithm == "ring")
    piped = replace(made, schedule=replace(made.schedule, repeat=Repeat(8, 1)))
    sliced = json.loads(mscclpp_json.dumps(piped, topology))
    monkeypatch.setattr(mscclpp_json, "MOST_SEMAPHORES", 1)
    whole = json.loads(mscclpp_json.dumps(piped, topology))
    assert [program["gpus"][0]["input_chunks"] for program in (sliced, whole)] == [64, 8]
    assert mscclpp_machine.run(json.dumps(whole), True) == [expected("allreduce", 8, 8, 0)] * 2
    monkeypatch.setattr(mscclpp_json, "MOST_SEMAPHORES", 0)
    with pytest.raises(PlanError, match="choose an algorithm with fewer rounds, as --objective latency does"):
        mscclpp_json.dumps(piped, topology)


def test_a_chunk_of_many_units_is_several_steps():
    made, topology = planned(2)
    text = msccl_xml.dumps(made, topology)
    msccl_machine.ROOT[0] = made.collective.root
    assert msccl_machine.run(text, True) == expected("reduce", 8, ROUNDED_UNITS, made.collective.root)


@pytest.mark.parametrize("index", range(len(CASES)), ids=IDS)
def test_mscclpp_json(index, coarse):
    made, topology = planned(index)
    text = mscclpp_json.dumps(made, topology)
    gpu = json.loads(text)["gpus"][0]
    collective, units = made.collective, max(gpu["input_chunks"], gpu["output_chunks"])
    wanted = expected(collective.name, collective.ranks, units, collective.root)
    assert mscclpp_machine.run(text, index % 2 == 0, collective.root, seed=index) == [wanted] * 2


@pytest.mark.parametrize("index", range(len(CASES)), ids=IDS)
def test_rounded_chunks_cover_the_payload_and_cost_little(index):
    made, topology = planned(index)
    schedule, units = equal_units(made.collective, made.schedule, "test")
    ends = sorted((first, first + count) for first, count in zip(units.first, units.count, strict=True))
    assert [low for low, _ in ends] == [0, *(high for _, high in ends[:-1])]
    assert ends[-1][1] == units.total <= max(MOST_UNITS, ROUNDED_UNITS)
    if schedule is made.schedule:
        return
    cut = tuple((first * 4, count * 4) for first, count in zip(units.first, units.count, strict=True))
    before, after = (
        Cost(one, made.ranks, PathFinder(topology), row_bytes=4, ports=made.ports, port_model="alpha")
        for one in (without_repeat(made.schedule), without_repeat(schedule, chunks=cut))
    )
    assert after.throughput_gb_per_s > 0.98 * before.throughput_gb_per_s
    assert np.array_equal(np.unique(schedule.transfers[:, 5]), np.arange(len(schedule.chunks)))


def without_repeat(schedule, **changes):
    return replace(schedule, repeat=None, **changes)


@pytest.mark.parametrize("dumps", [msccl_xml.dumps, mscclpp_json.dumps])
def test_products_and_orders_are_refused_in_one_line(dumps):
    topology = catalog("dgx-h100")
    for wanted, message in (
        ({"operator": PROD}, "operator 'prod': expected sum, because that runtime reduces with its built-in operators"),
        ({"order": "canonical"}, "canonical order: expected order any"),
        ({"collective": "exscan"}, "exscan: expected one of allreduce, allgather, reduce_scatter, broadcast, reduce"),
    ):
        with pytest.raises(PlanError, match=message) as error:
            dumps(plan(topology, **{"collective": "allreduce", "payload_bytes": 64} | wanted), topology)
        assert "\n" not in str(error.value)
