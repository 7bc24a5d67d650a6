"""What all tests share."""

import gc
import os
import sys
from collections import defaultdict
from importlib.util import find_spec
from zlib import crc32

import pytest

from tests import examples

# Two processes of tests, and the ranks of their jobs, share few cores: teams of threads would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # OpenBLAS, MKL and torch read it when they are imported
OPTIONAL = (
    *("torch", "triton", "mpi4py", "numba", "transformers", "tokenizers", "jinja2", "gguf", "tqdm", "starlette"),
    *("uvicorn", "prometheus_client", "openai", "nbclient", "grimp", "jsonschema"),
)
ABSENT = [name for name in OPTIONAL if find_spec(name) is None]


class _Module(pytest.Module):
    """A file of tests; one that imports an optional library is skipped, with its name, where that is not installed."""

    def collect(self):
        try:
            return super().collect()
        except self.CollectError as error:
            cause = error
            while cause := cause.__cause__:  # a MissingExtraError has the name too
                if isinstance(cause, ImportError) and (name := (cause.name or "").partition(".")[0]) in ABSENT:
                    pytest.skip(f"needs {name}", allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path, parent):
    """Files of tests are collected by the class above."""
    return _Module.from_parent(parent, path=module_path)


def pytest_addoption(parser):
    """`make test` runs a sample of the cases, `make test-long` the others; without the option all run."""
    parser.addoption("--sample", type=int, default=1, metavar="N", help="leave all but 1 of N cases to the long tests")
    parser.addoption("--examples", type=int, default=1, metavar="N", help="draw 1 of N examples of property tests")


def pytest_configure(config):
    """Before files of tests are imported, whose decorators ask how many examples to draw."""
    examples.one_of(config.getoption("examples"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark as long all but a sample of the cases of functions that have several, but of those marked every_case.

    Checksums of their names choose, so that no value of an axis is left out for being every second one.
    """
    every, functions = config.getoption("sample"), defaultdict(list)
    for item in items:
        if not any(item.get_closest_marker(name) for name in ("long", "soak", "every_case")):
            functions[item.nodeid.partition("[")[0]].append(item)
    for cases in functions.values():
        if every > 1:
            for item in sorted(cases, key=lambda item: crc32(item.nodeid.encode()))[-(-len(cases) // every) :]:
                item.add_marker(pytest.mark.long)


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
