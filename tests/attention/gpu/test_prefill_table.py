import json
import subprocess
import sys

import pytest

from attention.gpu.archs import arch_of, generation_of
from attention.gpu.prefill_table import WIDTHS, Tile, problem_of, tile_for

SHARED_KIB = {"80": 163, "89": 99, "90": 227, "100": 227, "gfx90a": 64, "gfx942": 64}


@pytest.mark.parametrize(
    ("backend", "arch", "expected"),
    [
        ("cuda", 75, "other"),
        ("cuda", 80, "sm_80"),
        ("cuda", 86, "sm_89"),
        ("cuda", 87, "sm_80"),
        ("cuda", 89, "sm_89"),
        ("cuda", 90, "sm_90"),
        ("cuda", 100, "sm_100"),
        ("cuda", 103, "sm_100"),
        ("cuda", 120, "sm_89"),
        ("cuda", 999, "other"),
        ("hip", "gfx90a", "gfx9"),
        ("hip", "gfx942", "gfx9"),
        ("hip", "gfx950", "gfx9"),
        ("hip", "gfx1100", "other"),
        ("xpu", "pvc", "other"),
    ],
)
def test_generations(backend, arch, expected):
    assert generation_of(arch_of(backend, arch)) == expected


@pytest.mark.parametrize("arch", ["sm_70", "sm_80", "sm_89", "sm_90", "sm_100", "gfx942"])
@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("lists", [False, True])
def test_every_head_dim_has_a_tile(arch, bits, lists):
    for width in (1, 65, *WIDTHS, 257):
        for q_len in (1, 64, 65):
            tile = tile_for(problem_of(arch, bits, width, q_len=q_len, lists=lists))
            assert all(x & (x - 1) == 0 and x >= 16 for x in tile[:2]) and tile.warps in (2, 4, 8)
    few, many = (tile_for(problem_of("sm_90", 16, 128, q_len=q_len)) for q_len in (64, 65))
    assert (few, many) == (Tile(64, 64, 4, 2), Tile(128, 128, 8, 2))


def compiled(backend, arch, *more):
    command = [sys.executable, "-m", "tests.attention.gpu.compiling", backend, arch, *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.soak
@pytest.mark.timeout(1600)
@pytest.mark.parametrize(
    ("backend", "arch"),
    [("cuda", "80"), ("cuda", "89"), ("cuda", "90"), ("cuda", "100"), ("hip", "gfx90a"), ("hip", "gfx942")],
)
def test_tiles_compile_without_spills_and_fit(monkeypatch, backend, arch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    found = compiled(backend, arch, "all")
    assert len(found) == 60
    # 64 bytes on sm_90 with window, packing and merge together: not worth a smaller tile for all of that head dim
    bad = [
        x
        for x in found
        if x["spilled_bytes"] > (64 if arch == "90" else 0) or x["shared_bytes"] > SHARED_KIB[arch] * 1024
    ]
    assert not bad, bad
