"""Bad input of `topocomm plan`: one line that names the fault, status 2, nothing on stdout."""

import json

import pytest

from tests.cli.plan_command import refused, run
from topocomm import catalog, plan
from topocomm.planning.formats.plan_json import dumps, plan_digest

H100 = ("--system", "dgx-h100")


def link(src, dst, **figures):
    return {"src": src, "dst": dst, "kind": "nvlink", "gb_per_s": 25.0, "latency_us": 0.7} | figures


def pair(a="A", b="B", **figures):
    return [link(a, b, **figures), link(b, a, **figures)]


def told(capsys, *words):
    """What the one line says."""
    return refused(capsys, *words).removeprefix("topocomm plan: ").rstrip("\n")


def machine(links, names="AB"):
    return {"devices": [{"id": name, "kind": "gpu"} for name in names], "links": links}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            machine([*pair("A", "B"), *pair("C", "D")], "ABCD"),
            "falls into 2 pieces: A, B; C, D; name the ranks of one piece",
        ),
        (machine([link("A", "B")]), "falls into 2 pieces: A; B; name the ranks of one piece"),
        (machine([]), "falls into 2 pieces: A; B; name the ranks"),
        (machine(pair(gb_per_s=0)), "links[0].gb_per_s: expected a positive finite number or null, got 0"),
        (
            machine([link("A", "B"), link("B", "A", gb_per_s=-3)]),
            "links[1].gb_per_s: expected a positive finite number",
        ),
        (machine(pair(latency_us=-1)), "links[0].latency_us: expected a finite number of at least 0 or null, got -1"),
        (machine(pair(gb_per_s=float("nan"))), "not usable JSON: NaN is no JSON number (links[0].gb_per_s)"),
        ({"devices": [{"id": "s", "kind": "switch"}], "links": []}, "has no endpoint (no gpu and no cpu)"),
        ({}, "a topology needs the keys 'devices' and 'links'; 'devices' is missing"),
    ],
)
def test_topologies_that_cannot_be_planned_on(capsys, tmp_path, document, message):
    file = tmp_path / "topo.json"
    file.write_text(json.dumps(document))
    assert message in told(capsys, "--input", str(file), "--bytes", "64")


def test_unknown_figures_are_named_with_their_table(capsys, tmp_path):
    file = tmp_path / "topo.json"
    links = [*pair(latency_us=None), *pair("B", "C", gb_per_s=None), *pair("A", "C", kind="cxl", latency_us=None)]
    file.write_text(json.dumps(machine(links, "ABC")))
    status, out, err = run(capsys, "--input", str(file), "--bytes", "64")
    text = " ".join(out.split())
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert "assumed nvlink latency 0.7 us (NCCL tuning.cc has 0.6 us for a hop through an NVSwitch; a direct" in text
    assert "assumed nvlink 14.0625 GB/s a lane (the slowest NVLink, RTX A6000)" in text
    assert "assumed cxl latency 1.5 us (as a network link, the slowest in the table)" in text


def test_figures_of_the_catalogue_that_are_assumed_are_named(capsys):
    out = run(capsys, *H100, "--hosts", "2", "--bytes", "64")[1]
    assert "  figures latency of nvlink, pcie, network assumed, from the table of link kinds\n" in out


def altered(tmp_path, path, value):
    """A saved plan with one entry replaced, and signed again."""
    document = json.loads(dumps(plan(catalog("dgx-h100"), payload_bytes=64)))
    node = document
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(document | {"digest": plan_digest(document)}))
    return str(file)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["topology_digest"], "0" * 64, "made for another topology (digest 000000000000; 'dgx-h100' has "),
        (["ports"], 8, "ports: expected a number of ports 1..7, got 8"),
        (["alpha_us"], 0.1, "certificate: alpha_us is 0.1, the schedule has 0.6"),
        (["scratch_bytes"], 3, "scratch_bytes is 3, the schedule takes 512"),
        (["certificate", "gap"], 0.5, "certificate: the gap is 0.5, figure and bound give "),
        (["certificate", "witness"], {}, "certificate: malformed witness: "),
        (["ranks", 1], "GPU77", "topology 'dgx-h100': GPU0 -> GPU77: not an endpoint"),
        (["predicted_us"], float("inf"), "not JSON: Infinity is no JSON number (predicted_us)"),
        (["schedule", "rounds", 0, "transfers", 3, 2], 9, "schedule.rounds[0].transfers[3][2]: expected a rank 0..7"),
    ],
    ids=str,
)
def test_plans_that_are_wrong_are_named_with_their_file(capsys, tmp_path, path, value, message):
    file = altered(tmp_path, path, value)
    assert told(capsys, *H100, "--plan", file).startswith(f"{file}: {message}")


def test_a_plan_for_fewer_ranks_is_for_another_topology(capsys, tmp_path):
    file = tmp_path / "plan.json"
    plan(catalog("dgx-h100", hosts=2), payload_bytes=64).save(file)
    assert told(capsys, *H100, "--plan", str(file)).startswith(f"{file}: made for another topology (digest ")
