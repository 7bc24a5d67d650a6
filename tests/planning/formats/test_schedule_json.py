"""What is malformed in a plan file is named with its path, whatever it is."""

import copy
import json
import re
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.machines import switch
from tests.planning.formats.plan_documents import ORIGINAL, change, document, signed
from tests.planning.schedules import any_schedules
from topocomm import Plan, PlanError, plan
from topocomm.native._native import rounds_text, table_text
from topocomm.planning.formats.plan_json import dumps
from topocomm.planning.formats.schedule_json import schedule_document, schedule_text
from topocomm.planning.schedule.schedule import Repeat
from topocomm.planning.schedule.traffic import count_messages

MOVE = ["schedule", "rounds", 0, "transfers", 1]
FOLD = ["schedule", "rounds", 0, "combines", 1]
MALFORMED = [
    ([*MOVE, 0], 4, r"schedule.rounds[0].transfers[1][0]: expected a rank 0..3, got 4"),
    ([*MOVE, 1], -1, r"schedule.rounds[0].transfers[1][1]: expected a slot 0..2147483647, got -1"),
    ([*MOVE, 1], "1", r"schedule.rounds[0].transfers[1][1]: expected a slot 0..2147483647, got '1'"),
    ([*MOVE, 1], 1.0, r"schedule.rounds[0].transfers[1][1]: expected a slot 0..2147483647, got 1.0"),
    ([*MOVE, 1], True, r"schedule.rounds[0].transfers[1][1]: expected a slot 0..2147483647, got True"),
    ([*MOVE, 2], [1], r"schedule.rounds[0].transfers[1][2]: expected a rank 0..3, got [1]"),
    ([*MOVE, 3], 2**31, r"schedule.rounds[0].transfers[1][3]: expected a slot 0..2147483647, got 2147483648"),
    ([*MOVE, 3], 10**40, rf"schedule.rounds[0].transfers[1][3]: expected a slot 0..2147483647, got {10**40}"),
    ([*MOVE, 3], 10**99, rf"transfers[1][3]: expected a slot 0..2147483647, got {str(10**99)[:60]}..."),
    ([*MOVE, 4], 1, r"schedule.rounds[0].transfers[1][4]: expected a chunk 0..0, got 1"),
    (MOVE, 7, r"schedule.rounds[0].transfers[1]: expected [src_rank, src_slot, dst_rank, dst_slot, chunk]"),
    (MOVE, [1, 0, 0, 1], r"schedule.rounds[0].transfers[1]: expected [src_rank, src_slot, dst_rank, dst_slot, chunk]"),
    (
        MOVE,
        [1, 0, 0, 1, 0, 0],
        r"schedule.rounds[0].transfers[1][5]: expected no path, since there are no paths, got 0",
    ),
    (MOVE, [1, 0, 0, 1, 0, -1], r"schedule.rounds[0].transfers[1][5]: expected no path, since there are no paths"),
    (FOLD, [0, 2, 0], r"schedule.rounds[0].combines[1]: expected [rank, out_slot, [operand slots], chunk]"),
    ([*FOLD, 0], 9, r"schedule.rounds[0].combines[1][0]: expected a rank 0..3, got 9"),
    ([*FOLD, 2], 0, r"schedule.rounds[0].combines[1]: expected [rank, out_slot, [operand slots], chunk]"),
    ([*FOLD, 2, 1], None, r"combine of rank 1 has fewer than two operands"),
    ([*FOLD, 2, 1], False, r"schedule.rounds[0].combines[1][2][1]: expected a slot 0..2147483647, got False"),
    ([*FOLD, 3], -3, r"schedule.rounds[0].combines[1][3]: expected a chunk 0..0, got -3"),
    (["schedule"], [], r"schedule: expected an object, got []"),
    (["schedule", "chunks"], None, r"schedule.chunks: missing"),
    (["schedule", "chunks", 0], [0], r"schedule.chunks[0]: expected [first_row, rows], got [0]"),
    (["schedule", "chunks", 0, 1], -1, r"schedule.chunks[0][1]: expected a number of rows 0..9007199254740991, got -1"),
    (["schedule", "chunks", 0, 1], 2**70, r"schedule.chunks[0][1]: expected a number of rows 0..9007199254740991"),
    (["schedule", "inputs", 2, 2], 4, r"schedule.inputs[2][2]: expected a contributing rank 0..3, got 4"),
    (["schedule", "outputs"], {}, r"schedule.outputs: expected a list, got {}"),
    (["schedule", "outputs", 3], None, r"schedule: rank 3 has no output for chunk 0"),
    (["schedule", "outputs", 3, 0], True, r"schedule.outputs[3][0]: expected a rank 0..3, got True"),
    (["schedule", "rounds", 1], [], r"schedule.rounds[1]: expected an object, got []"),
    (["schedule", "rounds", 1, "combines"], None, r"schedule.rounds[1].combines: missing"),
    (["schedule", "rounds", 1, "transfers"], 0, r"schedule.rounds[1].transfers: expected a list, got 0"),
    (["schedule", "paths"], [["GPU0", 1]], r"schedule.paths[0][1]: expected a string, got 1"),
    (["schedule", "repeat"], 3, r"schedule.repeat: expected an object, got 3"),
    (["schedule", "repeat"], {"count": 2}, r"schedule.repeat.stagger_rounds: missing"),
    (
        ["schedule", "repeat"],
        {"count": 0, "stagger_rounds": 1},
        r"schedule.repeat.count: expected a number of slices 1..",
    ),
    (
        ["schedule", "repeat"],
        {"count": 2, "stagger_rounds": -1},
        r"schedule.repeat.stagger_rounds: expected a number of",
    ),
    (["schedule", "repeat"], {"count": 99, "stagger_rounds": 1}, r"99 slices of chunk 0, which has 16 rows"),
    (["ranks"], "GPU0", r"ranks: expected a list, got 'GPU0'"),
    (["ranks", 2], 2, r"ranks[2]: expected a string, got 2"),
    (["ranks"], [], r"root: expected a rank 0..0, got 2"),
    (["root"], 4, r"root: expected a rank 0..3, got 4"),
    (["ports"], True, r"ports: expected a number of ports 1..3, got True"),
    (["ports"], 0, r"ports: expected a number of ports 1..3, got 0"),
    (["ports"], 4, r"ports: expected a number of ports 1..3, got 4"),
    (["objective"], "fast", r"objective: expected one of latency, rounds, throughput, auto, got 'fast'"),
    (["port_model"], None, r"port_model: missing"),
    (["collective"], ["allreduce"], r"collective: expected one of allreduce, reduce, broadcast"),
    (["operator"], 1, r"operator: expected a string, got 1"),
    (["assumed", 0], 1, r"assumed[0]: expected a string, got 1"),
    (["payload_bytes"], -4, r"payload_bytes: expected bytes 0.."),
    (["payload_bytes"], 64.0, r"payload_bytes: expected bytes 0..9007199254740991, got 64.0"),
    (["alpha_us"], "1", r"alpha_us: expected a number, got '1'"),
    (["alpha_us"], True, r"alpha_us: expected a number, got True"),
    (["predicted_us"], 10**400, r"predicted_us: expected a number, got 1000"),
    (["rounds"], 2.0, r"rounds: expected a number, whole and not below 0, got 2.0"),
    (["throughput_gb_per_s"], "much", r"throughput_gb_per_s: expected a number, got 'much'"),
    (["proof"], True, r"proof: expected an object, got True"),
    (["proof", "uniform"], 1, r"proof.uniform: expected true or false, got 1"),
    (["proof", "uniform"], None, r"proof.uniform: missing"),
    (["proof", "certain"], True, r"proof.certain: unknown; expected complete, each_contribution_once"),
    (["certificate", "gap"], None, r"certificate.gap: missing"),
    (["certificate", "argument"], 3, r"certificate.argument: expected a string, got 3"),
]


@pytest.mark.parametrize(("path", "value", "message"), MALFORMED, ids=lambda part: str(part)[:60])
def test_what_is_malformed_is_named_with_its_path(path, value, message):
    made = document(objective="latency") if path != ["ranks"] else document(collective="reduce", root=2)
    made = made | {"assumed": [""]}
    with pytest.raises(PlanError, match=f"^plan.json: .*{re.escape(message)}"):
        Plan.loads(signed(change(made, path, value)), "plan.json")


@pytest.mark.soak
@examples(2000)
@given(st.data())
def test_whatever_stands_in_a_document_is_refused_in_words_or_means_the_same(data):
    """Any entry becomes anything: the answer is a PlanError of one line, or a plan that is proved."""
    index = data.draw(st.integers(0, len(DOCUMENTS) - 1))
    made = DOCUMENTS[index]
    path = data.draw(st.sampled_from(PLACES[index]))
    small = st.none() | st.booleans() | st.integers(-2, 5) | st.integers() | st.floats(allow_nan=False) | st.text()
    value = data.draw(small | st.lists(small, max_size=6) | st.dictionaries(st.text(), small, max_size=2))
    altered = copy.deepcopy(made)
    node = altered
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    try:
        read = Plan.loads(signed(altered), "plan.json")
    except PlanError as error:
        text = str(error)
    else:
        text = "plan.json: "
        assert read.proof.complete
    assert text.startswith("plan.json: ")
    assert "\n" not in text


def places(node, path=()):
    """Paths of all entries of a document."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in pairs:
        yield (*path, key)
        yield from places(value, (*path, key))


DOCUMENTS = [ORIGINAL, *(document(collective=name) for name in ("allgather", "scan")), document(order="canonical")]
PLACES = [list(places(made)) for made in DOCUMENTS]


def test_what_repeats_is_saved_and_read():
    made = plan(switch(4), payload_bytes=64, objective="throughput")
    schedule = replace(made.schedule, repeat=Repeat(3, 2))
    rounds, messages = count_messages(schedule)
    figures = replace(made.figures, rounds=rounds, transfers=messages)
    assert messages > made.figures.transfers
    made = replace(made, schedule=schedule, figures=figures)
    read = Plan.loads(dumps(made))
    assert read.schedule.repeat == Repeat(3, 2)
    assert read.digest == made.digest
    assert json.loads(dumps(made))["schedule"]["repeat"] == {"count": 3, "stagger_rounds": 2}
    once = json.loads(dumps(made))
    once["schedule"]["repeat"] = None
    with pytest.raises(PlanError, match=r"transfers is|rounds is"):
        Plan.loads(signed(once))


def test_named_paths_are_saved_and_read():
    made = plan(switch(4), payload_bytes=64, objective="latency")
    transfers = made.schedule.transfers.copy()
    transfers[0, 6] = 0
    way = ("GPU0", "switch", f"GPU{transfers[0, 3]}")
    made = replace(made, schedule=replace(made.schedule, transfers=transfers, paths=(way,)))
    text = json.loads(dumps(made))
    assert [len(entry) for entry in text["schedule"]["rounds"][0]["transfers"]] == [6, 5, 5, 5]
    read = Plan.loads(dumps(made))
    assert np.array_equal(read.schedule.transfers, transfers)
    assert read.schedule.paths == (way,)
    for wrong in (1, -1, None, True):
        text["schedule"]["rounds"][0]["transfers"][0][5] = wrong
        where = r"schedule.rounds\[0\].transfers\[0\]\[5\]: expected a path 0..0, got "
        with pytest.raises(PlanError, match=where):
            Plan.loads(signed(text))


@examples(100)
@given(any_schedules(), st.data())
def test_the_compiled_text_is_the_canonical_json(made, data):
    """With numbers of any length, of pipelines, with paths, nodes and without transfers."""
    schedule, _ = made
    scale = data.draw(st.sampled_from([1, 999, 99_999_999]))
    paths = (("GPU0", "NVS\u00e9"), ("GPU1", 'a"b')) if data.draw(st.booleans()) else ()
    moves = schedule.transfers * np.array([1, 1, scale, 1, scale, 1, 1], dtype=np.int32)
    moves[:, 6] = data.draw(st.sampled_from([-1, 0, 1 << 30])) if paths else -1
    moves[::3, 6] = -1
    schedule = replace(
        schedule,
        transfers=moves,
        operands=schedule.operands * scale,
        paths=paths,
        nodes=data.draw(st.sampled_from([(), ((0, 4), (4, 1 << 40))])),
        repeat=data.draw(st.sampled_from([None, Repeat(3, 2)])),
    )
    wanted = json.dumps(schedule_document(schedule), sort_keys=True, separators=(",", ":"))
    assert schedule_text(schedule) == wanted
    with mock.patch.dict("sys.modules", {"topocomm.native._native": None}):
        assert schedule_text(schedule) == wanted


def test_text_of_every_int32():
    edges = [0, 1, 9, 10, 99, 100, 2**31 - 1, -1, -10, -(2**31), 1_000_000_000, 123_456_789]
    table = np.array(edges, dtype=np.int32).reshape(4, 3)
    assert json.loads(table_text(table)) == table.tolist()
    assert table_text(table[:0]) == "[]" and table_text(table[:, :0].copy()) == "[[],[],[],[]]"


def test_tables_that_do_not_fit_are_refused():
    table = np.zeros((2, 7), dtype=np.int32)
    with pytest.raises(ValueError, match="2 axes"):
        table_text(table[0])
    with pytest.raises(TypeError, match="items of 4 bytes, got 8"):
        table_text(table.astype(np.int64))
    edges, none, starts = np.array([0, 2]), np.zeros((0, 4), dtype=np.int32), np.zeros(1, dtype=np.int32)
    good = [edges, table, edges * 0, none, none, starts]
    assert json.loads(rounds_text(*good))[0]["transfers"] == [[0] * 6] * 2
    for index, wrong in ((0, edges + 1), (0, edges - 1), (0, edges[:1]), (2, edges), (5, starts + 1), (5, starts[:0])):
        with pytest.raises(ValueError, match="do not fit each other"):
            rounds_text(*good[:index], wrong, *good[index + 1 :])
