"""Cut the library of a wheel of NCCL down to one architecture and compress it, so that it can be brought along.

python tools/gpu/slim_nccl.py WHEEL OUT [--arch sm_90]

In OUT is then libnccl.so.2.xz, cut into parts .00, .01, ... where it is larger than 60 MiB: a folder for NCCL_DIR. The
library is that of the wheel (nvidia-nccl-cu13 of PyPI), but for device code of other architectures (left out) and
sections for debuggers (zeros); code of the host, symbols and addresses are as they were. It lists what is left.
"""

from __future__ import annotations

import argparse
import lzma
import re
import sys
import zipfile
from collections import Counter
from pathlib import Path

from nccl_files.carried_nccl import LIBRARY, PACKED, from_wheel
from nccl_files.fatbin import CUBIN, PTX, blank_debug, chosen, containers, keep_only

PART_BYTES = 60 << 20
KINDS = {PTX: "PTX", CUBIN: "cubin"}


def main() -> int:
    """Cut, compress, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, metavar="WHEEL")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder; made if it is not there")
    parser.add_argument("--arch", type=_arch, default=90, metavar="sm_NN", help="whose code stays (default sm_90)")
    args = parser.parse_args()
    with zipfile.ZipFile(args.wheel) as archive:
        library = bytearray(from_wheel(archive, str(args.wheel)))
    whole = len(library)
    print(listed(library))
    try:
        cut = slimmed(library, args.arch)
    except ValueError as error:
        print(f"{args.wheel}: {error}", file=sys.stderr)
        return 1
    print(f"\nleft:\n{listed(library)}")
    packed = lzma.compress(library)
    files = written(packed, args.out)
    print(f"\n{whole:,} bytes, {cut:,} of them cut out; {len(packed):,} bytes packed: {', '.join(map(str, files))}")
    return 0


def slimmed(library: bytearray, arch: int) -> int:
    """Cut a library down in place; return the bytes that are zeros now.

    Raises:
        ValueError: No device code for the architecture.
    """
    if not any(chosen(one.entries, arch) for one in containers(library)):
        known = sorted({entry.arch for one in containers(library) for entry in one.entries if entry.kind == CUBIN})
        raise ValueError(
            f"no device code that sm_{arch} runs; there is {', '.join(f'sm_{x}' for x in known) or 'none'}"
        )
    return keep_only(library, arch) + blank_debug(library)


def written(packed: bytes, out: Path) -> list[Path]:
    """Write a packed library as one file or as parts; files of an earlier one go."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob(f"{PACKED}*"):
        old.unlink()
    parts = [packed[at : at + PART_BYTES] for at in range(0, len(packed), PART_BYTES)]
    names = [PACKED] if len(parts) == 1 else [f"{PACKED}.{place:02}" for place in range(len(parts))]
    for name, part in zip(names, parts, strict=True):
        (out / name).write_bytes(part)
    return [out / name for name in names]


def listed(library: bytes | bytearray) -> str:
    """Return a line for each kind and architecture of device code: how many entries, how many bytes."""
    count: Counter[tuple[int, int]] = Counter()
    size: Counter[tuple[int, int]] = Counter()
    for container in containers(library):
        for entry in container.entries:
            count[entry.arch, entry.kind] += 1
            size[entry.arch, entry.kind] += entry.size
    lines = (
        f"{KINDS.get(kind, f'kind {kind}')} sm_{arch}: {count[arch, kind]} entries, {size[arch, kind]:,} bytes"
        for arch, kind in sorted(count)
    )
    return "\n".join(lines) or f"{LIBRARY} has no device code"


def _arch(text: str) -> int:
    found = re.fullmatch(r"sm_(\d{2,3})", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected an architecture such as sm_90, got {text!r}")
    return int(found[1])


if __name__ == "__main__":
    sys.exit(main())
