"""tools/bench/decode.py: its tables, what a step sends and what memory it takes, against the paper's formulas."""

import ctypes
import os
import re
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from platform import machine

import pytest

from tests.mpi import ENVIRONMENT, finished, mpirun

pytest.importorskip("torch")
pytest.importorskip("numba")
pytest.importorskip("llvmlite")
TOOL = Path(__file__).parents[2] / "tools/bench/decode.py"
OURS = ["tree", "tree, set up by hand", "all-gather + merge", "MAX + packed SUM", "three all-reduces", "ring"]
PEER = "ring_attention_pytorch"
FLOORS = ["local attention alone", "read K and V"]
HEADS, KV_HEADS, DIM = 32, 8, 128
ROW = re.compile(r"^(.{24}) +([\d.]+) +([\d.]+) +([\d.]+) +([\d,]+|-) +([\d.]+|-) +(\S+)$", re.MULTILINE)
NOTE_BYTES = 72
"""What a rank tells every other one in each call of ring_decode: nine sizes."""


@cache
def job(ranks, *options):
    """What the tool prints on rank 0; without mpirun on None."""
    if ranks is None:
        done = finished([sys.executable, str(TOOL), *options], {**os.environ, **ENVIRONMENT}, 120.0)
    else:
        done = mpirun(ranks, ["-m", "mpi4py", TOOL, *options])
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def tables(text):
    """By context, the rows by way: p50, p99, ratio, bytes sent, MiB, difference."""
    found = {}
    for part in re.split(r"^(?=[\d,]+ tokens, )", text, flags=re.MULTILINE)[1:]:
        context = int(part.split()[0].replace(",", ""))
        found[context] = {row[0].strip(): row[1:] for row in ROW.findall(part)}
    return found


@pytest.mark.long
@pytest.mark.parametrize(("ranks", "dtype"), [(None, "bfloat16"), pytest.param(2, "float32", marks=pytest.mark.long)])
def test_every_way_has_a_row_and_agrees(ranks, dtype):
    text = job(ranks, "--contexts=32:256:8", "--repeats=3", f"--dtype={dtype}")
    found = tables(text)
    assert list(found) == [32, 256]
    others = ["three MPI_Allreduce", *([PEER] if find_spec(PEER) else []), *FLOORS]
    for rows in found.values():
        assert list(rows) == [*OURS, *others]
        assert rows["tree"][2] == "1.00"
        for name, (p50, p99, _, sent, extra, off) in rows.items():
            assert 0 < float(p50) <= float(p99)
            assert (sent == "-") == (name not in OURS)
            if name in FLOORS:
                assert extra == off == "-"
            elif name != PEER:
                assert float(off) <= (1e-5 if dtype == "float32" else 2**-7)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, *(pytest.param(ranks, marks=pytest.mark.soak) for ranks in (4, 8))])
def test_a_step_sends_no_more_than_the_papers_formula(ranks):
    """Counted by every rank's transport, of the rank that sends most; the formula is per rank, in float32.

    The paper's all-reduces carry numerator, denominator and maximum; ours carries out and lse, one number less a head.
    """
    context = 16 * ranks
    text = job(ranks, f"--contexts={context}:256:{256 // context}", "--repeats=3", "--dtype=float32")
    rows = {name: int(row[3].replace(",", "")) for name, row in tables(text)[context].items() if row[3] != "-"}
    paper = 2 * (ranks - 1) * (HEADS * DIM + 2 * HEADS) * 4 // ranks
    assert f"the paper's formula: {paper:,}. " in text
    assert rows["tree"] == rows["tree, set up by hand"] == 2 * (ranks - 1) * HEADS * (DIM + 1) * 4 // ranks <= paper
    assert rows["all-gather + merge"] == (ranks - 1) * HEADS * (DIM + 1) * 4
    kv_bytes = 2 * KV_HEADS * context * DIM * 4
    assert rows["ring"] == (ranks - 1) * (kv_bytes // ranks + NOTE_BYTES) <= kv_bytes  # equation 10 counts p hops


@pytest.mark.long
def test_peak_memory_is_the_papers():
    """Measured as resident memory; 4 MB more are what a step takes that no formula counts, and pages half used."""
    text = job(2, "--memory", "--contexts=12800")
    rows = re.findall(r"^ *(2048|4096) (tree|ring) +([\d.]+) +([\d.]+) +([\d.]+)$", text, re.MULTILINE)
    assert [row[:2] for row in rows] == [("2048", "tree"), ("2048", "ring"), ("4096", "tree"), ("4096", "ring")]
    for hidden, name, measured_mb, formula_mb, _ in rows:
        shards = 4 if name == "ring" else 2
        assert float(formula_mb) == pytest.approx(shards * 6400 * int(hidden) * 2 / 1e6, abs=0.1)
        assert float(formula_mb) - 1 < float(measured_mb) < float(formula_mb) + 4


@pytest.mark.long
def test_the_kernel_beside_torch():
    options = "--local", "--mib=2", "--repeats=2", "--processor=baseline", "--dim=64", "--threads=1"
    text = job(None, *options)
    assert "head dim 64, kernel for baseline, one query, 1 threads" in text
    row = r"^(\w+) +(\d+) x (\d+) +[\d,]+ .* (\d+)% +([\d.]+) +[\d.]+ +[\d.]+ +(\d+)% +(read|madd) +(\d+)% +[\d.]+$"
    rows = re.findall(row, text, re.M)
    heads = [("8", "4"), ("32", "1"), ("2", "8"), ("1", "32")]
    assert [row[:3] for row in rows] == [(dtype, *one) for dtype in ("float32", "bfloat16", "float16") for one in heads]
    for dtype, _, group, of_read, density, of_products, bound, of_bound in rows:
        assert float(density) == int(group) / (4 if dtype == "float32" else 2)  # each number of K and V, by each head
        assert int(of_bound) == max(int(of_read), int(of_products)) == int(of_read if bound == "read" else of_products)


@pytest.mark.parametrize("has_fma", [True, False])
def test_the_loop_of_multiply_adds_does_them_all(has_fma, monkeypatch):
    """Of every chain x <- x / 2 + 1 from 0, n times: 2 - 2^(1 - n); LLVM left none of it out."""
    monkeypatch.syspath_prepend(str(TOOL.parent))
    from decoding.multiply_adds import CHAINS, FEATURES, LANES, MultiplyAdds, best_processor, compiled, loop_text

    best = best_processor()
    features = FEATURES[best] if machine() == "x86_64" else ""
    engine = compiled(loop_text(LANES[best], 5, has_fma and bool(features or machine() == "aarch64")), features)
    loop = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64)(engine.get_function_address("multiply_adds"))
    assert [loop(turns) for turns in (1, 2, 10)] == [5, 7.5, 5 * (2 - 2**-9)]
    products = MultiplyAdds("baseline")
    assert products.loop(1) in (12, CHAINS)
    products()


@pytest.mark.long
def test_what_verification_costs():
    text = job(2, "--verify", "--contexts=64", "--repeats=10")
    assert "64 tokens, 64 calls of each" in text
    assert len(re.findall(r"[+-]\d+\.\d\d%", text)) == 2


@pytest.mark.long
def test_bad_contexts_are_refused():
    done = finished([sys.executable, str(TOOL), "--contexts=8:4:2"], {**os.environ, **ENVIRONMENT}, 60.0)
    assert done.returncode == 2
    assert "expected 1 <= FROM <= TO and FACTOR >= 2, got '8:4:2'" in done.stderr
