"""The compile report: what it reads out of the compilers, and that a spill is a fault."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools/gpu"

SPILLING = """
import sys
sys.path.insert(0, {tools!r})
import compile_report, resources, triton, triton.language as tl

@triton.jit
def wide(x, y, N: tl.constexpr):
    at = tl.arange(0, N)
    first, second = tl.load(x + at), tl.load(x + N + at)
    sums = tl.cumsum(first, 0)
    tl.debug_barrier()
    tl.store(y + at, first * second + sums / (first + second))

types = dict(x="*fp32", y="*fp32", N="constexpr")
for arch, items in (("sm_90", 8192), ("gfx942", 32768)):
    config = resources.Config("wide", "", wide, types, dict(N=items), dict(num_warps=1))
    found = resources.compiled(config, arch)
    line = arch, "wide", "", found
    print(arch, found.registers > 0, found.spills > 0, compile_report.fault(line))
"""


def run(*words, program=None):
    command = [sys.executable, "-c", program] if program else [sys.executable, str(TOOLS / "compile_report.py"), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TRITON_INTERPRET", None)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.long
def test_a_kernel_that_spills_is_a_fault(tmp_path):
    source = tmp_path / "wide.py"  # the compiler reads the source of what it compiles
    source.write_text(SPILLING.format(tools=str(TOOLS)))
    program = f"import runpy; runpy.run_path({str(source)!r})"
    done = run(program=program)
    assert done.returncode == 0, done.stderr[-2000:]
    for line, arch in zip(done.stdout.splitlines(), ("sm_90", "gfx942"), strict=True):
        assert line.startswith(f"{arch} True True spills ")


@pytest.mark.parametrize(
    "arch",
    [
        pytest.param("sm_90", marks=pytest.mark.long),
        *(pytest.param(arch, marks=pytest.mark.soak) for arch in ("sm_80", "sm_89", "sm_100", "gfx90a", "gfx942")),
    ],
)
def test_no_kernel_spills(arch):
    """A sample of the report; the whole of it is made by hand."""
    done = run("--arch", arch, "--every", "17")
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"| {arch} | decode | " in done.stdout


def test_an_unknown_gpu_is_bad_usage():
    done = run("--arch", "sm_10")
    assert done.returncode == 2
    assert "sm_100" in done.stderr
