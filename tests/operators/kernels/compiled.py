"""Compile the kernels for a GPU that need not be there: `python -m tests.operators.kernels.compiled TARGET FOLDER`.

Prints a JSON object {name: {"spills": bytes or registers, "barrier": bool, "fused": bool,
"log2_e": whether the constant is there in float64}}. A program of its own,
since kernels are interpreted in the tests' process.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import topocomm
from attention import LOGSUMEXP
from attention.gpu.gpu_merge import states_kernel
from topocomm.operators.kernels import gpu
from topocomm.operators.kernels.gpu_kernel import fold_kernel

ALIGNED = [["tt.divisibility", 16]]
CASES = {  # operator, dtype, rows, operands
    "sum": (topocomm.SUM, "f4", 1 << 20, 8),
    "sum 16 bits": (topocomm.SUM, "bfloat16", 1 << 20, 8),
    "prod complex": (topocomm.PROD, "c8", 4096, 2),
    "max bool": (topocomm.MAX, "?", 4096, 2),
    "argmax": (topocomm.ARGMAX, "f2", 1 << 20, 4),
    "logaddexp": (topocomm.LOGADDEXP, "f8", 1 << 20, 8),
    "welford": (topocomm.WELFORD, "f4", 1 << 20, 8),
    "welford loop": (topocomm.WELFORD, "f8", 1 << 20, 20),
    "affine": (topocomm.AFFINE, "c16", 4096, 3),
    "topk": (topocomm.TOPK(8), "f4", 1 << 20, 8),
    "affine matrix": (topocomm.AFFINE_MATRIX(16), "f4", 4096, 3),
    "partials": (LOGSUMEXP, "f4", 4096, 8),
    "partials loop": (LOGSUMEXP, "f4", 32, 9),
}


def compiled(kernel, given, constants, options, target):
    """A kernel compiled for arguments of the types `given`; pointers are aligned."""
    place = {name: index for index, name in enumerate(kernel.arg_names)}
    signature = {name: given.get(name, "constexpr") for name in kernel.arg_names}
    hints = {}
    for name, kind in given.items():
        if isinstance(kind, tuple):
            hints.update({(place[name], index): ALIGNED for index in range(len(kind))})
        elif kind.startswith("*"):
            hints[(place[name],)] = ALIGNED
    values = {(place[name],): value for name, value in constants.items()}
    return triton.compile(ASTSource(kernel, signature, values, hints), target=target, options=options)


def fold(operator, dtype, rows, operands, target):
    shapes = {
        f.name: ((rows, *(operator.default_dims[d] for d in f.dims[1:])), f.dtype or np.dtype(dtype))
        for f in operator.fields
    }
    layout = operator.layout(shapes)
    size = -(-layout.packed_bytes(rows) // 64) * 64
    works = [gpu.Work(rows, [size * slot for slot in range(operands)], size * operands)]
    options = dict(gpu.launch_options(operator.triton_combine(layout), layout, works, target.backend))
    launch = {name: options.pop(name) for name in ("num_warps", "enable_fp_fusion", "maxnreg") if name in options}
    given = {
        "buffer": "*u8",
        "targets": ("*u8",) * len(layout.fields),
        "table": "*i64",
        "stride": "i32",
        "tiles": "i32",
    }
    return compiled(fold_kernel, given, options, launch, target)


def states(count, dtype, target):
    given = {"outs": (f"*{dtype}",) * count, "lses": ("*fp32",) * count, "out": "*fp32", "lse": "*fp32", "rows": "i32"}
    constants = {"COUNT": count, "DIM": 128, "WIDTH": 128, "ROWS": 8}
    return compiled(states_kernel, given, constants, {"num_warps": 4, "enable_fp_fusion": False}, target)


LOG2_E = "3FF71547652B82FE"
"""The bits of log2(e) in float64: by way of float32 they would be others."""


def facts(kernel):
    if "ptx" in kernel.asm:
        ptx = kernel.asm["ptx"]
        return {
            "spills": spilled_bytes(ptx),
            "barrier": "bar.sync" in ptx,
            "fused": bool(re.search(r"fma\.rn\.f\d", ptx)),
            "log2_e": LOG2_E in ptx.upper(),
        }
    text = kernel.asm["amdgcn"]
    spills = sum(map(int, re.findall(r"\.[sv]gpr_spill_count:\s+(\d+)", text)))
    return {"spills": spills, "barrier": "s_barrier" in text, "fused": False, "log2_e": None}


def spilled_bytes(ptx):
    source = Path(sys.argv[2]) / "kernel.ptx"
    source.write_text(ptx)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas-blackwell"  # the newest, for older GPUs too
    arch = re.search(r"\.target (\w+)", ptx)[1]
    command = [str(tool), "-v", f"--gpu-name={arch}", str(source), "-o", "/dev/null"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    return sum(map(int, re.findall(r"(\d+) bytes spill", done.stderr)))


if __name__ == "__main__":
    backend, arch = sys.argv[1].split(":")
    chosen = GPUTarget("cuda", int(arch), 32) if backend == "cuda" else GPUTarget("hip", arch, 64)
    found = {name: facts(fold(*case, chosen)) for name, case in CASES.items()}
    found["states"] = facts(states(8, "fp32", chosen))
    found["states 16 bits"] = facts(states(16, "bf16", chosen))
    print(json.dumps(found))
