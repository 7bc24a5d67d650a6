"""How many programs a multiprocessor holds: the vendors' calculators, by hand."""

from types import SimpleNamespace

import pytest

from attention.gpu.decode.occupancy import Multiprocessor, multiprocessor_of, programs_held

H100 = SimpleNamespace(
    shared_memory_per_multiprocessor=228 << 10,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    warp_size=32,
)
MI300X = SimpleNamespace(shared_memory_per_multiprocessor=64 << 10, max_threads_per_multi_processor=2048, warp_size=64)


def test_multiprocessors():
    assert multiprocessor_of("sm_90", H100, hip=False) == Multiprocessor(512, 16, 228 << 10, 1024, 128)
    little = SimpleNamespace(**{**vars(H100), "max_threads_per_multi_processor": 1536})
    assert multiprocessor_of("sm_89", little, hip=False).warps == 12
    assert multiprocessor_of("gfx942", MI300X, hip=True) == Multiprocessor(512, 8, 64 << 10, 0)


def test_what_is_not_known_is_not_guessed():
    for missing in vars(H100):
        if missing != "warp_size":
            facts = {name: x for name, x in vars(H100).items() if name != missing}
            assert multiprocessor_of("sm_90", SimpleNamespace(**facts), hip=False) is None
    assert multiprocessor_of("gfx1100", MI300X, hip=True) is None
    assert multiprocessor_of("gfx942", SimpleNamespace(), hip=True) is None


@pytest.mark.parametrize(
    ("registers", "shared_kib", "warps", "held"),
    [
        (128, 0, 4, 4),  # 128 registers x 128 threads are a quarter of 65,536
        (129, 0, 4, 3),  # in units of 8: 136
        (168, 0, 4, 3),
        (169, 0, 4, 2),
        (255, 0, 4, 2),
        (255, 0, 8, 1),
        (32, 0, 4, 16),
        (32, 0, 8, 8),  # 64 warps
        (32, 71, 4, 3),  # with the kibibyte that each takes beside
        (32, 75, 4, 3),
        (32, 76, 4, 2),
        (255, 227, 16, 1),
        (255, 300, 32, 1),  # what does not fit at all the launch refuses
    ],
)
def test_programs_of_an_h100(registers, shared_kib, warps, held):
    there = multiprocessor_of("sm_90", H100, hip=False)
    assert programs_held(there, registers, shared_kib << 10, warps) == held


def test_shared_memory_is_given_in_units():
    """8 programs of 28.5 KiB fill an H100 to the last byte; one byte more takes 128, and the eighth finds no room."""
    there = multiprocessor_of("sm_90", H100, hip=False)
    exact = (228 << 10) // 8 - 1024
    assert [programs_held(there, 32, exact + more, 4) for more in (0, 1)] == [8, 7]
    little = there._replace(shared_bytes=there.shared_bytes + 8)  # room for a byte each, were it given by the byte
    assert programs_held(little, 32, exact + 1, 4) == 7


@pytest.mark.parametrize(
    ("registers", "shared_kib", "warps", "held"),
    [(64, 0, 4, 8), (128, 0, 4, 4), (129, 0, 8, 1), (256, 32, 4, 2), (256, 33, 4, 1), (512, 0, 4, 1)],
)
def test_programs_of_an_mi300x(registers, shared_kib, warps, held):
    there = multiprocessor_of("gfx942", MI300X, hip=True)
    assert programs_held(there, registers, shared_kib << 10, warps) == held
