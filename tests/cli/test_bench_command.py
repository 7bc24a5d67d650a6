"""`topocomm bench` alone and under mpirun: what it prints, what it finds, how it ends."""

import csv
import io
import json
import os
from pathlib import Path

import pytest

from tests.bench import operators
from tests.cli.command_line import runs
from tests.mpi import mpirun
from tests.simulation.test_trace_events import check_format
from topocomm.cli import bench_command as bench
from topocomm.cli.bench_command import TRACED_CALLS
from topocomm.cli.main import main
from topocomm.execute.device.device_library import FOR_THREADS

ROOT = str(Path(__file__).parents[2])
ROW_KEYS = {"size", "count", "type", "redop", "root", "out_of_place", "in_place", "implementation", "plan_digest"}
ROW_KEYS |= {"p50_us", "p99_us", "predicted_us", "predicted_over_measured", "transport", "algorithm", "rounds"}
CELL_KEYS = {"time", "alg_bw", "bus_bw", "nwrong"}
QUICK = ("-n", "2", "-w", "1")


run = runs("bench")


def job(ranks, *words, env=None):
    return mpirun(ranks, ["-m", "topocomm", "bench", *words], env={"PYTHONPATH": ROOT, **(env or {})})


@pytest.fixture
def with_attention(tmp_path):
    """A path on which the entry point of this tree is found, whatever is installed."""
    entry = tmp_path / "entry-0.dist-info"
    entry.mkdir()
    (entry / "METADATA").write_text("Metadata-Version: 2.1\nName: entry\nVersion: 0\n")
    (entry / "entry_points.txt").write_text("[topocomm.bench]\nattention.logsumexp = attention.bench\n")
    return {"PYTHONPATH": f"{ROOT}:{tmp_path}"}


@pytest.fixture
def planted(monkeypatch):
    def plant(operator):
        monkeypatch.setattr(bench, "find_operator", lambda name: operator)

    return plant


def test_alone_it_runs_on_threads(capsys):
    status, out, err = run(capsys, "-b", "8", "-e", "4K", "-f", "64", *QUICK)  # --sizes 8:4KiB:64, as nccl-tests has it
    assert (status, err) == (0, "")
    lines = out.splitlines()
    words = " ".join(line[2:] for line in lines if line.startswith("#"))
    for part in ("2 ranks on 1 host", "by threads", "algbw = size / time", "busbw =", "float64 check", "plan per size"):
        assert part in words
    body = [line.split() for line in lines if not line.startswith("#")]
    assert [int(fields[0]) for fields in body] == [8, 8, 512, 512, 4096, 4096]
    assert all((fields[8], fields[12]) == ("0", "0") for fields in body)
    assert lines[-2] == "# Out of bounds values : 0 OK"
    assert lines[-1].startswith("# Avg bus bandwidth    : ")


@pytest.mark.parametrize("launcher", [None, "mpirun"])
def test_threads_have_the_environment_that_cuda_starts_with(monkeypatch, launcher):
    for name in FOR_THREADS:
        monkeypatch.setenv(name, "as before")  # which is restored
        monkeypatch.delenv(name)
    monkeypatch.setattr(bench, "launched_as", lambda: launcher and (launcher, 0, 2))
    seen = []
    monkeypatch.setattr(bench, "run_on_ranks", lambda *told: seen.append(dict(os.environ)) or 0)
    main(["bench", "--sizes", "8"])
    assert (FOR_THREADS.items() <= seen[0].items()) == (launcher is None)


def test_json_is_one_document_with_the_keys_of_nccl_tests(capsys):
    status, out, err = run(capsys, "--sizes", "4KiB", "--format", "json", "--ranks", "3", *QUICK)
    assert (status, err) == (0, "")
    document = json.loads(out)
    assert document["out_of_bounds"] == {"count": 0, "okay": True}
    assert document["average_bus_bandwidth"]["bandwidth"] > 0
    assert document["facts"]["ranks"] == 3
    for row in document["results"]:
        assert row.keys() >= ROW_KEYS
        assert (row["size"], row["count"], row["type"], row["redop"], row["root"]) == (4096, 1024, "float32", "sum", -1)
        for place in ("out_of_place", "in_place"):
            assert row[place].keys() >= CELL_KEYS
            assert row[place]["nwrong"] == 0
            assert row[place]["bus_bw"] == pytest.approx(row[place]["alg_bw"] * 4 / 3)
            assert row[place]["alg_bw"] == pytest.approx(4096 / row[place]["time"] / 1000)
        assert row["predicted_over_measured"] == pytest.approx(row["predicted_us"] / row["p50_us"])


def test_csv_has_the_same_rows_flat(capsys):
    status, out, _ = run(capsys, "--sizes", "64", "--format", "csv", *QUICK)
    assert status == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["implementation"] for row in rows] == ["topocomm", "topocomm prepared"]
    assert rows[0].keys() >= {"size", "out_of_place_time", "in_place_nwrong", "plan_digest", "p99_us"}


@pytest.mark.parametrize("collective", ["reduce", "allgather", "exscan"])
def test_other_collectives(capsys, collective):
    status, out, _ = run(
        capsys, "--collective", collective, "--sizes", "4000", "--format", "json", "--ranks", "3", *QUICK
    )
    assert status == 0
    row = json.loads(out)["results"][0]
    assert row["collective"] == collective
    assert row["out_of_place"]["nwrong"] == 0


def test_a_wrong_operator_is_found(capsys, planted):
    planted(operators.OFF)
    status, out, _ = run(capsys, "--sizes", "4KiB", *QUICK)
    assert status == 1
    assert "FAILED" in out.splitlines()[-2]
    assert all(int(line.split()[8]) > 0 for line in out.splitlines() if not line.startswith("#"))


def test_a_trace_has_a_few_calls_of_each_size_of_all_ranks(capsys, tmp_path):
    file = tmp_path / "trace.json"
    status, out, _ = run(capsys, "--sizes", "64:256:4", "-n", "2", "--ranks", "2", "--trace", str(file))
    assert status == 0 and "allreduce" in out
    events, processes, _ = check_format(file.read_text())
    assert len(processes) == 2
    calls = [event["args"]["bytes"] for event in events if event.get("cat") == "calls"]
    assert sorted(calls) == [64] * 2 * TRACED_CALLS + [256] * 2 * TRACED_CALLS


def test_a_trace_does_not_go_with_bits(capsys, tmp_path):
    status, _, err = run(capsys, "--bits", "--trace", str(tmp_path / "x.json"))
    assert status == 2 and "--trace does not go with --bits" in err


def test_bits_agree(capsys):
    status, out, err = run(capsys, "--bits", "--sizes", "1000", "--operator", "attention.logsumexp")
    assert (status, out) == (2, "")
    assert "a row is 516 bytes" in err
    status, out, _ = run(capsys, "--bits", "--sizes", "516", "--operator", "attention.logsumexp")
    assert status == 0
    body = [line.split() for line in out.splitlines() if not line.startswith("#")]
    assert [fields[1] for fields in body] == ["any", "canonical"]
    assert all(len(fields[3]) == 64 for fields in body)
    assert out.splitlines()[-1].endswith("the same, OK")


@pytest.mark.every_case
@pytest.mark.parametrize("form", ["text", "json", "csv"])
def test_bits_that_differ_are_status_1_with_the_first_difference(capsys, planted, form):
    planted(operators.DITHER)
    status, out, _ = run(capsys, "--bits", "--sizes", "256", "--format", form)
    assert status == 1
    if form == "text":
        assert "DIFFERENT BITS: rank" in out
        assert "element" in out
    elif form == "json":
        document = json.loads(out)
        assert document["okay"] is False
        assert document["results"][0]["difference"]["value"] != document["results"][0]["difference"]["reference"]
    else:
        assert "False" in out


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--sizes", "8:4"), ["--sizes", "FROM:TO:FACTOR"]),
        (("-b", "8", "--sizes", "8"), ["-b, -e and -f do not go with --sizes"]),
        (("--operator", "summ"), ["unknown operator 'summ'"]),
        (("--bits", "--collective", "scan"), ["--bits with --collective scan"]),
        (("-n", "0"), ["at least 1"]),
    ],
)
def test_bad_options_are_one_line_and_status_2(capsys, words, parts):
    status, out, err = run(capsys, *words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    for part in parts:
        assert part in err


def test_ranks_do_not_go_with_a_launcher(capsys, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    status, _, err = run(capsys, "--ranks", "2")
    assert status == 2
    assert "mpirun has started 4 ranks; leave --ranks out" in err


def test_only_rank_0_says_what_is_wrong_with_the_options(capsys, monkeypatch):
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    assert run(capsys, "--sizes", "x") == (0, "", "")  # else a launcher might end rank 0 before it has spoken
    assert run(capsys, "--iteration") == (0, "", "")


@pytest.mark.long
def test_under_mpirun_what_is_wrong_with_the_options_is_said_and_the_status():
    cases = [(["--operator", "summ"], "unknown operator 'summ'"), (["--iteration"], "--iteration")]
    for words, part in cases:  # a rank that does not speak must not end the job first
        ended = job(2, *words)
        assert ended.returncode == 2
        assert ended.stderr.count(part) == 1


def test_under_mpirun_the_alternatives_are_rows(with_attention):
    ended = job(
        3, "--operator", "attention.logsumexp", "--sizes", "16512", "--format", "json", *QUICK, env=with_attention
    )
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    rows = {row["implementation"]: row for row in document["results"]}
    assert list(rows) == [
        "topocomm",
        "topocomm prepared",
        "3 all-reduces + rescale",
        "3 all-reduces alone",
        "MAX + packed SUM",
        "one SUM + divide",
        "all-gather + local fold",
        "MPI user-defined op",
    ]
    wrong = {name: row["out_of_place"]["nwrong"] for name, row in rows.items()}
    assert wrong == {**dict.fromkeys(rows, 0), "3 all-reduces alone": None}
    assert rows["topocomm"]["transport"].startswith("shared memory")
    assert document["facts"]["pairs"] == {"shared memory": 3}


@pytest.mark.long
def test_under_mpirun_the_library_does_what_it_can():
    ended = job(2, "--sizes", "2KiB", "--format", "json", *QUICK)
    rows = {row["implementation"]: row for row in json.loads(ended.stdout)["results"]}
    assert list(rows)[2:] == ["MPI_Allreduce", "all-gather + local fold", "MPI user-defined op"]
    assert all(row["out_of_place"]["nwrong"] == 0 for row in rows.values())
    assert rows["MPI_Allreduce"]["in_place"]["nwrong"] == 0
    assert rows["MPI_Allreduce"]["predicted_us"] is None


@pytest.mark.long
def test_under_mpirun_other_collectives_have_their_library_call():
    ended = job(2, "--collective", "reduce_scatter", "--sizes", "2KiB", "--format", "json", *QUICK)
    assert ended.returncode == 0, ended.stderr
    rows = json.loads(ended.stdout)["results"]
    assert any(row["implementation"] == "MPI_Reduce_scatter_block" for row in rows)
    assert all((row["out_of_place"] or row["in_place"])["nwrong"] == 0 for row in rows)


@pytest.mark.long
def test_bits_under_mpirun():
    ended = job(2, "--bits", "--sizes", "1KiB:64KiB:64", "--format", "json")
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    trials = document["results"][0]["trials"]
    for part in ("shared memory", "in place", "handle", "MPI messages", "threads, rank 1"):
        assert any(part in trial for trial in trials), part
    digests = {row["order"]: row["plan_digest"] for row in document["results"]}
    assert len(digests["any"]) == 64
    assert digests["canonical"] is None
    assert {(row["size_bytes"], row["order"]) for row in document["results"]} == {
        (1024, "any"),
        (1024, "canonical"),
        (1 << 16, "any"),
        (1 << 16, "canonical"),
    }


@pytest.mark.long
def test_a_trace_under_mpirun_has_the_messages_of_every_round(tmp_path):
    file = tmp_path / "trace.json"
    ended = job(3, "--sizes", "1KiB", *QUICK, "--trace", str(file))
    assert ended.returncode == 0, ended.stderr
    events, processes, _ = check_format(file.read_text())
    assert len(processes) == 3
    rounds = [event for event in events if event.get("cat") == "rounds"]
    sent = sum(message["bytes"] for event in rounds for message in event["args"]["sends"])
    heard = sum(message["bytes"] for event in rounds for message in event["args"]["receives"])
    assert sent == heard > 0
