"""The attention kernel compiled for ARM's NEON, run by qemu, against formulas in float64."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from attention import Spec, reference_attention

ROOT = Path(__file__).parents[3]
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
FLAGS = ["-O3", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-fno-math-errno", "-static"]
DTYPES = {torch.float32: 2 << 8 | 32, torch.float16: 2 << 8 | 16, torch.bfloat16: 4 << 8 | 16}

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    missing = [tool for tool in (COMPILER, EMULATOR) if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)} here (Debian: gcc-aarch64-linux-gnu, qemu-user)")
    path = tmp_path_factory.mktemp("neon") / "attend"
    kernels = ROOT / "attention/kernels"
    folders = [f"-I{folder}" for folder in (kernels, ROOT / "topocomm/native")]
    sources = [Path(__file__).with_name("neon_main.c"), kernels / "attend.c"]
    command = [COMPILER, *FLAGS, "-DPROCESSOR=baseline", *folders, *sources, "-lm", "-o", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return path


def emulated(program, q, k, v, scale, positions):
    """(out, lse) of the program; positions: (low, high, of the keys) or none."""
    sizes = [*q.shape, k.shape[1], k.shape[2], v.shape[3], DTYPES[q.dtype], DTYPES[k.dtype], bool(positions)]
    parts = [np.array(sizes, np.int64), np.array(scale, np.float32)]
    parts += [x.contiguous().view(torch.uint8).numpy() for x in (q, k, v)]
    parts += [np.ascontiguousarray(x, np.int64) for x in positions]
    given = b"".join(part.tobytes() for part in parts)
    done = subprocess.run([EMULATOR, program], input=given, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    got = np.frombuffer(done.stdout, np.float32)
    rows = q.shape[0] * q.shape[1] * q.shape[2]
    return got[:-rows].reshape(*q.shape[:3], v.shape[3]), got[-rows:].reshape(q.shape[:3])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", [(2, 1, 1), (1, 2, 1), (2, 4, 1), (1, 7, 1), (1, 32, 1), (2, 3, 70)], ids=str)
def test_neon_computes_the_formula(program, dtype, heads):
    """Key heads, query heads for each, queries; with queries a causal window, of which some see nothing."""
    kv_heads, group, q_len = heads
    for d, d_v, n in ((1, 1, 1), (7, 5, 50), (64, 80, 129), (33, 18, 300)):
        rng = np.random.default_rng(n)
        shapes = (2, kv_heads * group, q_len, d), (2, kv_heads, n, d), (2, kv_heads, n, d_v)
        q, k, v = (torch.from_numpy(rng.standard_normal(shape, np.float32)).to(dtype) for shape in shapes)
        positions, options = (), {"spec": Spec(scale=0.2)}
        if q_len > 1:
            queries, keys = np.arange(q_len) * 5 - 10, np.arange(n)
            positions = queries - 19, queries, keys
            options = {"spec": Spec(scale=0.2, causal=True, window=20), "q_positions": queries, "kv_positions": keys}
        out, lse = emulated(program, q, k, v, 0.2, positions)
        want = reference_attention(*(x.double().numpy() for x in (q, k, v)), **options)
        np.testing.assert_allclose(out, want.out, rtol=0, atol=1e-5)
        np.testing.assert_allclose(lse, want.lse, rtol=0, atol=1e-5)
        assert q_len == 1 or (want.lse == -np.inf).any()
