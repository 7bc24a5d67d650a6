"""Plans that are saved and used again, and what is refused because a file was altered, cut or made for another."""

import json
import os

import pytest

from tests.cli.plan_command import H100, SMALL, refused, run
from topocomm import catalog
from topocomm.planning.collectives import COLLECTIVES
from topocomm.planning.formats.plan_json import plan_digest


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_saved_plan_is_shown_as_it_was(capsys, tmp_path, collective, form):
    file = tmp_path / "plan.json"
    system = ("--system", "dgx-a100", "--hosts", "2", "--format", form)
    made = run(capsys, *system, "--bytes", "4KiB", "--collective", collective, "--save", str(file))
    assert made[0] == 0
    assert os.listdir(tmp_path) == ["plan.json"]
    again = run(capsys, *system, "--plan", str(file))
    assert again == made


def saved(capsys, file):
    assert run(capsys, *SMALL, "--save", str(file))[0] == 0
    return json.loads(file.read_text())


def put(document, path, value):
    """The document with one entry replaced."""
    node = document
    for key in path[:-1]:
        node = node[key]
    assert node[path[-1]] != value
    node[path[-1]] = value
    return document


ALTERED = {
    "digest": ("digest", "0" * 64),
    "a bound": ("certificate", "rounds_lower_bound", 7),
    "the gap": ("certificate", "gap", 1.01),
    "a transfer's slot": ("schedule", "rounds", 2, "transfers", 0, 3, 9),
    "payload_bytes": ("payload_bytes", 131072),
    "a proof flag": ("proof", "canonical_tree", True),
    "a time": ("predicted_us", 0.5),
    "a rank's place": ("ranks", 0, "GPU1"),
    "the operator": ("operator", "max"),
}


@pytest.mark.parametrize("what", ALTERED)
def test_a_plan_altered_in_one_figure_is_refused(capsys, tmp_path, what):
    file = tmp_path / "plan.json"
    *path, value = ALTERED[what]
    file.write_text(json.dumps(put(saved(capsys, file), path, value)))
    message = f"{file}: digest does not fit the content: the plan was altered or cut; plan again"
    assert message in refused(capsys, *H100, "--plan", str(file))


RESIGNED = [
    (("schedule", "rounds", 2, "transfers", 0, 1, 9), "schedule: round 2: rank 0 reads slot 9 chunk 0"),
    (("schedule", "rounds", 2, "transfers", 0, 3, 1), "schedule: round 2: rank 3 slot 1 chunk 0 is written twice"),
    (("payload_bytes", 16388), "payload_bytes 16388 is no multiple of the 4096 rows"),
    (("proof", "order_kept", False), "proof.order_kept is False, the schedule proves True"),
    (("ranks", 0, "GPU9"), "GPU9"),
    (("certificate", None), "certificate: expected an object, got None"),
    *((path, path[0]) for path in (("rounds", 3), ("transfers", 3), ("wire_bytes", 1), ("proof", "complete", False))),
    (("predicted_us", "soon"), "predicted_us"),
    (("predicted_us", 0.59), "predicted_us is 0.59, the schedule has "),
    (("certificate", "rounds_lower_bound", 2), "the rounds bound is 2, its doubling witness gives 3"),
    (("certificate", "gap", 1.01), "the gap is 1.01, figure and bound give "),
    (
        ("certificate", "other_witnesses", 2, "groups", 0, 0, "GPU9"),
        "a group of devices names one twice, or one that the topology does not have",
    ),
]


@pytest.mark.parametrize(("path", "message"), RESIGNED, ids=str)
def test_a_new_digest_does_not_save_a_wrong_plan(capsys, tmp_path, path, message):
    file = tmp_path / "plan.json"
    document = put(saved(capsys, file), path[:-1], path[-1])
    file.write_text(json.dumps(document | {"digest": plan_digest(document)}))
    assert message in refused(capsys, *H100, "--plan", str(file))


@pytest.mark.parametrize("share", [0.02, 0.5, 0.99])
def test_a_cut_plan_is_refused(capsys, tmp_path, share):
    file = tmp_path / "plan.json"
    saved(capsys, file)
    text = file.read_text()
    file.write_text(text[: int(share * len(text))])
    assert f"{file}: not JSON: " in refused(capsys, *H100, "--plan", str(file))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON"),
        (b"[]", "expected a document of schema 'topocomm.plan/1', found 'list'"),
        (b"{}", "expected a document of schema 'topocomm.plan/1', found None"),
        (b'{"schema": "topocomm.topology/1"}', "found 'topocomm.topology/1'"),
        (b"\xff\xfe", "cannot read the plan: it is no text"),
    ],
)
def test_other_files_are_no_plan(capsys, tmp_path, data, message):
    file = tmp_path / "some.json"
    file.write_bytes(data)
    said = refused(capsys, *H100, "--plan", str(file))
    assert f"{file}: " in said
    assert message in said


def test_a_plan_for_another_topology_is_refused(capsys, tmp_path):
    file = tmp_path / "plan.json"
    document = saved(capsys, file)
    other = catalog("dgx-h100", hosts=2)
    assert refused(capsys, *H100, "--hosts", "2", "--plan", str(file)) == (
        f"topocomm plan: {file}: made for another topology (digest {document['topology_digest'][:12]}; "
        f"'dgx-h100 x 2' has {other.digest[:12]}); name that one with --input or --system, or plan again\n"
    )


def test_a_plan_that_cannot_be_saved_is_status_1(capsys, tmp_path):
    file = tmp_path / ("x" * 300)
    status, out, err = run(capsys, *SMALL, "--save", str(file))
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err == f"topocomm plan: {file}: cannot save the plan: File name too long\n"


def test_a_folder_that_is_not_there_is_said_before_it_is_planned(capsys, tmp_path):
    file = tmp_path / "none" / "plan.json"
    status, out, err = run(capsys, *SMALL, "--save", str(file))
    assert (status, out) == (2, "")
    assert err == f"topocomm plan: --save {file}: expected a folder {file.parent}; make it, or name another\n"
