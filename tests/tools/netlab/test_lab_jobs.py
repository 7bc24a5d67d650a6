"""Jobs over the hosts of a lab: results, and what ranks say when hosts and links are lost. `make netlab` runs them."""

import re
import time

import pytest

from tests.attention.jobs.conftest import tiny_model  # noqa: F401 the fixture
from tests.tools.netlab.conftest import PROGRAMS, lines_by_rank

pytestmark = [pytest.mark.netlab, pytest.mark.alone]
LIMIT_S = 4.0


@pytest.mark.parametrize(("hosts", "ranks", "n_racks"), [(2, 2, 1), (3, 1, 1), (4, 2, 2)])
def test_every_collective_over_hosts(make_lab, environment, hosts, ranks, n_racks):
    lab = make_lab(hosts, ranks, 1000.0, n_racks)
    program = ["python", PROGRAMS / "collectives_job.py", lab.directory / "topology.json"]
    done = lab.mpirun(program, env=environment, timeout_s=200)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert lines_by_rank(done.stdout) == {rank: [f"ok on {hosts} hosts"] for rank in range(hosts * ranks)}


def test_a_model_generates_over_two_hosts(make_lab, environment, tiny_model):  # noqa: F811
    lab = make_lab(2, 1)
    words = [
        f"--model={tiny_model}",
        "--prompt=a letter after another, and some more",
        "--max-new-tokens=20",
        "--verify",
    ]
    done = lab.mpirun(["python", "-m", "attention", "generate", *words], env=environment, timeout_s=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "check passed: 20 of 20 tokens" in done.stderr


def begun(job, *, ranks):
    """Read the job's lines until every rank has begun; return them."""
    lines, until_s = [], time.monotonic() + 60
    while sum("begun" in line for line in lines) < ranks:
        assert time.monotonic() < until_s and job.process.poll() is None, "".join(lines)
        lines.append(job.process.stdout.readline())
    return "".join(lines)


def stream(lab, environment, *words, options=()):
    return lab.start(["python", PROGRAMS / "stream_job.py", *map(str, words)], env=environment, options=options)


@pytest.mark.parametrize("n_bytes", [64, 1 << 20])
def test_a_host_that_is_lost_ends_the_job(make_lab, environment, n_bytes):
    """Open MPI's mpirun ends it, with status 0, when a daemon of its own is gone."""
    lab = make_lab(3, 2)
    job = stream(lab, environment, n_bytes, 100_000, LIMIT_S)
    begun(job, ranks=6)
    lab.kill("host1")
    began_s = time.monotonic()
    done = job.wait(40)
    assert time.monotonic() - began_s < LIMIT_S + 15
    assert re.search(r"Remote (host|daemon):.*host1", done.stdout + done.stderr)
    for rank, lines in lines_by_rank(done.stdout).items():  # those that come to say something before they are ended
        for line in lines:
            if "Error" in line:
                assert rank not in (2, 3) and re.search(r"rank [23]\b", line), line
    assert lab.run("host0", ["hostname"]) == "host0\n"
    again = lab.mpirun(["python", "-c", "print('again', flush=True)"], ranks=2, env=environment, timeout_s=30)
    assert again.stdout.split() == ["again", "again"]  # on host0: other hosts of the lab take new jobs


@pytest.mark.parametrize("n_bytes", [64, 1 << 18])
def test_the_other_hosts_go_on_where_mpi_survives(make_lab, environment, n_bytes):
    lab = make_lab(3, 2)
    job = stream(lab, environment, n_bytes, 100_000, LIMIT_S, "shrink", options=("--with-ft", "ulfm"))
    begun(job, ranks=6)
    assert len(lab.kill_ranks("host1")) == 2
    done = job.wait(60)
    said = lines_by_rank(done.stdout)
    for number, rank in enumerate((0, 1, 4, 5)):
        error, last = said[rank][-2:]
        assert re.match(rf"[\d.]+ s RankFailedError: rank {rank}: .*rank [23]\b", error), error + done.stderr[-2000:]
        assert float(error.split()[0]) < LIMIT_S + 3
        assert last == f"goes on as {number} of 4, before (0, 1, 4, 5)", error


def test_a_link_that_slows_down_slows_the_calls(make_lab, environment):
    lab = make_lab(2, 2)
    job = stream(lab, environment, 1 << 18, 24, 60.0)
    text = begun(job, ranks=4)
    lab.set_rate("host1", 5.0)
    done = job.wait(60)
    assert done.returncode == 0, done.stderr[-2000:]
    calls = [float(s) for s in re.findall(r"^\[0\] call \d+ ([\d.]+) s$", text + done.stdout, re.MULTILINE)]
    assert len(calls) == 24
    ideal_s = (1 << 18) * 8 / 5e6  # every byte crosses the slow link once in each direction
    assert min(calls[-5:]) > 0.9 * ideal_s > 3 * min(calls)


@pytest.mark.parametrize("n_bytes", [64, 1 << 20])
def test_a_partition_is_an_error_in_time_that_names_ranks(make_lab, environment, n_bytes):
    lab = make_lab(4, 1, 100.0, 2)
    job = stream(lab, environment, n_bytes, 100_000, LIMIT_S)
    begun(job, ranks=4)
    lab.cut("leaf1", "spine")
    began_s = time.monotonic()
    done = job.wait(60)
    assert time.monotonic() - began_s < LIMIT_S + 15
    assert done.returncode != 0
    errors = {rank: line for rank, lines in lines_by_rank(done.stdout).items() for line in lines if "Error" in line}
    assert errors, done.stderr[-2000:]
    for rank, line in errors.items():
        far = "[23]" if rank < 2 else "[01]"
        assert re.match(rf"[\d.]+ s \w+Error: rank {rank}: .*rank {far}\b", line), line
    waits = [line for line in errors.values() if "DeadlineError" in line]
    assert waits and all(float(line.split()[0]) < LIMIT_S + 3 for line in waits), errors


def test_a_link_that_comes_back_in_time_costs_only_time(make_lab, environment):
    lab = make_lab(2, 1)
    job = stream(lab, environment, 1 << 16, 60, 60.0)
    begun(job, ranks=2)
    lab.cut("host1")
    time.sleep(1.0)
    lab.mend("host1")
    done = job.wait(60)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
