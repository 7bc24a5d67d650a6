"""Programs are what each runtime's own parser takes, cut to its limits where they are longer, and compute as before."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.machines import switch
from tests.planning.formats import msccl_machine as machine
from tests.planning.formats import msccl_parsers as parsers
from tests.planning.formats.test_msccl_steps import contents, made_of
from tests.planning.schedules import any_schedules, plans
from tests.thinning import alternating
from topocomm import PlanError, catalog, plan
from topocomm.planning.collectives import Collective
from topocomm.planning.formats.gpu_program import KNOWN
from topocomm.planning.formats.msccl_blocks import RUNTIMES, Limit, runtime_for
from topocomm.planning.formats.msccl_xml import dumps
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder

NAMES = tuple(RUNTIMES)


CASES = ((False, 0), (True, 0), (True, 1), (False, 1000), (True, 1000))
"""(in place, messages that a channel holds): nothing is the strictest, many let thread blocks run ahead the most."""


def computes(text, root=0, cases=CASES):
    """Whether the program gives what its collective says."""
    algo = ET.fromstring(text)
    ranks, units = int(algo.get("ngpus")), int(algo.get("nchunksperloop"))
    machine.ROOT[0] = root
    wanted = machine.expected(machine.collective_of(algo), ranks, units, root)
    return all(machine.run(text, in_place, 1, holds, in_turn=True) == wanted for in_place, holds in cases)


def sizes(text):
    """(most steps of a thread block, most thread blocks of a GPU, channels)."""
    algo = ET.fromstring(text)
    return max(map(len, algo.iter("tb"))), max(map(len, algo.iter("gpu"))), int(algo.get("nchannels"))


def gathered(ranks):
    """The plan of a reduce in which the root receives from all and folds once."""
    builder = ScheduleBuilder(ranks, ((0, 2),))
    builder.output(0, builder.fold(0, 0, [0, *(builder.send(0, rank, 0, 0) for rank in range(1, ranks))]))
    return replace(made_of(builder.build(), switch(ranks)), collective=Collective("reduce", ranks))


def in_turns(ranks):
    """The plan of a broadcast in which the root sends six chunks to all, in six rounds."""
    chunks = tuple((2 * chunk, 2) for chunk in range(6))
    builder = ScheduleBuilder(ranks, chunks)
    for chunk in range(6):
        builder.output(0, 0, chunk=chunk)
        for rank in range(1, ranks):
            builder.output(rank, builder.send(chunk, 0, 0, rank, chunk=chunk), chunk=chunk)
    return replace(made_of(builder.build(), switch(ranks)), collective=Collective("broadcast", ranks))


def named(algorithm, name, ranks):
    return next(p for p in plans((1, ranks), name, 2 * ranks) if p.algorithm == algorithm)


@pytest.mark.parametrize(("runtime", "name"), alternating(NAMES, KNOWN))
def test_every_algorithm_is_what_the_parser_takes(runtime, name):
    for ranks in (1, 2, 5, 9):
        for made in plans((1, ranks), name, 2 * ranks):
            text = dumps(made, switch(ranks), runtime)
            parsers.check(text, runtime)
            assert computes(text), made.algorithm


def test_two_of_them_spell_reduce_scatter_in_one_word():
    made = named("ring", "reduce_scatter", 4)
    words = {name: ET.fromstring(dumps(made, switch(4), name)).get("coll") for name in NAMES}
    assert words == {"rccl": "reducescatter", "azure": "reducescatter", "msccl": "reduce_scatter"}
    for name, other in (("rccl", "msccl"), ("azure", "msccl"), ("msccl", "rccl")):
        with pytest.raises(parsers.Refused, match="coll reduce"):
            parsers.check(dumps(made, switch(4), other), name)


def test_the_runtime_is_that_of_the_gpus_unless_it_is_named():
    assert runtime_for(catalog("mi300x-8")).name == "rccl"
    assert runtime_for(catalog("dgx-h100")).name == "azure"
    made = named("ring", "reduce_scatter", 4)
    assert dumps(made, switch(4)) == dumps(made, switch(4), "azure") != dumps(made, switch(4), "msccl")


@pytest.mark.long
def test_many_rounds_go_over_several_channels():
    made = named("ring", "allreduce", 40)
    whole, cut = dumps(made, switch(40), "msccl"), dumps(made, switch(40), "azure")
    assert (sizes(whole)[0], sizes(whole)[2]) == (78, 1)
    assert sizes(cut)[0] <= 64
    assert sizes(cut)[2] == 2
    parsers.check(cut, "azure")
    assert computes(cut)


@pytest.mark.long
def test_many_peers_share_thread_blocks():
    made = named("flat", "allgather", 40)
    whole, cut = dumps(made, switch(40), "azure"), dumps(made, switch(40), "rccl")
    assert sizes(whole)[1] == 79
    assert sizes(cut)[1] == 64
    assert any(tb.get("send") != "-1" != tb.get("recv") for tb in ET.fromstring(cut).iter("tb"))
    parsers.check(cut, "rccl")
    assert computes(cut)


def test_parts_of_many_peers_have_channels_of_their_own(monkeypatch):
    small = replace(RUNTIMES["msccl"], steps=Limit(4, "a test"), blocks=Limit(127, "a test"))
    monkeypatch.setitem(RUNTIMES, "msccl", small)
    text = dumps(in_turns(35), switch(35), "msccl")
    assert (sizes(text)[0], sizes(text)[2]) == (3, 4)
    parsers.check(text, "msccl")
    assert computes(text)


def test_a_long_fold_goes_on_in_another_thread_block():
    text = dumps(gathered(70), switch(70), "azure")
    alone = [tb for tb in ET.fromstring(text).find("gpu") if tb.get("send") == tb.get("recv") == "-1"]
    assert [len(tb) for tb in alone] == [35, 36]
    parsers.check(text, "azure")
    assert computes(text)


@pytest.mark.parametrize(
    ("system", "count", "name", "runtime"),
    [
        ("mi300x-8", 8, "allreduce", "rccl"),
        ("gb200-nvl72", 1, "reduce_scatter", "azure"),
        pytest.param("dgx-a100", 8, "reduce_scatter", "azure", marks=pytest.mark.long),
    ],
)
def test_large_machines_fit(system, count, name, runtime):
    topology = catalog(system, hosts=count)
    made = plan(topology, name, payload_bytes=256 * len(topology.endpoints))
    text = dumps(made, topology, runtime)
    parsers.check(text, runtime)
    assert computes(text, cases=((True, 0), (False, 1000)))


REFUSED = [
    ("rccl", {}, "ROCm/rccl: 69 thread blocks on a GPU, it takes 64 (MSCCL_MAX_NUM_THREAD_BLOCKS in "),
    ("azure", {"steps": Limit(1, "a line")}, "Azure/msccl-executor-nccl: 3 steps in a thread block, it takes 1 (a"),
    ("msccl", {"channels": Limit(2, "a line")}, "microsoft/msccl: 3 channels, it takes 2 (a line)"),
]


@pytest.mark.parametrize(("runtime", "limits", "why"), REFUSED)
def test_what_does_not_fit_is_refused_with_the_limit_and_what_to_do(monkeypatch, runtime, limits, why):
    monkeypatch.setitem(RUNTIMES, runtime, replace(RUNTIMES[runtime], **limits))
    with pytest.raises(PlanError) as error:
        dumps(gathered(70), switch(70), runtime)
    assert str(error.value).startswith(f"msccl-xml: {why}")
    others = " or ".join(f"--runtime {name}" for name in NAMES if name != runtime)
    assert str(error.value).endswith(f"plan with fewer ranks, another --bytes or --objective, or write it for {others}")
    assert "\n" not in str(error.value)


def test_elements_that_a_rank_loads_are_counted(monkeypatch):
    monkeypatch.setattr("topocomm.planning.formats.msccl_xml.MOST_ELEMENTS", 20)
    with pytest.raises(PlanError, match=r"XML elements for a rank, it takes 20 \(MAX_NODES of its XML parser\)"):
        dumps(named("ring", "allreduce", 9), switch(9))


SMALL = st.tuples(st.integers(2, 6), st.integers(2, 6), st.integers(1, 4))
"""Steps of a thread block, thread blocks, and channels that a small runtime takes."""


@examples(200)
@given(any_schedules(), SMALL, st.booleans(), st.sampled_from([0, 1, 1000]))
def test_cut_programs_do_what_the_schedule_says(drawn, limits, in_place, holds):
    schedule = drawn[0]
    steps, blocks, channels = limits
    small = replace(
        RUNTIMES["msccl"],
        steps=Limit(steps, "a test"),
        blocks=Limit(blocks, "a test"),
        channels=Limit(channels, "a test"),
    )
    topology = switch(schedule.ranks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RUNTIMES, "msccl", small)
        try:
            text = dumps(made_of(schedule, topology), topology, "msccl")
        except PlanError:
            return
    assert all(found <= most for found, most in zip(sizes(text), limits, strict=True))
    parsers.check(text, "msccl")
    assert machine.run(text, in_place, 0, holds) == contents(schedule)


def _set(text, what, **values):
    root = ET.fromstring(text)
    element = next(e for e in root.iter(what[0]) if all(e.get(k) == v for k, v in what[1].items()))
    for key, value in values.items():
        element.attrib.pop(key) if value is None else element.set(key, value)
    return ET.tostring(root, encoding="unicode")


FAULTS = [
    (("algo", {}), {"coll": "alltoallw"}, "coll alltoallw"),
    (("algo", {}), {"outofplace": None}, "attribute outofplace is None"),
    (("algo", {}), {"proto": "simple"}, "proto"),
    (("step", {"type": "s"}), {"cnt": "72"}, "cnt 72"),
    (("step", {"type": "s"}), {"srcoff": "40"}, "srcoff 40"),
    (("step", {"hasdep": "1"}), {"hasdep": "0"}, "sets no flag"),
    (("step", {"type": "r"}), {"type": "cpy"}, "one end moves"),
    (("tb", {"send": "1"}), {"send": "2"}, "connection"),
    (("tb", {"id": "1"}), {"id": "2"}, "thread block 1"),
]


@pytest.mark.every_case
@pytest.mark.parametrize(("what", "values", "why"), FAULTS)
def test_the_parser_of_the_tests_sees_planted_faults(what, values, why):
    text = dumps(named("rabenseifner", "allreduce", 4), switch(4), "rccl")
    parsers.check(text, "rccl")
    with pytest.raises(parsers.Refused, match=why):
        parsers.check(_set(text, what, **values), "rccl")
