"""Fat binaries: what is in them, what one architecture runs, and what is left where the others are cut out."""

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

PTX, CUBIN = 1, 2
NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


def entry(kind, arch, payload, header=64):
    """One piece of device code, padded to 8 bytes as nvcc's are."""
    padded = payload.ljust(-(-len(payload) // 8) * 8, b"\0")
    head = struct.pack("<HHIQIIHHI", kind, 0x101, header, len(padded), len(payload), 0, 8, 1, arch)
    return head.ljust(header, b"\0") + padded


def container(*entries):
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def elf(**sections):
    """A shared library of these sections, by name with __ for a dot."""
    named = {"": b"", **{name.replace("__", ".", 1): data for name, data in sections.items()}}
    names = b"".join(name.encode() + b"\0" for name in (*named, ".shstrtab"))
    named[".shstrtab"] = names
    file, rows, at = bytearray(64), [], 0
    for name, data in named.items():
        rows.append(struct.pack("<IIQQQQIIQQ", at, 1, 0, 0, len(file), len(data), 0, 0, 8, 0))
        file += data
        at += len(name) + 1
    table = len(file)
    file += b"".join(rows)
    head = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 0, table, 0, 64, 56, 0, 64, len(rows), len(rows) - 1
    )
    file[: len(head)] = head
    return file


FOR_90, FAMILY = b"cubin of 9.0, " * 3, b"family code"
FIRST = container(
    entry(CUBIN, 80, b"cubin of 8.0"),
    entry(CUBIN, 90, FOR_90),
    entry(PTX, 90, b"ptx of 9.0"),
    entry(CUBIN, 100, FAMILY, header=112),
    entry(PTX, 120, b"ptx of 12.0", header=96),
)
OTHERS = container(entry(CUBIN, 100, b"not for 9.0"), entry(PTX, 75, b"ptx of 7.5"))
LAST = container(entry(CUBIN, 89, b"cubin of 8.9"), entry(CUBIN, 90, b"again 9.0"))


def library():
    return elf(__text=b"code of the host", __nv_fatbin=FIRST + OTHERS + bytes(8) + LAST, __debug_info=b"for debuggers")


def test_what_is_in_a_library(tools):
    found = list(tools.fatbin.containers(library()))
    assert [[(one.kind, one.arch) for one in each.entries] for each in found] == [
        [(2, 80), (2, 90), (1, 90), (2, 100), (1, 120)],
        [(2, 100), (1, 75)],
        [(2, 89), (2, 90)],
    ]


def test_one_architecture_is_left(tools):
    """In its place, whole and first; everything else is zeros, and the host's code and all addresses are as before."""
    before, after = library(), library()
    cut = tools.fatbin.keep_only(after, 90)
    one, others, last = tools.fatbin.containers(after)
    assert [(e.kind, e.arch) for e in one.entries + last.entries] == [(2, 90)] * 2
    assert [x.offset for x in (one, others, last)] == [x.offset for x in tools.fatbin.containers(before)]
    assert bytes(after[one.offset + 16 : one.end]) == entry(CUBIN, 90, FOR_90)
    gone = bytes(after[one.end : others.offset])
    assert not any(gone) and cut == len(gone) + len(entry(CUBIN, 89, b"cubin of 8.9")) and len(after) == len(before)
    assert bytes(after[others.offset : others.offset + len(OTHERS)]) == OTHERS  # the driver finds there what it found
    assert after[: one.offset] == before[: one.offset]
    assert bytes(after).endswith(bytes(before)[bytes(before).index(b"for debuggers") :])


@pytest.mark.parametrize(
    ("arch", "left"), [(80, [80]), (86, [80]), (90, [90]), (100, [100]), (103, [100]), (120, []), (75, [])]
)
def test_cubins_of_a_major_version_run_on_later_minor_ones(tools, arch, left):
    entries = next(tools.fatbin.containers(elf(__nv_fatbin=FIRST))).entries
    assert [(one.kind, one.arch) for one in tools.fatbin.chosen(entries, arch)] == [(CUBIN, one) for one in left]


def test_both_forms_of_one_architecture_stay(tools):
    made = elf(
        __nv_fatbin=container(entry(CUBIN, 100, b"plain"), entry(CUBIN, 100, FAMILY, 112), entry(PTX, 100, b"x"))
    )
    tools.fatbin.keep_only(made, 100)
    assert len(next(tools.fatbin.containers(made)).entries) == 2


def number(value):
    return struct.pack("<Q", value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"\x7fELF", b"MZ", "expected a 64-bit little-endian ELF file"),
        (number(len(FIRST) - 16), number(1 << 30), "beyond its section's end"),
        (number(len(FOR_90) + 6), number(1 << 20), "its entry at 0x[0-9a-f]+ does not fit"),
    ],
)
def test_damaged_files_are_refused(tools, old, new, words):
    whole = elf(__nv_fatbin=FIRST)
    assert old in whole
    with pytest.raises(ValueError, match=words):
        list(tools.fatbin.containers(whole.replace(old, new, 1)))


@pytest.mark.long
@pytest.mark.skipif(NVCC is None, reason="no nvcc")
def test_a_library_of_nvcc(tools, tmp_path):
    """It is read as it is, loads when it is cut, and NVIDIA's own tool finds in it what is left."""
    source, made = tmp_path / "one.cu", tmp_path / "one.so"
    source.write_text('__global__ void one(float *x) { *x = 1; }\nextern "C" int answer() { return 42; }\n')
    codes = [f"-gencode=arch=compute_{x},code=sm_{x}" for x in (80, 90)] + ["-gencode=arch=compute_90,code=compute_90"]
    command = [NVCC, "--shared", "-Xcompiler", "-fPIC", "-cudart", "none", *codes, "-o", str(made), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    whole = bytearray(made.read_bytes())
    found = sorted((one.kind, one.arch) for each in tools.fatbin.containers(whole) for one in each.entries)
    assert found == [(PTX, 90), (CUBIN, 80), (CUBIN, 90)]
    assert tools.fatbin.keep_only(whole, 90)
    made.write_bytes(whole)
    triton = pytest.importorskip("triton")
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    said = subprocess.run([str(tool), "-all", "-lelf", "-lptx", str(made)], capture_output=True, text=True, timeout=60)
    assert "sm_90.cubin" in said.stdout and "sm_80" not in said.stdout and ".ptx" not in said.stdout
