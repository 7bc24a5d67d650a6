"""Device code inside a shared library: the fat binaries of CUDA, listed and cut down to one architecture.

A fat binary is a header (magic, version, header bytes, bytes of all entries) and entries one after the other, each a
header and a payload: PTX or a cubin (an ELF file) for one architecture. NVIDIA does not document the layout; the fields
here are those that public studies of the format agree on, and tests compare them with libraries of nvcc. A library
refers to a fat binary by its beginning alone, so that entries may move within it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

MAGIC = 0xBA55ED50
CONTAINER = struct.Struct("<IHHQ")
"""Magic, version, bytes of this header, bytes of the entries."""
ENTRY = struct.Struct("<HHIQIIHHI")
"""Kind, version, bytes of this header, bytes of the payload with padding and without, offset of options, minor and
major version of the format, architecture (90 for sm_90)."""
PTX, CUBIN = 1, 2
SECTIONS = (".nv_fatbin", "__nv_relfatbin")
"""Where libraries have them: linked device code, and relocatable code beside it."""
DEBUG = ".debug_"
_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")


class Section(NamedTuple):
    """A section of an ELF file.

    Attributes:
        offset: Bytes from the file's beginning.
        size: Bytes.
    """

    name: str
    offset: int
    size: int


class Entry(NamedTuple):
    """One piece of device code.

    Attributes:
        kind: `PTX`, `CUBIN`, or another number.
        arch: 90 for sm_90.
        offset: Of its header, bytes from the file's beginning.
        size: Bytes of header and payload.
    """

    kind: int
    arch: int
    offset: int
    size: int


class Container(NamedTuple):
    """A fat binary.

    Attributes:
        offset: Of its header, bytes from the file's beginning.
        header_size: Bytes of its header.
        entries: In their order.
    """

    offset: int
    header_size: int
    entries: tuple[Entry, ...]

    @property
    def end(self) -> int:
        """Offset behind its last entry."""
        last = self.entries[-1] if self.entries else None
        return last.offset + last.size if last else self.offset + self.header_size


def sections(library: bytes | bytearray) -> list[Section]:
    """Return the sections of a 64-bit little-endian ELF file.

    Raises:
        ValueError: It is none.
    """
    if len(library) < _ELF_HEADER.size or library[:6] != b"\x7fELF\x02\x01":
        raise ValueError("expected a 64-bit little-endian ELF file, such as libnccl.so.2")
    header = _ELF_HEADER.unpack_from(library)
    table, item, count, names_at = header[6], header[11], header[12], header[13]
    rows = [_SECTION.unpack_from(library, table + place * item) for place in range(count)]
    texts = rows[names_at][4]
    found = []
    for row in rows:
        start = texts + row[0]
        found.append(Section(library[start : library.index(0, start)].decode(), row[4], row[5]))
    return found


def containers(library: bytes | bytearray) -> Iterator[Container]:
    """Yield every fat binary of a library, in the order of the file.

    Raises:
        ValueError: No ELF file, or a fat binary that does not end where its header says.
    """
    magic = MAGIC.to_bytes(4, "little")
    for section in sections(library):
        if section.name not in SECTIONS:
            continue
        at, end = section.offset, section.offset + section.size
        while (at := library.find(magic, at, end)) >= 0:
            yield _container(library, at, end)
            at += CONTAINER.unpack_from(library, at)[2] + CONTAINER.unpack_from(library, at)[3]


def _container(library: bytes | bytearray, at: int, section_end: int) -> Container:
    _, _, header_size, size = CONTAINER.unpack_from(library, at)
    place, end = at + header_size, at + header_size + size
    if header_size < CONTAINER.size or end > section_end:
        raise ValueError(f"fat binary at {at:#x}: ends at {end:#x}, beyond its section's end {section_end:#x}")
    entries = []
    while place < end:
        kind, _, entry_header, payload, *_, arch = ENTRY.unpack_from(library, place)
        if entry_header < ENTRY.size or place + entry_header + payload > end:
            raise ValueError(
                f"fat binary at {at:#x}: its entry at {place:#x} does not fit, expected to end by {end:#x}"
            )
        entries.append(Entry(kind, arch, place, entry_header + payload))
        place += entry_header + payload
    return Container(at, header_size, tuple(entries))


def chosen(entries: tuple[Entry, ...], arch: int) -> tuple[Entry, ...]:
    """Return the cubins that a GPU of this architecture runs: of its major version the highest up to its own.

    Of one that is compiled twice (plainly and for a family) both. Empty: it would run none of them as they are.
    """
    able = [one for one in entries if one.kind == CUBIN and one.arch // 10 == arch // 10 and one.arch <= arch]
    best = max((one.arch for one in able), default=None)
    return tuple(one for one in able if one.arch == best)


def keep_only(library: bytearray, arch: int) -> int:
    """Cut every fat binary of a library down to what one architecture runs, in place; return the bytes cut out.

    What stays moves to the front of its fat binary, whose header then says the smaller size; behind it are zeros, so
    that no other address changes. A fat binary without a cubin for the architecture stays whole: the driver finds in it
    what it found before, PTX that it compiles, or nothing.
    """
    removed = 0
    for container in list(containers(library)):
        kept = chosen(container.entries, arch)
        if not kept:
            continue
        packed = b"".join(bytes(library[one.offset : one.offset + one.size]) for one in kept)
        first, rest = container.offset + container.header_size, container.end
        cut = rest - first - len(packed)
        library[first:rest] = packed + bytes(cut)
        struct.pack_into("<Q", library, container.offset + 8, len(packed))
        removed += cut
    return removed


def blank_debug(library: bytearray) -> int:
    """Write zeros over the sections that only debuggers read, in place; return their bytes."""
    found = [one for one in sections(library) if one.name.startswith(DEBUG)]
    for section in found:
        library[section.offset : section.offset + section.size] = bytes(section.size)
    return sum(section.size for section in found)
