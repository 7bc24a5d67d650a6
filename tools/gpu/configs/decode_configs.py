"""Configurations of the decode kernel in the compile report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attention.gpu.decode.decode import value_pieces
from attention.gpu.decode.decode_table import ahead_for, cut_for, fewest_blocks, problem_of, rows_of_program
from attention.gpu.limits import pieces
from configs.resources import Config

COMMON, UNEVEN = (128, 128, False), (80, 80, False)
HEAD_DIMS = ((64, 64, False), UNEVEN, COMMON, (192, 128, False), (256, 256, False))
LATENTS = ((576, 512, True), (576, 512, False))
"""Multi-head latent attention; head dims of k and v, and whether the values are columns of the keys."""
QUERIES = ((4, 1), (8, 4), (8, 16))
"""Heads of a group, queries: one, two and more tiles of 16 rows."""
EIGHT_BITS = {"sm_80": "fp8e5", "gfx90a": "fp8e5", "gfx942": "fp8e5"}
"""Arches without fp8e4nv (e4m3fn)."""
TYPES = {"fp32": 4, "fp16": 2, "bf16": 2}
POINTERS = {
    "usual": {"lengths": "*i64"},
    "paged": {"tables": "*i64", "k_scales": "*fp32", "v_scales": "*fp32"},
    "full": {"q_positions": "*i64", "kv_positions": "*i64", "kv_mask": "*i8", "slopes": "*fp32"},
}
"""Those of a form that may be absent; a later one has the earlier ones' too."""
FLOATS = ("out", "lse", "scratch", "scratch_state")


def decode_configs(arch: str) -> Iterator[Config]:
    """The configurations for one arch: every bfloat16 problem of the table, with every feature of its form.

    float16 takes what bfloat16 does, so that one case shows it; 8 bits have scales, and so are paged or full; float32
    has one cut for all forms and widths.
    """
    eight = EIGHT_BITS.get(arch, "fp8e4nv")
    for widths in (*HEAD_DIMS, *LATENTS):
        for form in ("full",) if widths == UNEVEN else ("plain", *POINTERS):
            for queries in _queries("bf16", widths, form):
                yield _config(arch, "bf16", widths, queries, form)
    for widths in (COMMON, HEAD_DIMS[-1]):
        for form in ("plain", "full"):
            for queries in _queries("fp32", widths, form):
                yield _config(arch, "fp32", widths, queries, form)
    yield _config(arch, "fp16", COMMON, QUERIES[0], "plain")
    for widths in (COMMON, LATENTS[0]):
        for queries, form in ((QUERIES[0], "paged"), (QUERIES[2], "full")):
            yield _config(arch, "bf16", widths, queries, form, stored=eight)


def _queries(dtype: str, widths: tuple[int, int, bool], form: str) -> list[tuple[int, int]]:
    """Return one of `QUERIES` for each number of rows of a program."""
    rows = {rows_of_program(x * y, TYPES[dtype], max(widths[:2]), form): (x, y) for x, y in QUERIES}
    return list(rows.values())


def _config(
    arch: str, dtype: str, widths: tuple[int, int, bool], queries: tuple[int, int], form: str, *, stored: str = ""
) -> Config:
    import triton.language as tl

    from attention.gpu.decode.decode_kernel import decode_kernel

    (d, d_v, shared), (group, q_len) = widths, queries
    problem = problem_of(arch, TYPES[dtype], max(d, d_v), group * q_len, form=form, shared=shared)
    cut, rows = cut_for(problem), problem.rows
    (d0, d1), (dv0, dv1) = pieces(d), value_pieces(d, d_v, shared)
    dot = tl.float16 if stored else {"fp32": tl.float32, "fp16": tl.float16, "bf16": tl.bfloat16}[dtype]
    full, flat = form == "full", form != "plain"  # batches with lengths: one program meets several tiles
    kinds: dict[str, str] = {}
    absent: list[str] = []
    forms = list(POINTERS)
    for place, pointers in enumerate(POINTERS.values()):
        if form in forms[place:]:
            kinds |= pointers
        else:
            absent += pointers
    constants: dict[str, Any] = {
        "GROUP": group, "Q_LEN": q_len, "PAGE": 16 if "tables" in kinds else 1, "KV_HEADS": 8,
        "D": d, "D0": d0, "D1": d1, "DV": d_v, "DV0": dv0, "DV1": dv1,
        "CAUSAL": form != "plain", "WINDOW": full, "SOFTCAP": full, "DOT": dot, "INTERPRETED": False,
        "MANY": True, "FLAT": flat, "FEWEST": fewest_blocks(cut), "AHEAD": ahead_for(problem, cut, dv0 + dv1),
        "SHARED": shared, "BLOCK_M": rows, "BLOCK_N": cut.block_n,
    }  # fmt: skip
    constants |= dict.fromkeys(absent)
    kinds |= dict.fromkeys(FLOATS, "*fp32") | {"arrivals": "*i32", "scale": "fp32", "softcap": "fp32", "q": f"*{dtype}"}
    kinds |= dict.fromkeys(("k", "v"), f"*{stored or dtype}")
    signature = {name: "constexpr" if name in constants else kinds.get(name, "i32") for name in decode_kernel.arg_names}
    what = f"{dtype}{f', keys {stored}' if stored else ''}, {d} x {d_v}, group {group}, q_len {q_len}"
    what += f"{', v in k' if shared else ''}, {form}: {tuple(cut)}"
    options = {"num_warps": cut.num_warps, "num_stages": cut.num_stages}
    return Config("decode", what, decode_kernel, signature, constants, options)
