"""The rate of float32 multiply-adds: the other lower bound of attention's time, beside reading keys and values."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from platform import machine

import llvmlite.binding as llvm
import torch

from attention.local import compiled_attention

LANES = {"avx512": 16, "avx2": 8, "baseline": 4}
"""Kernels of attention/kernels, best first, and how many float32 their vectors hold."""
FEATURES = {"avx512": "+avx512f,+avx2,+fma", "avx2": "+avx2,+fma", "baseline": ""}
"""What LLVM may use for them on x86-64."""
CHAINS, FEW_CHAINS = 24, 12
"""Sums that do not wait for each other: more than latency times units; the fewer where there are 16 registers."""
TURNS = 2_000_000
"""Of the loop in one call, 4 ms and more."""


class MultiplyAdds:
    """A call that does `count` multiply-adds, equally many on each of `torch.get_num_threads()` threads.

    Vectors are those of the kernel for `processor` (None: the best that runs here), independent, in registers. Without
    FMA a product and a sum are one multiply-add, as in the kernel.
    """

    def __init__(self, processor: str | None) -> None:
        name = processor or best_processor()
        lanes, threads = LANES[name], torch.get_num_threads()
        has_fma = name != "baseline" or machine() == "aarch64"
        chains = CHAINS if name == "avx512" or machine() == "aarch64" else FEW_CHAINS
        self._engine = compiled(loop_text(lanes, chains, has_fma), FEATURES[name] if machine() == "x86_64" else "")
        address = self._engine.get_function_address("multiply_adds")
        self.loop = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64)(address)
        self.count = TURNS * chains * lanes * threads
        self._others = [TURNS] * (threads - 1)
        self._pool = ThreadPoolExecutor(threads)

    def __call__(self) -> None:
        """Run them; ctypes gives up the GIL meanwhile."""
        started = [self._pool.submit(self.loop, turns) for turns in self._others]
        self.loop(TURNS)
        for one in started:
            one.result()


def best_processor() -> str:
    """Return the name of the best kernel that this machine runs."""
    kernel = compiled_attention._kernel()
    arrays = [torch.zeros(1, 1, 1, 1)] * 4 + [torch.zeros(1, 1, 1)]
    for name in LANES if kernel is not None else ():
        try:
            kernel.attend(*[x.__dlpack__() for x in arrays], 1.0, processor=name)
        except ValueError:
            continue
        return name
    raise SystemExit("decode.py --local: the compiled kernel is not built here; run make setup")


def loop_text(lanes: int, chains: int, has_fma: bool) -> str:
    """Return LLVM's text of a loop of x <- x / 2 + 1 on vectors, which returns one of all numbers added up."""
    vector, half, one = (
        f"<{lanes} x float>",
        *("<" + ", ".join([f"float {x}"] * lanes) + ">" for x in ("5.0e-1", "1.0")),
    )
    starts = [f"%x{i} = phi {vector} [ zeroinitializer, %entry ], [ %y{i}, %loop ]" for i in range(chains)]
    fma = f"@llvm.fma.v{lanes}f32"
    steps = [f"%y{i} = call {vector} {fma}({vector} %x{i}, {vector} {half}, {vector} {one})" for i in range(chains)]
    if not has_fma:
        products = [f"%p{i} = fmul {vector} %x{i}, {half}" for i in range(chains)]
        steps = products + [f"%y{i} = fadd {vector} %p{i}, {one}" for i in range(chains)]
    sums = [f"%s{i} = fadd {vector} {'%y0' if i == 1 else f'%s{i - 1}'}, %y{i}" for i in range(1, chains)]
    lines = [
        f"declare {vector} {fma}({vector}, {vector}, {vector})",
        "define float @multiply_adds(i64 %turns) {",
        *("entry:", "br label %loop"),
        *("loop:", "%turn = phi i64 [ 0, %entry ], [ %next, %loop ]", *starts, *steps),
        *("%next = add i64 %turn, 1", "%more = icmp slt i64 %next, %turns", "br i1 %more, label %loop, label %done"),
        *("done:", *sums, f"%sum = extractelement {vector} %s{chains - 1}, i32 0", "ret float %sum", "}"),
    ]
    return "\n".join(lines)


def compiled(text: str, features: str) -> llvm.ExecutionEngine:
    """Return an engine that has the functions of LLVM's text as machine code; to call them it must live."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple().create_target_machine(features=features, opt=3)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), target)
    engine.finalize_object()
    return engine
