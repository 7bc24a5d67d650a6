"""How many programs of a compiled kernel a multiprocessor holds at once.

As the vendors compute it: NVIDIA in `cuda_occupancy.h` of the CUDA Toolkit, AMD in LLVM (`AMDGPUBaseInfo.cpp`, also
behind `llvm-calc-occupancy`). Each constant says where its value is from.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from attention.gpu.limits import generation_of

PARTITIONS = 4
"""Of a multiprocessor, compute capabilities 7.x to 12.x (cuda_occupancy.h, cudaOccSubPartitionsPerMultiprocessor);
SIMDs of a compute unit before gfx10 (LLVM, getEUsPerCU)."""
REGISTER_UNIT = 8
"""Unit in which registers of a thread are allocated: 256 of a warp, compute capabilities 3.x to 12.x
(cuda_occupancy.h, cudaOccRegAllocationGranularity); 8 of a lane, gfx90a, gfx942 and gfx950 (LLVM,
getVGPRAllocGranule)."""
MOST_PROGRAMS = 16
"""Programs that every GPU holds if there is room: compute capability 8.6 holds 16, 8.0, 9.0 and 10.0 hold 32 (Tuning
Guides, "Occupancy"), 8.9 and 12.0 no fewer than 16; AMD's 16 of more than one wave (LLVM, getMaxWorkGroupsPerCU)."""
AMD_REGISTERS, AMD_WAVES = 512, 8
"""Of a lane of a SIMD, accumulation registers among them, and waves of a SIMD: gfx90a, gfx942 and gfx950 (LLVM,
getTotalNumVGPRs and getMaxWavesPerEU)."""
RESERVED_BYTES = {"cuda": 1024, "hip": 0}
"""Shared memory that each program takes beside its own (Ampere, Ada, Hopper and Blackwell Tuning Guides, "Unified
Shared Memory/L1/Texture Cache")."""
SHARED_UNIT_BYTES = {"cuda": 128, "hip": 1}
"""Unit in which shared memory is allocated (cuda_occupancy.h, cudaOccSMemAllocationGranularity, compute capabilities
8.x to 12.x); those of AMD are not known here."""


class Multiprocessor(NamedTuple):
    """What programs share.

    Attributes:
        registers: 32-bit registers of a lane of a partition.
        warps: Warps that a partition holds at most.
        shared_bytes: Shared memory of all programs.
        reserved_bytes: Shared memory that each program takes beside its own.
        shared_unit_bytes: What each takes is a multiple of this.
    """

    registers: int
    warps: int
    shared_bytes: int
    reserved_bytes: int
    shared_unit_bytes: int = 1


def multiprocessor_of(arch: str, properties: Any, hip: bool) -> Multiprocessor | None:
    """Return the multiprocessors of a device; None where its facts are not known.

    torch gives `shared_memory_per_multiprocessor` for AMD's GPUs since pytorch/pytorch#170572 (December 2025): there it
    is the LDS, 64 KiB on CDNA 2 and 3 and 160 KiB on CDNA 4 (ROCm documentation, "AMD GPU specifications").
    `properties` are those of `torch.cuda.get_device_properties`; `hip`: torch is built for AMD.
    """
    shared = getattr(properties, "shared_memory_per_multiprocessor", None)
    if hip:
        if generation_of(arch) != "gfx9" or not shared:
            return None
        return Multiprocessor(AMD_REGISTERS, AMD_WAVES, shared, RESERVED_BYTES["hip"], SHARED_UNIT_BYTES["hip"])
    registers = getattr(properties, "regs_per_multiprocessor", None)
    threads = getattr(properties, "max_threads_per_multi_processor", None)
    if not (shared and registers and threads):
        return None
    lanes = PARTITIONS * int(properties.warp_size)
    return Multiprocessor(
        registers // lanes, threads // lanes, shared, RESERVED_BYTES["cuda"], SHARED_UNIT_BYTES["cuda"]
    )


def programs_held(multiprocessor: Multiprocessor, registers: int, shared_bytes: int, num_warps: int) -> int:
    """Return how many programs of a kernel, with registers of a thread, a multiprocessor holds, 1 at least."""
    taken = -(-max(registers, 1) // REGISTER_UNIT) * REGISTER_UNIT
    by_registers = PARTITIONS * min(multiprocessor.warps, multiprocessor.registers // taken) // num_warps
    unit = multiprocessor.shared_unit_bytes
    by_shared = multiprocessor.shared_bytes // max(1, -(-(shared_bytes + multiprocessor.reserved_bytes) // unit) * unit)
    return max(1, min(by_registers, by_shared, MOST_PROGRAMS))
