"""What `topocomm plan` prints for what is asked."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.plan_command import H100, SMALL, planned, refused, run
from tests.simulation.test_trace_events import check_format
from topocomm import catalog, plan
from topocomm.planning.plan import Plan
from topocomm.topology.catalog.systems import SYSTEMS

DATA = Path(__file__).parents[1] / "data/topologies"


def test_the_text_says_what_is_done_what_it_costs_and_what_bounds_it(capsys):
    status, out, err = run(capsys, *SMALL)
    assert (status, err) == (0, "")
    made = plan(catalog("dgx-h100"), payload_bytes=16384)
    lines = out.splitlines()
    assert lines[0] == "allreduce sum, 16384 B, 8 ranks on dgx-h100"
    for fact in (
        f"flat: 7 rounds, {8 * 7} messages, {8 * 7 * 16384} B on the wire",
        "model loggp, 1 port, objective auto",
        f"rounds >= {math.log2(8):.0f}, time >= 0.60 us, throughput <= {450 * 8 / 14:.2f} GB/s",
        f"with these bytes >= {0.6 + 7 * 16384 / 450e3:.2f} us",
        "gap     1.000 x the auto bound: of 8 endpoints 0.6 us apart each pair must exchange values itself",
        "rank order kept",
        "one expression tree on all ranks (equal bits)",
        "deadlock-free",
        f"digest  {made.digest}\n",
    ):
        assert " ".join(fact.split()) in " ".join(out.split()), fact  # lines break anywhere
    moves = [sorted(line.replace("<>", ">").split()[2:-1]) for line in lines if line.startswith("  round ")]
    for distance, shown in enumerate(moves, start=1):  # an exchange of two is one word
        assert shown == sorted(f"{a}>{(a + distance) % 8}" for a in range(8 if distance != 4 else 4)), distance
    assert len(moves) == 7


@pytest.mark.parametrize(
    ("size", "both"),
    [
        ("0", False),
        *(pytest.param(size, False, marks=pytest.mark.long) for size in ("64KiB", "8MiB")),
        *(pytest.param(size, True, marks=pytest.mark.soak) for size in ("0", "64KiB", "8MiB")),
    ],
)
def test_lines_fit_a_terminal(capsys, size, both):
    """Of every system one or two hosts in turn."""
    for number, system in enumerate(SYSTEMS):
        for hosts in (1, 2) if both else (1 + number % 2,):
            _, out, _ = run(capsys, "--system", system, "--hosts", str(hosts), "--bytes", size)
            assert max(map(len, out.splitlines())) <= 80, out


@pytest.mark.parametrize("dump", sorted(DATA.iterdir()), ids=lambda path: path.stem)
def test_figures_that_a_dump_leaves_open_are_named(capsys, dump):
    document = planned(capsys, "--input", str(dump), "--bytes", "64KiB")
    _, out, _ = run(capsys, "--input", str(dump), "--bytes", "64KiB")
    assert [line.removeprefix("  assumed ") for line in out.splitlines() if line.startswith("  assumed ")] == document[
        "assumed"
    ]
    assert max(map(len, out.splitlines())) <= 80


def test_json_is_one_document_that_loads_again(capsys):
    status, out, err = run(capsys, *SMALL, "--format", "json")
    assert (status, err, out.count("\n")) == (0, "", 1)
    assert json.loads(out)["schema"] == "topocomm.plan/1"
    assert Plan.loads(out).digest == json.loads(out)["digest"] == plan(catalog("dgx-h100"), payload_bytes=16384).digest


def process(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "topocomm", "plan", *words],
        capture_output=True,
        timeout=60,
        env={**os.environ, **environment},
        check=False,
    )


@pytest.mark.parametrize("form", ["text", "json"])
def test_two_processes_print_the_same_bytes(form):
    words = ("--system", "mi250x", "--hosts", "2", "--bytes", "64KiB", "--format", form)
    first, second = (process(*words, PYTHONHASHSEED=seed) for seed in ("1", "2"))
    assert first.returncode == 0
    assert first.stderr == b""
    assert first.stdout == second.stdout != b""


def test_long_payloads_are_planned():
    command = [sys.executable, "-m", "topocomm", "plan", *H100, "--bytes", "16GiB"]
    assert subprocess.run(command, capture_output=True, timeout=5, check=False).returncode == 0


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        ([], [f"GPU{i}" for i in range(8)]),
        (["--ranks", "3"], ["GPU0", "GPU1", "GPU2"]),
        (["--ranks", "1"], ["GPU0"]),
        (["--ranks", "8"], [f"GPU{i}" for i in range(8)]),
        (["--ranks", "GPU5,GPU2"], ["GPU5", "GPU2"]),
        (["--ranks", "GPU7, GPU0 ,GPU3"], ["GPU7", "GPU0", "GPU3"]),
        (["--ranks", "GPU1,GPU1,GPU0"], ["GPU1", "GPU1", "GPU0"]),  # two ranks share an endpoint
    ],
    ids=lambda value: " ".join(value),
)
def test_ranks_stand_where_they_are_put(capsys, words, ranks):
    document = planned(capsys, *SMALL, *words)
    assert document["ranks"] == ranks
    assert {rank for rank, _, _ in document["schedule"]["inputs"]} == set(range(len(ranks)))
    assert f"{len(ranks)} rank{'s' * (len(ranks) > 1)} on dgx-h100" in run(capsys, *SMALL, *words)[1]


@pytest.mark.parametrize("root", [0, 3, 7])
def test_the_root_of_a_reduce_gets_the_result_and_that_of_a_broadcast_gives_it(capsys, root):
    words = (*SMALL, "--root", str(root), "--collective")
    reduce, broadcast = planned(capsys, *words, "reduce"), planned(capsys, *words, "broadcast")
    assert (reduce["root"], broadcast["root"]) == (root, root)
    assert {rank for rank, _, _ in reduce["schedule"]["outputs"]} == {root}
    assert {rank for rank, _, _ in broadcast["schedule"]["inputs"]} == {root}
    assert {rank for rank, _, _ in broadcast["schedule"]["outputs"]} == set(range(8))
    assert run(capsys, *words, "broadcast")[1].startswith("broadcast, 16384 B, 8 ranks")


def test_a_sendrecv_is_an_alltoall_to_the_next_rank(capsys):
    document = planned(capsys, *SMALL, "--collective", "sendrecv", "--ranks", "3")
    assert (document["collective"], document["payload_bytes"], document["rounds"]) == ("alltoall", 16384, 1)
    moves = [transfer for one in document["schedule"]["rounds"] for transfer in one["transfers"]]
    assert {(src, dst) for src, _, dst, _, _ in moves} == {(0, 1), (1, 2), (2, 0)}
    status, _, err = run(capsys, "--system", "dgx-h100", "--collective", "sendrecv", "--bytes", "0")
    assert status and "at least one row" in err


def test_canonical_order_is_planned_and_told(capsys, tmp_path):
    file = tmp_path / "plan.json"
    words = (*SMALL, "--ranks", "5", "--order", "canonical")
    document = planned(capsys, *words)
    assert (document["order"], document["shards"], document["proof"]["canonical_tree"]) == (
        "canonical",
        [*range(6)],
        True,
    )
    assert planned(capsys, *SMALL, "--ranks", "5", "--order", "any") == planned(capsys, *SMALL, "--ranks", "5")
    made = run(capsys, *words, "--save", str(file))
    assert "  shards  of ranks 0..4, canonical order: 0, 1, 2, 3, 4\n" in made[1]
    assert "the canonical tree over the virtual shards" in " ".join(made[1].split())
    assert run(capsys, *H100, "--plan", str(file)) == (0, made[1], "")


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter"])
def test_parts_are_as_even_as_can_be(capsys, collective):
    document = planned(capsys, *H100, "--ranks", "3", "--bytes", "40", "--collective", collective)
    assert (sum(document["parts"]), max(document["parts"]) - min(document["parts"])) == (10, 1)
    assert document["payload_bytes"] == 40


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("0", 0), ("16512", 16512), ("64KiB", 2**16), ("8MiB", 2**23), ("64 kib", 2**16), ("4B", 4), ("12kB", 12000)],
)
def test_bytes_have_units(capsys, text, size_bytes):
    document = planned(capsys, *H100, "--bytes", text)
    assert document["payload_bytes"] == size_bytes
    assert sum(rows for _, rows in document["schedule"]["chunks"]) == size_bytes // 4


@pytest.mark.parametrize("rows", [0, 1, 77])
def test_rows_of_the_operator(capsys, rows):
    document = planned(capsys, *H100, "--operator", "attention.logsumexp", "--bytes", str(516 * rows))
    assert document["operator"] == "attention.logsumexp"
    assert sum(count for _, count in document["schedule"]["chunks"]) == rows


def test_one_sum_is_compared(capsys):
    words = (*H100, "--operator", "attention.logsumexp", "--bytes", "16512")
    document = planned(capsys, *words)["sum"]
    assert [way["way"] for way in document["ways"]] == ["merge", "schedule", "library", "in_network", "reduce_scatter"]
    assert document["least"] == "merge"
    _, out, _ = run(capsys, *words)
    assert " ".join(document["why"].split()) in " ".join(out.split())
    assert "sum" not in planned(capsys, *SMALL) and "sum  " not in run(capsys, *SMALL)[1]


@pytest.mark.parametrize(
    ("objective", "gap"),
    [
        ("latency", lambda d, c: d["alpha_us"] / c["alpha_lower_bound_us"]),
        ("rounds", lambda d, c: d["rounds"] / c["rounds_lower_bound"]),
        ("throughput", lambda d, c: c["throughput_upper_bound_gb_per_s"] / d["throughput_gb_per_s"]),
        ("auto", lambda d, c: d["predicted_us"] / c["predicted_lower_bound_us"]),
    ],
)
@pytest.mark.parametrize("size", ["4KiB", "8MiB"])
def test_the_gap_is_to_the_bound_of_the_objective(capsys, objective, gap, size):
    document = planned(capsys, *H100, "--bytes", size, "--objective", objective)
    assert document["objective"] == objective
    assert document["port_model"] == ("loggp" if objective == "auto" else "alpha")
    certificate = document["certificate"]
    assert certificate["gap"] == pytest.approx(gap(document, certificate))
    bytes_us = document["payload_bytes"] / certificate["throughput_upper_bound_gb_per_s"] / 1e3
    if objective == "auto":
        assert certificate["predicted_lower_bound_us"] >= max(certificate["alpha_lower_bound_us"], bytes_us)
    assert document["certificate"]["gap"] >= 1 - 1e-9


def test_objectives_choose_differently(capsys):
    chosen = {o: planned(capsys, *SMALL, "--objective", o)["algorithm"] for o in ("rounds", "throughput", "auto")}
    assert chosen == {"rounds": "recursive-doubling", "throughput": "rabenseifner", "auto": "flat"}


@pytest.mark.parametrize("ports", [1, 2, 3, 7])
@pytest.mark.parametrize("model", ["alpha", "loggp"])
def test_ports(capsys, ports, model):
    document = planned(capsys, *SMALL, "--objective", "rounds", "--ports", str(ports), "--port-model", model)
    assert (document["ports"], document["port_model"]) == (ports, model)
    assert document["certificate"]["rounds_lower_bound"] == math.ceil(round(math.log(8, ports + 1), 9))
    text = run(capsys, *SMALL, "--ports", str(ports), "--port-model", model)[1]
    assert f"model {model}, {ports} port{'s' * (ports > 1)}, objective auto" in text


def test_the_runners_up_are_told(capsys):
    out = run(capsys, *SMALL, "--objective", "latency")[1]
    text = " ".join(out.split())
    assert re.search(r"why least time without bytes of \d+ algorithms that fit: 1.80 us", text)
    assert re.search(r"others \S+ \d\.\d\d us \((\d\.\d\dx|as good)\)", text)
    throughput = " ".join(run(capsys, *SMALL, "--objective", "throughput")[1].split())
    assert re.search(r"most bytes a second in the long run of \d+ algorithms that fit: 257.14 GB/s", throughput)


@pytest.mark.parametrize("form", ["msccl-xml", "mscclpp-json", "svg"])
def test_other_formats_are_one_document(capsys, form):
    status, out, err = run(capsys, *SMALL, "--format", form)
    assert (status, err) == (0, "")
    if form == "mscclpp-json":
        assert len(json.loads(out)["gpus"]) == 8
    else:
        root = ElementTree.fromstring(out)
        assert root.tag == ("algo" if form == "msccl-xml" else "{http://www.w3.org/2000/svg}svg")
    assert run(capsys, *SMALL, "--format", form)[1] == out


def test_the_runtime_of_a_program_can_be_named(capsys):
    words = (*H100, "--collective", "reduce_scatter", "--bytes", "4096", "--format", "msccl-xml")
    spelled = {
        name: ElementTree.fromstring(run(capsys, *words, "--runtime", name)[1]).get("coll")
        for name in ("rccl", "azure", "msccl")
    }
    assert spelled == {"rccl": "reducescatter", "azure": "reducescatter", "msccl": "reduce_scatter"}
    assert run(capsys, *words)[1] == run(capsys, *words, "--runtime", "azure")[1]
    said = refused(capsys, *H100, "--bytes", "4096", "--runtime", "rccl")
    assert "--runtime rccl goes with --format msccl-xml only" in said


@pytest.mark.parametrize("form", ["msccl-xml", "mscclpp-json"])
def test_programs_for_gpu_runtimes_are_for_sums(capsys, form):
    words = (*H100, "--bytes", "5160", "--operator", "attention.logsumexp", "--format", form)
    assert f"{form}: operator 'attention.logsumexp': expected sum" in refused(capsys, *words)


def test_a_degraded_machine_and_what_the_defect_costs(capsys):
    words = ("--system", "dgx-h100", "--hosts", "2", "--bytes", "0", "--objective", "latency")
    whole = planned(capsys, *words)
    status, out, err = run(capsys, *words, "--without", "h0/NIC3", "--format", "json")
    broken = json.loads(out)
    assert status == 0
    assert broken["topology_digest"] != whole["topology_digest"]
    assert broken["alpha_us"] > whole["alpha_us"]
    share = broken["alpha_us"] / whole["alpha_us"] - 1
    assert err == (
        f"without h0/NIC3: latency {share:+.0%} ({whole['alpha_us']:.2f} -> {broken['alpha_us']:.2f} us), "
        f"new plan {broken['algorithm']}\n"
    )
    text = run(capsys, *words, "--without", "h0/NIC3")[1]
    assert text.splitlines()[0].endswith("on dgx-h100 x 2 without h0/NIC3")
    assert err.strip() in " ".join(text.split())


def test_several_links_and_links_that_do_not_matter(capsys):
    words = ("--system", "dgx-1-v100", "--bytes", "8MiB", "--without", "GPU0-GPU3", "--without", "GPU4->GPU5")
    status, out, err = run(capsys, *words, "--format", "json")
    assert (status, json.loads(out)["ranks"]) == (0, [f"GPU{i}" for i in range(8)])
    assert err.startswith("without GPU0-GPU3, GPU4->GPU5: 8388608 B ")


CUT = [
    (("--without", "GPU9"), "without 'GPU9': neither a device of topology 'dgx-h100' nor two of them as A-B or A->B"),
    (("--without", "GPU3-NIC3"), "without 'GPU3-NIC3': no link joins GPU3 and NIC3; GPU3 is linked to nvswitch0"),
    (
        ("--without", "GPU3"),
        "falls into 2 pieces: GPU0-2,4-7; GPU3; name the ranks of one piece with --ranks",
    ),
]


@pytest.mark.parametrize(("words", "message"), CUT)
def test_what_cannot_be_left_out_is_said(capsys, words, message):
    assert message in refused(capsys, *SMALL, *words)


def test_the_ranks_of_one_piece_can_be_planned(capsys):
    left = ",".join(f"GPU{i}" for i in range(8) if i != 3)
    status, out, _ = run(capsys, *SMALL, "--without", "GPU3", "--ranks", left)
    assert status == 0
    assert "0-2 on GPU0-2, 3-6 on GPU4-7" in out


def test_a_table_over_sizes(capsys):
    status, out, err = run(capsys, *H100, "--sizes", "1KiB:1MiB:32")
    assert (status, err) == (0, "")
    assert out.splitlines()[-1] == "best: flat from 1 KiB to 32 KiB, direct at 1 MiB"
    assert json.loads(run(capsys, *H100, "--sizes", "1KiB:1MiB:32", "--format", "json")[1])["changes"]
    assert run(capsys, *H100, "-b", "1K") == run(capsys, *H100, "--bytes", "1KiB")
    assert run(capsys, *H100, "-b", "1K", "-e", "1M", "-f", "32") == (0, out, "")
    ElementTree.fromstring(run(capsys, *H100, "--sizes", "1KiB:1MiB:32", "--format", "svg")[1])


@pytest.mark.parametrize("words", [("--bytes", "64"), ("--plan", "a.json"), ("--save", "a"), ("--format", "msccl-xml")])
def test_a_table_is_no_plan(capsys, words):
    assert "does not go with --sizes" in refused(capsys, *H100, "--sizes", "1KiB:1MiB:32", *words)


def test_output_goes_to_a_file_whole(capsys, tmp_path):
    file = tmp_path / "plan.html"
    assert run(capsys, *SMALL, "--format", "html", "--output", str(file)) == (0, "", "")
    assert file.read_text().startswith("<!DOCTYPE html>")
    html, text = file.read_text(), run(capsys, *SMALL)[1]
    assert run(capsys, *SMALL, "--format", "text", "--output", str(file)) == (0, "", "")
    assert file.read_text() == text
    assert run(capsys, *SMALL, "--output", str(file)) == (0, "", "")
    assert file.read_text() == html, "the ending names the format"


def test_a_trace_has_every_message_and_ends_at_the_predicted_time(capsys, tmp_path):
    file = tmp_path / "plan.json"
    assert run(capsys, *SMALL, "--trace", str(file))[0] == 0
    events, _, threads = check_format(file.read_text())
    made = plan(catalog("dgx-h100"), payload_bytes=16384)
    sent = [e for e in events if e["ph"] == "X" and " sends" in threads[e["pid"], e["tid"]]]
    assert len(sent) == made.figures.transfers
    assert max(e["ts"] + e["dur"] for e in sent) == pytest.approx(made.figures.predicted_us, abs=0.01)


def test_a_table_of_sizes_has_no_trace(capsys):
    assert "--trace does not go with --sizes" in refused(capsys, *H100, "--sizes", "1KiB", "--trace", "x.json")
