"""What importing the packages costs and brings: no optional library, and every public name."""

import importlib
import json
import pkgutil
import subprocess
import sys
from importlib.util import find_spec
from types import ModuleType

import pytest

import attention
import topocomm

HEAVY = ["networkx", "torch", "numba", "llvmlite", "mpi4py", "cupy", "triton", "transformers", "tqdm", "gguf", "jax"]
ENGINES = ("vllm",)
"""Inference engines, of which each has an environment of its own."""

LIGHT = [
    "import topocomm",
    "from topocomm import *",
    "import attention",
    "from attention import LOGSUMEXP, Partial, Spec",
    "import topocomm.cli.main",
    "import topocomm.cli.inspect_command",
    "from topocomm import SUM, TOPK; [o.compiled_fold(o.default_layout(1)) for o in (SUM, TOPK(3))]",
    "from attention import LOGSUMEXP; LOGSUMEXP.compiled_fold(LOGSUMEXP.default_layout(1))",
    "import attention, topocomm; topocomm.run_local(lambda comm: comm.rank, ranks=1)",
]
USES = {
    "import topocomm; topocomm.catalog('dgx-h100').graph": "networkx",
    "import topocomm.operators.kernels.row_folds": "numba",
    "from attention import local_attention": "torch",
}
PROGRAM = f"""
import json, sys
loaded, before = {{}}, set()
for code in {[*LIGHT, *USES]}:
    exec(code, {{}})
    now = {{name for name in {HEAVY} if name in sys.modules}}
    loaded[code], before = sorted(now - before), now
print(json.dumps(loaded))
"""


@pytest.fixture(scope="module")
def loaded_by():
    """Which heavy libraries a fresh process loads by each code, one after the other."""
    command = [sys.executable, "-c", PROGRAM]
    return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)


@pytest.mark.parametrize("code", LIGHT)
def test_nothing_heavy_is_loaded(loaded_by, code):
    assert loaded_by[code] == []


@pytest.mark.parametrize(("code", "library"), USES.items())
def test_what_is_used_is_loaded(loaded_by, code, library):
    """The test above can fail: the libraries are there, and are loaded when they are needed."""
    assert library in loaded_by[code]


@pytest.mark.parametrize("package", [topocomm, attention], ids=lambda package: package.__name__)
def test_every_public_name_is_there_and_described(package):
    assert len(set(package.__all__)) == len(package.__all__)
    for name in package.__all__:
        found = getattr(package, name)
        assert not isinstance(found, ModuleType), f"{package.__name__}.{name} is a module"
        if callable(found):
            assert found.__doc__, name


def modules(package):
    """All packages and modules below a package, imported, by full name.

    `__main__` runs and is left out, and so are JAX's part without JAX, and classes derived from those of an engine that
    is not installed.
    """
    names = [found.name for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    left_out = ("__main__",) if find_spec("jax") else ("__main__", "topocomm.jax")
    found = {}
    for name in names:
        if not name.endswith(left_out):
            try:
                found[name] = importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name not in ENGINES or ".engines." not in name:
                    raise
    return found


@pytest.mark.parametrize("package", [topocomm, attention], ids=lambda package: package.__name__)
def test_no_name_hides_a_module(package):
    below = modules(package)
    for full, module in below.items():
        parent, _, name = full.rpartition(".")
        holder = sys.modules[parent]
        assert getattr(holder, name) is module, f"{parent} has a {name} of its own beside the module {full}"
        assert name not in getattr(holder, "__all__", ()), f"{parent}.__all__ names the module {full}"
    assert {"topocomm.planning.plan", "attention.merge.logsumexp"} & set(below)


@pytest.mark.parametrize("package", [topocomm, attention], ids=lambda package: package.__name__)
def test_no_public_function_is_called_like_a_module_beside_its_package(package):
    public = {name for name in package.__all__ if callable(getattr(package, name))}
    beside = {found.name for found in pkgutil.iter_modules(package.__path__)}
    assert not public & beside
    assert beside
