"""Configurations of the prefill kernel in the compile report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from attention.gpu.limits import pieces
from attention.gpu.prefill.prefill_table import FEW, problem_of, tile_for
from configs.resources import Config

HEAD_DIMS = {
    "bf16": ((64, 64), (128, 128), (192, 128), (256, 256), (512, 512)),
    "fp32": ((64, 64), (128, 128), (256, 256), (512, 512)),
}
LISTS = ("low", "high", "queries", "keys_at", "lists", "counts")


class Case(NamedTuple):
    """What a call asks for.

    Attributes:
        causal, window: As in Spec.
        bent: With softcap and slopes.
        lists: With positions in any order.
        lengths: With kv_lengths, the queries at their ends.
        merge: Onto a partial that is there.
    """

    causal: bool = False
    window: bool = False
    bent: bool = False
    lists: bool = False
    lengths: bool = False
    merge: bool = False

    @property
    def form(self) -> str:
        """To the table."""
        full = self.window or self.bent or self.lengths or self.merge
        return "lists" if self.lists else "full" if full else "plain"


CASES = {
    "causal": Case(causal=True),
    "window, merged": Case(causal=True, window=True, merge=True),
    "softcap, slopes, lengths, merged": Case(causal=True, bent=True, lengths=True, merge=True),
    "lists, softcap, slopes, merged": Case(lists=True, bent=True, merge=True),
}
PLAIN = {"all keys": Case(), "causal": CASES["causal"], "lists": Case(lists=True)}
"""Return the effect of features, for one head dim."""


def prefill_configs(arch: str) -> Iterator[Config]:
    """Return the configurations for one arch: every problem of the table, plain and merged, with all features."""
    for dtype, dims in HEAD_DIMS.items():
        for d, d_v in dims:
            for name, case in CASES.items():
                many = problem_of(arch, _bits(dtype), max(d, d_v), form=case.form)
                yield _config(arch, dtype, (d, d_v), name, case, 1 << 20)
                if tile_for(many) != tile_for(many._replace(few=True)):
                    yield _config(arch, dtype, (d, d_v), name, case, FEW)
    yield _config(arch, "bf16", (80, 80), "causal", CASES["causal"], 1 << 20)
    for name, case in PLAIN.items():
        yield _config(arch, "fp16", (128, 128), name, case, 1 << 20)


def _bits(dtype: str) -> int:
    return 32 if dtype == "fp32" else 16


def _config(arch: str, dtype: str, dims: tuple[int, int], name: str, case: Case, q_len: int) -> Config:
    import triton.language as tl

    from attention.gpu.prefill.prefill_kernel import prefill_kernel

    (d, d_v), ((d0, d1), (dv0, dv1)) = dims, (pieces(width) for width in dims)
    tile = tile_for(problem_of(arch, _bits(dtype), max(dims), q_len=q_len, form=case.form))
    dot = {"fp32": tl.float32, "fp16": tl.float16, "bf16": tl.bfloat16}[dtype]
    constants: dict[str, Any] = {
        "HEADS": 32, "GROUP": 4, "D": d, "D0": d0, "D1": d1, "DV": d_v, "DV0": dv0, "DV1": dv1,
        "WIDTH": d_v,
        "CAUSAL": case.causal, "WINDOW": case.window, "SOFTCAP": case.bent, "LAST": case.lengths,
        "FOLDED": not case.bent, "MERGE": case.merge, "DOT": dot, "INTERPRETED": False, "BLOCK_M": tile.rows,
        "BLOCK_N": tile.keys,
    }  # fmt: skip
    kinds = dict.fromkeys(("q", "k", "v"), f"*{dtype}") | dict.fromkeys(("out", "lse"), "*fp32")
    kinds |= dict.fromkeys(("scale", "softcap"), "fp32")
    given = {"lengths": case.lengths, "slopes": case.bent}
    given |= dict.fromkeys(LISTS, case.lists)
    types = {"lengths": "*i64", "slopes": "*fp32"}
    for argument, there in given.items():
        if there:
            kinds[argument] = types.get(argument, "*i32")
        else:
            constants[argument] = None
    signature = {x: "constexpr" if x in constants else kinds.get(x, "i32") for x in prefill_kernel.arg_names}
    what = f"{dtype}, {d} x {d_v}, {name}{', few queries' if q_len <= FEW else ''}: {tuple(tile)}"
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    return Config("prefill", what, prefill_kernel, signature, constants, options)
