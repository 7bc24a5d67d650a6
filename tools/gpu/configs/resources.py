"""Cross-compilation of one Triton kernel for one GPU: registers, spills, shared memory and code size."""

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
"""Backend and arch of each GPU in the report: A100, RTX 4090 and L4, H100 and H200, B200, MI250X, MI300X."""
SHARED_BYTES = {"sm_80": 163, "sm_89": 99, "sm_90": 227, "sm_100": 227, "gfx90a": 64, "gfx942": 64}
SHARED_BYTES = {arch: kib << 10 for arch, kib in SHARED_BYTES.items()}
"""Limit of shared memory of one program, in bytes: CUDA C programming guide, AMD CDNA instruction set guides."""


class Config(NamedTuple):
    """One way to compile a kernel.

    Attributes:
        kernel: Its name.
        what: The case in words: dtypes and sizes.
        function: The jitted function.
        signature: Type of each argument by name: "*fp32", "i32", "constexpr"; of a tuple a tuple of them.
        constants: Values of those that are constants.
        options: num_warps, num_stages and others that a launch gives.
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
        spills: Bytes of a thread's own memory: registers that do not fit, and arrays.
        moved: Registers that do not fit and go to other registers, on AMD: scalar ones to lanes of vector registers,
            vector ones to accumulation registers.
        shared_bytes: Shared memory.
        code_bytes: Machine code as a file.
        text_bytes: PTX or AMDGCN assembly.
    """

    registers: int
    spills: int
    moved: int
    shared_bytes: int
    code_bytes: int
    text_bytes: int


def compiled(config: Config, arch: str) -> Resources:
    """Compile for an arch of `TARGETS`, without a GPU.

    Raises:
        RuntimeError: The assembler refuses it, or does not say what it takes.
    """
    made = made_for(config, arch)
    return _nvidia(made) if TARGETS[arch][0] == "cuda" else _amd(made)


def made_for(config: Config, arch: str) -> Any:
    """Compile a configuration with Triton; `asm` has the assembly and the machine code."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    backend, number = TARGETS[arch]
    names = config.function.arg_names
    anywhere = {one.name for one in config.function.params if one.do_not_specialize_on_alignment}
    constants = {(names.index(name),): value for name, value in config.constants.items()}
    attributes: dict[tuple[int, ...], Any] = {}
    for name, kind in config.signature.items():
        place = (names.index(name),)
        inside = {place: kind} if isinstance(kind, str) else {(*place, i): x for i, x in enumerate(kind)}
        attributes |= {
            at: ALIGNED
            for at, x in inside.items()
            if name not in anywhere and (x[0] == "*" or (x == "i32" and name.endswith(STRIDES)))
        }
    ordered = {name: config.signature[name] for name in names}
    source = ASTSource(config.function, ordered, constants, attributes)
    return triton.compile(source, target=GPUTarget(backend, number, WARP[backend]), options=dict(config.options))


ALIGNED = [["tt.divisibility", 16]]
"""What torch's allocations and dense strides are."""
STRIDES = ("_batch", "_head", "_key", "_row", "_token", "_stride")
"""Ends of the names of arguments that are strides, which are multiples of 16 in common layouts."""


def _nvidia(made: Any) -> Resources:
    """From the machine code that Triton's assembler made: what is run, not what another assembler would make."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    found = re.search(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)", done.stdout)
    if found is None:
        raise RuntimeError(f"cuobjdump says no resources: {done.stderr.strip()[-500:] or done.stdout[-500:]}")
    registers, stack, local = (int(figure) for figure in found.groups())
    return Resources(registers, stack + local, 0, made.metadata.shared, len(made.asm["cubin"]), len(made.asm["ptx"]))


def _amd(made: Any) -> Resources:
    text = made.asm["amdgcn"]

    def told(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", text)
        if found is None:
            raise RuntimeError(f"no .{name} in the assembly")
        return int(found[1])

    spills, moved = told("private_segment_fixed_size"), told("sgpr_spill_count") + told("vgpr_spill_count")
    return Resources(told("vgpr_count"), spills, moved, made.metadata.shared, len(made.asm["hsaco"]), len(text))
