"""Which processes can see each other."""

from __future__ import annotations

import os
from pathlib import Path


def process_space() -> tuple[str, str]:
    """What tells machines and process namespaces apart: within one, /proc shows all processes.

    Where the system does not tell, every process has one of its own.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot, os.readlink("/proc/self/ns/pid")
    except OSError:
        return f"process {os.getpid()} of {os.uname().nodename}", ""
