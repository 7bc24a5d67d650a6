"""What `topocomm simulate` prints for what is asked."""

import json
import re
from functools import partial

import pytest

from tests.cli.test_simulate_command import H100, refused, run
from tests.cli.work.test_simulated_output import printed
from topocomm import catalog, plan

document = partial(printed, schema="topocomm.simulation/1")


def test_the_text_says_how_long_and_why(capsys):
    status, out, err = run(capsys, *H100, "--hosts", "2", "--bytes", "1MiB", "--ports", "1")
    made = plan(catalog("dgx-h100", hosts=2), payload_bytes=1 << 20)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "allreduce, 1048576 B, 16 ranks on dgx-h100 x 2"
    assert lines[1].startswith(f"planned ({made.algorithm}): {made.figures.predicted_us:.2f} us, ")
    after = lines.index(f"the plan predicts {made.figures.predicted_us:.2f} us of its schedule") + 1
    assert re.fullmatch(r"simulated [0-9,]+ events in [0-9.]+ s, [0-9,]+ a second", lines[after])
    assert any(line.startswith("critical path, ") for line in lines)
    assert re.search(r"NIC\d of h\d, .* carried 1 message in round", " ".join(" ".join(lines).split()))
    assert any(line.startswith("busiest of ") for line in lines)
    assert max(map(len, lines)) <= 80


def test_algorithms_beside_each_other(capsys):
    _, out, _ = run(capsys, *H100, "--bytes", "1MiB", "--compare", "planned,ring,switch-sum")
    rows = {line.split()[0]: line.split() for line in out.splitlines()[2:]}
    assert list(rows) == ["switch-sum", "planned", "ring"], "the fastest first"
    assert rows["switch-sum"][2] == "1.00"
    assert float(rows["ring"][1]) == pytest.approx(14 * (131072 / 450e3 + 0.6), abs=0.01)


def test_launches_count_on_both_sides_of_a_comparison_with_nccl(capsys):
    _, out, _ = run(capsys, *H100, "--bytes", "64KiB", "--compare", "planned,nccl")
    assert " ".join(out.split()).endswith(
        "- planned: with 6.6 us a round to launch and 82% of the links' rates, as NCCL's calls are counted"
    )
    rows = {line.split()[0]: float(line.split()[1]) for line in out.splitlines()[2:4]}
    assert 6.6 < rows["planned"] < 10 < rows["nccl"]
    _, out, _ = run(capsys, *H100, "--bytes", "64KiB", "--compare", "planned,nccl", "--launch-us", "0")
    assert "- planned: with 0 us a round to launch and 82%" in out
    assert "as NCCL's calls" not in run(capsys, *H100, "--bytes", "64KiB", "--compare", "planned,ring")[1]
    made = document(capsys, *H100, "--bytes", "64KiB", "--compare", "planned,nccl")
    assert made["runs"][0]["counted"].startswith("6.6 us a round") and made["runs"][1]["counted"] == ""


def test_what_is_not_possible_here_is_a_line_below_the_table(capsys):
    status, out, _ = run(capsys, *H100, "--hosts", "2", "--bytes", "1MiB", "--compare", "ring,switch-sum")
    assert status == 0
    assert "- switch-sum: topology 'dgx-h100 x 2': no switch that folds is above h0/GPU0" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80
    assert "no switch that folds" in refused(capsys, *H100, "--hosts", "2", "--bytes", "8", "--algorithm", "switch-sum")


def test_json_has_every_run_with_its_path_and_links(capsys):
    made = document(capsys, *H100, "--bytes", "64KiB", "--compare", "planned,ring")
    assert [one["algorithm"] for one in made["runs"]] == ["planned", "ring"]
    assert made["topology_digest"] == catalog("dgx-h100").digest
    for one in made["runs"]:
        assert one["critical_path"][-1]["end_us"] == one["total_us"]
        assert len(one["links"]) == 16


def test_a_saved_plan_keeps_its_rules(capsys, tmp_path):
    box = catalog("dgx-h100")
    saved = plan(box, payload_bytes=4096, ports=3)
    saved.save(tmp_path / "plan.json")
    (one,) = document(capsys, *H100, "--plan", str(tmp_path / "plan.json"), "--ports", "3")["runs"]
    assert one["total_us"] == pytest.approx(saved.figures.predicted_us)
    slow = document(capsys, *H100, "--plan", str(tmp_path / "plan.json"), "--what-if", "nvlink=1")["runs"][0]
    assert slow["total_us"] > one["total_us"]


def test_a_trace_is_written_whole(capsys, tmp_path):
    path = tmp_path / "trace.json"
    status, _, _ = run(capsys, *H100, "--bytes", "64KiB", "--trace", str(path))
    assert status == 0
    assert {event["ph"] for event in json.loads(path.read_text())["traceEvents"]} == {"M", "X"}


def test_a_slower_link_is_named_in_the_title_and_takes_longer(capsys):
    before = document(capsys, *H100, "--bytes", "64MiB", "--algorithm", "ring")["runs"][0]["total_us"]
    made = document(capsys, *H100, "--bytes", "64MiB", "--algorithm", "ring", "--what-if", "GPU0->nvswitch0=225")
    assert made["topology"] == "dgx-h100 with GPU0->nvswitch0=225 GB/s"
    assert made["runs"][0]["total_us"] == pytest.approx(2 * before, rel=0.05)


def test_sweeps_over_sizes_and_hosts(capsys):
    status, out, err = run(capsys, *H100, "--sweep", "bytes=1KiB:1MiB:32", "--compare", "planned,ring")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == ["allreduce", "bytes", "1024", "32768", "1048576"]
    assert err == "", "progress is for terminals"
    assert run(capsys, *H100, "-b", "1K", "-e", "1M", "-f", "32", "--compare", "Planned,RING")[1] == out
    assert "-b, -e and -f do not go with --sweep" in refused(capsys, *H100, "-b", "8", "-e", "9", "--sweep", "bytes=8")
    assert document(capsys, *H100, "-b", "1K")["runs"][0]["payload_bytes"] == 1024
    made = document(capsys, *H100, "--bytes", "1MiB", "--ports", "1", "--sweep", "hosts=1,2")
    times = [row["times_us"]["planned"] for row in made["sweep"]["rows"]]
    plans = [plan(catalog("dgx-h100", hosts=hosts), payload_bytes=1 << 20) for hosts in (1, 2)]
    assert times == pytest.approx([each.figures.predicted_us for each in plans])


def test_options_of_planned_messages(capsys):
    plain, folded, sent = (
        document(capsys, *H100, "--bytes", "64KiB", *more)["runs"][0]
        for more in ((), ("--fold-gb-per-s", "100"), ("--protocols", "nccl-ll"))
    )
    assert folded["total_us"] > plain["total_us"]
    assert sent["wire_bytes"] == 2 * plain["wire_bytes"]
    launched = document(capsys, *H100, "--bytes", "1KiB", "--launch-us", "6.6", "--ports", "7")["runs"][0]
    assert launched["detail"] == "circulant"
