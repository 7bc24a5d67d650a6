"""One Triton kernel compiled for one GPU that need not be there: its registers, spills, shared memory and code size."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

WARP = {"cuda": 32, "hip": 64}
TARGETS = {
    "sm_80": ("cuda", 80),
    "sm_89": ("cuda", 89),
    "sm_90": ("cuda", 90),
    "sm_100": ("cuda", 100),
    "gfx90a": ("hip", "gfx90a"),
    "gfx942": ("hip", "gfx942"),
}
"""Backend and arch of each GPU that is looked at: A100, RTX 4090 and L4, H100 and H200, B200, MI250X, MI300X."""
SHARED_BYTES = {"sm_80": 163, "sm_89": 99, "sm_90": 227, "sm_100": 227, "gfx90a": 64, "gfx942": 64}
SHARED_BYTES = {arch: kib << 10 for arch, kib in SHARED_BYTES.items()}
"""What one program may have: CUDA C programming guide, compute capabilities; AMD CDNA instruction set guides."""


class Config(NamedTuple):
    """One way to compile a kernel.

    Attributes:
        kernel: Its name.
        what: The case in words: dtypes and sizes.
        function: The jitted function.
        signature: Type of each argument by name: "*fp32", "i32", "constexpr"; of a tuple those of its parts.
        constants: Values of those that are constants.
        options: num_warps, num_stages.
    """

    kernel: str
    what: str
    function: Any
    signature: Mapping[str, str | tuple[str, ...]]
    constants: Mapping[str, Any]
    options: Mapping[str, Any]


class Resources(NamedTuple):
    """What one program of a compiled kernel takes.

    Attributes:
        registers: 32-bit registers of a thread; on AMD vector registers.
        spills: Bytes (AMD: registers) that do not fit, and go to memory.
        shared_bytes: Shared memory.
        code_bytes: Machine code as a file.
        text_bytes: PTX or AMDGCN assembly.
    """

    registers: int
    spills: int
    shared_bytes: int
    code_bytes: int
    text_bytes: int


def compiled(config: Config, arch: str) -> Resources:
    """Compiles for an arch of `TARGETS`; needs no GPU.

    Raises:
        RuntimeError: The assembler refuses it, or does not say what it takes.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    backend, number = TARGETS[arch]
    names = config.function.arg_names
    constants = {(names.index(name),): value for name, value in config.constants.items()}
    aligned = [["tt.divisibility", 16]]  # as torch's allocations and dense strides are
    attributes = {
        place: aligned
        for name, given in config.signature.items()
        for place, kind in _places(names.index(name), given)
        if kind.startswith("*") or (kind == "i32" and name.endswith(STRIDES))
    }
    ordered = {name: config.signature[name] for name in names}
    source = ASTSource(config.function, ordered, constants, attributes)
    target = GPUTarget(backend, number, WARP[backend])
    made = triton.compile(source, target=target, options=dict(config.options))
    return _nvidia(made) if backend == "cuda" else _amd(made)


def _places(index: int, given: str | tuple[str, ...]) -> list[tuple[tuple[int, ...], str]]:
    """Place and type of an argument, or of the parts of one that is a tuple."""
    if isinstance(given, str):
        return [((index,), given)]
    return [((index, part), kind) for part, kind in enumerate(given)]


STRIDES = ("_batch", "_head", "_key", "_row", "_token", "_stride")
"""Ends of the names of arguments that are strides, which are multiples of 16 in common layouts."""


def _nvidia(made: Any) -> Resources:
    ptx = made.asm["ptx"]
    gpu = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
    if gpu is None:
        raise RuntimeError("no .target in the PTX")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.ptx")
        file.write_text(ptx)
        for assembler in _assemblers():
            command = [str(assembler), "-v", "--gpu-name", gpu[1], str(file), "-o", str(file.with_suffix(".cubin"))]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
            if done.returncode == 0:
                break
    registers = re.search(r"Used (\d+) registers", done.stderr)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
    if done.returncode or registers is None or spills is None:
        raise RuntimeError(f"ptxas for {gpu[1]}: {done.stderr.strip()[-500:] or done.returncode}")
    return Resources(int(registers[1]), int(spills[1]), made.metadata.shared, len(made.asm["cubin"]), len(ptx))


def _assemblers() -> list[Path]:
    """Every ptxas that Triton brings, the newest first: which of them a GPU gets differs between its versions."""
    import triton

    folder = Path(triton.__file__).parent / "backends/nvidia/bin"
    return [folder / name for name in ("ptxas-blackwell", "ptxas") if (folder / name).exists()]


def _amd(made: Any) -> Resources:
    text = made.asm["amdgcn"]

    def told(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", text)
        if found is None:
            raise RuntimeError(f"no .{name} in the assembly")
        return int(found[1])

    # scalar registers that spill go to lanes of vector registers, not to memory
    spills = told("vgpr_spill_count") + told("private_segment_fixed_size")
    return Resources(told("vgpr_count"), spills, made.metadata.shared, len(made.asm["hsaco"]), len(text))
