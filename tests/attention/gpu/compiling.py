"""Compiles the prefill kernel for GPUs that are not here; run as a program it prints what each build takes, as JSON.

A process of its own, since the tests of this directory interpret kernels:

    python -m tests.attention.gpu.compiling BACKEND ARCH [all]
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

POINTERS = {
    "q": "*bf16",
    "k": "*bf16",
    "v": "*bf16",
    "out": "*fp32",
    "lse": "*fp32",
    "lengths": "*i64",
    "slopes": "*fp32",
}
POINTERS |= dict.fromkeys(("cu_q", "cu_k", "low", "high", "queries", "keys_at", "visits", "counts"), "*i32")
LISTS = {"low", "high", "queries", "keys_at", "visits", "counts"}
STRIDES = re.compile(r"(q|k|v|out)_(batch|head|row|key)")

KINDS = {
    "causal": {},
    "window, packed, merged": {"window": True, "packed": True, "merge": True},
    "softcap, slopes, lengths, merged": {"bent": True, "lengths": True, "merge": True},
    "lists, merged": {"lists": True, "merge": True},
    "lists, softcap, slopes, merged": {"lists": True, "bent": True, "merge": True},
}


def build(
    target, dtype, d, d_v, tile, *, window=False, bent=False, lists=False, packed=False, lengths=False, merge=False
):
    """One build of the kernel."""
    import triton
    import triton.language as tl
    from triton.compiler import ASTSource

    from attention.gpu.prefill import _pieces
    from attention.gpu.prefill_kernel import prefill_kernel

    values = {
        **{"HEADS": 32, "GROUP": 4, "CAUSAL": not lists, "WINDOW": window, "SOFTCAP": bent, "LAST": packed},
        **{"FOLDED": not bent, "MERGE": merge, "INTERPRETED": False, "BLOCK_M": tile.rows, "BLOCK_N": tile.keys},
        **{"DOT": tl.float32 if dtype == "fp32" else tl.bfloat16, **_pieces("D", d), **_pieces("DV", d_v)},
    }
    absent = set() if bent else {"slopes"}
    absent |= set() if lists else LISTS
    absent |= set() if packed else {"cu_q", "cu_k"}
    absent |= set() if lengths else {"lengths"}
    values |= dict.fromkeys(absent)
    signature, aligned = {}, {}
    for place, name in enumerate(prefill_kernel.arg_names):
        signature[name] = "constexpr" if name in values else POINTERS.get(name, "i32")
        if name in ("scale", "softcap"):
            signature[name] = "fp32"
        elif name in ("q", "k", "v") and dtype == "fp32":
            signature[name] = "*fp32"
        if signature[name].startswith("*") or STRIDES.fullmatch(name):
            aligned[(place,)] = [["tt.divisibility", 16]]
    constants = {(prefill_kernel.arg_names.index(name),): value for name, value in values.items()}
    source = ASTSource(prefill_kernel, signature, constants, aligned)
    return triton.compile(source, target=target, options={"num_warps": tile.warps, "num_stages": tile.stages})


def spilled(built):
    """Bytes that registers spill, and bytes of shared memory."""
    if "ptx" not in built.asm:
        listing = built.asm["amdgcn"]
        found = [
            int(re.search(rf"\.{name}:\s+(\d+)", listing)[1])
            for name in ("vgpr_spill_count", "private_segment_fixed_size")
        ]
        return max(found), built.metadata.shared
    import triton

    text = built.asm["ptx"]
    arch = re.search(r"\.target (\w+)", text)[1]
    tools = Path(triton.__file__).parent / "backends/nvidia/bin"
    newest = tools / "ptxas-blackwell"
    tool = newest if newest.exists() and int(re.search(r"\d+", arch)[0]) >= 90 else tools / "ptxas"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(text)
        command = [str(tool), "-v", "--gpu-name", arch, str(path), "-o", os.devnull]
        said = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True).stderr
    return int(re.search(r"(\d+) bytes stack frame", said)[1]), built.metadata.shared


def main():
    from triton.backends.compiler import GPUTarget

    from attention.gpu.archs import arch_of
    from attention.gpu.prefill_table import WIDTHS, problem_of, tile_for

    backend, arch, *more = sys.argv[1:]
    target = GPUTarget(backend, int(arch), 32) if backend == "cuda" else GPUTarget(backend, arch, 64)
    builds = [
        (dtype, width, q_len, kind)
        for dtype in ("bf16", "fp32")
        for width in (WIDTHS[:4] if more else WIDTHS[1:2])
        for q_len in ((64, 1 << 20) if dtype == "bf16" else (1 << 20,))
        for kind in KINDS
    ]
    for dtype, width, q_len, kind in builds:
        bits, lists = (32 if dtype == "fp32" else 16), KINDS[kind].get("lists", False)
        arch = arch_of(target.backend, target.arch)
        tile = tile_for(problem_of(arch, bits, width, q_len=q_len, lists=lists))
        spills, shared = spilled(build(target, dtype, width, width, tile, **KINDS[kind]))
        name = f"{dtype} {width} {kind} {tuple(tile)}"
        print(json.dumps({"build": name, "spilled_bytes": spills, "shared_bytes": shared}), flush=True)


if __name__ == "__main__":
    main()
