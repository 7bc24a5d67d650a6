"""Processes of one host: visibility of each other, and ends."""

from __future__ import annotations

import os
import select
from collections.abc import Mapping
from pathlib import Path


class Watch:
    """Watcher of processes of this host, given by rank."""

    def __init__(self, processes: Mapping[int, int]) -> None:
        self._ranks: dict[int, tuple[int, int]] = {}
        self._poll = select.poll()
        for rank, process in processes.items():
            try:
                file = os.pidfd_open(process)
            except (AttributeError, OSError):  # not Linux, an old kernel, or no more file descriptors
                continue
            self._ranks[file] = (rank, process)
            self._poll.register(file, select.POLLIN)

    def ended(self) -> dict[int, str]:
        """Return the ranks whose process has ended, each with the evidence."""
        ranks = [self._ranks[file] for file, _ in self._poll.poll(0)]
        return {rank: f"has ended (process {process})" for rank, process in ranks}

    def close(self) -> None:
        """Stop watching."""
        for file in self._ranks:
            os.close(file)
        self._ranks.clear()
        self._poll = select.poll()

    def __del__(self) -> None:
        self.close()


def process_space() -> tuple[str, str]:
    """Return an id of the machine and process namespace, within which /proc shows all processes.

    Where the system does not tell, every process has one of its own.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot, os.readlink("/proc/self/ns/pid")
    except OSError:
        return f"process {os.getpid()} of {os.uname().nodename}", ""
