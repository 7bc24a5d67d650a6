"""An NCCL that was brought along: a folder with the library, or with the wheel that holds it, whole or in parts.

NCCL takes several ranks on one GPU from 2.30 on, which torch and CuPy may not have yet. The wheels nvidia-nccl-cu12 and
nvidia-nccl-cu13 are large; `split -b 60M nvidia_nccl_cu13-*.whl nccl.whl.` makes parts that are joined here.

Whoever is loaded first wins, since the library's name is the same everywhere: with LD_PRELOAD that is this one, before
torch's and CuPy's own.
"""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

LIBRARY = "libnccl.so.2"


def library_in(folder: Path, scratch: Path) -> Path:
    """The library; taken out of the wheel into `scratch` where there is only that.

    Raises:
        FileNotFoundError: There is neither.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"NCCL_DIR={folder}: no such folder")
    found = next(folder.rglob(LIBRARY), None)
    if found is not None:
        return found.resolve()
    parts = sorted(folder.glob("*.whl")) or sorted(folder.glob("*.whl.*"))
    if not parts:
        raise FileNotFoundError(f"NCCL_DIR={folder}: expected {LIBRARY}, or a wheel *.whl, or its parts *.whl.*")
    wheel, made = scratch / "nccl.whl", scratch / LIBRARY
    with wheel.open("wb") as whole:
        for part in parts if parts[0].suffix != ".whl" else parts[-1:]:
            with part.open("rb") as one:
                shutil.copyfileobj(one, whole)
    with zipfile.ZipFile(wheel) as archive:
        name = next((name for name in archive.namelist() if name.endswith(f"/{LIBRARY}")), None)
        if name is None:
            raise FileNotFoundError(f"NCCL_DIR={folder}: the wheel has no {LIBRARY}")
        with archive.open(name) as packed, made.open("wb") as library:
            shutil.copyfileobj(packed, library)
    wheel.unlink()
    return made.resolve()
