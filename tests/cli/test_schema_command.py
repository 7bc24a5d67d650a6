"""The schemas: real documents of every command fit them, faults do not, and they name every field that is written."""

import json
from copy import deepcopy

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from tests.cli.work.test_calibrate_work import logs  # noqa: F401 - a fixture
from topocomm import SUM, run_local
from topocomm.cli.main import main
from topocomm.cli.schema_command import bundled, schema_names

H100 = ("--system", "dgx-h100")
PLAN = ("plan", *H100, "--format", "json")
SIMULATE = ("simulate", "--format", "json", *H100)
COMMANDS = {
    "topology": [
        ("inspect", *H100, "--hosts", "2", "--format", "json"),
        ("inspect", "--input", "tests/data/topologies/h100-8-nics.txt", "--format", "json"),
        ("inspect", "--format", "json"),
    ],
    "plan": [
        (*PLAN, "--bytes", "64KiB"),
        (*PLAN, "--bytes", "0", "--objective", "latency"),
        (*PLAN, "--bytes", "256MiB", "--objective", "throughput"),
        (*PLAN, "--bytes", "1MiB", "--collective", "alltoall", "--hosts", "2", "--ranks", "4"),
        (*PLAN, "--bytes", "64KiB", "--order", "canonical"),
        (*PLAN, "--bytes", "16512", "--operator", "attention.logsumexp", "--ranks", "3"),
        ("plan", "--system", "cpu-2-socket", "--bytes", "64KiB", "--collective", "exscan", "--format", "json"),
    ],
    "crossover": [(*PLAN, "--sizes", "8:1MiB:64")],
    "simulation": [
        (*SIMULATE, "--bytes", "64KiB", "--compare", "planned,nccl-ring"),
        (*SIMULATE, "--sweep", "bytes=1KiB:64KiB:8", "--compare", "planned,mpi-ring"),
        (*SIMULATE, "--sweep", "hosts=1,2", "--bytes", "1MiB"),
    ],
    "simulation-step": [
        (*SIMULATE, "--model", "llama-3.2-1b", "--context", "32K"),
        (*SIMULATE, "--model", "llama-3.2-1b", "--sweep", "context=32K:64K:2"),
    ],
    "bench": [("bench", "--sizes", "8", "-n", "2", "-w", "1", "--format", "json")],
    "bits": [("bench", "--bits", "--sizes", "8", "--format", "json")],
}
PARTS = {"certificate", "facts", "native", "sweep", "timeline"}
"""Schemas of parts of documents, which are tried with them."""


def closed(schema, *, top=True):
    """The schema, strict: an object has no field that it does not name, where it does not say that others may come."""
    if isinstance(schema, list):
        return [closed(part, top=False) for part in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: closed(value, top=False) for key, value in schema.items()}
    extended = schema.get("$id") == "urn:topocomm:schema:timeline"  # runs have its fields and their own
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema and not extended:
        strict["unevaluatedProperties"] = False
    return strict


def faults(schema, document):
    return [f"{error.json_path}: {error.message[:300]}" for error in Draft202012Validator(schema).iter_errors(document)]


def written(capsys, *words):
    assert main(list(words)) == 0
    return json.loads(capsys.readouterr().out)


def test_every_schema_is_one_and_is_tried():
    assert set(schema_names()) == {*COMMANDS, *PARTS, "calibration", "record"}
    for name in schema_names():
        Draft202012Validator.check_schema(bundled(name))
        assert bundled(name)["$id"] == f"urn:topocomm:schema:{name}"


@pytest.mark.every_case
@pytest.mark.parametrize(("name", "words"), [(name, words) for name, all_ in COMMANDS.items() for words in all_])
def test_what_commands_write_fits_and_is_named_whole(name, words, capsys):
    document = written(capsys, *words)
    assert faults(closed(bundled(name)), document) == []
    assert document["schema"] == f"topocomm.{name}/1"
    later = document | {"of_a_later_version": 1}
    assert faults(bundled(name), later) == []
    assert len(faults(closed(bundled(name)), later)) == 1


def test_what_calibrate_writes_fits(logs, capsys, tmp_path):  # noqa: F811 - the fixture
    out = tmp_path / "measured.json"
    words = ("calibrate", "--input", *logs, "--system", "v100-4")
    document = written(capsys, *words, "--format", "json", "--output", str(out))
    assert faults(closed(bundled("calibration")), document) == []
    assert faults(closed(bundled("topology")), json.loads(out.read_text())) == []


def test_the_records_of_a_failed_rank_fit(tmp_path, monkeypatch):
    monkeypatch.setenv("TOPOCOMM_RECORD_DIR", str(tmp_path))

    def fail(comm):
        comm.allreduce(np.ones(3), SUM)
        if comm.rank:
            raise ValueError("of its own")
        comm.barrier()

    with pytest.raises(ValueError, match="of its own"):
        run_local(fail, ranks=2)
    lines = [json.loads(line) for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()]
    assert len(lines) > 2
    assert [faults(closed(bundled("record")), line) for line in lines] == [[]] * len(lines)


FAULTS = {
    "a kind of device": lambda t: t["devices"][0].update(kind="tpu"),
    "a link without an end": lambda t: t["links"][0].pop("dst"),
    "a negative latency": lambda t: t["links"][0].update(latency_us=-1.0),
    "a rate of 0": lambda t: t["links"][0].update(gb_per_s=0),
    "a rate in words": lambda t: t["pairs"][0].update(gb_per_s="fast"),
    "half a lane": lambda t: t["links"][0].update(lanes=0.5),
    "no links": lambda t: t.pop("links"),
    "another schema": lambda t: t.update(schema="topocomm.topology/2"),
}


@pytest.mark.every_case
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_that_the_reader_refuses_do_not_fit(fault, capsys, tmp_path):
    document = written(capsys, "inspect", *H100, "--format", "json")
    FAULTS[fault](document)
    assert faults(bundled("topology"), document)
    (tmp_path / "faulty.json").write_text(json.dumps(document))
    assert main(["inspect", "--input", str(tmp_path / "faulty.json")]) == 2


def test_a_topology_of_devices_and_links_fits():
    document = {
        "devices": [{"id": "a", "kind": "cpu"}, {"id": "b", "kind": "cpu"}],
        "links": [{"src": "a", "dst": "b"}],
    }
    assert faults(bundled("topology"), document) == []


def test_a_plan_with_a_field_gone_does_not_fit(capsys):
    whole = written(capsys, *PLAN, "--bytes", "64KiB")
    optional = {"parts", "shards", "launch_us", "native", "sum"}
    for field in whole.keys() - optional:
        assert faults(bundled("plan"), {key: value for key, value in whole.items() if key != field}), field
    damaged = deepcopy(whole)
    damaged["schedule"]["rounds"][0]["transfers"][0] = [0, 0, 1]
    assert faults(bundled("plan"), damaged)


def test_the_command_lists_prints_and_refuses(capsys):
    assert main(["schema"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed if not line.startswith(" ")] == schema_names()
    assert max(map(len, listed)) <= 80
    assert written(capsys, "schema", "plan") == written(capsys, "schema", "topocomm.plan/1") == bundled("plan")
    assert set(bundled("plan")["$defs"]) == {"certificate", "native"}
    assert main(["schema", "plam"]) == 2
    assert "schema 'plam': expected one of bench, bits, " in capsys.readouterr().err
