"""What all tests share."""

import gc
import os
import sys
from importlib.util import find_spec

import pytest

# Two processes of tests, and the ranks of their jobs, share few cores: teams of threads would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # OpenBLAS, MKL and torch read it when they are imported
ABSENT = [name for name in ("torch", "triton") if find_spec(name) is None]


class _Module(pytest.Module):
    """A file of tests; one that imports torch or Triton is skipped where they are not installed."""

    def collect(self):
        try:
            return super().collect()
        except self.CollectError as error:
            cause = error
            while cause := cause.__cause__:
                if isinstance(cause, ModuleNotFoundError) and cause.name in ABSENT:
                    pytest.skip(f"needs {cause.name}", allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path, parent):
    """Files of tests are collected by the class above."""
    return _Module.from_parent(parent, path=module_path)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Garbage is not looked for among the tests, nor in torch: that was a sixth of the time of short tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        gc.enable()


def pytest_sessionfinish():
    """Libraries that count what is left at the end find nothing."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def _records(tmp_path_factory):
    """Records of failures that tests make go with the tests."""
    os.environ.setdefault("TOPOCOMM_RECORD_DIR", str(tmp_path_factory.mktemp("records")))


@pytest.fixture(scope="module", autouse=True)
def _no_gpu_is_left_behind():
    """Stand-ins for GPUs are gone when the tests of a file are: a patch undone in the wrong order would stay."""
    yield
    asked = {"attention.gpu.placement": "_held", "topocomm.execute.device.device_library": "device_of"}
    for module, name in asked.items():
        if module in sys.modules:
            assert getattr(sys.modules[module], name).__module__ == module, f"{module}.{name} is still a stand-in"
