"""`topocomm inspect` of a job: one topology of all its ranks, printed once, and measured on demand."""

import json
from pathlib import Path

import pytest

from tests.cli.command_line import runs
from tests.mpi import mpirun
from topocomm.cli.main import main
from topocomm.execute.measure import ping_pong
from topocomm.topology.recognise import load

ROOT = str(Path(__file__).parents[2])


run = runs("inspect")


def job(ranks, *words):
    return mpirun(ranks, ["-m", "topocomm", *words], env={"PYTHONPATH": ROOT})


@pytest.fixture
def quick(monkeypatch):
    """Every pair has 5 us and 2 GB/s."""
    figures = [4.0, 5.0, 6.0, *[5.0 + ping_pong.RATE_BYTES / 2e3] * 3]
    monkeypatch.setattr(ping_pong, "_play", lambda two, on: figures)


def test_measured_stands_beside_nominal(quick, capsys):
    status, out, err = run(capsys, "--measure")
    assert (status, err) == (0, "")
    tree, table = out.split("\nMeasured between ")
    assert ", measured)" in tree.splitlines()[0]
    assert tree.splitlines()[-2:] == [
        "Next: topocomm inspect --measure --json --output machine.json",
        "      topocomm plan --input machine.json --bytes 64KiB",
    ]
    head, *rows = table.splitlines()[2:]
    assert head.split() == ["pair", "code", "us", "nominal", "x", "GB/s", "nominal", "x"]
    for row in rows:
        assert row.split()[4:5] == ["5"]
        assert row.split()[7:8] == ["2"]
        assert "(" in row  # the rate between cores is assumed


def test_other_formats_are_of_the_measured_topology_and_the_table_goes_to_stderr(quick, capsys, tmp_path):
    file = tmp_path / "machine.json"
    status, out, err = run(capsys, "--measure", "--format", "json", "--output", str(file))
    assert (status, out) == (0, "")
    assert err.startswith("Measured between ")
    found = load(file)
    measured = [link for link in found.links if link.latency_us_source == "measured"]
    assert measured
    assert {link.gb_per_s for link in measured} == {2.0}
    assert main(["plan", "--input", str(file), "--bytes", "64KiB", "--format", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["topology_digest"] == found.digest


def test_measured_can_be_compared_with_what_was_before(quick, capsys, tmp_path):
    before = tmp_path / "before.json"
    assert run(capsys, "--format", "json", "--output", str(before))[0] == 0
    status, out, err = run(capsys, "--measure", "--compare", str(before))
    assert status == 0
    assert "GB/s 2 -> not known" in out
    assert err.startswith("Measured between ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--system", "dgx-h100"), "--measure times messages on the machine of this job: leave --system out"),
        (("--input", "a.txt"), "--measure times messages on the machine of this job: leave --input out"),
        (("--hosts", "2"), "--measure times messages on the machine of this job: leave --hosts out"),
    ],
)
def test_only_the_machine_of_the_job_can_be_measured(capsys, words, message):
    status, out, err = run(capsys, "--measure", *words)
    assert (status, out, err) == (2, "", f"topocomm inspect: {message}\n")


def test_under_mpirun_the_job_is_shown_once_with_the_places_of_its_ranks():
    done = job(3, "inspect", "--format", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [place["rank"] for place in document["ranks"]] == [0, 1, 2]


@pytest.mark.long
def test_under_mpirun_the_next_command_is_for_the_same_job():
    done = job(3, "inspect")
    assert done.stdout.endswith("\nNext: mpirun -n 3 topocomm plan --bytes 64KiB\n")


@pytest.mark.long
def test_under_mpirun_what_is_measured_is_printed_once():
    done = job(2, "inspect", "--measure", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Measured between 2 ranks by mpi") == 1
    document = json.loads(done.stdout)
    assert len(document["facts"]["ping_pong"]["rank_pairs"]) == 1
    assert any(link.get("gb_per_s_source") == "measured" for link in document["links"])


@pytest.mark.parametrize(
    "command",
    [
        ("plan", "--bytes", "64KiB"),
        pytest.param(("order",), marks=pytest.mark.long),
        pytest.param(("inspect", "--system", "dgx-h100"), marks=pytest.mark.long),
    ],
)
def test_under_mpirun_other_commands_print_once(command):
    done = job(2, *command)
    alone = job(1, *command) if command[0] == "inspect" else None
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert done.stdout.count(first) == 1
    assert alone is None or done.stdout == alone.stdout
