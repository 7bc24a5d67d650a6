"""A real lab: what its hosts see of each other, that nothing of it stays, and that other owners' labs do."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tools.netlab.conftest import PROGRAMS, ROOT, processes_named
from tools.netlab.commands import main
from tools.netlab.lab import HOST_SPACES, Lab
from tools.netlab.namespaces import LabError, enter, run
from tools.netlab.network import racks
from tools.netlab.records import find, records
from topocomm.errors import DeadlineError
from topocomm.topology.readers.plain import topology_json

SEEN = """
import os, sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
near = comm.Split_type(MPI.COMM_TYPE_SHARED).size
open(f"/dev/shm/{comm.rank}", "w").close()
comm.Barrier()
shown = ",".join(sorted(name for name in os.listdir("/dev/shm") if name.isdecimal()))
print(f"[{comm.rank}] {os.uname().nodename} near {near} shm {shown} of {comm.size}", flush=True)
"""


def interfaces():
    return {path.name for path in Path("/sys/class/net").iterdir()}


def test_hosts_have_names_memory_and_links_of_their_own(make_lab, environment):
    before = interfaces()
    lab = make_lab(2, 2)
    done = lab.mpirun(["python", "-c", SEEN], env=environment, timeout_s=30)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[0] host0 near 2 shm 0,1 of 4",
        "[1] host0 near 2 shm 0,1 of 4",
        "[2] host1 near 2 shm 2,3 of 4",
        "[3] host1 near 2 shm 2,3 of 4",
    ]
    assert "rate 100Mbit" in lab.run("host1", ["tc", "qdisc", "show", "dev", "lab0"])
    lab.set_rate("host1", 10.0)
    assert "rate 10Mbit" in lab.run("host1", ["tc", "qdisc", "show", "dev", "lab0"])
    with pytest.raises(LabError, match="host 'host7' is none of this lab, which has host0, host1"):
        lab.run("host7", ["true"])
    with pytest.raises(LabError, match="status 3: sorry"):
        lab.run("host0", ["sh", "-c", "echo sorry >&2; exit 3"])
    assert interfaces() == before  # nothing of it is in the machine's own network
    lab.close()
    assert not lab.directory.exists() and processes_named(lab.directory.name) == []


@pytest.mark.netlab
def test_nothing_stays_of_an_owner_that_is_killed(allowed):
    owner = subprocess.Popen(
        [sys.executable, PROGRAMS / "owner.py"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with owner:
        directory, *holders = owner.stdout.readline().split()
        assert len(processes_named(Path(directory).name)) >= 2  # the ranks
        owner.send_signal(signal.SIGKILL)
    until_s = time.monotonic() + 20
    while time.monotonic() < until_s and (processes_named(Path(directory).name) or any(map(runs, holders))):
        time.sleep(0.05)
    assert processes_named(Path(directory).name) == []
    assert not any(map(runs, holders))
    assert main(["clean"]) == 0
    assert not Path(directory).exists()


def runs(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.netlab
def test_a_lab_that_cannot_be_made_leaves_nothing(allowed, monkeypatch):
    made = []
    monkeypatch.setattr(
        "tools.netlab.wiring.connect", lambda network, processes: made.extend(processes.values()) or 1 / 0
    )
    lab = Lab(racks(2, 1, 100.0))
    with pytest.raises(ZeroDivisionError):
        lab.__enter__()
    assert len(made) == 4 and not any(map(runs, made)) and not lab.directory.exists()


@pytest.mark.netlab
def test_a_job_that_takes_too_long_is_ended(make_lab, environment):
    lab = make_lab(2, 1)
    text = "from mpi4py import MPI; import time; print('here', flush=True); time.sleep(60)"
    began_s = time.monotonic()
    with pytest.raises(DeadlineError, match=r"mpirun: not done after 3 s; it had printed last:\nhere"):
        lab.mpirun(["python", "-c", text], env=environment, timeout_s=3)
    assert time.monotonic() - began_s < 20


@pytest.mark.netlab
def test_a_lab_of_the_command_line_is_there_until_down(allowed, tmp_path, capfd):
    path = tmp_path / "lab.json"
    path.write_text(topology_json.dumps(racks(2, 1, 100.0)))
    assert main(["up", str(path)]) == 0
    owner = capfd.readouterr().out.split()[1].rstrip(":")
    try:
        assert main(["list"]) == 0
        assert f"lab {owner}: 2 hosts, " in capfd.readouterr().out
        text = "from mpi4py import MPI; print(MPI.Get_processor_name(), flush=True)"
        assert main(["run", f"--lab={owner}", "--", "python", "-c", text]) == 0
        assert sorted(capfd.readouterr().out.split()) == ["host0", "host1"]
        assert main(["run", f"--lab={owner}", "--", "python", "-c", "raise SystemExit(5)"]) == 1
        lab = Lab.attached(find(int(owner)))
        assert main(["rate", "host1", "7", f"--lab={owner}"]) == 0
        assert "rate 7Mbit" in lab.run("host1", ["tc", "qdisc", "show", "dev", "lab0"])
        assert main(["cut", "host1", "leaf0", f"--lab={owner}"]) == 0
        assert "NO-CARRIER" in lab.run("host1", ["ip", "link", "show", "lab0"])
        assert main(["mend", "host1", f"--lab={owner}"]) == 0
        assert "NO-CARRIER" not in lab.run("host1", ["ip", "link", "show", "lab0"])
        assert main(["cut", "host7", f"--lab={owner}"]) == 2
        assert "no cable host7: the lab has host0-leaf0, host1-leaf0" in capfd.readouterr().err
    finally:
        assert main(["down", f"--lab={owner}"]) == 0
    assert all(record.owner[0] != int(owner) for record in records())
    assert main(["run", str(path), "--ranks=1", "--", "python", "-c", text]) == 0
    assert capfd.readouterr().out.split() == ["host0"]


@pytest.mark.netlab
def test_rates_hold_in_both_tiers(make_lab):
    """1 MiB between racks takes what the slower of both tiers lets through."""
    lab = make_lab(4, 1, 100.0, 2)
    lab.set_rate("leaf0", 20.0, "spine")
    near, far = (seconds_for_a_mebibyte(lab, "host0", other) for other in ("host1", "host2"))
    assert near >= 0.95 * (1 << 20) * 8 / 100e6
    assert far >= 0.95 * (1 << 20) * 8 / 20e6
    assert near < far


LISTEN = """
import socket
server = socket.create_server(("", 5999))
peer, _ = server.accept()
while peer.recv(1 << 20):
    pass
peer.close()
"""
SEND = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], 5999))
began_s = time.monotonic()
peer.sendall(bytes(1 << 20))
peer.shutdown(socket.SHUT_WR)
peer.recv(1)
print(time.monotonic() - began_s)
"""


def seconds_for_a_mebibyte(lab, sender, receiver):
    command = [*enter(lab.processes[receiver], *HOST_SPACES), sys.executable, "-c", LISTEN]
    with subprocess.Popen(command):
        until_s = time.monotonic() + 10
        while (
            ":176F" not in run(["cat", "/proc/net/tcp"], lab.processes[receiver], "-n") and time.monotonic() < until_s
        ):
            time.sleep(0.02)
        return float(lab.run(sender, [sys.executable, "-c", SEND, f"{receiver}-lab"]))
