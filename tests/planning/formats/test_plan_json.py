"""Plan files: exact round trip, and no altered plan is ever accepted."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.machines import hosts, switch
from topocomm import Plan, PlanError, plan
from topocomm.planning.formats.plan_json import dumps, loads, plan_digest


def document(**changes):
    return json.loads(dumps(plan(switch(4), payload_bytes=64, **changes)))


def signed(text: dict) -> str:
    return json.dumps(text | {"digest": plan_digest(text)})


@pytest.mark.parametrize("collective", ["allreduce", "reduce", "broadcast"])
@pytest.mark.parametrize("objective", ["latency", "throughput", "auto"])
def test_round_trip(tmp_path, collective, objective):
    root = 2 if collective != "allreduce" else 0
    made = plan(hosts(2, 2), collective, payload_bytes=4096, objective=objective, root=root)
    made.save(tmp_path / "plan.json")
    read = Plan.load(tmp_path / "plan.json")
    assert read.digest == made.digest
    assert dumps(read) == dumps(made)
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


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
    }


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


ORIGINAL = document()
FIGURES = list(numbers(ORIGINAL))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(FIGURES))
def test_one_altered_figure_is_caught_by_the_digest(path):
    altered = copy.deepcopy(ORIGINAL)
    node = altered
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] += 1
    with pytest.raises(PlanError, match="digest does not fit the content: the plan was altered"):
        loads(json.dumps(altered))


def test_a_resigned_wrong_schedule_fails_its_proof():
    altered = copy.deepcopy(ORIGINAL)
    altered["schedule"]["rounds"][0]["transfers"].pop()
    with pytest.raises(
        PlanError, match=r"plan: schedule: round \d: rank \d reads slot \d chunk 0, which nothing wrote"
    ):
        loads(signed(altered))


def test_a_resigned_false_proof_is_caught():
    altered = copy.deepcopy(ORIGINAL)
    altered["proof"]["order_kept"] = not altered["proof"]["order_kept"]
    with pytest.raises(PlanError, match=r"proof.order_kept is (True|False), the schedule proves"):
        loads(signed(altered))


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
        loads(text)


@pytest.mark.parametrize("missing", ["ranks", "schedule", "proof", "root", "payload_bytes"])
def test_missing_parts_are_named(missing):
    cut = {key: value for key, value in ORIGINAL.items() if key != missing}
    with pytest.raises(PlanError, match=f"malformed plan: KeyError: '{missing}'"):
        loads(signed(cut))


@pytest.mark.parametrize("value", ["1", 1.5, True, None])
def test_entries_must_be_integers(value):
    altered = copy.deepcopy(ORIGINAL)
    altered["schedule"]["rounds"][0]["transfers"][0][1] = value
    with pytest.raises(PlanError, match="expected an integer, got"):
        loads(signed(altered))


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(PlanError, match=r"nowhere.json: cannot read the plan: No such file"):
        Plan.load(tmp_path / "nowhere.json")
    (tmp_path / "binary").write_bytes(bytes(range(128, 256)))
    with pytest.raises(PlanError, match="binary: cannot read the plan: it is no text"):
        Plan.load(tmp_path / "binary")
