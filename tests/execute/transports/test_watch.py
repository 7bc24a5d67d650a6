"""Processes of this host that end are seen."""

import os
import subprocess
import sys
import time

from topocomm.execute.transports.watch import Watch, process_space


def test_a_process_that_ends_is_told_with_its_rank():
    code = "import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE) as process:
        watch = Watch({3: process.pid, 1: os.getpid()})
        assert watch.ended() == {}
        process.stdin.close()
        until_s = time.monotonic() + 30
        while not watch.ended() and time.monotonic() < until_s:
            time.sleep(0.01)
        assert watch.ended() == {3: f"has ended (process {process.pid})"}
        watch.close()
        assert watch.ended() == {}


def test_processes_of_one_namespace_have_one_space(monkeypatch):
    command = "from topocomm.execute.transports.watch import process_space; print(*process_space(), sep='\\n')"
    other = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert tuple(other.stdout.split("\n")[:2]) == process_space()

    def no_link(path):
        raise OSError(path)

    monkeypatch.setattr(os, "readlink", no_link)  # a system that does not say
    assert process_space() == (f"process {os.getpid()} of {os.uname().nodename}", "")
