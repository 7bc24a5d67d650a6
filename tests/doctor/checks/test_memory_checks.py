"""What ranks of a host share memory with: memory files, handles of processes, /dev/shm."""

import errno
import os

from tests.doctor.findings import found
from topocomm.doctor.checks import memory_checks as memory


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
