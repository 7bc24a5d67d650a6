"""What `topocomm simulate --model` prints, and what it turns away."""

import json
from functools import partial

import pytest

from tests.cli.test_simulate_command import H100, refused, run
from tests.cli.work.test_simulated_output import printed
from topocomm import catalog
from topocomm.simulation.decode import METHODS, simulate_step

STEP = (*H100, "--model", "tree-attention-block", "--context", "64K")


document = partial(printed, schema="topocomm.simulation-step/1")


def test_all_methods_side_by_side(capsys):
    status, out, _ = run(capsys, *STEP)
    lines = out.splitlines()
    assert status == 0
    assert lines[0] == "decode step of tree-attention-block, 8 ranks on dgx-h100"
    assert lines[1] == "context 65536, 1 sequence, 0.07 GB of keys and values a rank"
    rows = {line.split()[0]: line.split() for line in lines[3:]}
    assert set(rows) == set(METHODS)
    times = [float(row[1]) for row in rows.values()]
    assert times == sorted(times), "the fastest first"
    tree = simulate_step(catalog("dgx-h100"), "tree-attention-block", context=1 << 16)
    assert rows["tree"][1] == f"{tree.total_us / 1e3:.3f}"


def test_one_method_says_why(capsys):
    _, out, _ = run(capsys, *STEP, "--methods", "ring")
    assert "of 1 layer and the head:" in out
    assert "critical path, " in out
    assert "keys and values, round 0: " in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80


def test_json_has_every_step(capsys):
    made = document(
        capsys, *H100, "--model", "llama-3.1-8b", "--context", "128K", "--methods", "tree,helix", "--batch", "4"
    )
    assert [step["method"] for step in made["steps"]] == ["tree", "helix"]
    for step in made["steps"]:
        assert (step["batch"], step["context"]) == (4, 1 << 17)
        assert step["total_us"] == pytest.approx(step["simulated"]["total_us"] + 30 * step["layer_us"])
        assert step["tokens_per_s"] == pytest.approx(4e6 / step["total_us"])


def test_sweeps_over_contexts_and_hosts(capsys):
    _, out, err = run(capsys, *STEP[:4], "--sweep", "context=1K:1M:32", "--methods", "tree,ring")
    assert [line.split()[0] for line in out.splitlines()] == ["decode", "context", "1024", "32768", "1048576"]
    assert err == "", "progress is for terminals"
    made = document(capsys, *STEP, "--sweep", "hosts=1,2", "--methods", "tree")
    times = [row["times_us"]["tree"] for row in made["sweep"]["rows"]]
    expected = [
        simulate_step(catalog("dgx-h100", hosts=n), "tree-attention-block", context=1 << 16).total_us for n in (1, 2)
    ]
    assert times == pytest.approx(expected)


def test_options_reach_the_step(capsys, tmp_path):
    (plain,) = document(capsys, *STEP, "--methods", "tree")["steps"]
    (slower,) = document(capsys, *STEP, "--methods", "tree", "--device", "v100", "--efficiency", "0.5")["steps"]
    (free,) = document(capsys, *STEP, "--methods", "tree", "--launch-us", "0", "--algorithm", "ring")["steps"]
    assert slower["total_us"] > plain["total_us"]
    assert free["total_us"] - plain["total_us"] == pytest.approx(14 * 0.6 - 6.6 - 0.6, abs=1.0)
    trace = tmp_path / "trace.json"
    run(capsys, *STEP, "--methods", "tree", "--trace", str(trace))
    assert any(event["name"].startswith("attention") for event in json.loads(trace.read_text())["traceEvents"])


def test_methods_that_do_not_go_with_replicated_weights_are_a_line(capsys):
    status, out, _ = run(capsys, *H100, "--model", "llama-3.1-8b", "--context", "1K", "--weights", "replicated")
    assert status == 0
    named = [line.split(":")[0] for line in out.splitlines() if line.startswith("- ")]
    assert max(map(len, out.splitlines())) <= 80
    assert named == ["- method dcp", "- method dcp-a2a", "- method helix"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((*STEP[:4],), "--context is missing"),
        ((*STEP, "--methods", "star"), "'star': expected names of tree"),
        ((*STEP, "--bytes", "8"), "--bytes does not go with --model"),
        ((*STEP, "--compare", "ring"), "--compare does not go with --model"),
        ((*STEP, "--ports", "2"), "--ports does not go with --model"),
        ((*STEP, "--trace", "x"), "--trace goes with one method"),
        ((*STEP, "--sweep", "context=1K"), "--context does not go with --sweep context=..."),
        ((*STEP[:4], "--sweep", "hosts=1"), "--context is missing"),
        ((*STEP, "--sweep", "bytes=1K"), "--model goes with --sweep context=... or hosts=..."),
        ((*STEP, "--context", "many"), "--context 'many': expected a whole number"),
        ((*H100, "--model", "gpt", "--context", "1K"), "model 'gpt': expected one of llama-3.1-8b"),
        ((*STEP, "--device", "abacus"), "device 'abacus': expected one of"),
        ((*H100, "--bytes", "8", "--sweep", "context=1K"), "--sweep context=... goes with --model"),
    ],
)
def test_what_is_turned_away(capsys, words, why):
    assert why in refused(capsys, *words)
