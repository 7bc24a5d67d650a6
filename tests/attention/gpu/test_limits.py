"""Names and limits of GPUs, and head dims as kernels hold them."""

import pytest

from attention.gpu.limits import arch_of, generation_of, pieces


@pytest.mark.parametrize(
    ("width", "both"),
    [
        (1, (16, 0)),
        (64, (64, 0)),
        (80, (64, 16)),
        (96, (64, 32)),
        (192, (128, 64)),
        (256, (128, 128)),
        (576, (512, 64)),
    ],
)
def test_pieces(width, both):
    assert pieces(width) == both


def test_pieces_hold_every_width():
    for width in range(1, 577):
        first, second = pieces(width)
        assert first + second >= width
        assert all(x == 0 or (x >= 16 and x & (x - 1) == 0) for x in (first, second))


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
