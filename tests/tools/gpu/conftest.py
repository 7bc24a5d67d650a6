"""The programs of tools/gpu as modules of this process, with a stand-in for the card."""

from importlib.util import find_spec

import pytest

if find_spec("triton") is None:  # not importorskip: it would import Triton before its interpreter is chosen
    pytest.skip("needs triton", allow_module_level=True)

from tests import interpreted  # noqa: F401, I001 before anything that imports triton

import importlib
import os
import sys
from types import SimpleNamespace

import numpy as np

from tests.tools.gpu import stand_in
from tests.tools.gpu.running import TOOLS

PROGRAMS = ("check_kernels", "bench_kernels", "bench_ranks", "bench_generate", "tune", "facts")
HELPERS = (
    "results", "harness.turns", "harness.workers", "harness.targets", "check_worker", "rank_worker", "tune_worker",
    "warm_worker", "problems.check_kinds", "problems.check_folds", "problems.check_draw", "problems.bench_problems",
    "problems.rank_ways", "problems.small_model", "problems.tune_targets", "nccl_files.carried_nccl",
    "nccl_files.fatbin", "slim_nccl", "nccl_check",
)  # fmt: skip


@pytest.fixture(scope="session")
def tools():
    """Every module by the last part of its name, and `card`, the stand-in."""
    sys.path.insert(0, str(TOOLS))
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"  # for kernels of their own
    try:
        made = stand_in.stand_in()
        found = {name.rpartition(".")[2]: importlib.import_module(name) for name in (*PROGRAMS, *HELPERS)}
    finally:
        del os.environ["TRITON_INTERPRET"]
        if before is not None:
            os.environ["TRITON_INTERPRET"] = before
    stand_in.one_at_a_time()
    return SimpleNamespace(**found, card=made)


@pytest.fixture
def part(tools, tmp_path):
    """part(program, **arguments) runs one and gives its part of the results, and its status."""
    usual = {
        "bench_kernels": {
            "out": tmp_path / "out",
            "tables": None,
            "goes_on": False,
            "first": 0,
            "without": [],
            "workers": 0,
        }
    }

    def run(program, seconds=200.0, **arguments):
        results = tools.results.Results(tmp_path / "out", program, program)
        with np.errstate(all="ignore"), results.guarded(program):
            module = getattr(tools, program)
            module.work(results, tools.turns.Limit(seconds), SimpleNamespace(**{**usual.get(program, {}), **arguments}))
        status = results.end()
        return tools.results.read(tmp_path / "out")[program], status

    return run
