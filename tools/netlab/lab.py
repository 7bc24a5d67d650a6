"""A lab: hosts of a topology on this machine, and MPI jobs over them.

    with Lab(topology) as lab:
        done = lab.mpirun([sys.executable, "program.py"], timeout_s=60)

Each host has network, hostname, /etc/hosts, /dev/shm and process ids of its own. Hosts see each other by TCP alone.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from topocomm.errors import DeadlineError
from topocomm.topology.model import Topology
from topocomm.topology.readers.plain import topology_json

from . import wiring
from .namespaces import Holder, LabError, end, enter, ranks_in, run, why_not
from .network import GB_PER_S_PER_MBIT, network_of
from .records import Record, clean, identity, new_directory

JOB_TIMEOUT_S = 120.0
GRACE_S = 5.0
"""Time for mpirun to end its ranks when it is asked to."""
HOST_SPACES = ("-n", "-u", "-m", "-i", "-p")
LAUNCHER_SPACES = ("-n", "-u", "-m")
OPEN_MPI = (
    ("--prtemca", "prte_if_include", wiring.MANAGEMENT),
    ("--mca", "pml", "ob1"),
    ("--mca", "btl", "self,sm,tcp"),
    ("--mca", "btl_tcp_if_include", wiring.DATA),
)
"""Launcher and daemons talk on the management network, ranks on the one under test; no other transport is tried."""


class Job:
    """A started mpirun, whose output is collected.

    Attributes:
        process: mpirun.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.command = list(command)
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(environment),
            start_new_session=True,
        )

    def wait(self, timeout_s: float = JOB_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        """Return the finished job.

        Raises:
            DeadlineError: It is not done in time; it was ended, and the text says what it had printed last.
        """
        try:
            stdout, stderr = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            stdout, stderr = self.end()
            tail = "\n".join([*stdout.splitlines()[-10:], *stderr.splitlines()[-10:]])
            raise DeadlineError(f"mpirun: not done after {timeout_s:g} s; it had printed last:\n{tail}") from None
        return subprocess.CompletedProcess(self.command, self.process.returncode, stdout, stderr)

    def end(self) -> tuple[str, str]:
        """End mpirun, politely first, and return what it printed."""
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal_number)
            with suppress(subprocess.TimeoutExpired):
                return self.process.communicate(timeout=GRACE_S)
        self.close()
        return "", ""

    def close(self) -> None:
        """Close the pipes."""
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


class Lab:
    """Hosts on this machine; a context manager, whose end removes them.

    Args:
        topology: Hosts, endpoints and the network between (`network.network_of` says what it must have).

    Attributes:
        warnings: What the kernel cannot do of the topology.
        directory: Files of the lab; removed with it.

    Raises:
        LabError: Namespaces are not allowed here, or the kernel refuses something; says what.
        TopologyError: The topology is none that the lab can make.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology, self.network = topology, network_of(topology)
        self.warnings: list[str] = []
        self.directory = Path()
        self.processes: dict[str, int] = {}
        self._holders: dict[str, Holder] = {}
        self._jobs: list[Job] = []

    @classmethod
    def attached(cls, record: Record) -> Lab:
        """Return a lab that another process owns."""
        text = Path(record.topology).read_text()
        lab = cls(topology_json.read(text, record.topology))
        lab.directory = Path(record.directory)
        lab.processes = {name: process for name, (process, _) in record.holders.items()}
        return lab

    def __enter__(self) -> Self:
        if (reason := why_not()) is not None:
            raise LabError(f"no lab on this machine: it {reason}")
        clean()
        self.directory = new_directory()
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all jobs and hosts, and remove the lab's files."""
        for job in self._jobs:
            if job.process.poll() is None:
                job.end()
            job.close()
        for holder in self._holders.values():
            holder.kill()
        self._holders.clear()
        self.processes.clear()
        shutil.rmtree(self.directory, ignore_errors=True)

    def kill(self, host: str) -> None:
        """End a host with all its processes at once; Open MPI's mpirun then ends the whole job, under ULFM too.

        Later jobs run on the other hosts.
        """
        self._known(host)
        if host not in self._holders:
            raise LabError(f"host {host}: only the owner of a lab kills hosts")
        self._holders[host].kill()
        self._write_hostfile()

    def kill_ranks(self, host: str) -> list[int]:
        """End all MPI ranks on a host at once and return their process ids; mpirun's daemon there lives on."""
        self._known(host)
        ranks = ranks_in(self.processes[host])
        for process in ranks:
            end(process)
        return ranks

    def set_rate(self, lower: str, mbit_per_s: float, upper: str | None = None) -> None:
        """Give the cable of a host, or of the switch `lower` to `upper`, another rate in both directions."""
        rate = mbit_per_s * GB_PER_S_PER_MBIT
        wiring.set_rate(self.network, self.network.cable(lower, upper), rate, self.processes)

    def cut(self, lower: str, upper: str | None = None) -> None:
        """Cut the cable of a host, or of the switch `lower` to `upper`; packets on it are lost."""
        wiring.set_link(self.network, self.network.cable(lower, upper), False, self.processes)

    def mend(self, lower: str, upper: str | None = None) -> None:
        """Put a cable back that was cut."""
        wiring.set_link(self.network, self.network.cable(lower, upper), True, self.processes)

    def run(self, host: str, command: Sequence[str]) -> str:
        """Run a short command on a host and return what it prints; raises LabError if it fails."""
        self._known(host)
        return run(command, self.processes[host], *HOST_SPACES)

    def start(
        self,
        arguments: Sequence[str | Path],
        *,
        ranks: int | None = None,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> Job:
        """Start `mpirun ARGUMENTS` over all hosts.

        Args:
            arguments: Program and arguments; `python` is the interpreter that runs this.
            ranks: How many; None: as many as the hosts take. Ranks fill host after host.
            options: Further options of mpirun.
            env: Further variables of the environment.
        """
        total = sum(host.slots for host in self.network.hosts)
        words = [sys.executable if word == "python" else str(word) for word in arguments]
        options = [*(word for option in OPEN_MPI for word in option), *options, "-n", str(ranks or total)]
        files = ["--hostfile", str(self.directory / "hostfile"), "--prtemca", "plm_ssh_agent", str(self._agent)]
        files += ["--prtemca", "prte_tmpdir_base", str(self.scratch)]
        command = [*enter(self.processes[wiring.LAUNCHER], *LAUNCHER_SPACES), "mpirun", *files, *options, *words]
        job = Job(command, self.environment(env or {}))
        self._jobs.append(job)
        return job

    def mpirun(
        self,
        arguments: Sequence[str | Path],
        *,
        timeout_s: float = JOB_TIMEOUT_S,
        ranks: int | None = None,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run `mpirun ARGUMENTS` over all hosts and return the finished job; arguments as of `start`.

        Raises:
            DeadlineError: It is not done in time.
        """
        return self.start(arguments, ranks=ranks, options=options, env=env).wait(timeout_s)

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a job: the mpirun beside the interpreter, many ranks on few cores, own files."""
        beside = str(Path(sys.executable).parent)
        base = {
            "PRTE_MCA_rmaps_default_mapping_policy": "slot:oversubscribe",
            "PRTE_MCA_hwloc_default_binding_policy": "none",
            "OMPI_MCA_mpi_yield_when_idle": "1",
            "PATH": beside + os.pathsep + os.environ.get("PATH", os.defpath),
            "TMPDIR": str(self.scratch),
            **{f"{library}_SOCKET_IFNAME": wiring.DATA for library in ("GLOO", "TP", "NCCL")},
        }
        if os.geteuid() == 0:
            base |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return {**os.environ, **base, **more}

    @property
    def scratch(self) -> Path:
        """Folder for temporary files, the same path on every host and another memory on each."""
        return self.directory / "scratch"

    @property
    def _agent(self) -> Path:
        return self.directory / "agent"

    def _known(self, host: str) -> None:
        if host not in {known.name for known in self.network.hosts}:
            names = ", ".join(known.name for known in self.network.hosts)
            raise LabError(f"host {host!r} is none of this lab, which has {names}")

    def _start(self) -> None:
        topology = self.directory / "topology.json"
        topology.write_text(topology_json.dumps(self.topology))
        names = [host.name for host in self.network.hosts]
        for name in (wiring.SWITCHES, wiring.LAUNCHER, *names):
            self._holders[name] = Holder(name, own_processes=name in names)
            self.processes[name] = self._holders[name].process
        holders = {name: identity(process) for name, process in self.processes.items()}
        Record(str(self.directory), identity(os.getpid()), holders, str(topology)).save()
        self.warnings = wiring.connect(self.network, self.processes)
        self.scratch.mkdir()
        (self.directory / "hosts").write_text(wiring.hosts_file(self.network))
        self._write_hostfile()
        self._agent.write_text(self._agent_script())
        self._agent.chmod(0o755)
        for name in (wiring.LAUNCHER, *names):
            spaces = HOST_SPACES if name in names else LAUNCHER_SPACES
            run(["sh", "-ec", MOUNTS, "sh", str(self.directory)], self.processes[name], *spaces)

    def _write_hostfile(self) -> None:
        alive = [host for host in self.network.hosts if self._holders[host.name].is_alive]
        (self.directory / "hostfile").write_text("".join(f"{host.name} slots={host.slots}\n" for host in alive))

    def _agent_script(self) -> str:
        """The program that mpirun starts in place of ssh: HOST COMMAND..., in the host's namespaces."""
        lines = [
            "#!/bin/sh",
            "# HOST COMMAND...: runs the command on a host of the lab, as ssh would.",
            "host=$1; shift",
        ]
        lines.append('case "$host" in')
        for host in self.network.hosts:
            entering = " ".join(enter(self.processes[host.name], *HOST_SPACES))
            lines.append(f'{host.name}) exec {entering} sh -c "$*" ;;')
        lines += ['*) echo "no host $host in this lab" >&2; exit 255 ;;', "esac", ""]
        return "\n".join(lines)


MOUNTS = """
mount --bind "$1/hosts" /etc/hosts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=1777 tmpfs "$1/scratch"
"""
"""What a host has of its own: names, memory that its ranks share, temporary files."""
