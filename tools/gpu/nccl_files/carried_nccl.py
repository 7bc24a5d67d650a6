"""An NCCL that was brought along: a folder with the library, with one that slim_nccl.py packed, or with the wheel.

NCCL takes several ranks on one GPU from 2.30 on, which torch and CuPy may not have yet. Packed libraries and wheels may
be cut into parts: `split -b 60M nvidia_nccl_cu13-*.whl nccl.whl.` makes such that are joined here.

Whoever is loaded first wins, since the library's name is the same everywhere: with LD_PRELOAD that is this one, before
torch's and CuPy's own.
"""

from __future__ import annotations

import io
import lzma
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

LIBRARY = "libnccl.so.2"
PACKED = f"{LIBRARY}.xz"


def libraries_in(folder: Path, scratch: Path) -> Iterator[tuple[str, Path]]:
    """Yield (what it is, the library) in the order in which to try: as it lies there, packed, out of the wheel.

    What must be unpacked is unpacked into `scratch` when it is asked for, and not before.

    Raises:
        FileNotFoundError: There is none of these.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"NCCL_DIR={folder}: no such folder")
    plain = next(folder.rglob(LIBRARY), None)
    packed = sorted(folder.glob(f"{PACKED}*"))
    whole, parts = sorted(folder.glob("*.whl")), sorted(folder.glob("*.whl.*"))
    wheel = whole[-1:] or parts
    if plain is None and not packed and not wheel:
        wanted = f"{LIBRARY}, or {PACKED} of slim_nccl.py, or a wheel *.whl, or parts of one of these"
        raise FileNotFoundError(f"NCCL_DIR={folder}: expected {wanted}")
    if plain is not None:
        yield "a library", plain.resolve()
    if packed:
        yield "a packed library", _unpacked(packed, scratch / "packed", _decompress)
    if wheel:
        yield "a wheel", _unpacked(wheel, scratch / "wheel", _from_wheel)


def from_wheel(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return the library of a wheel.

    Raises:
        FileNotFoundError: The wheel has none.
    """
    inside = next((one for one in archive.namelist() if one.endswith(f"/{LIBRARY}")), None)
    if inside is None:
        raise FileNotFoundError(f"{name}: expected a wheel of NCCL, this one has no {LIBRARY}")
    return archive.read(inside)


def _unpacked(parts: list[Path], folder: Path, unpack: Callable[[bytes], bytes]) -> Path:
    """Join parts, unpack them, and write the library into a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / LIBRARY
    library.write_bytes(unpack(b"".join(part.read_bytes() for part in parts)))
    return library.resolve()


def _decompress(packed: bytes) -> bytes:
    return lzma.decompress(packed)


def _from_wheel(wheel: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        return from_wheel(archive, "the wheel")
