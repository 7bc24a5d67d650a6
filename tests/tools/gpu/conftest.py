"""The programs of tools/gpu as modules of this process, with a stand-in for the card."""

from tests import interpreted  # noqa: F401, I001 before anything that imports triton

import importlib
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tests.tools.gpu import stand_in
from tests.tools.gpu.running import TOOLS

PROGRAMS = ("check_kernels", "bench_kernels", "bench_ranks", "bench_generate", "tune", "facts")
HELPERS = (
    "results", "turns", "workers", "check_worker", "check_kinds", "check_folds", "check_draw", "bench_problems",
    "rank_ways", "rank_worker", "small_model", "tune_worker", "tune_targets", "carried_nccl", "fatbin", "slim_nccl",
    "nccl_check", "targets", "warm_worker",
)  # fmt: skip


@pytest.fixture(scope="session")
def tools():
    """Every module by its name, and `card`, the stand-in."""
    sys.path.insert(0, str(TOOLS))
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"  # for kernels of their own
    try:
        made = stand_in.stand_in()
        found = {name: importlib.import_module(name) for name in (*PROGRAMS, *HELPERS)}
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
