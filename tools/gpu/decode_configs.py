"""Every way in which the decode kernel is compiled that the report looks at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from resources import Config

from attention.gpu.decode import value_pieces
from attention.gpu.decode_table import cut_for, problem_of
from attention.gpu.widths import pieces

HEAD_DIMS = ((64, 64), (80, 80), (96, 96), (128, 128), (192, 128), (256, 256))
LATENTS = ((576, 512, True), (576, 512, False), (512, 512, False))
"""Multi-head latent attention: head dims, and whether the values are columns of the keys."""
QUERIES = ((4, 1), (8, 4), (8, 16))
"""Heads of a group, queries: one, two and more tiles of 16 rows."""
EIGHT_BITS = {"sm_80": "fp8e5", "gfx90a": "fp8e5", "gfx942": "fp8e5"}
"""Where a GPU has no fp8e4nv (e4m3fn)."""
TYPES = {"fp32": 4, "fp16": 2, "bf16": 2}
POINTERS = {
    "lengths": "*i64",
    "tables": "*i64",
    "q_positions": "*i64",
    "kv_positions": "*i64",
    "kv_mask": "*i8",
    "slopes": "*fp32",
    "k_scales": "*fp32",
    "v_scales": "*fp32",
}
FLOATS = ("out", "lse", "scratch", "scratch_state")


def decode_configs(arch: str) -> Iterator[Config]:
    """The configurations for one arch: dtypes x head dims x queries, plain and with every feature at once.

    float16 takes what bfloat16 does, so that one head dim shows it; so with 8 bits, which have scales and so a feature.
    """
    narrow = [(d, d_v, False) for d, d_v in HEAD_DIMS]
    eight = EIGHT_BITS.get(arch, "fp8e4nv")
    for dtype, dims in (("bf16", (*narrow, *LATENTS)), ("fp32", narrow), ("fp16", narrow[3:4])):
        for widths in dims:
            for queries in QUERIES:
                for plain in (True, False):
                    yield _config(arch, dtype, widths, queries, plain=plain)
    for widths in (narrow[3], LATENTS[0]):
        for queries in QUERIES:
            yield _config(arch, "bf16", widths, queries, plain=False, stored=eight)


def _config(
    arch: str, dtype: str, widths: tuple[int, int, bool], queries: tuple[int, int], *, plain: bool, stored: str = ""
) -> Config:
    import triton.language as tl

    from attention.gpu.decode_kernel import decode_kernel

    (d, d_v, shared), (group, q_len) = widths, queries
    problem = problem_of(arch, TYPES[dtype], max(d, d_v), group * q_len, plain=plain, shared=shared)
    cut, rows = cut_for(problem), problem.rows
    (d0, d1), (dv0, dv1) = pieces(d), value_pieces(d, d_v, shared)
    dot = {"fp32": tl.float32, "fp16": tl.float16, "bf16": tl.bfloat16}[dtype]
    constants: dict[str, Any] = {
        "GROUP": group, "Q_LEN": q_len, "PAGE": 16, "KV_HEADS": 8, "D": d, "D0": d0, "D1": d1, "DV": d_v,
        "DV0": dv0, "DV1": dv1, "CAUSAL": not plain, "WINDOW": not plain, "SOFTCAP": not plain, "DOT": dot,
        "SPLIT_WEIGHTS": dtype != "fp32", "MANY": True, "SHARED": shared, "BLOCK_M": rows, "BLOCK_N": cut.block_n,
    }  # fmt: skip
    signature = {}
    for name in decode_kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        elif name in POINTERS:
            signature[name] = "constexpr" if plain else POINTERS[name]
            if plain:
                constants[name] = None
        elif name == "arrivals":
            signature[name] = "*i32"
        elif name in ("q", "k", "v"):
            signature[name] = f"*{stored if stored and name != 'q' else dtype}"
        else:
            signature[name] = "*fp32" if name in FLOATS else "fp32" if name in ("scale", "softcap") else "i32"
    what = f"{dtype}{f', keys {stored}' if stored else ''}, {d} x {d_v}, group {group}, q_len {q_len}"
    what += ", v in k" if shared else ""
    what += ", plain" if plain else ", every feature"
    options = {"num_warps": cut.num_warps, "num_stages": cut.num_stages}
    return Config("decode", what, decode_kernel, signature, constants, options)
