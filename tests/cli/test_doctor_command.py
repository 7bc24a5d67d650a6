"""`topocomm doctor`: status and output, alone, on machines that are given, and under mpirun."""

import platform
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.command_line import runs
from tests.mpi import mpirun
from topocomm import TopologyError, catalog
from topocomm.cli import doctor_command as doctor
from topocomm.topology.readers.plain.topology_json import dumps

ROOT = str(Path(__file__).parents[2])


run = runs("doctor")


def test_alone(capsys):
    status, out, err = run(capsys)
    assert (status, err) == (0, "")
    assert re.search(r"^info  launcher +none: this process is alone", out, re.MULTILINE)
    assert re.search(r"^ok    python +3\.", out, re.MULTILINE)
    assert not re.search(r"^FAIL", out, re.MULTILINE)


def test_a_fail_is_status_1(capsys, monkeypatch):
    monkeypatch.setenv("TOPOCOMM_CHECK", "sometimes")
    status, out, _ = run(capsys, "--report")
    assert status == 1
    assert re.search(r"^FAIL  settings +TOPOCOMM_CHECK='sometimes'", out, re.MULTILINE)
    assert "TOPOCOMM_CHECK=sometimes" in out


def test_a_machine_that_is_given_is_checked_alone(capsys, monkeypatch, tmp_path):
    """The checks of this process say nothing of a dump."""
    monkeypatch.setenv("TOPOCOMM_CHECK", "sometimes")
    whole = catalog("dgx-h100")
    hidden = replace(whole, devices=tuple(d for d in whole.devices if d.id != "GPU2"), links=(), pairs=())
    file = tmp_path / "dump.json"
    file.write_text(dumps(hidden))
    for words, level in ((["--system", "dgx-h100"], "ok"), (["--input", str(file)], "warn")):
        status, out, err = run(capsys, *words)
        assert (status, err) == (0, "")
        assert re.search(rf"^{level:5} hidden GPUs", out, re.MULTILINE)
        assert not re.search(
            r"^\w+ +(python|numpy|mpi4py|launcher|shared memory|settings|transport) ", out, re.MULTILINE
        )


def test_a_dump_without_endpoints_is_a_fail(capsys, tmp_path):
    file = tmp_path / "empty.json"
    file.write_text('{"devices": [], "links": []}')
    status, out, _ = run(capsys, "--input", str(file))
    assert status == 1
    assert re.search(r"^FAIL  topology +empty", out, re.MULTILINE)


def test_a_cluster_is_reported_by_the_command(tmp_path):
    file = tmp_path / "dump.json"
    file.write_text(dumps(catalog("dgx-h100", hosts=4)))
    command = [sys.executable, "-m", "topocomm", "doctor", "--input", str(file), "--report"]
    assert subprocess.run(command, capture_output=True, check=True, cwd=ROOT).stdout.startswith(b"```text\n")


def test_hosts_without_a_system_are_bad_usage(capsys):
    status, out, err = run(capsys, "--hosts", "2")
    assert (status, out) == (2, "")
    assert "--system" in err


def test_bad_sources_are_status_2(capsys):
    status, out, err = run(capsys, "--system", "dgx-h1000")
    assert (status, out, err.count("\n")) == (2, "", 1)


def test_a_machine_that_cannot_be_read_is_a_finding(capsys, monkeypatch):
    def fail(_):
        raise TopologyError("sysfs is broken")

    monkeypatch.setattr(doctor, "read_sources", fail)
    status, out, _ = run(capsys)
    assert status == 1
    assert "sysfs is broken" in out


def test_under_mpirun_rank_0_prints_once_and_says_the_transport():
    job = mpirun(2, ["-m", "topocomm", "doctor", "--report"], env={"PYTHONPATH": ROOT})
    assert job.returncode == 0, job.stdout + job.stderr
    assert job.stdout.count("Which transport an allreduce") == 1
    assert "2 of 2 ranks see each other" in job.stdout
    assert "ranks 0-1 share memory" in job.stdout
    assert "OMPI_COMM_WORLD_SIZE=2" in job.stdout
    assert "in rank order on every host" in job.stdout
    assert job.stdout.startswith("```text\n")
    assert platform.node() not in job.stdout


@pytest.mark.long
def test_under_mpirun_ranks_that_differ_are_named():
    program = (
        "import os, sys; rank = os.environ['OMPI_COMM_WORLD_RANK']; "
        "os.environ.update({'NUMBA_DISABLE_JIT': '1'} if rank == '1' else {}); "
        "sys.modules.update({'topocomm.native._native': None} if rank == '1' else {}); "
        "from topocomm.cli.main import main; sys.exit(main(['doctor']))"
    )
    job = mpirun(2, ["-c", program], env={"PYTHONPATH": ROOT})
    assert job.returncode == 1, job.stdout + job.stderr
    assert re.search(r"^warn  numba +rank 1: ", job.stdout, re.MULTILINE)
    assert re.search(r"^ok    numba +rank 0: ", job.stdout, re.MULTILINE)
    assert re.search(r"^warn  native +rank 1: ", job.stdout, re.MULTILINE)
    words = " ".join(job.stdout.split())
    assert "MPI messages within a host: no compiled code on every rank" in words
    assert re.search(r"FAIL calls rank 0: ranks disagree .*kernel .*install the same on all ranks", words)


def test_two_mpis_are_a_fail(capsys, monkeypatch):
    """A launcher that has started four ranks, of which MPI sees one."""
    program = "import sys; from topocomm.cli.main import main; sys.exit(main(['doctor']))"
    job = mpirun(1, ["-c", f"import os; os.environ['OMPI_COMM_WORLD_SIZE'] = '4'; {program}"], env={"PYTHONPATH": ROOT})
    assert job.returncode == 1
    assert re.search(r"^FAIL  (world|communicator)", job.stdout, re.MULTILINE)
    assert "started 4 ranks" in " ".join(job.stdout.split())


def test_the_library_of_another_mpi_is_a_fail_before_it_is_initialised(tmp_path):
    """Open MPI's mpirun on a process that loads MPICH."""
    package = tmp_path / "mpi4py"
    package.mkdir()
    (package / "__init__.py").write_text("class rc:\n    initialize = True\n")
    (package / "MPI.py").write_text("def Get_library_version():\n    return 'MPICH Version: 5.0.2, more'\n")
    job = mpirun(2, ["-m", "topocomm", "doctor"], env={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert job.returncode == 1, job.stdout + job.stderr
    words = " ".join(job.stdout.split())
    assert "FAIL launcher Open MPI's mpirun started rank 0 of 2 on MPICH Version: 5.0.2 -> start with" in words


def test_a_report_on_a_narrow_terminal_has_its_width(capsys, monkeypatch):
    words = ("--report", "--system", "dgx-h100")
    findings = run(capsys, *words)[1].partition("Findings\n")[2].partition("\n\n")[0].splitlines()
    assert 80 < max(map(len, findings)) <= 98
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    narrow = run(capsys, *words)[1].partition("Findings\n")[2].partition("\n\n")[0].splitlines()
    assert max(map(len, narrow)) <= 60
    assert " ".join(" ".join(narrow).split()) == " ".join(" ".join(findings).split())
