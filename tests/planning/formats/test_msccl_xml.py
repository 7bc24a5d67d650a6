"""MSCCL XML computes the collective, in place and out of place, cannot hang, and keeps the runtime's limits."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from tests.machines import hosts, joined, switch
from tests.planning.formats import msccl_machine as machine
from tests.planning.schedules import plans
from tests.thinning import alternating
from topocomm import MAX, PlanError, plan
from topocomm.planning.algorithms.flat import flat_allreduce
from topocomm.planning.collectives import Collective
from topocomm.planning.formats.gpu_program import KNOWN
from topocomm.planning.formats.msccl_xml import dumps
from topocomm.planning.schedule.schedule import Repeat


def computes(text, root=0, seeds=(0,)):
    """Whether every run gives what the collective says; machine.Wrong where one cannot go on."""
    algo = ET.fromstring(text)
    name, ranks, units = machine.collective_of(algo), int(algo.get("ngpus")), int(algo.get("nchunksperloop"))
    machine.ROOT[0] = root
    wanted = machine.expected(name, ranks, units, root)
    return all(
        machine.run(text, in_place, seed, holds) == wanted
        for in_place in (False, True)
        for seed in seeds
        for holds in (0, 1, 1000)
    )


@pytest.mark.parametrize(("name", "ranks"), alternating(KNOWN, range(1, 10)))
def test_every_algorithm_computes_its_collective(name, ranks):
    root = ranks // 3 if name in ("broadcast", "reduce") else 0
    for made in plans((1, ranks), name, 40, root):
        assert computes(dumps(made, switch(ranks)), root), made.algorithm


@pytest.mark.parametrize(("count", "gpus"), [(2, 2), (4, 2), (3, 5), (4, 4)])
def test_two_level_algorithms(count, gpus):
    made = plans((count, gpus), "allreduce", 16)
    assert any(p.algorithm.startswith(("rails", "leaders")) for p in made)
    assert all(computes(dumps(p, hosts(count, gpus))) for p in made)


@pytest.mark.parametrize("rows", [0, 1, 7, 9, 64])
def test_any_number_of_rows(rows):
    for name in ("allreduce", "broadcast"):
        assert all(computes(dumps(p, switch(5))) for p in plans((1, 5), name, rows))


def test_many_interleavings_agree():
    for name in KNOWN:
        for made in plans((1, 5), name, 40):
            assert computes(dumps(made, switch(5)), seeds=range(8)), made.algorithm


def flat(name="allreduce", ranks=4, algorithm="flat"):
    return next(p for p in plans((1, ranks), name, 40) if p.algorithm == algorithm)


def faults(text):
    """(what was done, altered text) for every single change that makes the program wrong."""
    root = ET.fromstring(text)
    for tb in root.iter("tb"):
        for step in tb.findall("step"):
            for key, value in (("depid", "-1"), ("hasdep", "0")):
                if step.get(key) != value:
                    yield f"no {key}", _with(root, step, key, value)
            if step.get("type") == "re":
                yield "copies instead", _with(root, step, "type", "cpy")
            elif step.get("type") == "rrc":
                yield "does not reduce", _with(root, step, "type", "r")
            if step.get("type") in ("r", "rrc", "re"):
                yield "elsewhere", _with(root, step, "dstoff", str(int(step.get("dstoff")) + 1))
        if len(tb) > 1 and tb[0].get("type") != "nop":
            first, second = tb[0], tb[1]
            tb[0], tb[1] = second, first
            yield "swapped", _numbered(root)
            tb[0], tb[1] = first, second


def _with(root, step, key, value):
    old = step.get(key)
    step.set(key, value)
    text = ET.tostring(root, encoding="unicode")
    step.set(key, old)
    return text


def _numbered(root):
    text = ET.fromstring(ET.tostring(root, encoding="unicode"))
    for tb in text.iter("tb"):
        for index, step in enumerate(tb):
            step.set("s", str(index))
    return ET.tostring(text, encoding="unicode")


@pytest.mark.every_case
@pytest.mark.parametrize("algorithm", ["flat", "recursive-doubling", "ring"])
def test_planted_faults_are_seen(algorithm):
    text = dumps(flat(algorithm=algorithm), switch(4))
    found, missed = 0, []
    for what, altered in faults(text):
        try:
            right = computes(altered, seeds=range(12))
        except machine.Wrong:
            right = False
        found += not right
        missed += [what] * right
    assert found > 20
    # Some waits are met anyway: by a later flag of the same block, or by a message that can come no earlier.
    assert set(missed) <= {"no depid", "no hasdep"}
    assert len(missed) <= found // 3


def test_the_head_says_what_the_runtimes_ask_for():
    head = ET.fromstring(dumps(flat(), switch(4))).attrib
    assert (head["coll"], head["ngpus"], head["inplace"], head["outofplace"]) == ("allreduce", "4", "1", "1")
    assert (head["proto"], head["nchannels"], head["minBytes"]) == ("LL", "1", "0")
    assert len(head["name"]) < 64
    assert ET.fromstring(dumps(flat("allgather"), switch(4))).get("inplace") == "1"
    assert ET.fromstring(dumps(flat("allgather"), switch(4), "msccl")).get("inplace") == "0"
    long = plan(switch(4), payload_bytes=1 << 20)
    assert ET.fromstring(dumps(long, switch(4))).get("proto") == "Simple"


def test_the_same_plan_gives_the_same_bytes():
    assert dumps(flat(), switch(4)) == dumps(flat(), switch(4))


def test_the_slices_of_a_pipelined_plan_are_the_runtimes_work():
    made = flat(algorithm="binomial")
    piped = replace(made, schedule=replace(made.schedule, repeat=Repeat(3, 2)))
    text = dumps(piped, switch(4))
    assert text.replace(piped.digest[:12], made.digest[:12]) == dumps(made, switch(4))


@pytest.mark.long
def test_many_peers():
    """More than one channel takes."""
    topology = switch(36)
    schedule = flat_allreduce(36, 72)
    made = replace(
        flat(), schedule=schedule, collective=Collective("allreduce", 36), ranks=topology.endpoints, algorithm="flat"
    )
    text = dumps(made, topology)
    assert ET.fromstring(text).get("nchannels") == "2"
    assert machine.run(text, in_place=True) == machine.expected("allreduce", 36, 1, 0)


def test_unequal_chunks_become_equal_units():
    made = flat(ranks=2, algorithm="ring")
    uneven = replace(made, schedule=replace(made.schedule, chunks=((0, 36), (36, 4))))
    text = dumps(uneven, switch(2))
    assert ET.fromstring(text).get("nchunksperloop") == "10"
    assert {step.get("cnt") for step in ET.fromstring(text).iter("step")} == {"9", "1"}
    assert computes(text)


REFUSED = [
    (lambda: (plan(switch(4), payload_bytes=64, operator=MAX), switch(4)), "operator 'max': expected sum"),
    (lambda: (plan(switch(4), "scan", payload_bytes=64), switch(4)), "scan: expected one of allreduce, allgather"),
    (
        lambda: (plan(switch(4), "alltoall", payload_bytes=64), switch(4)),
        "alltoall: expected one of allreduce, allgather",
    ),
    (
        lambda: (plan(switch(4), "scatter", payload_bytes=64), switch(4)),
        "scatter: expected one of allreduce, allgather",
    ),
    (lambda: (plan(joined([4]), payload_bytes=64), joined([4])), "rank on h0/CPU0, a cpu: expected GPUs only"),
    (lambda: (plan(switch(4), payload_bytes=64, order="canonical"), switch(4)), "canonical order"),
    (lambda: (plan(switch(4), "allgather", payload_bytes=64, parts=(1, 5, 5, 5)), switch(4)), "expected equal parts"),
    (lambda: (plan(switch(4), "allgather", payload_bytes=8), switch(4)), "expected equal parts"),
    (lambda: (plan(switch(4), payload_bytes=64, ranks=["GPU0", "GPU0"]), switch(4)), "several ranks on one GPU"),
    (lambda: (plan(switch(4), "broadcast", payload_bytes=64, operator=MAX), switch(4)), None),
]


@pytest.mark.parametrize(("case", "message"), REFUSED)
def test_what_the_format_cannot_say_is_refused(case, message):
    made, topology = case()
    if message is None:
        assert dumps(made, topology)
        return
    with pytest.raises(PlanError, match=message) as error:
        dumps(made, topology)
    assert "\n" not in str(error.value)
