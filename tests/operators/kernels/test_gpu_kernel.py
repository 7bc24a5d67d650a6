"""The kernels compile for every GPU that is supported, and fit in its registers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TARGETS = ["cuda:80", "cuda:89", "cuda:90", "cuda:100", "hip:gfx90a", "hip:gfx942"]
MARKS = {"cuda:90": pytest.mark.long}
"""The others are compiled by `make soak`."""


@pytest.mark.parametrize("target", [pytest.param(name, marks=MARKS.get(name, pytest.mark.soak)) for name in TARGETS])
def test_kernels_compile_and_spill_nothing(target, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "tests.operators.kernels.compiled", target, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert len(found) == 15
    for name, facts in found.items():
        assert facts["spills"] == 0, name
        assert not facts["fused"], name
    for name in ("partials", "states", "welford"):  # a result may replace an operand that another warp still reads
        assert found[name]["barrier"], name
    for name in ("logaddexp", "partials", "states"):
        assert found[name]["log2_e"] is not False, name
