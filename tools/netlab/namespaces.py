"""Namespaces of the lab's hosts, each held by one process, and commands inside them.

A host has network, name, mounts, IPC and process ids of its own. Its first process reads a pipe of the lab's owner and
ends when the pipe does: the owner may be killed, and the kernel ends all processes of the host and removes its
interfaces. Nothing has a name in the machine's own namespaces, so nothing can be left there.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from topocomm.errors import DeadlineError, TopocommError

COMMAND_TIMEOUT_S = 20.0
"""Limit of one command that sets the lab up."""
START_TIMEOUT_S = 10.0
TOOLS = ("unshare", "nsenter", "ip", "tc", "mount")


class LabError(TopocommError):
    """The lab cannot be made, or a command in it failed."""


class Holder:
    """A process that holds namespaces.

    Args:
        name: Hostname inside.
        own_processes: Whether it has process ids of its own, and ends all processes when it ends.

    Attributes:
        process: The process that `nsenter` enters by; its one child is the first process of the host.
    """

    def __init__(self, name: str, *, own_processes: bool = True) -> None:
        self.name, self.own_processes = name, own_processes
        command = ["unshare", "--net", "--uts", "--mount", "--ipc"]
        if own_processes:
            command += ["--pid", "--fork", "--mount-proc", "--kill-child=KILL"]
        self._process = subprocess.Popen(
            [*command, "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        self.process = self._process.pid
        self._await()
        run(["tee", "/proc/sys/kernel/hostname"], self.process, "-u", stdin=name)

    def _await(self) -> None:
        """Wait until the namespaces are there."""
        until_s = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready():
            if self._process.poll() is not None:
                said = (self._process.stderr.read() if self._process.stderr else b"").decode(errors="replace").strip()
                raise LabError(f"host {self.name}: unshare ended with status {self._process.returncode}: {said}")
            if time.monotonic() > until_s:
                self.kill()
                raise DeadlineError(f"host {self.name}: no namespaces after {START_TIMEOUT_S:g} s")
            time.sleep(0.002)

    def _is_ready(self) -> bool:
        """Whether `cat` runs: unshare has then made and mounted everything."""
        children = [self.process]
        if self.own_processes:
            with suppress(OSError):
                children = [int(word) for word in children_file(self.process).read_text().split()]
        names = []
        for child in children:
            with suppress(OSError):
                names.append(Path(f"/proc/{child}/comm").read_text().strip())
        return names == ["cat"]

    def kill(self) -> None:
        """End the host with all its processes at once, as a power cut does."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait(COMMAND_TIMEOUT_S)
        for pipe in (self._process.stdin, self._process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    @property
    def is_alive(self) -> bool:
        """Whether the host runs."""
        return self._process.poll() is None


def children_file(process: int) -> Path:
    """Return the file that lists the children of a process."""
    return Path(f"/proc/{process}/task/{process}/children")


def enter(process: int, *kinds: str) -> list[str]:
    """Return the command that runs what follows it in the namespaces of a holder; `kinds` as nsenter's options."""
    options = list(kinds)
    if "-p" in options:  # of the holder itself it is that of its children
        options[options.index("-p")] = f"--pid=/proc/{process}/ns/pid_for_children"
    return ["nsenter", "-t", str(process), *options, "--"]


def run(command: Sequence[str], process: int | None = None, *kinds: str, stdin: str | None = None) -> str:
    """Run a command, in a holder's namespaces if one is given, and return what it prints.

    Raises:
        LabError: It failed; says how.
        DeadlineError: It took longer than `COMMAND_TIMEOUT_S`.
    """
    whole = [*([] if process is None else enter(process, *kinds)), *command]
    try:
        done = subprocess.run(
            whole, input=stdin or "", capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise DeadlineError(f"{' '.join(whole)}: not done after {COMMAND_TIMEOUT_S:g} s") from None
    except FileNotFoundError:
        raise LabError(f"{whole[0]}: not found; install it (Debian: util-linux, iproute2)") from None
    if done.returncode:
        raise LabError(f"{' '.join(whole)}: status {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


@cache
def why_not() -> str | None:
    """Return why this process cannot make a lab here; None where it can. Tried once."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)} (Debian: util-linux, iproute2)"
    if os.geteuid() != 0:
        return "needs root, at least in a user namespace: start it under `unshare -Ur`"
    try:
        first, second = Holder("topocomm-netlab-trial"), None
    except TopocommError as error:
        return f"makes no namespaces here: {error}"
    try:
        second = Holder("topocomm-netlab-other")
        links = f"link add t0 type veth peer name t1 netns {second.process}\nlink add b0 type bridge\n"
        run(["ip", "-batch", "-"], first.process, "-n", stdin=links)
        limit = "qdisc add dev t0 root tbf rate 1mbit burst 6000 limit 9000\n"
        run(["tc", "-batch", "-"], first.process, "-n", stdin=limit)
    except TopocommError as error:
        return f"has no veth, bridge or tbf here: {error}"
    finally:
        for holder in (first, second):
            if holder is not None:
                holder.kill()
    return None


def has_netem(process: int, device: str) -> bool:
    """Return whether the kernel can delay packets; tried on a device that nothing uses yet."""
    try:
        run(["tc", "qdisc", "add", "dev", device, "root", "netem", "delay", "1us"], process, "-n")
    except LabError:
        return False
    run(["tc", "qdisc", "del", "dev", device, "root"], process, "-n")
    return True


def ranks_in(holder: int) -> list[int]:
    """Return the MPI ranks among the processes of a host, as their launcher's variables show them."""
    space, found = os.readlink(f"/proc/{holder}/ns/pid_for_children"), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # ended meanwhile, or none of ours
                is_rank = b"\0OMPI_COMM_WORLD_RANK=" in (entry / "environ").read_bytes()
                if is_rank and os.readlink(entry / "ns/pid") == space:
                    found.append(int(entry.name))
    return sorted(found)


def end(process: int) -> None:
    """End a process that may be gone."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
