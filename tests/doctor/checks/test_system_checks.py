"""The machine that was read, hidden GPUs, memory between ranks, the clock, variables of CUDA and of this package."""

import errno
import os
import sys
from dataclasses import replace

import pytest

from tests.doctor.findings import found
from topocomm import TopologyError, catalog
from topocomm.doctor import examine
from topocomm.doctor.checks import system_checks as machine
from topocomm.execute.device.device_library import FOR_THREADS, prepare_for_threads


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


def test_shared_memory(monkeypatch, tmp_path):
    found(machine.check_shared_memory(), "ok")
    found(machine.check_shared_memory(tmp_path), "warn", "cannot be opened", "mount -t proc")

    def refuse(_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refuse)
    found(machine.check_shared_memory(), "warn", "Operation not permitted", "seccomp")
    monkeypatch.delattr(os, "memfd_create")
    found(machine.check_shared_memory(), "warn", "no memfd_create", "Linux")


def test_peer_memory(monkeypatch, tmp_path):
    found(machine.check_peer_memory(tmp_path), "ok", "copied once")
    scope = tmp_path / "sys/kernel/yama/ptrace_scope"
    scope.parent.mkdir(parents=True)
    scope.write_text("0\n")
    found(machine.check_peer_memory(tmp_path), "ok")
    scope.write_text("1\n")
    found(machine.check_peer_memory(tmp_path), "info", "ptrace_scope is 1", "copied twice", "sysctl")
    monkeypatch.setattr("topocomm.native._native.read_process", lambda *_: errno.EPERM)
    found(machine.check_peer_memory(tmp_path), "info", "Operation not permitted", "seccomp")
    monkeypatch.setitem(sys.modules, "topocomm.native._native", None)
    assert machine.check_peer_memory(tmp_path) is None


def test_process_watch(monkeypatch):
    found(machine.check_process_watch(), "ok")

    def refuse(_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    found(machine.check_process_watch(), "info", "Function not implemented", "pidfd_open")
    monkeypatch.delattr(os, "pidfd_open")
    found(machine.check_process_watch(), "info", "no pidfd_open")


def test_dev_shm(tmp_path):
    found(machine.check_dev_shm(free_bytes=1 << 30), "ok", "256 MiB")
    found(machine.check_dev_shm(free_bytes=64 << 20), "warn", "64 MiB free", "--shm-size=1g")
    found(machine.check_dev_shm(tmp_path / "none"), "info", "not there")


@pytest.fixture
def driver(tmp_path):
    made = tmp_path / "nvidiactl"
    made.touch()
    return made


@pytest.mark.parametrize("value", [None, "LAZY"])
def test_kernels_that_are_loaded_late(driver, value):
    modules, _ = machine.check_cuda({} if value is None else {"CUDA_MODULE_LOADING": value}, driver)
    says = "CUDA_MODULE_LOADING is not set" if value is None else "CUDA_MODULE_LOADING is LAZY"
    found(modules, "info", says, "where ranks are threads", "export CUDA_MODULE_LOADING=EAGER before")


@pytest.mark.parametrize(
    ("value", "says"), [(None, "is not set: 8 queues"), ("1", "is 1: 1 queue "), ("8", "8 queues")]
)
def test_few_queues(driver, value, says):
    _, queues = machine.check_cuda({} if value is None else {"CUDA_DEVICE_MAX_CONNECTIONS": value}, driver)
    found(queues, "info", says, "where ranks share a GPU", "export CUDA_DEVICE_MAX_CONNECTIONS=32 before")


@pytest.mark.parametrize("value", ["0", "33", "many", ""])
def test_values_that_cuda_does_not_know(driver, value):
    modules, queues = machine.check_cuda({"CUDA_MODULE_LOADING": value, "CUDA_DEVICE_MAX_CONNECTIONS": value}, driver)
    found(modules, "warn", f"CUDA_MODULE_LOADING={value}: ", "LAZY and EAGER")
    found(queues, "warn", f"CUDA_DEVICE_MAX_CONNECTIONS={value}: ", "1 to 32")


def test_what_benches_set_is_ok_and_leaves_what_was_set(driver):
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "16"}
    prepare_for_threads(environment)
    assert environment == {"CUDA_MODULE_LOADING": "EAGER", "CUDA_DEVICE_MAX_CONNECTIONS": "16"}
    for finding in machine.check_cuda(FOR_THREADS, driver):
        found(finding, "ok")


def test_it_is_asked_where_nvidias_driver_is(driver, monkeypatch):
    assert machine.check_cuda({}, driver.with_name("none")) == []
    monkeypatch.setattr(examine, "check_cuda", lambda environment: machine.check_cuda(environment, driver))
    checks = [finding.check for finding in examine.check_process(catalog("dgx-h100"), None, {})]
    assert {"CUDA modules", "CUDA queues"} <= set(checks)
