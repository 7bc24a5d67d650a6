"""Plan files: exact round trip, and no altered plan is ever accepted."""

import copy
import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.machines import hosts, switch
from tests.planning.formats.plan_documents import ORIGINAL, change, document, signed
from topocomm import Plan, PlanError, plan
from topocomm.planning.collectives import COLLECTIVES, ROOTED
from topocomm.planning.formats.plan_json import dumps, plan_digest
from topocomm.planning.schedule.schedule import input_pieces


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("objective", ["latency", "throughput", "auto"])
def test_round_trip(tmp_path, collective, objective):
    root = 2 if collective in ROOTED else 0
    machine = hosts(2, 2) if collective in ("allreduce", *ROOTED) else switch(4)
    made = plan(machine, collective, payload_bytes=4096, objective=objective, root=root)
    made.save(tmp_path / "plan.json")
    read = Plan.load(tmp_path / "plan.json")
    assert read.digest == made.digest
    assert dumps(read) == dumps(made)
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    ("collective", "changes"),
    [
        ("allgather", {"parts": (9, 0, 2, 5)}),
        ("allgather", {"parts": (0, 16, 0, 0)}),
        ("reduce_scatter", {"parts": (0, 3, 3, 10)}),
        ("allreduce", {"order": "canonical"}),
        ("allreduce", {"order": "canonical", "shards": (0, 3, 3, 8, 11)}),
    ],
    ids=str,
)
@pytest.mark.parametrize("objective", ["rounds", "throughput", "auto"])
def test_round_trip_with_parts_and_shards(collective, changes, objective):
    made = plan(switch(4), collective, payload_bytes=64, objective=objective, **changes)
    read = Plan.loads(dumps(made))
    assert (read.digest, read.collective, read.order) == (made.digest, made.collective, made.order)
    assert (read.schedule.owners, read.schedule.nodes) == (made.schedule.owners, made.schedule.nodes)
    assert all(input_pieces(read.schedule, rank) == input_pieces(made.schedule, rank) for rank in range(4))


def test_parts_shards_and_nodes_stand_where_they_mean_something():
    def keys(found):
        return {"parts", "shards"} & set(found), "nodes" in found["schedule"]

    assert keys(ORIGINAL) == (set(), False)
    assert keys(document(collective="allgather")) == ({"parts"}, False)
    assert keys(document(collective="scan")) == (set(), False)
    canonical = document(order="canonical", shards=(0, 3, 3, 8, 11))
    assert keys(canonical) == ({"shards"}, True)
    assert canonical["shards"] == [0, 3, 3, 8, 11]
    nodes = canonical["schedule"]["nodes"]
    assert {rank: [nodes[k] for r, _, k in canonical["schedule"]["inputs"] if r == rank] for rank in range(4)} == {
        0: [[0, 2], [2, 3]],
        1: [],
        2: [[3, 4], [4, 8]],
        3: [[8, 11]],
    }


@pytest.mark.parametrize(
    ("changes", "path", "value", "message"),
    [
        ({"collective": "allgather"}, ["parts"], [4, 4, 4, 5], "within no rank's part|the parts 17"),
        ({"collective": "allgather"}, ["parts"], [5, 3, 4, 4], "chunk 1, rows 4 to 8, is within no rank's part"),
        ({"collective": "allgather"}, ["parts"], None, r"parts \(\): expected the rows of each of 4 ranks"),
        ({"collective": "allgather"}, ["parts", 0], 4.0, r"parts\[0\]: expected a number of rows 0..*, got 4.0"),
        ({"collective": "reduce_scatter"}, ["collective"], "allreduce", "allreduce has none"),
        ({"order": "canonical"}, ["order"], "any", "order 'any' with 5 shards"),
        ({"order": "canonical"}, ["shards"], None, "order 'canonical' with 0 shards"),
        ({"order": "canonical"}, ["shards"], [0, 2, 2, 3, 4], r"input of rank 0 is node \(0, 1\)"),
        ({"order": "canonical"}, ["schedule", "nodes"], None, "input of rank 0 is node 0"),
        ({"order": "canonical"}, ["schedule", "nodes", 1], [2, 3], r"input of rank 1 is node \(2, 3\)"),
        (
            {"order": "canonical"},
            ["proof", "canonical_tree"],
            False,
            "proof.canonical_tree is False, the schedule proves",
        ),
        ({}, ["proof", "canonical_tree"], True, "proof.canonical_tree is True, the schedule proves False"),
        ({}, ["order"], "canonical", "order 'canonical' with 0 shards"),
        ({}, ["order"], "rank", "order 'rank' with 0 shards"),
        ({"collective": "scan"}, ["collective"], "exscan", "output twice or belongs to no result"),
    ],
    ids=str,
)
def test_a_resigned_other_collective_is_caught(changes, path, value, message):
    with pytest.raises(PlanError, match=message):
        Plan.loads(signed(change(document(**changes), path, value)))


def test_the_format_has_the_agreed_keys():
    found = document()
    assert found["schema"] == "topocomm.plan/1"
    figures = ["rounds", "transfers", "wire_bytes", "scratch_bytes", "alpha_us", "predicted_us", "algbw_gb_per_s"]
    request = ["collective", "operator", "order", "objective", "ranks", "payload_bytes", "ports", "port_model"]
    for key in ["digest", "topology_digest", "algorithm", "throughput_gb_per_s", *request, *figures]:
        assert key in found, key
    assert set(found["proof"]) == {
        *("complete", "each_contribution_once", "order_kept", "uniform"),
        *("ports_respected", "links_exist", "deadlock_free", "canonical_tree"),
    }
    assert set(found["schedule"]) == {"chunks", "inputs", "outputs", "rounds", "paths", "repeat"}
    assert set(found["certificate"]) >= {
        *("rounds_lower_bound", "alpha_lower_bound_us", "throughput_upper_bound_gb_per_s", "gap", "argument"),
        *("witness", "other_witnesses"),
    }
    assert found["certificate"]["witness"]["bounds"] == "time"
    assert {"bounds": "latency", "kind": "path", "from": 0, "to": 1} in found["certificate"]["other_witnesses"]
    assert found["certificate"]["predicted_lower_bound_us"] * found["certificate"]["gap"] == found["predicted_us"]


def test_a_file_without_witnesses_says_what_to_do():
    cut = change(ORIGINAL, ["certificate", "witness"], None)
    with pytest.raises(PlanError, match=r"plan: certificate.witness: missing"):
        Plan.loads(signed(cut))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["certificate", "other_witnesses"], None, "certificate.other_witnesses: missing"),
        (["certificate", "witness"], [1], r"certificate.witness: expected an object, got \[1\]"),
        (["certificate", "other_witnesses"], ["no"], r"other_witnesses\[0\]: expected an object, got 'no'"),
        (["certificate", "gap"], "1", "gap: expected a number, got '1'"),
        (["certificate", "rounds_lower_bound"], True, "rounds_lower_bound: expected a number, .*got True"),
    ],
    ids=str,
)
def test_a_certificate_has_numbers_and_witnesses(path, value, message):
    with pytest.raises(PlanError, match=message):
        Plan.loads(signed(change(ORIGINAL, path, value)))


def numbers(node, path=()):
    """Paths of all numbers in a document."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from numbers(value, (*path, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from numbers(value, (*path, index))
    elif isinstance(node, int | float) and not isinstance(node, bool):
        yield path


FIGURES = list(numbers(ORIGINAL))


@examples(60)
@given(st.sampled_from(FIGURES))
def test_one_altered_figure_is_caught_by_the_digest(path):
    altered = copy.deepcopy(ORIGINAL)
    node = altered
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] += 1
    with pytest.raises(PlanError, match="digest does not fit the content: the plan was altered"):
        Plan.loads(json.dumps(altered))


def test_a_resigned_wrong_schedule_fails_its_proof():
    altered = copy.deepcopy(ORIGINAL)
    altered["schedule"]["rounds"][0]["transfers"].pop()
    with pytest.raises(
        PlanError, match=r"plan: schedule: round \d: rank \d reads slot \d chunk 0, which nothing wrote"
    ):
        Plan.loads(signed(altered))


def test_a_resigned_false_proof_is_caught():
    altered = copy.deepcopy(ORIGINAL)
    altered["proof"]["order_kept"] = not altered["proof"]["order_kept"]
    with pytest.raises(PlanError, match=r"proof.order_kept is (True|False), the schedule proves"):
        Plan.loads(signed(altered))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[1]", "expected a document of schema 'topocomm.plan/1', found 'list'"),
        ('{"schema": "topocomm.topology/1"}', "found 'topocomm.topology/1'"),
        (dumps(plan(switch(4), payload_bytes=64))[:-40], "not JSON"),
    ],
)
def test_other_texts_are_refused(text, message):
    with pytest.raises(PlanError, match=message):
        Plan.loads(text)


@pytest.mark.parametrize("missing", ["ranks", "schedule", "proof", "root", "payload_bytes"])
def test_missing_parts_are_named(missing):
    cut = {key: value for key, value in ORIGINAL.items() if key != missing}
    with pytest.raises(PlanError, match=f"^plan: {missing}: missing$"):
        Plan.loads(signed(cut))


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": -Infinity}', '{"a": 1' + "0" * 5000 + "}", "[" * 100_000])
def test_what_is_no_json_is_refused(text):
    with pytest.raises(PlanError, match="plan: not JSON: "):
        Plan.loads(text)


def test_the_digest_is_that_of_the_canonical_json():
    found = json.loads(dumps(plan(switch(4), payload_bytes=64)))
    digest = found.pop("digest")
    canonical = json.dumps(found, sort_keys=True, separators=(",", ":"))
    assert digest == plan_digest(found) == hashlib.sha256(canonical.encode()).hexdigest()


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(PlanError, match=r"nowhere.json: cannot read the plan: No such file"):
        Plan.load(tmp_path / "nowhere.json")
    (tmp_path / "binary").write_bytes(bytes(range(128, 256)))
    with pytest.raises(PlanError, match="binary: cannot read the plan: it is no text"):
        Plan.load(tmp_path / "binary")
