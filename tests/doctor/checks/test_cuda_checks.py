"""How CUDA loads kernels, and how many queues it has."""

import pytest

from tests.doctor.findings import found
from topocomm import catalog
from topocomm.doctor import examine
from topocomm.doctor.checks import cuda_checks as cuda
from topocomm.doctor.checks.cuda_checks import check_cuda
from topocomm.execute.device.device_library import FOR_THREADS, prepare_for_threads


@pytest.fixture
def driver(tmp_path):
    made = tmp_path / "nvidiactl"
    made.touch()
    return made


@pytest.mark.parametrize("value", [None, "LAZY"])
def test_kernels_that_are_loaded_late(driver, value):
    modules, _ = check_cuda({} if value is None else {"CUDA_MODULE_LOADING": value}, driver)
    says = "CUDA_MODULE_LOADING is not set" if value is None else "CUDA_MODULE_LOADING is LAZY"
    found(modules, "info", says, "where ranks are threads", "export CUDA_MODULE_LOADING=EAGER before")


@pytest.mark.parametrize(
    ("value", "says"), [(None, "is not set: 8 queues"), ("1", "is 1: 1 queue "), ("8", "8 queues")]
)
def test_few_queues(driver, value, says):
    _, queues = check_cuda({} if value is None else {"CUDA_DEVICE_MAX_CONNECTIONS": value}, driver)
    found(queues, "info", says, "where ranks share a GPU", "export CUDA_DEVICE_MAX_CONNECTIONS=32 before")


@pytest.mark.parametrize("value", ["0", "33", "many", ""])
def test_values_that_cuda_does_not_know(driver, value):
    modules, queues = check_cuda({"CUDA_MODULE_LOADING": value, "CUDA_DEVICE_MAX_CONNECTIONS": value}, driver)
    found(modules, "warn", f"CUDA_MODULE_LOADING={value}: ", "LAZY and EAGER")
    found(queues, "warn", f"CUDA_DEVICE_MAX_CONNECTIONS={value}: ", "1 to 32")


def test_what_benches_set_is_ok_and_leaves_what_was_set(driver):
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "16"}
    prepare_for_threads(environment)
    assert environment == {"CUDA_MODULE_LOADING": "EAGER", "CUDA_DEVICE_MAX_CONNECTIONS": "16"}
    for finding in check_cuda(FOR_THREADS, driver):
        found(finding, "ok")


def test_it_is_asked_where_nvidias_driver_is(driver, monkeypatch):
    assert check_cuda({}, driver.with_name("none")) == []
    monkeypatch.setattr(examine, "check_cuda", lambda environment: cuda.check_cuda(environment, driver))
    checks = [finding.check for finding in examine.check_process(catalog("dgx-h100"), None, {})]
    assert {"CUDA modules", "CUDA queues"} <= set(checks)
