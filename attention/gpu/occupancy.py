"""How many programs of a compiled kernel a multiprocessor holds at once.

As the vendors' occupancy calculators compute it: CUDA's "Occupancy Calculator" (four partitions of a multiprocessor,
registers of a warp in units of 8 a thread, 1 KiB of shared memory reserved for each block, CUDA C programming guide,
compute capabilities 8.0 to 12.x); AMD's CDNA 2 and CDNA 3 instruction set guides (four SIMDs of a compute unit, 512
vector registers a lane, in units of 8, up to 8 waves).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from attention.gpu.archs import generation_of

PARTITIONS = 4
REGISTER_UNIT = 8
"""Registers of a thread are given in units of so many."""
MOST_PROGRAMS = 16
"""Every GPU holds so many, if there is room."""
AMD_REGISTERS, AMD_WAVES = 512, 8
RESERVED_BYTES = {"cuda": 1024, "hip": 0}
"""Shared memory that each program takes beside its own."""


class Multiprocessor(NamedTuple):
    """What programs share.

    Attributes:
        registers: 32-bit registers of a lane of a partition.
        warps: Warps that a partition holds at most.
        shared_bytes: Shared memory of all programs.
        reserved_bytes: What each takes of it beside its own.
    """

    registers: int
    warps: int
    shared_bytes: int
    reserved_bytes: int


def multiprocessor_of(arch: str, properties: Any, hip: bool) -> Multiprocessor | None:
    """The multiprocessors of a device; None where its facts are not known.

    Args:
        arch: Such as "sm_90" or "gfx942".
        properties: What `torch.cuda.get_device_properties` says.
        hip: Whether torch is built for AMD.
    """
    shared = getattr(properties, "shared_memory_per_multiprocessor", None)
    if hip:
        if generation_of(arch) != "gfx9" or not shared:
            return None
        return Multiprocessor(AMD_REGISTERS, AMD_WAVES, shared, RESERVED_BYTES["hip"])
    registers = getattr(properties, "regs_per_multiprocessor", None)
    threads = getattr(properties, "max_threads_per_multi_processor", None)
    if not (shared and registers and threads):
        return None
    lanes = PARTITIONS * int(properties.warp_size)
    return Multiprocessor(registers // lanes, threads // lanes, shared, RESERVED_BYTES["cuda"])


def programs_held(there: Multiprocessor, registers: int, shared_bytes: int, num_warps: int) -> int:
    """How many programs of a kernel a multiprocessor holds, 1 at least.

    Args:
        there: The multiprocessor.
        registers: Of a thread.
        shared_bytes: Of a program.
        num_warps: Of a program.
    """
    taken = -(-max(registers, 1) // REGISTER_UNIT) * REGISTER_UNIT
    by_registers = PARTITIONS * min(there.warps, there.registers // taken) // num_warps
    by_shared = there.shared_bytes // max(1, shared_bytes + there.reserved_bytes)
    return max(1, min(by_registers, by_shared, MOST_PROGRAMS))
