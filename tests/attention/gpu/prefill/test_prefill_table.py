import pytest

from attention.gpu.prefill.prefill_table import FORMS, WIDTHS, Tile, by_rule, problem_of, tile_for


@pytest.mark.parametrize("arch", ["sm_70", "sm_80", "sm_89", "sm_90", "sm_100", "gfx942"])
@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("form", FORMS)
def test_every_head_dim_has_a_tile(arch, bits, form):
    for width in (1, 65, *WIDTHS, 257):
        for q_len in (1, 64, 65):
            tile = tile_for(problem_of(arch, bits, width, q_len=q_len, form=form))
            assert all(x & (x - 1) == 0 and x >= 16 for x in tile[:2]) and tile.warps in (2, 4, 8, 16, 32)
    few, many = (by_rule(problem_of("sm_90", 16, 128, q_len=q_len)) for q_len in (64, 65))
    assert (few, many) == (Tile(64, 64, 4, 2), Tile(128, 128, 8, 2))
