"""Checks of shared memory between ranks of a host, and of how a process's end is noticed."""

from __future__ import annotations

import mmap
import os
import shutil
from pathlib import Path

from topocomm.doctor.finding import Finding

PROBE_BYTES = 4096
LEAST_SHM_BYTES = 256 << 20
MIB = 1 << 20


def check_shared_memory(proc: Path = Path("/proc")) -> Finding:
    """Check that processes can map one anonymous memory file, which they find through /proc."""
    lost = "ranks of a host exchange messages"
    if not hasattr(os, "memfd_create"):
        return Finding("warn", "shared memory", f"this system has no memfd_create: {lost}", "run on Linux")
    try:
        file = os.memfd_create("topocomm-doctor")
    except OSError as error:
        text = f"memfd_create fails ({error.strerror}): {lost}"
        return Finding("warn", "shared memory", text, "allow memfd_create in the container's seccomp profile")
    try:
        os.posix_fallocate(file, 0, PROBE_BYTES)
        with open(proc / str(os.getpid()) / "fd" / str(file), "r+b") as other:
            mmap.mmap(other.fileno(), PROBE_BYTES).close()
    except OSError as error:
        text = f"a memory file cannot be opened through {proc} ({error.strerror}): {lost}"
        return Finding(
            "warn", "shared memory", text, "mount -t proc proc /proc, in the namespace that all ranks are in"
        )
    finally:
        os.close(file)
    return Finding("ok", "shared memory", "memory files can be made and mapped")


def check_process_watch() -> Finding:
    """Check that the kernel reports at once that a process has ended (pidfd)."""
    lost = "the end of a rank is noticed by MPI, or at the deadline"
    if not hasattr(os, "pidfd_open"):
        return Finding("info", "process watch", f"no pidfd_open: {lost}", "Linux 5.3 or newer has it")
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        text = f"pidfd_open fails ({error.strerror}): {lost}"
        return Finding("info", "process watch", text, "allow pidfd_open in the container's seccomp profile")
    return Finding("ok", "process watch", "the end of a rank of this host is noticed at once")


def check_dev_shm(path: Path = Path("/dev/shm"), *, free_bytes: int | None = None) -> Finding:
    """Check the room in /dev/shm, where MPI and torch keep shared memory; topocomm needs none of it."""
    if free_bytes is None:
        try:
            free_bytes = shutil.disk_usage(path).free
        except OSError:
            return Finding("info", "/dev/shm", f"{path} is not there; MPI may fall back to files in TMPDIR")
    if free_bytes < LEAST_SHM_BYTES:
        text = f"{free_bytes // MIB} MiB free: MPI or torch may run out of it"
        return Finding("warn", "/dev/shm", text, "docker run --shm-size=1g ...")
    return Finding("ok", "/dev/shm", f"at least {LEAST_SHM_BYTES // MIB} MiB free")
