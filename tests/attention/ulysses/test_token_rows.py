"""Rows of tokens: what is written is read back, where kernels can load it."""

import pytest
import torch

from attention.ulysses.token_rows import ALIGNMENT_BYTES, UNIT, Part, TokenRows


def rows(batch, heads, d, dtype=torch.float32):
    return TokenRows(
        batch, (Part("q", heads, d, dtype), Part("k", 1, 3, torch.bfloat16), Part("lse", heads, 1, torch.float32))
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("batch", "heads", "tokens", "d"), [(1, 1, 1, 1), (2, 3, 5, 7), (1, 4, 9, 64), (2, 0, 3, 8), (2, 3, 0, 8)]
)
def test_what_is_written_is_read_back(batch, heads, tokens, d, dtype):
    layout = rows(batch, heads, d, dtype)
    table = torch.full((tokens, layout.words), -1, dtype=UNIT)
    tensors = {part.name: torch.randn(batch, part.heads, tokens, part.dim) for part in layout.parts}
    layout.write(table, tensors)
    views = layout.views(table)
    assert list(views) == ["q", "k", "lse"]
    for part in layout.parts:
        assert torch.equal(views[part.name], tensors[part.name].to(part.dtype))
        if views[part.name].numel():
            assert views[part.name].data_ptr() % ALIGNMENT_BYTES == table.data_ptr() % ALIGNMENT_BYTES
            assert views[part.name].stride(3) == 1 or part.dim == 1


def test_rows_are_whole_pieces():
    assert rows(1, 1, 1).words == 6 and rows(1, 1, 1).pieces == 3
    assert rows(2, 3, 5).words == 16 + 2 + 4


def test_rows_of_several_tables_are_those_of_one():
    layout = rows(2, 3, 5)
    first, second = ({part.name: torch.randn(2, part.heads, n, part.dim) for part in layout.parts} for n in (4, 2))
    table = torch.empty((6, layout.words), dtype=UNIT)
    layout.write(table[:4], first)
    layout.write(table[4:], second)
    assert torch.equal(layout.views(table)["q"], torch.cat([first["q"], second["q"]], 2))
