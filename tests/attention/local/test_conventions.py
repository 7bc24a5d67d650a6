"""The conventions against torch's own kernels and the page that states them."""

import math
import re
from pathlib import Path

import pytest
import torch

from attention.local.conventions import CONVENTIONS
from attention.local.normalise import as_partial

INF = math.inf


@pytest.mark.parametrize(
    ("family", "operation", "arguments"),
    [
        ("torch flash, CPU", "_scaled_dot_product_flash_attention_for_cpu", ()),
        ("torch flash, CUDA", "_scaled_dot_product_flash_attention", ()),
        ("torch efficient", "_scaled_dot_product_efficient_attention", (None, True)),
        ("torch cuDNN", "_scaled_dot_product_cudnn_attention", (None, True)),
    ],
)
def test_the_layouts_are_those_of_torch(family, operation, arguments):
    q, k, v = (torch.empty(2, 6, rows, 16, device="meta", dtype=torch.float16) for rows in (5, 7, 7))
    out, lse, *_ = getattr(torch.ops.aten, operation)(q, k, v, *arguments)
    got = as_partial(out, lse, CONVENTIONS[family], empty=torch.zeros((), dtype=torch.bool, device="meta"))
    assert got.out.shape == (2, 6, 5, 16) and got.lse.shape == (2, 6, 5)


def test_how_torch_marks_empty_rows_on_the_cpu():
    # Why its lse is said not to tell: (0, 0.0) is also a single key of score 0 and value 0.
    q, k = torch.ones(1, 1, 2, 8), torch.ones(1, 1, 3, 8)
    mask = torch.tensor([[0.0, -INF, -INF], [-INF, -INF, -INF]])
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, k, attn_mask=mask)
    assert lse[0, 0, 1] == 0 and (out[0, 0, 1] == 0).all()
    empty = torch.tensor([False, True])
    got = as_partial(out, lse, CONVENTIONS["torch flash, CPU"], empty=empty)
    assert got.lse[0, 0].tolist() == [pytest.approx(math.sqrt(8)), -INF]


def test_the_page_states_every_convention():
    page = (Path(__file__).parents[3] / "docs/concepts/partials.md").read_text()
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\| `.*$", page, re.MULTILINE)]
    assert rows == [table_row(name, convention) for name, convention in CONVENTIONS.items()]


def table_row(name, convention):
    out, lse = (f"`[{', '.join(layout)}]`" for layout in (convention.out_layout, convention.lse_layout))
    if convention.lse_rows_multiple > 1:
        lse += f", q padded to {convention.lse_rows_multiple}"
    held = "0" if convention.empty_out == "zero" else "any"
    marks = " or ".join("+inf" if mark > 0 else "-inf" for mark in convention.empty_lse)
    empty = f"({held}, {marks})" if marks else "give `empty`"
    return [f"`{name}`", str(convention.base), out, lse, empty, convention.lse_dtype, convention.source]


if __name__ == "__main__":  # the table of the page
    for row in CONVENTIONS.items():
        print("| " + " | ".join(table_row(*row)) + " |")
