"""The compile report: what it reads out of the compilers, that a spill is a fault, and what the kernels load by."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools/gpu"

WIDE = """
import triton
import triton.language as tl
from configs.resources import Config

@triton.jit
def wide(x, y, N: tl.constexpr):
    at = tl.arange(0, N)
    first, second = tl.load(x[0] + at), tl.load(x[1] + at)
    sums = tl.cumsum(first, 0)
    tl.debug_barrier()
    tl.store(y + at, first * second + sums / (first + second))

def wide_configs(arch):
    for items in (1024, 8192 if arch == "sm_90" else 32768):
        types = {"x": ("*fp32", "*fp32"), "y": "*fp32", "N": "constexpr"}
        yield Config("wide", f"{items} items", wide, types, {"N": items}, {"num_warps": 1})
"""

LOADS = """
import sys
sys.path.insert(0, {tools!r})
from configs import resources
from compile_report import configs
for case in ("128 x 128, group 4, q_len 1, plain", "576 x 512, group 4, q_len 1, v in k, plain"):
    config = next(x for x in configs("decode", "sm_90") if x.what.startswith(f"bf16, {case}"))
    print(resources.made_for(config, "sm_90").asm["ptx"], "=== end ===")
"""


def run(*words, tools=TOOLS, program=None, **more):
    command = [sys.executable, "-c", program] if program else [sys.executable, str(tools / "compile_report.py"), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **more}
    environment.pop("TRITON_INTERPRET", None)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.long
def test_a_kernel_of_another_file_is_found_and_its_spills_are_a_fault(tmp_path):
    (tmp_path / "configs").mkdir()
    for name in ("compile_report.py", "configs/resources.py"):
        shutil.copy(TOOLS / name, tmp_path / name)
    (tmp_path / "configs/wide_configs.py").write_text(WIDE)
    for arch in ("sm_90", "gfx942"):
        done = run("--arch", arch, "--every", "1", tools=tmp_path)
        assert done.returncode == 1, done.stderr[-2000:]
        small, large = re.findall(rf"^\| {arch} \| wide \| \d+ items \| (\d+) \| (\d+) \|", done.stdout, re.MULTILINE)
        assert small[1] == "0" and int(large[1]) > 0 and int(small[0]) > 0
        assert f"{arch} wide ({8192 if arch == 'sm_90' else 32768} items): spills {large[1]}" in done.stderr
        assert "2 kernels, 1 with spills" in done.stdout
    assert run("--arch", "sm_90", "--every", "2", tools=tmp_path).returncode == 0


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
    for kernel in ("decode", "prefill", "merge"):
        assert f"| {arch} | {kernel} | " in done.stdout


@pytest.mark.long
def test_keys_and_values_are_copied_ahead_by_16_bytes(tmp_path):
    """By the rules: there is nothing tuned in the directory."""
    done = run(program=LOADS.replace("{tools!r}", repr(str(TOOLS))), TOPOCOMM_TUNED_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    apart, shared, _ = done.stdout.split("=== end ===")
    for ptx, steps, threads, row_bytes in ((apart, 64, 128, 2 * 256), (shared, 32, 256, 1152)):
        copies = re.findall(r"cp\.async\.(\w+)\.shared\.global\S* \[.*?\], \[.*?\], (0x\w+)", ptx)
        assert set(copies) == {("cg", "0x10")}
        # two steps before the loop and one in it; values in the memory of the keys are not copied on their own
        assert len(copies) == 3 * steps * row_bytes // (threads * 16)
        assert "cp.async.wait_group" in ptx
    # of 4 states the merge has asked for all, 16 rows of 512 bytes each, before it folds the first
    merge = apart[apart.index("atom.") :]
    assert len(re.findall(r"ld\.global\S*\.v4", merge[: merge.index("ex2.")])) == 4 * 16 * 512 // (128 * 16)


def test_an_unknown_gpu_or_kernel_is_bad_usage():
    for words, said in ((("--arch", "sm_10"), "sm_100"), (("--kernel", "wide"), "decode")):
        done = run(*words)
        assert done.returncode == 2
        assert said in done.stderr
